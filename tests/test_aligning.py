"""Aligning messages to a clock, against looking at every message for every time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.sources.aligning import ALIGNMENTS, NONE, align

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
