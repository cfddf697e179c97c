"""The memory of batches on the host: a pool for each feature."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.arena import BufferPool
from seqrecord.engine.shared_memory import SharedBufferPool, can_share
from seqrecord.reading.frames import ArraySpec

__all__ = ["batch_pools"]

_BYTE = np.dtype(np.uint8)
_KEEP_SINGLE = 32  # clips with memory of their own: those of a batch are dropped at once


def batch_pools(
    specs: Mapping[str, ArraySpec],
    size: int,
    lengths: Mapping[str, int],
    keep: int,
    *,
    shared: bool = False,
) -> dict[str, BufferPool]:
    """A pool for each feature, of memory for `size` clips; `lengths` are their frames by feature.

    Texts need none.

    With `shared`, batches can be sent to another process without being copied. Frames of a variable
    shape are copied even so, and their memory is not used again.
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
            assert spec.largest is not None, "the largest frame is known"
            room = (size * length * spec.largest,)
            pools[name] = _FreshPool(room, _BYTE, 0) if shared else BufferPool(room, _BYTE, keep)
    return pools


class _FreshPool(BufferPool):
    """Leases memory once, and then it goes back to the system, all of it."""

    def lease(self, array: npt.NDArray[np.generic], count: int | None = None) -> torch.Tensor:
        return torch.from_numpy(array[:count])

    def _allocate(self) -> npt.NDArray[np.generic]:
        (nbytes,) = self._shape
        return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]
