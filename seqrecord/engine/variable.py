"""Frames of a variable shape in a batch: one after the other in one piece of memory.

So a batch takes what its frames take, in memory that is used again as that of fixed shapes is::

    frames    | 0     | 1 | 2         | 3   |                      largest x frames
    memory    [ . . . . . . . . . . . . . . . | never touched …                   ]
"""

from __future__ import annotations

import math
import mmap

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.arena import BufferPool
from seqrecord.format.pages import aligned
from seqrecord.frames import ArraySpec

__all__ = ["VariableFrames", "variable_pool"]

_BYTE = np.dtype(np.uint8)


def variable_pool(spec: ArraySpec, frames: int, keep: int, *, shared: bool = False) -> BufferPool:
    """A pool of memory for so many frames of a variable shape.

    With `shared`, batches are sent to another process, which takes a copy; nothing comes back.
    """
    assert spec.largest is not None, "the largest frame is known"
    shape = (frames * aligned(spec.largest),)
    return _FreshPool(shape, _BYTE, 0) if shared else BufferPool(shape, _BYTE, keep)


class VariableFrames:
    """The frames of a batch while they arrive."""

    def __init__(self, spec: ArraySpec, pool: BufferPool) -> None:
        self._pool = pool
        self._memory = pool.take()
        self._used = 0
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self._dtype = torch.from_numpy(np.empty(0, spec.dtype)).dtype

    def append(self, frame: npt.NDArray[np.generic]) -> None:
        """Copy a frame, which comes next."""
        self._places.append((self._used, frame.shape))
        self._memory[self._used : self._used + frame.nbytes] = frame.reshape(-1).view(_BYTE)
        self._used += aligned(frame.nbytes)

    def finish(self, num_clips: int) -> list[list[torch.Tensor]]:
        """The frames of so many clips; the memory comes back when the last one is dropped."""
        length = len(self._places) // num_clips
        whole, size = self._pool.lend(self._memory, self._used), self._dtype.itemsize
        frames = [
            whole[begin : begin + math.prod(shape) * size].view(self._dtype).view(shape)
            for begin, shape in self._places
        ]
        return [frames[at : at + length] for at in range(0, len(frames), length)]


class _FreshPool(BufferPool):
    """Lends memory once, and then it goes back to the system, all of it."""

    def lend(self, array: npt.NDArray[np.generic], count: int | None = None) -> torch.Tensor:
        return torch.from_numpy(array[:count])

    def _allocate(self) -> npt.NDArray[np.generic]:
        (nbytes,) = self._shape
        return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]
