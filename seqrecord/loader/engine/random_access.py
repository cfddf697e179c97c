"""Random access: loads and gathers the clips of calls, in the caller's thread.

A call is one step without a plan, see `frame_store`. A `CallPart` has features that are loaded
together, with one of these rows::

    MappedFrames     in mapped record files: nothing is loaded, new frames are checked
    ResidentFrames   for each frame that samples use, kept for later calls
    StepFrames       for each frame of the call, in an arena or in the batch

So each frame of a call is loaded once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.errors import SeqRecordError
from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.batches import (
    NO_DRAWS,
    CallThreads,
    ClipDraws,
    Copy,
    DrawClips,
)
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, HostBatchBuilder, HostBuffers
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.clip_gatherer import check_rows, gather
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.engine.frame_rows import FrameLookup
from seqrecord.loader.engine.frame_store import (
    GroupFrames,
    MappedFrames,
    ResidentFrames,
    Step,
    StepFrames,
    StepStore,
)
from seqrecord.loader.engine.loads import Load
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.workers import bytes_together, joined_bounds
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.epoch_plans import Clips
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import ChunkGrid, IntArray

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps

_KEEP = 3  # batches that nobody uses


@dataclass(frozen=True, eq=False)
class CallPart:
    """Features that are loaded together: with equal frames in clips, or for one transform.

    Attributes:
        dataset: opened with these features only.
        clip_frames: windows of the features.
        grids: whole chunks of the groups to load; with a transform, a load of one group brings all
            others.
        names: the features in batches.
        specs: dtypes and shapes of those that have rows in an arena.
        direct: features that are loaded into the batch.
        resident: rows of resident frames, if they are.
        mapped: rows of features in mapped files, by group; neither in `specs` nor `direct`.
    """

    dataset: Dataset
    clip_frames: ClipFrames
    grids: Sequence[ChunkGrid]
    names: Sequence[str]
    specs: Mapping[str, ArraySpec]
    direct: Sequence[str] = ()
    resident: ResidentFrames | None = None
    mapped: Mapping[int, MappedArena] = field(default_factory=dict)
    _idle: deque[Arena] = field(default_factory=partial(deque[Arena], maxlen=1))

    @cached_property
    def mapped_frames(self) -> list[MappedFrames]:
        """The frames in mapped files."""
        grids = {grid.group: grid for grid in self.grids}
        return [
            MappedFrames(grids[group], self.clip_frames, arena)
            for group, arena in self.mapped.items()
        ]

    @cached_property
    def grids_of_calls(self) -> list[ChunkGrid]:
        """Chunks of the groups of which frames of a call have rows."""
        mapped, features = self.mapped, self.dataset.features
        return [
            grid
            for grid in self.grids
            if self.resident is None
            and (grid.group not in mapped or mapped[grid.group].leaves(features))
        ]

    @cached_property
    def _feature_sets(self) -> list[tuple[str, ...]]:
        """The features by window."""
        return self.clip_frames.by_window(self.names)

    def call_frames(
        self, clips: Clips, lookup: FrameLookup, builder: HostBatchBuilder
    ) -> StepFrames:
        """Rows of a call's frames."""
        direct = {name: builder.rows[name] for name in self.direct}
        of_call = clips, lookup, self._acquire, direct
        return StepFrames(self.grids_of_calls, self.clip_frames, self._feature_sets, *of_call)

    def _acquire(self, num_rows: int) -> Arena:
        """Memory of at least `num_rows` rows for one call."""
        with suppress(IndexError):
            if (arena := self._idle.pop()).num_rows >= num_rows:
                return arena
        return Arena(self.specs, num_rows)

    def release(self, arena: Arena) -> None:
        """Keep an arena for the next call."""
        self._idle.append(arena)


