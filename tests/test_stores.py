"""Which clip needs a load first, and which row has a frame: by brute force."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.clips.grids import MAX_OWNERS
from seqrecord.engine.stores import Ring, find_rows, first_uses
from seqrecord.sampling import Clips, Loads, Window

SMALL = st.integers(0, 30)
RUNS = st.sampled_from((0, (1 << 23) - 1, MAX_OWNERS - 3))
"""The number of the first of three runs."""


@given(
    clips=st.lists(st.tuples(st.integers(0, 2), SMALL), max_size=12),
    loads=st.lists(st.tuples(st.integers(0, 2), SMALL, st.integers(1, 6)), max_size=8),
    offset=st.integers(-5, 5),
    span=st.integers(1, 9),
    step=st.integers(1, 3),
    num_frames=st.integers(31, 48),
    base=RUNS,
)
def test_first_uses(
    clips: list[tuple[int, int]],
    loads: list[tuple[int, int, int]],
    offset: int,
    span: int,
    step: int,
    num_frames: int,
    base: int,
) -> None:
    loads = [(r, first, min(n, (num_frames - 1 - first) // step + 1)) for r, first, n in loads]
    cursor, start = np.array(clips, np.int64).reshape(-1, 2).T
    none = np.zeros(len(clips), np.int64)
    runs, first, count = np.array(loads, np.int64).reshape(-1, 3).T
    empty = np.zeros(len(loads), np.int64)
    expected = []
    for run, begin, frames in loads:
        held = range(begin, begin + frames * step, step)
        uses = [
            number
            for number, (other, at) in enumerate(clips)
            # Any frame from the clip's first to its last, as a load that it skips may be held.
            # What is outside the episode counts as its first or last frame.
            if other == run
            and min(max(at + offset, 0), num_frames - 1) <= held[-1]
            and min(max(at + offset + span - 1, 0), num_frames - 1) >= held[0]
        ]
        expected.append(uses[0] if uses else len(clips))
    actual = first_uses(
        Loads(runs, base + runs, empty, empty, first, count),
        Clips(cursor, base + cursor, none, start, none, none, none),
        Window(offset, span, step, 1),
        np.array([num_frames]),
    )
    assert actual.tolist() == expected


def test_a_round_of_many_clips_takes_no_long_time() -> None:
    many, zero = np.arange(200_000), np.zeros(200_000, np.int64)
    loads = Loads(zero, zero, zero, zero, many, zero + 1)
    clips = Clips(zero, zero, zero, many, zero, zero, zero)
    begin = time.thread_time()
    uses = first_uses(loads, clips, Window(0, 4, 1, 4), np.array([1 << 20]))
    assert time.thread_time() - begin < 2
    assert uses[:50].tolist() == [max(0, frame - 3) for frame in range(50)]


@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 9)), max_size=40),
    st.sampled_from((0, (1 << 23) - 3, MAX_OWNERS - 41)),
)
def test_a_ring_finds_what_it_holds(
    num_rows: int, step: int, todo: list[tuple[bool, int, int]], run: int
) -> None:
    ring = Ring(100, num_rows, step)
    held: list[tuple[int, int, int]] = []  # run, frame, row, as they were loaded
    frame = 0
    for goes_on, count, leave in todo:
        if not goes_on:
            run, frame = run + 1, 7 * count
        count = min(count, num_rows)
        while not ring.has_room(count):
            ring.free(1)
            held.pop(0)
        loaded = ring.load(run, frame, count)
        assert len(loaded) == count
        held += [(run, frame + i * step, row) for i, row in enumerate(loaded.tolist())]
        frame += count * step
        runs, frames, rows = (np.array(column) for column in zip(*held, strict=True))
        origin, first, number = find_rows([ring], runs, frames)
        assert (first + (origin + frames // step) % number).tolist() == rows.tolist()
        assert len({row for _, _, row in held}) == len(held) == ring.resident
        assert all(100 <= row < 100 + num_rows for _, _, row in held)
        leave = min(leave, len(held))
        ring.free(leave)
        del held[:leave]
