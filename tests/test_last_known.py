"""`last_known`: the newest value of a feature that not every frame has, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.clip_uses import MissingFrames
from seqrecord.last_known import LastKnown


def of_flags(episodes: dict[int, list[bool]], most: int | None) -> LastKnown:
    """`episodes` are the flags of each frame, whether it has the feature, by row."""
    runs = [
        (e, i, i + 1) for e, flags in episodes.items() for i, has in enumerate(flags) if not has
    ]
    columns = [np.array(column, np.int64) for column in zip(*runs, strict=True)]
    missing = MissingFrames.of(*columns) if runs else MissingFrames.none()
    return LastKnown(missing, most)


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
    data=st.data(),
)
def test_what_is_found_is_the_newest(
    episodes: dict[int, list[bool]], most: int | None, data: Any
) -> None:
    known = of_flags(dict(sorted(episodes.items())), most)
    rows = data.draw(st.lists(st.sampled_from(sorted(episodes)), min_size=1, max_size=5))
    frames = [[data.draw(st.integers(0, len(episodes[row]) - 1)) for _ in range(3)] for row in rows]
    found = known.find(np.array(rows), np.array(frames))
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
