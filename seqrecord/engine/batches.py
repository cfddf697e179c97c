"""Batches, what they are made of, and what builds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from seqrecord.clips import IntArray
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop
from seqrecord.engine.ragged import RaggedFrames

__all__ = [
    "Batch",
    "BatchBuilder",
    "Copiers",
    "Copy",
    "OpenBatch",
    "Source",
]

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class Batch:
    """Clips as tensors [clips, frames, …] by feature, and where each clip comes from.

    Of texts a list of clips, each a list of `str` or `bytes`. Where several sources fill a batch, a
    slot whose source lacks a feature is 0 there, or `None` in a list of texts.
    """

    features: dict[str, torch.Tensor | RaggedFrames | list[list[Any]]]
    episode: IntArray  # [clips], row of the index of the clip's source
    start: IntArray  # [clips], first frame
    source: IntArray  # [clips], its number
    epoch: IntArray  # [clips], of the source
    arrive: Callable[[], object] = lambda: None
    """To be called by the thread that takes the batch, before it uses the features."""

    def __len__(self) -> int:
        return len(self.episode)


class Copy(NamedTuple):
    """Something to copy, without the GIL, in any thread."""

    nbytes: int
    do: Callable[[], None]


class Copiers(Protocol):
    """Threads that copy."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Have copies made."""


@dataclass(frozen=True, eq=False)
class Source(Generic[_ArenaT]):
    """Where some clips' frames of some of an arena's features are: `rows`, int64 [clips, frames].

    Of features that `crop` has, the batch gets the windows.
    """

    arena: _ArenaT
    rows: IntArray
    features: Sequence[str]
    crop: Crop | None = None


class BatchBuilder(Protocol[_ArenaT]):
    """The memory of a batch while clips are gathered from arenas into it.

    `HostBatchBuilder` and `DeviceBatchBuilder` do so. Clips may come from any arenas that together
    have the features of the batch: those of the groups of a dataset.
    """

    def gather(
        self,
        slots: IntArray,
        sources: Sequence[Source[_ArenaT]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        """Copy clips, from the arenas of their features, to these slots, int64[clips], ascending.

        With `calls`, the batch gets what functions make of the clips. Clips with a feature of
        variable shape come in the order of their slots. When all copies are made that this asks
        for, the rows may be loaded into again. Returns how many bytes that brings to a device.
        """

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        """The features of the batch, whose clips are all there, in memory that is released when
        they are dropped; and what the thread calls that takes them."""


class OpenBatch:
    """A batch of `size` clips that is being filled, from any thread.

    `missing` is how many of its slots are not filled yet, which the channel counts.

    Args:
        size: clips.
        begin: takes the memory, when the first clip comes.
        lock: so that memory is taken by one thread at a time.
        source: of each slot, int64[size]; by default 0.
    """

    def __init__(
        self,
        size: int,
        begin: Callable[[], BatchBuilder[Any]],
        lock: threading.Lock,
        source: IntArray | None = None,
    ) -> None:
        self.missing = size
        self._source = np.zeros(size, np.int64) if source is None else source
        self._episode, self._start = np.empty(size, np.int64), np.empty(size, np.int64)
        self._epoch = np.zeros(size, np.int64)
        self._begin = begin
        self._builder: BatchBuilder[Any] | None = None
        self._lock = lock

    @property
    def builder(self) -> BatchBuilder[Any]:
        """The memory of the batch."""
        with self._lock:
            if self._builder is None:
                self._builder = self._begin()
            return self._builder

    def name(self, slots: IntArray, episode: IntArray, start: IntArray, epoch: int) -> None:
        """Say which clips go to these slots; int64[n] each."""
        self._episode[slots], self._start[slots], self._epoch[slots] = episode, start, epoch

    def finish(self) -> Batch:
        """The batch, all of whose slots are filled."""
        features, arrive = self.builder.finish()
        return Batch(features, self._episode, self._start, self._source, self._epoch, arrive)
