"""Reusable host memory of batches.

`multiprocessing` sends a tensor by copying it to new shared memory. For large batches, page faults
there take many times as long as filling the batch. Worker processes therefore fill batches in
shared memory, which the consumer maps and then returns; see `segments`.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor

from seqrecord.engine.segments import Lease, Segment, acquire
from seqrecord.reading.array_specs import ArraySpec

_BYTE = np.dtype(np.uint8)
_KEEP_SINGLE = 32  # single clips: those of a batch are deleted together


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
        rows = array[:count] if shape is None else view_of(array, shape)
        # All tensors and views refer to `rows`, and `rows` to `array`.
        finalizer = weakref.finalize(rows, _release, weakref.ref(self), array)
        finalizer.atexit = False
        return torch.from_numpy(rows)

    def release(self, array: npt.NDArray[Any]) -> None:
        """Return an acquired array to the pool."""
        self._free.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        return page_aligned(self._shape, self._dtype)


def _release(pool: weakref.ref[BufferPool], array: npt.NDArray[Any]) -> None:
    # Not a bound method: a user's tensor must not keep the pool alive.
    if (alive := pool()) is not None:
        alive.release(array)


def can_share() -> bool:
    """Whether the system supports `memfd_create`; Linux does."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()


class _SharedArray(np.ndarray[Any, Any]):
    """An array in a segment; views keep the segment alive."""

    segment: Segment | None = None

    def __array_finalize__(self, other: Any) -> None:
        self.segment = getattr(other, "segment", None)


class SharedBufferPool(BufferPool):
    """A pool in shared memory: other processes receive its tensors without a copy.

    A lease ends when the tensor is deleted here and in all processes that received it. Arrays in
    use elsewhere do not count towards `keep`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], keep: int) -> None:
        super().__init__(shape, dtype, keep)
        self._away: deque[_SharedArray] = deque()  # unused here, possibly in use elsewhere
        ForkingPickler.register(torch.Tensor, _reduce)
        ForkingPickler.register(np.ndarray, _reduce_array)

    def acquire(self) -> npt.NDArray[Any]:
        """Return an array to fill, which is newly allocated if all are in use."""
        for _ in range(len(self._away)):
            array = self._away.popleft()
            assert array.segment is not None, "made by this pool"
            (self._away if array.segment.is_leased else self._free).append(array)
        return super().acquire()

    def release(self, array: npt.NDArray[Any]) -> None:
        """Return an acquired array to the pool."""
        assert isinstance(array, _SharedArray), "made by this pool"
        self._away.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        segment = Segment(math.prod(self._shape) * self._dtype.itemsize)
        array = segment.data.view(_SharedArray)
        array.segment = segment
        _segments[array.ctypes.data] = segment
        return array.view(self._dtype).reshape(self._shape)


_segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
"""Segments by the address of their data, which is that of their tensors' storage."""


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickle a tensor: as a lease if possible, else with torch's own reduction."""
    if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad:
        segment = _segments.get(tensor.untyped_storage().data_ptr())
        if segment is not None and (lease := segment.lease()) is not None:
            view = tensor.size(), tensor.stride(), tensor.storage_offset()
            lazily = tensor.is_conj(), tensor.is_neg()
            return _rebuild, (lease, tensor.dtype, *view, *lazily)
    reduced: tuple[Callable[..., Any], tuple[Any, ...]]
    reduced = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return reduced


def _rebuild(
    lease: Lease,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    is_conj: bool,
    is_neg: bool,
) -> torch.Tensor:
    made = torch.from_numpy(acquire(lease)).view(dtype).as_strided(size, stride, offset)
    if is_conj:
        made = made.conj()
    return made.neg() if is_neg else made


def _reduce_array(array: npt.NDArray[Any]) -> str | tuple[Any, ...]:
    """Pickle an array: as a lease if it is a view of a leased tensor, else by value."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, torch.Tensor) and array.size:
        segment = _segments.get(base.untyped_storage().data_ptr())
        if segment is not None and (lease := segment.lease()) is not None:
            offset = array.ctypes.data - segment.data.ctypes.data
            return _rebuild_array, (lease, array.dtype, array.shape, array.strides, offset)
    return array.__reduce_ex__(pickle.DEFAULT_PROTOCOL)


def _rebuild_array(
    lease: Lease,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> npt.NDArray[Any]:
    data: npt.NDArray[Any] = torch.from_numpy(acquire(lease)).numpy()  # the base of all views
    made: npt.NDArray[Any] = np.ndarray(shape, dtype, data, offset, strides)
    return made


def batch_pools(
    specs: Mapping[str, ArraySpec],
    size: int,
    lengths: Mapping[str, int],
    keep: int,
    *,
    shared: bool = False,
) -> dict[str, BufferPool]:
    """Create a pool per feature, with memory for `size` clips of `lengths` frames.

    Text features need none.

    With `shared`, batches are sent to another process without a copy. Frames of a variable shape
    are copied even then, and their memory is not reused.
    """
    pool = SharedBufferPool if shared and can_share() else BufferPool
    pools: dict[str, BufferPool] = {}
    if size == 1:
        keep = max(keep, _KEEP_SINGLE)
    for name, spec in specs.items():
        length = lengths[name]
        if spec.value != "array":
            continue
        if spec.is_fixed:
            shape: Any = (size, length, *spec.shape)
            pools[name] = pool(shape, spec.dtype, keep)
        else:
            assert spec.largest is not None, "spec.largest is set"
            room = (size * length * spec.largest,)
            pools[name] = _FreshPool(room, _BYTE, 0) if shared else BufferPool(room, _BYTE, keep)
    return pools


class _FreshPool(BufferPool):
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
