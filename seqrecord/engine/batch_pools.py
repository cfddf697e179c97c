"""The memory of batches on the host: a pool for each feature."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.adjacent import AdjacentPool
from seqrecord.engine.arena import BufferPool
from seqrecord.engine.shared_memory import SharedBufferPool, can_share
from seqrecord.reading.frames import ArraySpec

__all__ = ["batch_pools"]

_BYTE = np.dtype(np.uint8)


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

    Single clips may be joined to batches, see `engine.adjacent`.
    With `shared`, batches can be sent to another process without being copied. Frames of a variable
    shape are copied even so, and their memory is not used again.
    """
    pool = SharedBufferPool if shared and can_share() else BufferPool
    pools = {}
    for name, spec in specs.items():
        length = lengths[name]
        if spec.value != "array":
            continue
        if spec.is_fixed:
            make = partial(_array_pool, pool, (length, *spec.shape), spec.dtype, keep)
            pools[name] = AdjacentPool(make) if size == 1 else make(size)
        else:
            assert spec.largest is not None, "the largest frame is known"
            room = (size * length * spec.largest,)
            pools[name] = _FreshPool(room, _BYTE, 0) if shared else BufferPool(room, _BYTE, keep)
    return pools


def _array_pool(
    kind: type[BufferPool], shape: Any, dtype: np.dtype[Any], keep: int, size: int
) -> BufferPool:
    return kind((size, *shape), dtype, keep)


class _FreshPool(BufferPool):
    """Leases memory once, and then it goes back to the system, all of it."""

    def lease(self, array: npt.NDArray[np.generic], count: int | None = None) -> torch.Tensor:
        return torch.from_numpy(array[:count])

    def _allocate(self) -> npt.NDArray[np.generic]:
        (nbytes,) = self._shape
        return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]
