"""A pool of batch buffers in shared memory, and how `multiprocessing` sends what lies in it."""

from __future__ import annotations

import math
import os
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

from seqrecord.engine.arena import BufferPool
from seqrecord.engine.shared_memory.segment import Lease, Segment, acquire

__all__ = ["SharedBufferPool", "can_share"]


def can_share() -> bool:
    """Whether this system has such memory: Linux does."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()


class _SharedArray(np.ndarray[Any, Any]):
    """An array in a segment, which lives as long as any array on it."""

    segment: Segment | None = None

    def __array_finalize__(self, other: Any) -> None:
        self.segment = getattr(other, "segment", None)


class SharedBufferPool(BufferPool):
    """A pool for a process whose tensors are sent to others: they arrive without being copied.

    A lease ends when the tensor is unused here and wherever it was sent. What others hold does not
    count among the `keep`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], keep: int) -> None:
        super().__init__(shape, dtype, keep)
        self._away: deque[_SharedArray] = deque()  # unused here; others may have them
        ForkingPickler.register(torch.Tensor, _reduce)

    def acquire(self) -> npt.NDArray[Any]:
        """An array to fill; fresh memory only if all are in use."""
        for _ in range(len(self._away)):
            array = self._away.popleft()
            assert array.segment is not None, "made by this pool"
            (self._away if array.segment.is_leased else self._free).append(array)
        return super().acquire()

    def release(self, array: npt.NDArray[Any]) -> None:
        """Take back an array that was acquired."""
        assert isinstance(array, _SharedArray), "made by this pool"
        self._away.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        segment = Segment(math.prod(self._shape) * self._dtype.itemsize)
        array = segment.data.view(_SharedArray)
        array.segment = segment
        _segments[array.ctypes.data] = segment
        return array.view(self._dtype).reshape(self._shape)


_segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
"""By the address of their data, where the storage of tensors on them begins."""


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How a tensor is pickled for another process: as a lease, or as torch does it."""
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
    return torch._neg_view(made) if is_neg else made
