"""Delta filter: differences of neighbours, and their running sums for decoding.

NumPy has two ways to compute running sums; the array's shape decides which is faster. A serial sum
over elements is bound by the adder, about one cycle per element, and hardly by memory. A sum of
whole rows is vectorized and bound by memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import ClassVar

import numpy as np

from seqrecord.store.codecs.base import Filter, Parameters, UIntArray


class Delta(Filter):
    """Replaces each integer by its difference to the previous one along `axis`, except the first.

    With `axis=None` the array is one sequence in C order. `width` is the size in bytes of the
    integers that are subtracted: that of the array's elements by default, or a larger one that
    covers several neighbours on the last axis. Wider integers decode faster, and borrows between
    neighbours hardly affect compression. With `restart`, integers at its multiples are stored
    unchanged too, so that decoding needs one pass in place of two.
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

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Raise `ValueError` unless arrays of this shape and item size can be filtered."""
        _slab_shape(self.axis, self.width, shape, itemsize)

    def is_serial(self, shape: tuple[int, ...], itemsize: int) -> bool:
        """Whether decoding is bound by the adder rather than by memory."""
        slabs = _slab_shape(self.axis, self.width, shape, itemsize)
        return _is_serial(slabs, self.width or itemsize)

    def encode(self, frame: UIntArray) -> UIntArray:
        out = np.array(frame, order="C", copy=True)
        values = self._slabs(np.ascontiguousarray(frame), frame.shape)
        differences = self._slabs(out, frame.shape)
        np.subtract(values[:, 1:], values[:, :-1], out=differences[:, 1:])
        if self.restart is not None:
            differences[:, :: self.restart] = values[:, :: self.restart]
        return out

    def decode(self, frames: UIntArray, out: UIntArray) -> None:
        """See `Filter`; faster inside `unbuffered`."""
        target = self._slabs(out, out.shape[1:])
        source = target if out is frames else self._slabs(frames, out.shape[1:])
        _sum_along(source, target, self.restart)

    def _slabs(self, array: UIntArray, shape: tuple[int, ...]) -> UIntArray:
        """View frames of `shape`, [..., N, ...], as integers [outer, N, inner] with
        `width` bytes.
        """
        _, length, inner = _slab_shape(self.axis, self.width, shape, array.dtype.itemsize)
        if self.width is not None:
            array = array.view(f"<u{self.width}")
        return array.reshape(-1 if array.size else 0, length, inner)


@lru_cache(maxsize=1024)
def _slab_shape(
    axis: int | None, width: int | None, shape: tuple[int, ...], itemsize: int
) -> tuple[int, int, int]:
    """Shape [outer, N, inner] in integers of `width` bytes; raises `ValueError` if impossible."""
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
    """Whether arrays [outer, N, inner] are summed serially, element by element."""
    _, length, inner = shape
    return inner * itemsize < 256 or length < 16


def _sum_along(source: UIntArray, out: UIntArray, restart: int | None = None) -> None:
    """Running sums of `source` [outer, N, inner] along N into `out`, which may be `source`.

    Sums restart at each multiple of `restart`. Both arrays are C-contiguous.
    """
    outer, length, inner = out.shape
    size = min(restart or length, length)
    if size == 0:
        return
    serial = _is_serial(out.shape, out.itemsize)
    even_length = length - length % size
    for start, stop, part in ((0, even_length, size), (even_length, length, length - even_length)):
        if start < stop:
            shape = (outer, (stop - start) // part, part, inner)
            target = out[:, start:stop].reshape(shape)
            part_source = target if source is out else source[:, start:stop].reshape(shape)
            (_sum_serially if serial else _sum_rows)(part_source, target)


def _sum_serially(source: UIntArray, out: UIntArray) -> None:
    """Running sums of [outer, count, N, inner] along N, element by element."""
    axis = 2
    if out.size == out.shape[axis]:  # NumPy is faster for one axis, and releases the GIL
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

    Cuts N into short blocks. First computes the sums within all blocks at once, then adds the total
    of the previous blocks, computed recursively, to each. This takes two passes over memory, but
    about twenty calls per image in place of one per row.
    """
    outer, length, inner = slabs.shape
    size = _block_size(length)[1]
    count = length // size
    if count > 1:
        blocks = slabs[:, : count * size].reshape(outer, count, size, inner)
        for i in range(1, size):
            np.add(blocks[:, :, i], blocks[:, :, i - 1], out=blocks[:, :, i])
        totals = blocks[:, :-1, -1].copy()
        _sum_by_blocks(totals)
        np.add(blocks[:, 1:], totals[:, :, np.newaxis], out=blocks[:, 1:])
    for i in range(count * size if count > 1 else 1, length):
        np.add(slabs[:, i], slabs[:, i - 1], out=slabs[:, i])


@lru_cache(maxsize=1024)
def _block_size(length: int) -> tuple[int, int]:
    """Minimum number of calls for sums over `length` slabs, and the block size that achieves it.

    A block of all slabs means serial sums. Blocks of 8 to 20 were fastest in measurements.
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
    """Context in which `Delta.decode` is fast.

    NumPy copies non-contiguous rows through a buffer if several fit into it, which takes longer
    than the sum. With the smallest buffer no row fits. The setting affects this thread only.
    """
    buffer_size = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(buffer_size)
