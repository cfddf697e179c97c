"""Executes several plans at once, whose clips come together in the same batches.

Each source has a scheduler, threads and arenas of its own, and runs its epochs one after the other.
Its clips go straight from its arenas into their slots of batches that all sources fill::

    source a     load, gather a   a       a | a …
    source b     load, gather   b     b b   |   b …
    batches                   [ a b a b b a ] [ a b …

A source may be ahead of another by as many batches as the channel has slots, and no further.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.engine.ahead import LoadedRound
from seqrecord.engine.batches import BatchBuilder, Copiers, Source
from seqrecord.engine.calls import Calls
from seqrecord.engine.engine import Execution
from seqrecord.engine.mix_channel import MixChannel, MixedBatch, MixOrder, OpenBatch, SourceEnd
from seqrecord.engine.overlapping import OverlappingExecutor
from seqrecord.engine.scheduler import Scheduler
from seqrecord.engine.stats import EngineStats
from seqrecord.sampling import Plan

__all__ = ["MixEngine", "SourceRun"]

_PATIENCE = 1.0  # seconds; see `Scheduler.close`


class SourceRun(Protocol):
    """What runs a source's epochs."""

    stats: EngineStats

    def locate(self, clip: int) -> tuple[int, int]:
        """The source's epoch that has this clip, counted as in `MixOrder.given`, and its first."""

    def plan(self, epoch: int) -> Plan:
        """The plan of one of its epochs; what it says of batches does not matter."""

    def execution(self, plan: Plan, channel: Any, make_executor: Callable[..., Any]) -> Execution:
        """What executes a plan and puts segments into a channel."""


class _EnoughError(Exception):
    """The source has given all of its clips of this epoch of the mix."""


