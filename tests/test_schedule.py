from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.engine.schedule import first_uses
from seqrecord.plan import Clips, Loads

SMALL = st.integers(0, 30)


@given(
    clips=st.lists(st.tuples(st.integers(0, 2), SMALL), max_size=12),
    loads=st.lists(st.tuples(st.integers(0, 2), SMALL, st.integers(1, 6)), max_size=8),
    span=st.integers(1, 9),
    step=st.integers(1, 3),
)
def test_against_brute_force(
    clips: list[tuple[int, int]], loads: list[tuple[int, int, int]], span: int, step: int
) -> None:
    cursor, start = np.array(clips, np.int64).reshape(-1, 2).T
    none = np.zeros(len(clips), np.int64)
    lanes, first, count = np.array(loads, np.int64).reshape(-1, 3).T
    empty = np.zeros(len(loads), np.int64)
    expected = []
    for lane, begin, frames in loads:
        held = range(begin, begin + frames * step, step)
        uses = [
            number
            for number, (other, at) in enumerate(clips)
            # Any frame from the clip's first to its last, as a load that it skips may be held.
            if other == lane and at <= held[-1] and at + span > held[0]
        ]
        expected.append(uses[0] if uses else len(clips))
    actual = first_uses(
        Loads(lanes, lanes, empty, empty, first, count),
        Clips(cursor, cursor, none, start, none, none),
        span=span,
        frame_step=step,
    )
    assert actual.tolist() == expected


def test_a_round_of_many_clips_takes_no_long_time() -> None:
    many, zero = np.arange(200_000), np.zeros(200_000, np.int64)
    loads = Loads(zero, zero, zero, zero, many, zero + 1)
    clips = Clips(zero, zero, zero, many, zero, zero)
    begin = time.thread_time()
    uses = first_uses(loads, clips, span=4, frame_step=1)
    assert time.thread_time() - begin < 2
    assert uses[:50].tolist() == [max(0, frame - 3) for frame in range(50)]
