"""Clips in adjacent memory, which form a batch without a copy.

Clips from one read are rows of one array, a slab. Adjacent rows form a view::

    slab          0 1 2 3 4 5 6 7
    a batch           2 3 4 5         a view

A slab is reused after its last clip and its last batch are deleted.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


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
    slab = batch.numpy().view(_Slab)
    _slabs[batch.data_ptr()] = slab
    return list(torch.from_numpy(slab))


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
