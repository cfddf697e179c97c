"""Clips that lie side by side: a batch of them is not copied.

Clips that are read in one call are rows of one array, a slab. Those that follow each other there
are a part of it::

    slab          0 1 2 3 4 5 6 7
    a batch           2 3 4 5         a view

A slab is used again when the last clip and the last batch on it are gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def join(clips: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One tensor [clips, …] on the memory of these, if they lie side by side in one slab."""
    first = clips[0]
    slab, row = _find(first)
    if slab is None or row + len(clips) > len(slab) or not _follow_each_other(clips):
        return None
    return first.as_strided((len(clips), *first.shape), (first.numel(), *first.stride()))


def divide(batch: torch.Tensor) -> list[torch.Tensor]:
    """The clips of a leased batch [clips, …], which can be joined again."""
    # An array of a class of its own, which can be referred to weakly.
    slab = batch.numpy().view(_Slab)
    _slabs[batch.data_ptr()] = slab
    return list(torch.from_numpy(slab))


class _Slab(np.ndarray[Any, Any]):
    """An array [clips, …] that lives as long as any tensor on it."""


_slabs: weakref.WeakValueDictionary[int, _Slab] = weakref.WeakValueDictionary()
"""By the address of their memory, where the storage of tensors on them begins."""


def _follow_each_other(clips: Sequence[torch.Tensor]) -> bool:
    """Whether the memory of each clip begins where that of the one before it ends."""
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
    """The slab that a tensor is a row of, and which; `None` for any other tensor."""
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
