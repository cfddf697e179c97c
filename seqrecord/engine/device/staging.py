"""Staging: host memory from which a device copies, used again when it has done so."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.device.streams import Mark, SideStream

__all__ = ["Staging", "StagingBuffer"]

_ALIGNMENT = 64  # of what is carved: a cache line, and more than any dtype wants
_MOST_UNDER_WAY = 2  # buffers being copied from, beside those that are acquired


class StagingBuffer:
    """Host memory, pinned where the device wants that, from which pieces are carved."""

    def __init__(self, nbytes: int, pin: bool) -> None:
        # Torch knows of copies from memory that it has pinned: were this dropped meanwhile,
        # its memory would not be used for anything else before they are done. That is why pieces
        # are made of this tensor, and not of an array's memory.
        self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pin)
        self._used = 0
        self._kept: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @staticmethod
    def room(sizes: Iterable[int]) -> int:
        """Bytes of a buffer that pieces of these sizes are carved from."""
        return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

    def carve(self, nbytes: int) -> torch.Tensor:
        """The next piece: uint8 [nbytes]."""
        begin, self._used = self._used, self._used + self.room([nbytes])
        assert self._used <= self.nbytes, "a buffer is larger than what is carved from it"
        return self._memory[begin : begin + nbytes]

    def array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        """The next piece as it is copied, uint8 [nbytes], and as it is written to, an array."""
        piece = self.carve(int(np.prod(shape)) * dtype.itemsize)
        return piece, piece.numpy().view(dtype).reshape(shape)

    def keep(self, source: torch.Tensor) -> None:
        """Refer to memory of others that is copied from too, until the buffer is used again."""
        self._kept.append(source)

    def clear(self) -> None:
        """Carve from the beginning again."""
        self._used = 0
        self._kept.clear()


class _Copied(NamedTuple):
    """A buffer that nobody holds, and when all copies from it are done."""

    buffer: StagingBuffer
    mark: Mark


class Staging:
    """Buffers for a stream. Any number of threads acquire one each.

    There are at most two more than are acquired at a time: one can be filled while others are
    copied from. Torch rounds pinned memory up to a power of two.
    """

    def __init__(self, stream: SideStream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._idle: deque[_Copied] = deque()  # in the order in which copies were queued

    @contextmanager
    def acquire(self, sizes: Iterable[int]) -> Iterator[StagingBuffer]:
        """A buffer for pieces of these sizes, from which copies may be queued in this context."""
        buffer = self._find(StagingBuffer.room(sizes))
        try:
            yield buffer
        finally:
            self._idle.append(_Copied(buffer, self.stream.mark()))

    def _find(self, nbytes: int) -> StagingBuffer:
        with self._lock:
            found = self._next()
        if found is not None:
            found.mark.wait()
            found.buffer.clear()
            if found.buffer.nbytes >= nbytes:
                return found.buffer
        del found  # its memory first
        with self.stream.use():  # memory is pinned for a device's context: not for another one's
            return StagingBuffer(nbytes, self.stream.pins_memory)

    def _next(self) -> _Copied | None:
        """One that is copied already, or else the first one that will be, or else none."""
        if self._idle and self._idle[0].mark.is_reached:
            return self._idle.popleft()
        return self._idle.popleft() if len(self._idle) >= _MOST_UNDER_WAY else None
