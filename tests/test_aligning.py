"""Which rows of two lists belong together, against looking at every row for every time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.sources.common.aligning import ALIGNMENTS, NONE, align, associate, sample_bounds

TIMES = st.lists(st.integers(0, 60), max_size=30).map(sorted)


@given(TIMES, TIMES, st.sampled_from(ALIGNMENTS), st.integers(0, 70))
def test_as_by_looking_at_every_message(
    clock: list[int], times: list[int], how: str, tolerance: int
) -> None:
    picks = align(np.array(clock, np.int64), np.array(times, np.int64), how, tolerance)
    assert picks.shape == (len(clock),)
    for now, pick in zip(clock, picks, strict=True):
        near = [t for t in times if abs(t - now) <= tolerance and (how == "nearest" or t <= now)]
        if not near:
            assert pick == NONE
        elif how == "last":
            assert times[pick] == max(near)
        else:
            assert times[pick] == min(near, key=lambda t: (abs(t - now), t))
    found = picks[picks != NONE]
    assert np.all(np.diff(found) >= 0)


def test_one_of_two_that_are_as_near() -> None:
    clock, times = np.array([0, 10, 20, 30, 40]), np.array([5, 18, 32])
    assert align(clock, times, "last", 100).tolist() == [NONE, 0, 1, 1, 2]
    assert align(clock, times, "nearest", 100).tolist() == [0, 0, 1, 2, 2]
    assert align(clock, times, "last", 5).tolist() == [NONE, 0, 1, NONE, NONE]


def test_times_in_nanoseconds_of_today() -> None:
    clock = np.array([1_790_000_000_000_000_000, 1_790_000_000_100_000_000])
    times = clock + np.array([40_000_000, -30_000_001])
    assert align(clock, times, "nearest", 40_000_000).tolist() == [0, 1]
    assert align(clock, times, "nearest", 30_000_000).tolist() == [NONE, NONE]


# Seconds since 1970 as TUM writes them, in steps that float64 does not hold exactly.
SECONDS = st.lists(st.integers(0, 60), max_size=12).map(
    lambda steps: np.array([1305031102.17 + 0.005 * step for step in sorted(steps)], np.float64)
)


def as_associate_py(
    first: dict[float, int], second: dict[float, int], within: float
) -> list[tuple[int, int]]:
    """What TUM's script is documented to do: all pairs, closest first, each time used once."""
    pairs = sorted((abs(a - b), a, b) for a in first for b in second if abs(a - b) < within)
    left, right = set(first), set(second)
    matches = []
    for _, a, b in pairs:
        if a in left and b in right:
            left.remove(a)
            right.remove(b)
            matches.append((a, b))
    return [(first[a], second[b]) for a, b in sorted(matches)]


@given(SECONDS, SECONDS)
def test_associate(first: np.ndarray, second: np.ndarray) -> None:
    as_dicts = [{time: row for row, time in enumerate(times.tolist())} for times in (first, second)]
    one, other = associate(first, second, 0.02)
    want = as_associate_py(as_dicts[0], as_dicts[1], 0.02)
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == want


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(-5, 90), max_size=30).map(sorted),
)
def test_samples_belong_to_the_frame_before_them(times: list[int], samples: list[int]) -> None:
    bounds = sample_bounds(np.array(times), np.array(samples, np.int64))
    end = times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0)
    for frame, (start, stop) in enumerate(pairwise(bounds)):
        upto = [*times[1:], end][frame]
        want = [sample for sample in samples if times[frame] <= sample < upto]
        assert samples[start:stop] == want