class RandomAccess:
    """Reads the clips of calls, in the caller's thread and threads that end with it. Thread-safe.

    Args:
        parts: the features of clips.
        made, lengths, vectors: see `Job`.
        transform: called once per frame. Then there is one part.
        num_threads: limit of decoding threads, and of a call's threads.
        shared: whether batches are sent to another process.
    """

    def __init__(
        self,
        parts: Sequence[CallPart],
        made: Mapping[str, ArraySpec],
        lengths: Mapping[str, int],
        vectors: VectorSteps,
        transform: Transform | None,
        *,
        num_threads: int,
        shared: bool,
    ) -> None:
        self._vectors, self._num_threads = vectors, num_threads
        self.stats = EngineStats()
        self._filling = threading.Lock()  # while resident frames are read
        self._needs = BufferNeeds((), made, lengths, 0, _KEEP, shared=shared)
        self._buffers = dict[bool, HostBuffers]()  # for one clip, and for several
        chunks = Buffers[Arena](self._needs)
        loaders = [
            ChunkLoader(
                part.dataset,
                chunks,
                part.grids[0].group,
                transform,
                num_threads,
                self.stats,
                part.clip_frames,
                frames_stay=part.resident is not None,
                exact=part.resident is not None,
                mapped=part.mapped,
            )
            for part in parts
        ]
        of_parts = [*zip(parts, loaders, strict=True)]
        # Frames that calls share, and parts with rows of calls; their loaders in the same order.
        self._resident = [part.resident for part in parts if part.resident is not None]
        self._mapped = [frames for part in parts for frames in part.mapped_frames]
        self._parts_of_calls = [part for part in parts if part.grids_of_calls]
        self._loaders_of_calls = [loader for part, loader in of_parts if part.grids_of_calls]
        self._loaders = [
            *(loader for part, loader in of_parts if part.resident is not None),
            *(loader for part, loader in of_parts for _ in part.mapped_frames),
            *self._loaders_of_calls,
        ]
        self._kept = StepStore(parts[0].clip_frames, [*self._resident, *self._mapped])
        self._num_fills = 0  # of resident frames

    def read(
        self, keys: ClipKeys, frames: ClipFrames, draw: DrawClips | None
    ) -> tuple[dict[str, Any], ClipDraws]:
        """Return the features of n clips as a batch, and their random parameters.

        `frames` finds the frames of the clips; `draw` makes their parameters, if there are any.
        """
        count, lookup = len(keys.start), FrameLookup(keys, frames)
        builder, slots = self._buffers_for(count).begin_batch(count), np.arange(count)
        threads, zeros = CallThreads(self._num_threads), np.zeros(count, np.int64)
        of_run = zeros, zeros, keys.episode, keys.start  # of one cursor
        clips = Clips(*of_run, keys.place, keys.sample, slots)
        of_call = [part.call_frames(clips, lookup, builder) for part in self._parts_of_calls]
        store = StepStore(frames, [*self._kept.frames, *of_call]) if of_call else self._kept
        num_changes = self._changes_of_calls() if of_call else ()
        step = self._load(store, clips, lookup, threads)
        sources = store.find(step)
        check_rows(sources, self.stats)
        if self._mapped:
            store.check_again(clips, self._check, lookup)
        if self._forget_placed() or (of_call and num_changes != self._changes_of_calls()):
            self._load(store, clips, lookup, threads)
        drawn = NO_DRAWS if draw is None else draw(keys, sources)
        if draw is None and not self._mapped:  # maybe many bytes
            threads = CallThreads(1)  # copying takes less time than starting threads
        gather(builder, slots, sources, threads, drawn, self._vectors)
        for part, call_frames in zip(self._parts_of_calls, of_call, strict=True):
            part.release(call_frames.arena)
        return builder.finish()[0], drawn

    def _load(
        self, store: StepStore, clips: Clips, lookup: FrameLookup, threads: CallThreads
    ) -> Step:
        """Load the frames of clips that are not there; resident ones in one thread at a time."""
        num_fills = self._num_fills
        step = store.step(clips, lookup)
        if not step.is_waiting:
            return step
        if any(step.waiting[: len(self._resident)]):
            with self._filling:
                if num_fills != self._num_fills:  # another thread may have loaded them
                    step = store.step(clips, lookup)
                try:
                    self._fill(step, threads)
                finally:
                    self._num_fills += 1
        of_frames = zip(store.frames, self._loaders, step.waiting, strict=True)
        threads.copy(
            copy
            for frames, loader, waiting in of_frames
            for copy in _copies(loader, frames, waiting, threads)
        )
        for frames in store.frames[len(store.frames) - len(self._parts_of_calls) :]:
            assert isinstance(frames, StepFrames), "rows of a call"
            threads.copy(frames.repeats())
        return step

    def _fill(self, step: Step, threads: CallThreads) -> None:
        """Load resident frames, and their neighbours."""
        of_frames = zip(self._resident, self._loaders, step.waiting, step.places, strict=False)
        for resident, loader, waiting, places in of_frames:
            if not waiting:
                continue
            try:
                threads.copy(_copies(loader, resident, waiting, threads))
            except SeqRecordError:  # of frames that nobody wants, maybe
                loads = resident.missing(step.clips, step.lookup, places, exact=True)
                threads.copy(_copies(loader, resident, loads, threads))
            finally:
                resident.end_loads()

    def _check(self, target: MappedArena, chunk: IntArray, frame: IntArray) -> None:
        """See `ChunkLoader`."""
        place = [frames.arena for frames in self._mapped].index(target)
        self._loaders[len(self._resident) + place].check(target, chunk, frame)

    def _changes_of_calls(self) -> list[int]:
        """See `ChunkLoader.num_changes`, of parts with rows of calls."""
        return [loader.num_changes for loader in self._loaders_of_calls]

    def _forget_placed(self) -> bool:
        """Forget resident frames in mapped files that somebody may have written to; whether there
        may be any.
        """
        has_changed = False
        for resident, loader in zip(self._resident, self._loaders, strict=False):
            if resident.arena.num_changes != (num_changes := loader.num_changes):
                with self._filling:
                    resident.forget_placed(num_changes)
                has_changed = True
        return has_changed

    def _buffers_for(self, count: int) -> HostBuffers:
        """Memory for `count` clips; a single clip has its own, so that it keeps no batch."""
        buffers = self._buffers.get(count == 1)
        if buffers is None or buffers.needs.batch_size < count:
            buffers = HostBuffers(replace(self._needs, batch_size=count))
            self._buffers[count == 1] = buffers
        return buffers


def _copies(
    loader: ChunkLoader, frames: GroupFrames, waiting: list[Load], threads: CallThreads
) -> Iterator[Copy]:
    """Loads as tasks for threads: a chunk each, or several small ones together."""
    if not waiting:
        return
    assigned = frames.place(waiting, ahead=False)
    limit = bytes_together(sum([item.nbytes for item in assigned]), threads.num_threads)
    for group, of_group in groupby(assigned, attrgetter("load.group")):
        # Of frame lists, several loads may have frames of one chunk.
        chunks = [[*items] for _, items in groupby(of_group, attrgetter("load.chunk"))]
        sizes = [sum([item.nbytes for item in items]) for items in chunks]
        for begin, end in joined_bounds(sizes, limit if loader.joins(group) else 0):
            items = [*chain(*chunks[begin:end])]
            yield Copy(sum(sizes[begin:end]), partial(loader, items))
