"""The memory of an iteration: rows for frames, batches to build, room for chunks as they are read.

`HostBuffers` and `DeviceBuffers` have it on the host or on a device; what uses it does not ask
where. The next iteration takes it over, for memory is expensive to touch anew.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.arena import Arena, Place
from seqrecord.engine.batches import BatchBuilder, HostBatchBuilder, batch_pools
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec

__all__ = ["Buffers", "ChunkBuffers", "HostBuffers", "KeptBuffers", "Needs"]

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class Needs:
    """What an iteration needs memory for: rows of frames, and batches of clips."""

    specs: Mapping[str, ArraySpec]
    num_rows: int  # of the arena; 0 for an iteration whose loads go straight into batches
    batch_size: int  # clips
    clip_len: int
    num_batches: int  # that are ever in use at a time
    device: torch.device | None = None  # with its number; `None` for the host, without staging
    shared: bool = False  # batches are sent to another process


class ChunkBuffers:
    """Arrays for chunks as they are stored, one for each load under way; they grow as needed."""

    def __init__(self) -> None:
        self._idle: deque[npt.NDArray[np.uint8]] = deque()

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An array of at least so many bytes; release it when nothing refers to it any more."""
        try:
            found = self._idle.pop()
        except IndexError:
            return np.empty(nbytes, np.uint8)
        if len(found) < nbytes:
            del found  # before its successor is there: both would be more than the limit
            found = np.empty(nbytes, np.uint8)
        return found

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._idle.append(buffer)


class Buffers(Protocol[_ArenaT]):
    """The memory of an iteration. Methods are called by any of its threads.

    One arena has all features of one data set. Features that get chunks of their own, or several
    data sets, would have an arena each here: places and builders are told which one is meant.
    """

    needs: Needs
    chunks: ChunkBuffers
    arena: _ArenaT
    """Where `Place`s of loads are, and what a `BatchBuilder` gathers from."""

    def begin(self, stats: EngineStats) -> None:
        """Called first, by the scheduler's thread. `stats` counts what crosses to a device."""

    def storing(self, places: Sequence[Place]) -> AbstractContextManager[Sequence[Place]]:
        """A context for the thread that does one load: the places to write its frames to.

        They are in the rows of `places` when a later `BatchBuilder.gather` reads these, unless the
        block raises.
        """

    def begin_batch(self, size: int) -> BatchBuilder[_ArenaT]:
        """A batch of so many clips."""

    def end(self) -> None:
        """Called last, by the scheduler's thread, when no other uses this memory any more."""


class HostBuffers:
    """Buffers on the host: frames are decoded into their rows, and copied from there by threads."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.chunks = ChunkBuffers()
        self.arena = Arena(needs.specs, needs.num_rows)
        self._pools = batch_pools(
            needs.specs,
            needs.batch_size,
            needs.clip_len,
            keep=needs.num_batches,
            shared=needs.shared,
        )

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`; there is nothing to do."""

    def storing(self, places: Sequence[Place]) -> AbstractContextManager[Sequence[Place]]:
        """See `Buffers`; these places themselves."""
        return nullcontext(places)

    def begin_batch(self, size: int) -> HostBatchBuilder:
        """See `Buffers`."""
        return HostBatchBuilder(size, self.needs.specs, self._pools)

    def end(self) -> None:
        """See `Buffers`; there is nothing to do."""


class KeptBuffers:
    """Keeps the buffers of the last iteration for the next. A copy in another process is empty.

    So a loader holds the memory of an epoch until it is dropped, and never that of two.
    """

    def __init__(self) -> None:
        self._idle: deque[Buffers[Any]] = deque(maxlen=1)
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[KeptBuffers], tuple[()]]:
        return KeptBuffers, ()

    def acquire(self, needs: Needs, make: Callable[[Needs], Buffers[Any]]) -> Buffers[Any]:
        """The buffers kept, if they are what is needed, else new ones once those are gone."""
        if self._process != os.getpid():  # what a fork has of them is the other process's
            self._idle.clear()
            self._process = os.getpid()
        try:
            kept = self._idle.pop()
            if kept.needs == needs:
                return kept
            del kept
        except IndexError:
            pass
        return make(needs)

    def release(self, buffers: Buffers[Any]) -> None:
        """Keep buffers that this process has acquired."""
        self._idle.append(buffers)
