"""Clips that do not overlap: every frame is loaded straight into the one clip that has it.

So there is no arena and no copying; what bounds the loads that run ahead is how many batches are
built at a time::

    chunks              [      a      ][      b      ][      c      ]
    batch 0             a a a a b b b b
    batch 1                                     c c c c …
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipSpec
from seqrecord.engine.arena import Place
from seqrecord.engine.batches import Batch, HostBatchBuilder
from seqrecord.engine.buffers import HostBuffers
from seqrecord.engine.loading import Load, each_load, first_uses, frame_key
from seqrecord.engine.scheduler import Channel, WorkerPool
from seqrecord.sampling import Clips, EpochPlan, Round

__all__ = ["DisjointExecutor"]


@dataclass
class _Open:
    """A batch being built, its loads, and how many of its frames no load brings yet."""

    builder: HostBatchBuilder
    unloaded: int
    loads: list[Future[None]] = field(default_factory=list)


class DisjointExecutor:
    """Executes a plan whose clips do not overlap, `EpochPlan.is_disjoint`.

    The channel lets at least `plan.most_batches` be built at a time, or it would wait for ever:
    a load may bring frames of as many.
    """

    def __init__(
        self,
        plan: EpochPlan,
        spec: ClipSpec,
        buffers: HostBuffers,
        workers: WorkerPool,
        channel: Channel[Batch],
    ) -> None:
        # A part without clips needs no rows of an arena either.
        assert plan.is_disjoint or not plan.num_clips, "overlapping clips go through the arena"
        self._plan = plan
        (self._group,) = plan.groups
        self._spec = spec
        self._buffers = buffers
        self._workers = workers
        self._channel = channel
        self._open: deque[_Open] = deque()
        self._next = 0  # the batch to open next

    def run(self, batch: int) -> None:
        """See `Executor`."""
        first_round, skip = self._plan.locate(batch)
        self._next = batch
        for current in self._plan.rounds(first_round):
            for load, clip in self._loads(current, skip):
                self._start(load, clip, current.clips)
            skip = 0
        while self._open:
            self._finish()

    def _loads(self, current: Round, skip: int) -> Iterator[tuple[Load, npt.NDArray[np.int64]]]:
        """Loads in the order in which clips need them, and each frame's clip, int64[count].

        That is a number in the round, or -1 for a frame of none, or of those before `skip`.
        """
        clips, step = current.clips, self._group.window.frame_step
        (group,) = current.groups
        uses = first_uses(group.loads, clips, span=self._spec.span, frame_step=step)
        places = frame_key(clips.run, clips.start)
        order = np.argsort(places)
        in_order = places[order]
        loads = each_load(group.loads)
        for i in np.argsort(uses, kind="stable").tolist():
            frames = loads[i].first + np.arange(loads[i].count) * step
            sought = frame_key(np.int64(loads[i].run), frames)
            before = np.searchsorted(in_order, sought, side="right") - 1
            clip = order[before]
            inside = (before >= 0) & (sought < places[clip] + self._spec.span) & (clip >= skip)
            if inside.any():
                yield loads[i], np.where(inside, clip, -1)

    def _start(self, load: Load, clip: npt.NDArray[np.int64], clips: Clips) -> None:
        """Have a load's frames brought into the batches of their clips."""
        frames = np.flatnonzero(clip >= 0)
        clip = clip[frames]
        batch, length = clips.batch[clip], self._spec.length
        offset = load.first + frames * self._group.window.frame_step - clips.start[clip]
        rows = clips.slot[clip] * length + offset // self._spec.dilation
        parts = [(self._batch(number), batch == number) for number in np.unique(batch).tolist()]
        places = []
        for item, mine in parts:
            some = clip[mine]
            item.builder.names.put(clips.slot[some], clips.episode[some], clips.start[some])
            places.append(Place(item.builder.rows, frames[mine], rows[mine]))
        done = self._workers.load(load, places)
        for item, mine in parts:
            item.loads.append(done)
            item.unloaded -= int(mine.sum())

    def _batch(self, number: int) -> _Open:
        """An open batch; those before it are opened too."""
        while self._next <= number:
            while not self._channel.try_reserve():
                if self._open and not self._open[0].unloaded:
                    self._finish()
                else:
                    self._channel.reserve(self._next)
                    break
            size = self._plan.first_clip(self._next + 1) - self._plan.first_clip(self._next)
            builder = self._buffers.begin_batch(size)
            self._open.append(_Open(builder, size * self._spec.length))
            self._next += 1
            self._workers.stats.hold(sum(item.builder.nbytes for item in self._open))
        return self._open[number - self._next]

    def _finish(self) -> None:
        """Deliver the first open batch as soon as its frames are there."""
        item = self._open.popleft()
        assert not item.unloaded, "the plan loads fewer frames than its clips have"
        self._workers.wait(item.loads)
        self._channel.put(item.builder.finish())
