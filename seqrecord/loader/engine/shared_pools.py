"""Batches in shared memory.

`multiprocessing` sends a tensor by copying it to new shared memory. For large batches, page faults
there take many times as long as filling the batch. Worker processes therefore fill batches in
shared memory, which the consumer maps and then returns; see `segments`.
"""

from __future__ import annotations

import math
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor

from seqrecord.loader.engine.pools import BufferPool
from seqrecord.loader.engine.segments import Lease, Segment, acquire


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
