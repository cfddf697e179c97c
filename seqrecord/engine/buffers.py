"""The memory of an iteration: rows for frames, batches to build, room for chunks as they are read.

`HostBuffers` and `DeviceBuffers` have it on the host or on a device; what uses it does not ask
where. The next iteration takes it over, for memory is expensive to touch anew.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips import IntArray
from seqrecord.engine.arena import Arena, Rows
from seqrecord.engine.batch_pools import batch_pools
from seqrecord.engine.batches import BatchBuilder
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec
from seqrecord.schema import FeatureSpec

__all__ = ["Buffers", "ChunkBuffers", "GroupNeeds", "HostBuffers", "KeptBuffers", "Needs"]

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class GroupNeeds:
    """Rows for the frames of a group of features."""

    specs: Mapping[str, ArraySpec]
    num_rows: int  # of the arena
    stay: bool = False  # a row for each frame there is, which the next iteration needs too


@dataclass(frozen=True)
class Needs:
    """What an iteration needs memory for: rows of frames, and batches of clips."""

    groups: tuple[GroupNeeds, ...]
    specs: Mapping[str, ArraySpec]  # of the features of batches, in their order
    lengths: Mapping[str, int]  # frames of each of them in a clip
    batch_size: int  # clips
    num_batches: int  # that are ever in use at a time
    device: torch.device | None = None  # with its number; `None` for the host, without staging
    shared: bool = False  # batches are sent to another process
    decoded_there: tuple[FeatureSpec, ...] = ()  # videos that the device decodes, if it can


class ChunkBuffers:
    """Arrays for chunks as they are stored, one for each load under way; they grow as needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[npt.NDArray[np.uint8]] = []  # from the smallest to the largest

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An array of at least so many bytes; release it when nothing refers to it any more."""
        with self._lock:
            fitting = bisect_left(self._idle, nbytes, key=len)
            if fitting < len(self._idle):
                return self._idle.pop(fitting)
            if self._idle:  # before its successor is there: both would be more than the limit
                self._idle.pop()
        return np.empty(nbytes, np.uint8)

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            insort(self._idle, buffer, key=len)


class Buffers(Protocol[_ArenaT]):
    """The memory of an iteration. Methods are called by any of its threads."""

    needs: Needs
    chunks: ChunkBuffers
    arenas: Sequence[_ArenaT]
    """One a group of features: where loads go, and what a `BatchBuilder` gathers from."""

    def begin(self, stats: EngineStats) -> None:
        """Called first, by the scheduler's thread. `stats` counts what crosses to a device."""

    def storing(self, target: Any, rows: IntArray) -> AbstractContextManager[tuple[Rows, IntArray]]:
        """A context for the thread that brings frames to rows of an arena, int64[n]: what to write
        them to, and in which rows, int64[n].

        They are in `rows` when a later `BatchBuilder.gather` reads these, unless the block raises.
        """

    def begin_batch(self, size: int) -> BatchBuilder[_ArenaT]:
        """A batch of so many clips."""

    def end(self) -> None:
        """Called last, by the scheduler's thread, when no other uses this memory any more."""


class HostBuffers:
    """Buffers on the host: frames are decoded into their rows, and copied from there by threads."""

    stream: None = None

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.chunks = ChunkBuffers()
        self.arenas: Sequence[Arena] = [
            Arena(group.specs, group.num_rows) for group in needs.groups
        ]
        self._pools = batch_pools(
            needs.specs, needs.batch_size, needs.lengths, needs.num_batches, shared=needs.shared
        )

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`; there is nothing to do."""

    def storing(self, target: Any, rows: IntArray) -> AbstractContextManager[tuple[Rows, IntArray]]:
        """See `Buffers`; these rows themselves."""
        return nullcontext((target, rows))

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
