"""Batches of a mix while several sources fill them, and the channel that delivers them in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.engine.batches import Batch, BatchBuilder, ClipNames
from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.stats import EngineStats

__all__ = ["MixChannel", "MixOrder", "MixedBatch", "OpenBatch", "SourceEnd"]


class MixOrder(Protocol):
    """Which slot of which batch each clip of each source goes to."""

    @property
    def num_batches(self) -> int:
        """Of the epoch."""

    @property
    def batch_size(self) -> int:
        """Clips of a batch."""

    def sources(self, batch: int) -> IntArray:
        """The source of each slot of a batch; int64[batch_size]."""

    def given(self, batch: int) -> IntArray:
        """How many clips each source has in all batches before this one; int64[sources].

        Those of earlier epochs of the mix count.
        """

    def places(self, source: int, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Batch and slot of the clips `[start, stop)` of a source, counted as in `given`."""


@dataclass(frozen=True)
class MixedBatch:
    """Clips of several sources, in the order of their slots.

    `features` are those of `Batch`; of each slot there is its source, the source's epoch, and the
    row of its episode and first frame there, int64[clips] each. A slot whose source lacks a feature
    is 0 there, or `None` in a list of texts.
    """

    features: dict[str, Any]
    source: IntArray
    epoch: IntArray
    episode: IntArray
    start: IntArray
    arrive: Callable[[], object] = lambda: None
    """To be called by the thread that takes the batch, before it uses the features."""

    def __len__(self) -> int:
        return len(self.source)


class OpenBatch:
    """A batch that is being filled, from any thread.

    `missing` is how many of its slots are not filled yet, `epoch` and `names` of which source's
    epoch and clip each slot is.
    """

    def __init__(
        self, sources: IntArray, begin: Callable[[], BatchBuilder[Any]], lock: threading.Lock
    ) -> None:
        self.source = sources
        self.epoch = np.zeros(len(sources), np.int64)
        self.names = ClipNames(len(sources))
        self.missing = len(sources)
        self._begin = begin
        self._builder: BatchBuilder[Any] | None = None
        self._lock = lock

    @property
    def builder(self) -> BatchBuilder[Any]:
        """The memory of the batch, which the source that comes first takes."""
        with self._lock:
            if self._builder is None:
                self._builder = self._begin()
            return self._builder

    def finish(self) -> MixedBatch:
        """The batch, all of whose slots are filled."""
        made: Batch = self.builder.finish()
        names = self.names
        return MixedBatch(
            made.features, self.source, self.epoch, names.episode, names.start, made.arrive
        )


class MixChannel(Channel[MixedBatch]):
    """From several sources to one consumer: a batch is begun by the first source that comes to it.

    It is delivered when all of its slots are filled, and those before it are delivered.
    """

    def __init__(
        self,
        slots: int,
        stats: EngineStats,
        order: MixOrder,
        first: int,
        num_sources: int,
        begin: Callable[[IntArray], BatchBuilder[Any]],
    ) -> None:
        super().__init__(slots, stats)
        self._order = order
        self._begin = begin
        self._open: deque[OpenBatch] = deque()
        self._next = first  # the batch to open next
        self._running = num_sources
        self._beginning = threading.Lock()  # memory is taken by one thread at a time

    def open(self, number: int, stats: EngineStats) -> OpenBatch:
        """A batch to fill, once the consumer has taken enough of those before it."""
        begin = perf_counter()
        with self._changed:
            while True:
                self._changed.wait_for(
                    lambda: number < self._next or self._slots or self._closed or self._interrupted
                )
                self.check_open()
                if self._interrupted:
                    raise ClosedError
                if number < self._next:
                    break
                sources = self._order.sources(self._next)
                begin_one = partial(self._begin, sources)
                self._open.append(OpenBatch(sources, begin_one, self._beginning))
                self._next += 1
                self._slots -= 1
                self._changed.notify_all()
            found = self._open[number - self._next]  # counted from the end
        end = perf_counter()
        stats.add(waiting_for_consumer_seconds=end - begin)
        stats.trace.add("wait for consumer", begin, end, batch=number)
        return found

    def fill(self, batch: OpenBatch, count: int) -> None:
        """So many more slots of an open batch are filled; deliver what is whole."""
        with self._changed:
            batch.missing -= count
            while self._open and not self._open[0].missing:
                self.put(self._open.popleft().finish())

    def end_source(self, error: BaseException | None) -> None:
        """A source has ended; the last one, and one with an error, ends the channel."""
        with self._changed:
            self._running -= 1
            if (error is not None or not self._running) and not self._ended:
                self.end(error)

    def close(self) -> None:
        """See `Channel.close`."""
        with self._changed:
            super().close()
            self._open.clear()


class SourceEnd:
    """A source's end of the channel: what its scheduler, threads and executor see of it."""

    def __init__(self, channel: MixChannel) -> None:
        self._channel = channel

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    def check_open(self) -> None:
        self._channel.check_open()

    def put(self, item: object) -> None:
        """A segment, which has delivered itself."""

    def interrupt(self) -> None:
        self._channel.interrupt()

    def end(self, error: BaseException | None = None) -> None:
        self._channel.end_source(error)

    def close(self) -> None:
        self._channel.close()
