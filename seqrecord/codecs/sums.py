"""Running sums along one axis of unsigned integers, which undo differences.

NumPy has two ways to sum, and which is the faster depends on the shape. One element after another
waits for the adder, about a cycle for each, and hardly notices where the result goes. Whole rows
added to the next ones are vectorized and wait for memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["is_serial", "sum_along"]

UIntArray = npt.NDArray[np.unsignedinteger[Any]]


def is_serial(shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether arrays [outer, N, inner] are summed one element after another."""
    _, length, inner = shape
    return inner * itemsize < 256 or length < 16


def sum_along(source: UIntArray, out: UIntArray, restart: int | None = None) -> None:
    """Running sums of `source` [outer, N, inner] along N into `out`, which may be `source`.

    They start anew at every multiple of `restart`. Both arrays are C-contiguous.
    """
    outer, length, inner = out.shape
    size = min(restart or length, length)
    if size == 0:
        return
    serial = is_serial(out.shape, out.itemsize)
    whole = length - length % size
    for start, stop, part in ((0, whole, size), (whole, length, length - whole)):
        if start < stop:
            shape = (outer, (stop - start) // part, part, inner)
            target = out[:, start:stop].reshape(shape)
            part_source = target if source is out else source[:, start:stop].reshape(shape)
            (_sum_serially if serial else _sum_rows)(part_source, target)


def _sum_serially(source: UIntArray, out: UIntArray) -> None:
    """Running sums of [outer, count, N, inner] along N, one element after another."""
    axis = 2
    if out.size == out.shape[axis]:  # NumPy has less to do for one axis, and lets go of the GIL
        source, out, axis = source.reshape(-1), out.reshape(-1), 0
    np.add.accumulate(source, axis=axis, out=out, dtype=out.dtype)


def _sum_rows(source: UIntArray, out: UIntArray) -> None:
    """Running sums of [outer, count, N, inner] along N, whole rows at a time."""
    if out is not source:
        np.copyto(out, source)
    with _unbuffered():
        if out.shape[1] == 1:
            _sum_by_blocks(out[:, 0])
            return
        for i in range(1, out.shape[2]):
            np.add(out[:, :, i], out[:, :, i - 1], out=out[:, :, i])


def _sum_by_blocks(slabs: UIntArray) -> None:
    """Running sums of [outer, N, inner] along the middle axis, in place.

    N is cut into short blocks. First every block sums its own slabs, all blocks at once; then what
    the blocks before it sum to, found in the same way, is added to each. Two passes over memory,
    but about twenty calls for an image instead of one for every row.
    """
    outer, length, inner = slabs.shape
    size = _block_size(length)[1]
    count = length // size
    if count > 1:
        blocks = slabs[:, : count * size].reshape(outer, count, size, inner)
        for i in range(1, size):
            np.add(blocks[:, :, i], blocks[:, :, i - 1], out=blocks[:, :, i])
        before = blocks[:, :-1, -1].copy()
        _sum_by_blocks(before)
        np.add(blocks[:, 1:], before[:, :, np.newaxis], out=blocks[:, 1:])
    for i in range(count * size if count > 1 else 1, length):
        np.add(slabs[:, i], slabs[:, i - 1], out=slabs[:, i])


@lru_cache(maxsize=1024)
def _block_size(length: int) -> tuple[int, int]:
    """The fewest calls that sum `length` slabs, and the size of the blocks that takes them.

    Blocks of all slabs mean that they are summed one by one. Measured, blocks of 8 to 20 do best.
    """
    return min(
        [
            (size + length % size + _block_size(length // size - 1)[0], size)
            for size in range(8, 21)
            if length >= 2 * size
        ],
        default=(max(length - 1, 0), max(length, 1)),
    )


@contextmanager
def _unbuffered() -> Iterator[None]:
    """NumPy copies rows that do not follow on one another through a buffer, if a few fit into it.

    In a sum that costs more than the sum; with the smallest buffer no row fits. The setting is the
    thread's own.
    """
    before = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(before)
