"""`last_known`: the newest value of a feature that not every frame has, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.clips.frames import ClipFrames, KnownWindow, MissingFrames, OffsetWindow


def of_flags(episodes: dict[int, list[bool]], most: int | None, offsets: list[int]) -> KnownWindow:
    """`episodes` are the flags of each frame, whether it has the feature, by row."""
    runs = [
        (e, i, i + 1) for e, flags in episodes.items() for i, has in enumerate(flags) if not has
    ]
    columns = [np.array(column, np.int64) for column in zip(*runs, strict=True)]
    missing = MissingFrames.of(*columns) if runs else MissingFrames.none()
    return KnownWindow(OffsetWindow.of(offsets), missing, most)


def newest(flags: list[bool], frame: int, most: int | None) -> int | None:
    known = [i for i in range(frame + 1) if flags[i]]
    if not known or (most is not None and frame - known[-1] > most):
        return None
    return known[-1]


@settings(max_examples=150, deadline=None)
@given(
    episodes=st.dictionaries(
        st.integers(0, 6), st.lists(st.booleans(), min_size=1, max_size=12), min_size=1
    ),
    most=st.none() | st.integers(0, 6),
    offsets=st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_what_is_found_is_the_newest(
    episodes: dict[int, list[bool]], most: int | None, offsets: list[int], data: Any
) -> None:
    """Of clips whose frames may lie beyond the ends of episodes: then these ends count."""
    known = of_flags(dict(sorted(episodes.items())), most, offsets)
    rows = data.draw(st.lists(st.sampled_from(sorted(episodes)), min_size=1, max_size=5))
    starts = [data.draw(st.integers(0, len(episodes[row]) - 1)) for row in rows]
    num_frames = np.array([len(episodes.get(row, ())) for row in range(7)])
    every = ClipFrames({"gps": known}, num_frames)
    found = every.find("gps", np.array(rows), np.array(starts))
    assert found.age is not None
    frames = [
        [min(max(start + offset, 0), len(episodes[row]) - 1) for offset in offsets]
        for row, start in zip(rows, starts, strict=True)
    ]
    unknown = {
        (int(e), i)
        for e, a, b in zip(
            known.unknown.episode, known.unknown.start, known.unknown.stop, strict=True
        )
        for i in range(a, b)
    }
    for k, row in enumerate(rows):
        for t, frame in enumerate(frames[k]):
            expected = newest(episodes[row], frame, most)
            assert ((row, frame) in unknown) == (expected is None)
            if expected is None:
                assert (found.frames[k, t], found.age[k, t]) == (frame, -1)
            else:
                assert (found.frames[k, t], found.age[k, t]) == (expected, frame - expected)
    ages = [
        i - n
        for flags in episodes.values()
        for i in range(len(flags))
        if (n := newest(flags, i, most)) is not None
    ]
    assert known.reach == max(ages, default=0)
