"""Differences between neighbours, and the running sums that undo them.

NumPy has two ways to sum, and which is the faster depends on the shape. One element after another
waits for the adder, about a cycle for each, and hardly notices where the result goes. Whole rows
added to the next ones are vectorized and wait for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from seqrecord.codecs.base import Codec, Parameters, UIntArray, register_codec


class Delta(Codec):  # type: ignore[misc]  # numcodecs has no types
    """Each integer minus the one before it along `axis`; the first stays.

    An `axis` of `None` takes the whole array as one sequence in C order. `width` is the size in
    bytes of the integers that are subtracted: by default that of the array's elements, or a larger
    one that holds a whole number of neighbours on the last axis. Wider integers undo faster, and a
    borrow from one neighbour into the next costs next to nothing. With `restart`, the integers at
    its multiples stay too, so that the sums undo in one pass instead of two.
    """

    codec_id = "seqrecord.delta"
    parameters: ClassVar[Parameters] = {
        "axis": (None, *range(-8, 8)),
        "width": (2, 4, 8),
        "restart": range(2, 4097),
    }

    def __init__(
        self, axis: int | None, width: int | None = None, restart: int | None = None
    ) -> None:
        self.axis = axis
        self.width = width
        self.restart = restart

    def get_config(self) -> dict[str, Any]:
        optional = {"width": self.width, "restart": self.restart}
        return {
            "id": self.codec_id,
            "axis": self.axis,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Raise `ValueError` unless arrays of this shape and element size can be filtered."""
        _slab_shape(self.axis, self.width, shape, itemsize)

    def is_serial(self, shape: tuple[int, ...], itemsize: int) -> bool:
        """Whether undoing it waits for the adder and hardly for memory."""
        slabs = _slab_shape(self.axis, self.width, shape, itemsize)
        return _is_serial(slabs, self.width or itemsize)

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array of the differences."""
        out = np.array(buf, order="C", copy=True)
        before, after = self._slabs(np.ascontiguousarray(buf)), self._slabs(out)
        np.subtract(before[:, 1:], before[:, :-1], out=after[:, 1:])
        if self.restart is not None:
            after[:, :: self.restart] = before[:, :: self.restart]
        return out

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """Running sums of `buf` into `out`, which may be `buf` itself."""
        if out is None:
            out = np.empty(buf.shape, buf.dtype)
        source = out if out is buf else np.ascontiguousarray(buf)
        with unbuffered():
            self.decode_frames(source[np.newaxis], out[np.newaxis])
        return out

    def decode_frames(self, buf: UIntArray, out: UIntArray) -> None:
        """As `decode` of each of several arrays, [n, …], C-contiguous; faster if `unbuffered`."""
        target = self._slabs(out, out.shape[1:])
        source = target if out is buf else self._slabs(buf, buf.shape[1:])
        _sum_along(source, target, self.restart)

    def _slabs(self, array: UIntArray, each: tuple[int, ...] | None = None) -> UIntArray:
        """`array` [..., N, ...] as [outer, N, inner] of integers of `width` bytes, a view.

        It is one array, or several of shape `each`.
        """
        each = array.shape if each is None else each
        _, length, inner = _slab_shape(self.axis, self.width, each, array.dtype.itemsize)
        if self.width is not None:
            array = array.view(f"<u{self.width}")
        return array.reshape(-1 if array.size else 0, length, inner)


register_codec(Delta)


@lru_cache(maxsize=1024)
def _slab_shape(
    axis: int | None, width: int | None, shape: tuple[int, ...], itemsize: int
) -> tuple[int, int, int]:
    """The shape of an array as slabs of integers of `width` bytes; `ValueError` if it has none."""
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise ValueError(f"no axis {axis} in {len(shape)} dimensions")
    if width is not None:
        if width < itemsize or not shape or shape[-1] * itemsize % width != 0:
            raise ValueError(
                f"{shape[-1:]} elements of {itemsize} bytes are not integers of {width} bytes"
            )
        shape = (*shape[:-1], shape[-1] * itemsize // width)
    if axis is None:
        return (1, math.prod(shape), 1)
    axis %= len(shape)
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _is_serial(shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether arrays [outer, N, inner] are summed one element after another."""
    _, length, inner = shape
    return inner * itemsize < 256 or length < 16


def _sum_along(source: UIntArray, out: UIntArray, restart: int | None = None) -> None:
    """Running sums of `source` [outer, N, inner] along N into `out`, which may be `source`.

    They start anew at every multiple of `restart`. Both arrays are C-contiguous.
    """
    outer, length, inner = out.shape
    size = min(restart or length, length)
    if size == 0:
        return
    serial = _is_serial(out.shape, out.itemsize)
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
def unbuffered() -> Iterator[None]:
    """A context in which `Delta.decode_frames` is fast.

    NumPy copies rows that do not follow on one another through a buffer, if a few fit into it.

    In a sum that costs more than the sum; with the smallest buffer no row fits. The setting is the
    thread's own.
    """
    before = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(before)
