"""Clips that overlap: frames are loaded into arenas, and copied from there into every clip."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.ahead import LoadedRound, RoundsAhead
from seqrecord.engine.batches import Batch, BatchBuilder
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.channel import Channel
from seqrecord.engine.draws import DrawClips, Drawn
from seqrecord.engine.gathers import Gathering
from seqrecord.engine.staying import StayingRounds
from seqrecord.engine.workers import WorkerPool
from seqrecord.sampling import Plan

__all__ = ["OverlappingExecutor"]


class OverlappingExecutor:
    """Executes a plan round by round: loads, gathers the clips into batches, frees frames.

    Where reading is mostly waiting, what has no room yet is read ahead, and decoded later.

    Args:
        together: so many batches of one clip are built as one batch, from the first on; the last
            of these may be smaller.
        first_row: where frames stay: of each episode, see `StayingRounds`.
    """

    def __init__(
        self,
        plan: Plan,
        clip_frames: ClipFrames,
        buffers: Buffers[Any],
        workers: WorkerPool,
        channel: Channel[Batch],
        draw: DrawClips | None = None,
        *,
        together: int = 1,
        first_row: IntArray | None = None,
    ) -> None:
        self._draw = draw
        self._together = together
        self._first = 0  # batch
        self._plan = plan
        self._buffers = buffers
        self._workers = workers
        self._channel = channel
        self._rounds: RoundsAhead | StayingRounds
        if first_row is None:
            self._rounds = RoundsAhead(plan, clip_frames, buffers.arenas, workers)
        else:
            self._rounds = StayingRounds(plan, clip_frames, buffers.arenas, workers, first_row)
        self._builder: BatchBuilder[Any] | None = None
        self._gathers = workers.gathers(channel.interrupt)
        self._gathering: Gathering | None = None  # of the builder

    def run(self, batch: int) -> None:
        """See `Executor`."""
        self._first = batch
        self._execute(*self._plan.locate(batch))

    def _execute(self, first_round: int, skip: int) -> None:
        """Deliver what follows so many clips of a round."""
        try:
            for loaded in self._rounds.run(first_round):
                self._workers.stats.hold(self._rounds.resident_bytes)
                self._emit(loaded, skip)
                self._wait()
                skip = 0
        except BaseException:
            if not self._channel.is_closed:
                self._gathers.wait()  # what is begun is delivered, or what a copy raised is why
            raise
        finally:
            self._gathers.leave()

    def _wait(self) -> None:
        """Until all copies are made: rows may be loaded into again."""
        with self._workers.stats.trace.span("wait for copies"):
            self._gathers.wait()
        self._workers.stats.add(gather_seconds=self._gathers.lap())

    def _emit(self, loaded: LoadedRound, skip: int) -> None:
        """Gather a round's clips into batches as their loads arrive, and deliver full ones."""
        clips = loaded.round.clips
        batch, slots = clips.batch, clips.slot
        if self._together > 1:
            batch, slots = np.divmod(batch - self._first, self._together)
        edges = (np.flatnonzero(np.diff(batch)) + 1).tolist()
        bounds = [skip, *(e for e in edges if e > skip), len(clips)]
        for start, stop in pairwise(bounds):
            if start == stop:
                continue
            self._workers.fetch(self._rounds.later())
            if self._builder is None or self._gathering is None:
                self._builder = self._begin_next(int(batch[start]))
                self._gathering = self._gathers.begin()
            sources = loaded.sources(start, stop)
            drawn = Drawn()
            if self._draw is not None:
                drawn = self._draw(clips.episode[start:stop], clips.start[start:stop])
                sources = [replace(source, crop=drawn.crop) for source in sources]
            begin = perf_counter()
            slot = int(slots[start])
            nbytes = self._builder.gather(slot, sources, self._gathering, drawn.calls)
            self._builder.append(clips.episode[start:stop], clips.start[start:stop])
            self._workers.note_gather(begin, stop - start, nbytes)
            if self._builder.is_full:
                self._gathering.finish(partial(_deliver, self._channel, self._builder))
                self._builder = self._gathering = None

    def _begin_next(self, batch: int) -> BatchBuilder[Any]:
        """As `_begin`. To wait while copies are made is not to wait for the consumer."""
        stats = self._workers.stats
        stats.add(gather_seconds=self._gathers.lap())
        before = stats.waiting_for_consumer_seconds
        builder = self._begin(batch)
        gathered, waited = self._gathers.lap(), stats.waiting_for_consumer_seconds - before
        stats.add(gather_seconds=gathered, waiting_for_consumer_seconds=-min(gathered, waited))
        return builder

    def _begin(self, batch: int) -> BatchBuilder[Any]:
        """A batch to build, once the consumer has taken enough of those before."""
        self._channel.reserve(batch)
        if self._together > 1:
            rest = self._plan.num_batches - self._first - batch * self._together
            return self._buffers.begin_batch(min(self._together, rest))
        return self._buffers.begin_batch(
            self._plan.first_clip(batch + 1) - self._plan.first_clip(batch)
        )


def _deliver(channel: Channel[Batch], builder: BatchBuilder[Any]) -> None:
    channel.put(builder.finish())