class _Segment:
    """The slots of a batch that are for clips of one source's epoch; see `BatchBuilder`."""

    def __init__(
        self,
        channel: MixChannel,
        batch: OpenBatch,
        slots: IntArray,
        epoch: int,
        stats: EngineStats,
    ) -> None:
        self._channel, self._batch, self._stats = channel, batch, stats
        self._slots, self._epoch = slots, epoch
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count == len(self._slots)

    def gather(
        self,
        slot: int,
        sources: Sequence[Source[Any]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        """Copy clips to slot number `slot` of these and those after it."""
        slots = self._slots[slot : slot + len(sources[0].rows)]
        return self._batch.builder.gather(slots, sources, copiers, calls)

    def append(self, episode: IntArray, start: IntArray) -> None:
        """Say which clips these were."""
        slots = self._slots[self._count : self._count + len(episode)]
        self._batch.names.put(slots, episode, start)
        self._batch.epoch[slots] = self._epoch
        self._count += len(episode)

    def finish(self) -> None:
        """The slots are filled."""
        self._stats.add(clips=len(self._slots))
        self._channel.fill(self._batch, len(self._slots))


class _MixExecutor(OverlappingExecutor):
    """Executes a plan whose clips go to segments of batches of a mix.

    `offset` is the number of the plan's first clip among all clips of the source, `last` the number
    behind its last one in this epoch of the mix.
    """

    def __init__(
        self,
        channel: MixChannel,
        order: MixOrder,
        run: SourceRun,
        source: int,
        offset: int,
        last: int,
        plan: Plan,
        *arguments: Any,
    ) -> None:
        super().__init__(plan, *arguments)
        self._mix, self._order, self._source = channel, order, source
        self._run, self._offset, self._last = run, offset, last
        self._epoch, self._num_clips = plan.epoch, plan.num_clips
        self._next = 0  # the number of the next round's first clip
        # Segments that begin in this round, by their first clip: batch and slots.
        self._places: dict[int, tuple[int, IntArray]] = {}

    def run(self, clip: int) -> None:
        """As `Executor.run`, from one of the plan's clips on."""
        first_round, skip = self._plan.locate_clip(clip)
        self._next = clip - skip
        self._execute(first_round, skip)

    def _emit(self, loaded: LoadedRound, skip: int) -> None:
        current = loaded.round
        clips, first = current.clips, self._next
        self._next += len(clips)
        stop = min(self._next, self._last - self._offset)
        if stop <= first + skip:
            if stop < self._next:
                raise _EnoughError
            return  # a round without clips
        segment, slot = self._segments(first + skip, stop)
        skipped = np.zeros(skip, np.int64)
        rows = clips.rows(0, stop - first)
        rows = replace(
            rows,
            batch=np.concatenate([skipped - 1, segment]),
            slot=np.concatenate([skipped, slot]),
        )
        loaded.round = replace(current, clips=rows)
        super()._emit(loaded, skip)
        if self._offset + stop >= self._last:
            self._wait()
            raise _EnoughError

    def _segments(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """The segment of each clip `[start, stop)`, as the number of its first, and its place.

        A segment goes on from one round to the next.
        """
        end = min(self._num_clips, self._last - self._offset)
        size = self._order.batch_size
        ahead = min(end, stop + size)  # a segment is no longer than a batch
        behind = max(0, start - size)
        batch, slot = self._order.places(self._source, self._offset + behind, self._offset + ahead)
        at = np.append(0, np.flatnonzero(np.diff(batch)) + 1)
        length = np.diff(np.append(at, len(batch)))
        self._places = {
            behind + begin: (int(batch[begin]), slot[begin : begin + count])
            for begin, count in zip(at.tolist(), length.tolist(), strict=True)
            if start <= behind + begin < stop
        }
        inside = slice(start - behind, stop - behind)
        first = np.repeat(at, length)[inside] + behind
        return first, np.arange(start, stop) - first

    def _begin(self, batch: int) -> Any:
        number, slots = self._places.pop(batch)
        opened = self._mix.open(number, self._run.stats)
        return _Segment(self._mix, opened, slots, self._epoch, self._run.stats)


class MixEngine:
    """Runs several sources from one batch on: an iterator of `MixedBatch`.

    Closing it, or dropping it, or leaving the interpreter, ends all threads of all sources. `next`
    raises the first error of any of them after the batches before it.

    Args:
        order: which clip goes where.
        batch: the first batch to deliver.
        runs: what runs each source.
        begin: takes the memory of a batch whose slots are for these sources, int64[clips].
        prefetch: batches that are filled or wait.
        stats: counts batches and clips, and what the consumer waits.
    """

    drop: Callable[[], object]
    """As `close`, for places that must not wait long: those that a finalizer may come from."""

    """As of an `Engine`."""

    def __init__(
        self,
        order: MixOrder,
        batch: int,
        runs: Sequence[SourceRun],
        begin: Callable[[IntArray], BatchBuilder[Any]],
        *,
        prefetch: int,
        stats: EngineStats,
    ) -> None:
        self.stats = stats
        self._process = os.getpid()
        self._channel = MixChannel(prefetch, stats, order, batch, len(runs), begin)
        given, last = order.given(batch), order.given(order.num_batches)
        self._schedulers: list[Scheduler] = []
        drop = weakref.finalize(self, _close, self._channel, self._schedulers, _PATIENCE)
        drop.atexit = False
        self.drop = drop
        end: Any = SourceEnd(self._channel)
        try:
            for i, source in enumerate(runs):
                clips = int(given[i]), int(last[i])
                run = partial(_run_source, source, i, self._channel, order, *clips)
                self._schedulers.append(Scheduler(end, run, _nothing))
        except BaseException:  # a thread for each source, or none
            self.close()
            raise

    def __iter__(self) -> Iterator[MixedBatch]:
        return self

    def __next__(self) -> MixedBatch:
        batch = self._channel.take(self._process)
        batch.arrive()
        self.stats.add(batches=1, clips=len(batch))
        return batch

    def close(self) -> None:
        """End all threads; nothing is left when it returns."""
        _close(self._channel, self._schedulers, None)


def _close(channel: MixChannel, schedulers: list[Scheduler], patience: float | None) -> None:
    if schedulers and schedulers[0].process == os.getpid():
        channel.close()  # for all, before any is waited for
    for scheduler in schedulers:
        scheduler.close(patience)


def _nothing() -> None:
    pass


def _run_source(
    source: SourceRun, number: int, channel: MixChannel, order: MixOrder, clip: int, last: int
) -> None:
    """What a source's scheduler does: give its clips `[clip, last)`, over its epochs."""
    end = SourceEnd(channel)
    while clip < last:
        epoch, offset = source.locate(clip)
        plan = source.plan(epoch)
        make = partial(_MixExecutor, channel, order, source, number, offset, last)
        execution = source.execution(plan, end, make)
        try:
            execution.run(clip - offset)
        except _EnoughError:
            return
        finally:
            execution.release()
        clip = offset + plan.num_clips
