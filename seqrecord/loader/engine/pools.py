"""Reusable host memory of batches, and clips in adjacent memory.

Clips from one read are rows of one array, a slab. Adjacent rows form a batch without a copy::

    slab          0 1 2 3 4 5 6 7
    a batch           2 3 4 5         a view

A slab is reused after its last clip and its last batch are deleted.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.loader.engine.tensors import array_of, as_bits, tensor_of, tensor_of_bits


def page_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Allocate memory that begins at a page boundary, which speeds up reads into it.

    See `python -m benchmarks.buffers`.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


def view_of(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """View the first numbers of a contiguous array in a shape."""
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


_PAGES_AT_ONCE = 1 << 18


def touched_bytes(array: npt.NDArray[Any]) -> int:
    """Bytes of a contiguous array that take memory: the system adds a page when it is touched."""
    page, length, count = mmap.PAGESIZE, array.nbytes, 0
    if not length:
        return 0
    begin = array.ctypes.data // page * page
    stop = array.ctypes.data + length
    pages = np.empty(min(_PAGES_AT_ONCE, -(-(stop - begin) // page)), np.uint8)
    for first in range(begin, stop, len(pages) * page):
        part = min(len(pages), -(-(stop - first) // page))
        if _libc.mincore(
            ctypes.c_void_p(first), ctypes.c_size_t(part * page), ctypes.c_void_p(pages.ctypes.data)
        ):
            return length
        count += int(np.count_nonzero(pages[:part] & 1))
    return min(count * page, length)


_libc = ctypes.CDLL(None)


class HostArrays:
    """The arrays of an owner that exist, idle or in use."""

    def __init__(self) -> None:
        self._arrays = weakref.WeakValueDictionary[int, npt.NDArray[Any]]()

    def add(self, array: npt.NDArray[Any]) -> None:
        """Add a new array."""
        self._arrays[id(array)] = array

    @property
    def touched_bytes(self) -> int:
        """Bytes that take memory; see `touched_bytes`."""
        # A list, because other threads add arrays.
        arrays = [reference() for reference in self._arrays.valuerefs()]
        return sum(touched_bytes(array) for array in arrays if array is not None)


class BufferPool:
    """Arrays of one shape and dtype, leased as tensors and reused.

    A lease ends when the last tensor, view or array on its memory is deleted, in any thread. The
    pool keeps at most `keep` idle arrays; deleting the pool frees them.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], keep: int) -> None:
        self._shape = shape
        self._dtype = dtype
        # A deque, not a lock: finalizers release arrays, even inside methods of this class.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=keep)
        self._private = HostArrays()

    @property
    def touched_bytes(self) -> int:
        """Bytes of this process's own memory, which no file or other process has."""
        return self._private.touched_bytes

    def acquire(self) -> npt.NDArray[Any]:
        """Return an array to fill, which is newly allocated if all are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return self._allocate()

    def lease(
        self,
        array: npt.NDArray[Any],
        count: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """Lease the array, its first `count` rows, or a view of this `shape`, as a tensor."""
        rows = as_bits(array[:count] if shape is None else view_of(array, shape))
        # All tensors and views refer to `rows`, and `rows` to `array`.
        finalizer = weakref.finalize(rows, _release, weakref.ref(self), array)
        finalizer.atexit = False
        return tensor_of_bits(rows, array.dtype)

    def release(self, array: npt.NDArray[Any]) -> None:
        """Return an acquired array to the pool."""
        self._free.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        array = page_aligned(self._shape, self._dtype)
        self._private.add(array)
        return array


def _release(pool: weakref.ref[BufferPool], array: npt.NDArray[Any]) -> None:
    # Not a bound method: a user's tensor must not keep the pool alive.
    if (alive := pool()) is not None:
        alive.release(array)


class FreshPool(BufferPool):
    """A pool without reuse: freed memory returns to the system."""

    def lease(
        self,
        array: npt.NDArray[np.generic],
        count: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        return torch.from_numpy(array[:count] if shape is None else view_of(array, shape))

    def _allocate(self) -> npt.NDArray[np.generic]:
        (nbytes,) = self._shape
        return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]


def join(clips: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Join clips to one tensor [clips, …] without a copy; `None` if they are not adjacent in one
    slab.
    """
    first = clips[0]
    slab, row = _find(first)
    if slab is None or row + len(clips) > len(slab) or not _follow_each_other(clips):
        return None
    return first.as_strided((len(clips), *first.shape), (first.numel(), *first.stride()))


def divide(batch: torch.Tensor) -> list[torch.Tensor]:
    """Split a leased batch [clips, …] into clips that `join` accepts."""
    # An array of a class of its own, which can be referred to weakly.
    slab = array_of(batch).view(_Slab)
    _slabs[batch.data_ptr()] = slab
    return list(tensor_of(slab))


class _Slab(np.ndarray[Any, Any]):
    """An array [clips, …] that lives as long as any tensor on its memory."""


_slabs: weakref.WeakValueDictionary[int, _Slab] = weakref.WeakValueDictionary()
"""Slabs by the address of their memory, which is that of their tensors' storage."""


def _follow_each_other(clips: Sequence[torch.Tensor]) -> bool:
    """Whether each clip's memory begins at the end of the previous one."""
    first = clips[0]
    address, step, shape, dtype = first.data_ptr(), first.nbytes, first.shape, first.dtype
    for clip in clips:
        if (
            clip.data_ptr() != address
            or clip.shape != shape
            or clip.dtype != dtype
            or clip.requires_grad
            or clip.is_conj()
            or clip.is_neg()
            or not clip.is_contiguous()
        ):
            return False
        address += step
    return True


def _find(clip: torch.Tensor) -> tuple[_Slab | None, int]:
    """Slab and row number of a tensor; `None` and 0 for other tensors."""
    if clip.device.type != "cpu" or clip.requires_grad or not clip.is_contiguous():
        return None, 0
    address = clip.untyped_storage().data_ptr()
    slab = _slabs.get(address)
    if slab is None or not clip.nbytes:
        return None, 0
    row, offset = divmod(clip.data_ptr() - address, clip.nbytes)
    if offset or clip.nbytes * len(slab) != slab.nbytes:
        return None, 0
    return slab, row
