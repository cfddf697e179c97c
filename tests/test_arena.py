"""Rings, the arena, and buffers that come back when nobody uses them."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.arena import Arena, BufferPool, Ring, find_rows, page_aligned
from seqrecord.frames import ArraySpec


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


def test_gather() -> None:
    arena = Arena(
        {"a": ArraySpec(np.dtype("u1"), (2,)), "b": ArraySpec(np.dtype("f4"), (None,), 12)}, 3
    )
    arena["a"][:] = [[1, 2], [3, 4], [5, 6]]
    for n, array in zip((1, 2, 3), arena["b"].make(0, [(1,), (2,), (3,)]), strict=True):
        array[:] = n
    out = np.zeros((3, 2), np.uint8)
    arena.gather("a", np.array([2, 0, 2]), out)
    assert out.tolist() == [[5, 6], [1, 2], [5, 6]]
    found = arena.find_list("b", np.array([1, 2]))
    assert [frame.tolist() for frame in found] == [[2, 2], [3, 3, 3]]
    assert arena["b"].make(1, [(0,)])[0].shape == (0,)
    assert arena.nbytes == 6 + 3 * (64 + 4), "a row holds the largest frame, and a shape"
    with pytest.raises(AssertionError, match="larger than the largest"):
        arena["b"].make(0, [(17,)])
    rows = np.array([2, 0])
    target, at = arena.load(rows)
    assert target is arena
    assert at is rows


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[1, 2:],
    "a single number": lambda tensor: tensor[0, 0],
    "another shape": lambda tensor: tensor.reshape(-1),
    "another dtype": lambda tensor: tensor.view(torch.uint8),
    "a NumPy array": lambda tensor: tensor.numpy(),
    "a slice of a NumPy array": lambda tensor: tensor[1:].numpy()[:, ::2],
    "a tensor of a NumPy array": lambda tensor: torch.from_numpy(tensor.numpy()),
    "its storage": lambda tensor: tensor.untyped_storage(),
    "a memoryview": lambda tensor: tensor.numpy().data,
    "detached": lambda tensor: tensor.detach(),
    "an autograd result's saved input": lambda tensor: tensor * torch.ones(4, requires_grad=True),
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_a_buffer_stays_out_while_anything_is_on_its_memory(
    keep: Callable[[torch.Tensor], Any],
) -> None:
    pool = BufferPool((2, 4), np.dtype("f4"), keep=3)
    array = pool.take()
    address = array.ctypes.data
    tensor = pool.lend(array)
    del array
    kept = keep(tensor)
    del tensor
    gc.collect()
    assert pool.take().ctypes.data != address
    del kept
    gc.collect()
    assert pool.take().ctypes.data == address


def test_a_short_batch_brings_back_the_whole_buffer() -> None:
    pool = BufferPool((5, 2), np.dtype("u2"), keep=1)
    tensor = pool.lend(pool.take(), 3)
    assert tensor.shape == (3, 2)
    del tensor
    assert pool.take().shape == (5, 2)


def test_a_pool_keeps_no_more_than_it_may() -> None:
    pool = BufferPool((1,), np.dtype("u1"), keep=2)
    lent = [pool.lend(pool.take()) for _ in range(5)]
    addresses = {tensor.data_ptr() for tensor in lent}
    assert len(addresses) == 5
    lent.clear()
    assert len(pool._free) == 2


def test_what_the_user_keeps_does_not_keep_the_pool() -> None:
    pool = BufferPool((4,), np.dtype("u1"), keep=2)
    array = pool.take()
    array[:] = 7
    kept = pool.lend(array)
    del pool, array
    gc.collect()
    assert kept.tolist() == [7, 7, 7, 7]
    del kept  # its finalizer finds no pool


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 480, 640)])
@pytest.mark.parametrize("dtype", ["u1", "<f4", "<i8"])
def test_memory_begins_at_a_page(shape: tuple[int, ...], dtype: str) -> None:
    array = page_aligned(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert not array.size or array.ctypes.data % mmap.PAGESIZE == 0
    array[...] = 7
    assert (array == 7).all()
