"""Batches while they are filled: clips gathered from the arena into recycled buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.arena import Arena, BufferPool
from seqrecord.engine.trace import NO_TRACE, Trace
from seqrecord.engine.variable import VariableFrames, variable_pool
from seqrecord.frames import ArraySpec
from seqrecord.handover import SharedBufferPool, can_share

__all__ = ["Batch", "ClipNames", "Filling", "Gathering", "batch_pools"]

_COPY_BYTES = 4 << 20  # the least of a call; what is less in all is copied by one thread


@dataclass(frozen=True)
class Batch:
    """Clips as tensors [clips, frames, …] by feature, and where each clip comes from.

    A feature with a variable shape is a list of clips, each a list of frames.
    """

    features: dict[str, torch.Tensor | list[list[torch.Tensor]]]
    episode: npt.NDArray[np.int64]  # [clips], row of the index
    start: npt.NDArray[np.int64]  # [clips], first frame
    arrive: Callable[[], object] = lambda: None
    """To be called by the thread that takes the batch, before it uses the features."""

    def __len__(self) -> int:
        return len(self.episode)


def batch_pools(
    specs: Mapping[str, ArraySpec], size: int, length: int, keep: int, *, shared: bool = False
) -> dict[str, BufferPool]:
    """A pool for each feature, of memory for `size` clips of `length` frames.

    With `shared`, batches can be sent to another process without being copied.
    """
    pool = SharedBufferPool if shared and can_share() else BufferPool
    return {
        name: pool((size, length, *spec.shape), spec.dtype, keep)  # type: ignore[arg-type]
        if spec.is_fixed
        else variable_pool(spec, size * length, keep, shared=shared)
        for name, spec in specs.items()
    }


class ClipNames:
    """Where the clips of a batch of `size` come from, in any order or one after the other."""

    def __init__(self, size: int) -> None:
        self.episode = np.empty(size, np.int64)
        self.start = np.empty(size, np.int64)
        self.count = 0  # appended

    @property
    def is_full(self) -> bool:
        return self.count == len(self.episode)

    def put(
        self,
        slots: npt.NDArray[np.int64] | slice,
        episode: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
    ) -> None:
        """Say which clips are at these slots; int64[n] each."""
        self.episode[slots], self.start[slots] = episode, start

    def append(self, episode: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> None:
        """Say which clips come next."""
        self.put(slice(self.count, self.count + len(episode)), episode, start)
        self.count += len(episode)


class Filling:
    """A batch of `size` clips while they arrive."""

    def __init__(
        self, size: int, specs: Mapping[str, ArraySpec], pools: Mapping[str, BufferPool]
    ) -> None:
        self.size = size
        self._specs = specs
        self._pools = pools
        self._buffers = {name: pools[name].take() for name, spec in specs.items() if spec.is_fixed}
        self.names = ClipNames(size)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @property
    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """The frames of all clips, one clip's after the other's: arrays [clips * frames, …]."""
        return {
            name: buffer.reshape(-1, *buffer.shape[2:]) for name, buffer in self._buffers.items()
        }

    def finish(self) -> Batch:
        """The batch, whose clips are all there, in memory that comes back when it is dropped."""
        features: dict[str, Any] = {
            name: self._pools[name].lend(buffer, self.size)
            for name, buffer in self._buffers.items()
        }
        return Batch(features, self.names.episode, self.names.start)


class Gathering(Filling):
    """A batch of `size` clips that are copied from an arena."""

    def __init__(self, size: int, arena: Arena, pools: Mapping[str, BufferPool]) -> None:
        super().__init__(size, arena.specs, pools)
        self._arena = arena
        self._variable = {
            name: VariableFrames(spec, pools[name])
            for name, spec in arena.specs.items()
            if not spec.is_fixed
        }

    @property
    def is_full(self) -> bool:
        return self.names.is_full

    def gather(
        self,
        episode: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        executor: Executor,
        threads: int,
        trace: Trace = NO_TRACE,
    ) -> int:
        """Append clips: int64[n] each, and the arena's rows of their frames, int64[n, length].

        They are copied, by this thread and by `threads - 1` of the executor's, when this returns:
        their rows may be written to again. Returns how many bytes that brings to a device.
        """
        _share(self._copies(rows.reshape(-1), len(rows), threads), executor, threads, trace)
        for name, frames in self._variable.items():
            for frame in self._arena.find_list(name, rows.reshape(-1)):
                frames.append(frame)
        self.names.append(episode, start)
        return 0

    def finish(self) -> Batch:
        batch = super().finish()
        found = {name: item.finish(self.size) for name, item in self._variable.items()}
        features = {name: {**batch.features, **found}[name] for name in self._specs}
        return replace(batch, features=features)

    def _copies(self, rows: npt.NDArray[np.int64], num_clips: int, threads: int) -> Iterator[_Copy]:
        """Copies that together append clips to all buffers: large ones first, then smaller.

        So threads that take one after the other finish together, with few calls: after each a
        thread must get the GIL again, which other threads may hold for a while.
        """
        parts = {
            name: buffer[self.names.count : self.names.count + num_clips]
            for name, buffer in self._buffers.items()
        }
        left = sum(part.nbytes for part in parts.values())
        for name, part in sorted(parts.items(), key=lambda item: -item[1].nbytes):
            frames = part.reshape(len(rows), *part.shape[2:])
            nbytes = max(1, self._specs[name].nbytes)
            start = 0
            while start < len(rows):
                stop = start + max(1, max(_COPY_BYTES, left // (2 * threads)) // nbytes)
                out = frames[start:stop]
                yield _Copy(out.nbytes, partial(self._arena.gather, name, rows[start:stop], out))
                left -= out.nbytes
                start = stop


class _Copy(NamedTuple):
    nbytes: int
    do: Callable[[], None]


def _share(copies: Iterable[_Copy], executor: Executor, threads: int, trace: Trace) -> None:
    """Do copies on this thread and on others; whoever is free takes the next."""
    todo = deque(copies)
    total = sum(copy.nbytes for copy in todo)
    threads = min(threads, 1 + total // _COPY_BYTES)
    others = [executor.submit(_work_off, todo, trace) for _ in range(threads - 1)]
    _work_off(todo, trace)
    with trace.span("wait for copies"):
        for other in others:
            other.result()


def _work_off(todo: deque[_Copy], trace: Trace) -> None:
    with trace.span("gather copies"):
        while True:
            try:
                copy = todo.popleft()
            except IndexError:
                return
            copy.do()
