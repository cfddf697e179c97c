"""Clips that do not overlap: every frame is loaded straight into the one clip that has it.

So there is no copying; what bounds the loads that run ahead is how many batches are built at a
time::

    chunks              [      a      ][      b      ][      c      ]
    batch 0             a a a a b b b b
    batch 1                                     c c c c …

Where batches have windows of the frames, a frame is decoded by itself, or read with its page, and
its window is copied.

Groups of features with longer chunks, of which frames are for clips of later rounds, have an arena
all the same, and are copied from there into the batches that are being built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import ClipFrames
from seqrecord.engine.ahead import LoadedRound, RoundsAhead
from seqrecord.engine.arena import Place, Rows
from seqrecord.engine.batches import Batch
from seqrecord.engine.buffers import HostBuffers
from seqrecord.engine.channel import Channel
from seqrecord.engine.crop_rows import CroppedRows, CropSlots
from seqrecord.engine.crops import Crop
from seqrecord.engine.draws import DrawClips, Drawn
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.engine.loads import Load, each_load, first_uses, ordered_uses
from seqrecord.engine.workers import WorkerPool
from seqrecord.frame_keys import frame_keys, sought_keys
from seqrecord.sampling import Clips, Plan, Round, Window

__all__ = ["DisjointExecutor"]


@dataclass
class _Open:
    """A batch being built, its loads, and how much is still to come.

    That is counted in frames that no load brings yet, and clips that are not gathered yet.
    """

    builder: HostBatchBuilder
    missing: int
    slots: CropSlots | None = None  # the windows of its clips, where it has windows
    loads: list[Future[None]] = field(default_factory=list)


class DisjointExecutor:
    """Executes a plan whose clips do not overlap, `Plan.disjoint_groups`.

    Groups whose arena has no rows are loaded straight into batches. The channel lets at least
    `plan.most_batches` be built at a time, or it would wait for ever: a load may bring frames of as
    many.
    """

    def __init__(
        self,
        plan: Plan,
        clip_frames: ClipFrames,
        buffers: HostBuffers,
        workers: WorkerPool,
        channel: Channel[Batch],
        draw: DrawClips | None = None,
    ) -> None:
        self._draw = draw
        self._plan = plan
        self._num_frames = clip_frames.num_frames
        self._buffers = buffers
        self._workers = workers
        self._channel = channel
        self._direct = [not arena.num_rows for arena in buffers.arenas]
        self._direct_frames = sum(  # of a clip
            group.window.length
            for group, direct in zip(plan.groups, self._direct, strict=True)
            if direct
        )
        # A part without clips needs no rows of an arena either.
        assert not plan.num_clips or all(
            is_disjoint or not direct
            for is_disjoint, direct in zip(plan.disjoint_groups, self._direct, strict=True)
        ), "overlapping clips go through an arena"
        self._rounds = RoundsAhead(plan, clip_frames, buffers.arenas, workers)
        self._open: deque[_Open] = deque()
        self._next = 0  # the batch to open next

    def run(self, batch: int) -> None:
        """See `Executor`."""
        first_round, skip = self._plan.locate(batch)
        self._next = batch
        for loaded in self._rounds.run(first_round):
            current = loaded.round
            drawn = self._drawn(current.clips, 0, len(current.clips))
            for load, window, clip in self._loads(current, skip):
                self._start(load, window, clip, current.clips, drawn.crop)
            if not all(self._direct):
                self._gather(loaded, skip)
            skip = 0
        while self._open:
            self._finish()

    def _loads(
        self, current: Round, skip: int
    ) -> Iterator[tuple[Load, Window, npt.NDArray[np.int64]]]:
        """Loads into batches in the order in which clips need them, and each frame's clip.

        That is a number in the round, or -1 for a frame of none, or of those before `skip`;
        int64[count].
        """
        clips = current.clips
        places = frame_keys(clips.run, clips.start)
        order = np.argsort(places)
        in_order = places[order]
        loads: list[tuple[int, Window, Load]] = []
        for group, todo, direct in zip(
            self._plan.groups, current.groups, self._direct, strict=True
        ):
            if direct:
                uses = first_uses(todo.loads, clips, group.window, self._num_frames)
                ordered = ordered_uses(uses, todo.loads, group)
                each = each_load(group.group, todo.loads)
                loads += [(u, group.window, load) for u, load in zip(ordered, each, strict=True)]
        for _, window, load in sorted(loads, key=lambda item: item[0]):
            frames = load.first + np.arange(load.count) * window.frame_step
            starts = frames - window.offset
            sought = sought_keys(np.int64(load.run), starts)
            before = np.searchsorted(in_order, sought, side="right") - 1
            clip = order[before]
            uses = (clips.run[clip] == load.run) & (starts - clips.start[clip] < window.span)
            inside = (before >= 0) & uses & (clip >= skip)
            if inside.any():
                yield load, window, np.where(inside, clip, -1)

    def _drawn(self, clips: Clips, start: int, stop: int) -> Drawn:
        """What is drawn for the clips `[start, stop)` of a round."""
        if self._draw is None:
            return Drawn()
        return self._draw(clips.episode[start:stop], clips.start[start:stop])

    def _start(
        self,
        load: Load,
        window: Window,
        clip: npt.NDArray[np.int64],
        clips: Clips,
        crop: Crop | None,
    ) -> None:
        """Have a load's frames, or their windows, brought into the batches of their clips."""
        frames = np.flatnonzero(clip >= 0)
        clip = clip[frames]
        batch = clips.batch[clip]
        offset = load.first + frames * window.frame_step - window.offset - clips.start[clip]
        rows = clips.slot[clip] * window.length + offset // window.frame_step
        parts = [(self._batch(number), batch == number) for number in np.unique(batch).tolist()]
        places = []
        for item, mine in parts:
            some = clip[mine]
            item.builder.names.put(clips.slot[some], clips.episode[some], clips.start[some])
            target: Rows = item.builder.rows
            if crop is not None:
                item.slots = item.slots or CropSlots(crop.crops, item.builder.size)
                item.slots.put(clips.slot[some], crop.windows, some)
                target = CroppedRows(item.builder.rows, window.length, item.slots)
            places.append(Place(target, frames[mine], rows[mine]))
        done = self._workers.load(load, places)
        for item, mine in parts:
            item.loads.append(done)
            item.missing -= int(mine.sum())

    def _gather(self, loaded: LoadedRound, skip: int) -> None:
        """Copy what arenas have of a round's clips into their batches."""
        clips = loaded.round.clips
        edges = (np.flatnonzero(np.diff(clips.batch)) + 1).tolist()
        for start, stop in pairwise([skip, *(e for e in edges if e > skip), len(clips)]):
            if start < stop:
                item = self._batch(int(clips.batch[start]))
                crop = self._drawn(clips, start, stop).crop
                sources = [replace(s, crop=crop) for s in loaded.sources(start, stop)]
                begin = perf_counter()
                item.builder.gather(int(clips.slot[start]), sources, self._workers)
                self._workers.note_gather(begin, stop - start, 0)
                item.missing -= stop - start

    def _batch(self, number: int) -> _Open:
        """An open batch; those before it are opened too."""
        while self._next <= number:
            while not self._channel.try_reserve():
                if self._open and not self._open[0].missing:
                    self._finish()
                else:
                    self._channel.reserve(self._next)
                    break
            size = self._plan.first_clip(self._next + 1) - self._plan.first_clip(self._next)
            missing = size * self._direct_frames
            if not all(self._direct):
                missing += size
            self._open.append(_Open(self._buffers.begin_batch(size), missing))
            self._next += 1
            batches = sum(item.builder.nbytes for item in self._open)
            self._workers.stats.hold(batches + self._rounds.resident_bytes)
        return self._open[number - self._next]

    def _finish(self) -> None:
        """Deliver the first open batch as soon as its frames are there."""
        item = self._open.popleft()
        assert not item.missing, "the plan loads fewer frames than its clips have"
        self._workers.wait(item.loads)
        self._channel.put(item.builder.finish())
