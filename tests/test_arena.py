"""Rings of rows, by brute force, and memory that begins at a page."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.arena import Ring, find_rows, page_aligned


@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 9)), max_size=40),
)
def test_a_ring_finds_what_it_holds(
    num_rows: int, step: int, todo: list[tuple[bool, int, int]]
) -> None:
    ring = Ring(100, num_rows)
    held: list[tuple[int, int, int]] = []  # run, frame, row, as they were loaded
    run, frame = 0, 0
    for goes_on, count, leave in todo:
        if not goes_on:
            run, frame = run + 1, 7 * count
        count = min(count, num_rows)
        while not ring.has_room(count):
            ring.free(1)
            held.pop(0)
        rows = ring.load(run, frame, count, step).tolist()
        held += [(run, frame + i * step, row) for i, row in enumerate(rows)]
        frame += count * step
        runs, frames, rows = (np.array(column) for column in zip(*held, strict=True))
        origin, first, number = find_rows([ring], runs, frames)
        assert (first + (origin + frames // step) % number).tolist() == rows.tolist()
        assert len({row for _, _, row in held}) == len(held) == ring.resident
        assert all(100 <= row < 100 + num_rows for _, _, row in held)
        leave = min(leave, len(held))
        ring.free(leave)
        del held[:leave]


def test_a_ring_holds_no_more_than_it_has() -> None:
    ring = Ring(0, 4)
    ring.load(0, 0, 3, 1)
    assert not ring.has_room(2)
    with pytest.raises(AssertionError, match="more frames"):
        ring.load(0, 3, 2, 1)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 480, 640)])
@pytest.mark.parametrize("dtype", ["u1", "<f4", "<i8"])
def test_memory_begins_at_a_page(shape: tuple[int, ...], dtype: str) -> None:
    array = page_aligned(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert not array.size or array.ctypes.data % mmap.PAGESIZE == 0
    array[...] = 7
    assert (array == 7).all()
