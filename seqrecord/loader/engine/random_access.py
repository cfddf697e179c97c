"""Random access: loads and gathers the clips of calls, in the caller's thread.

A call is a round without a plan: its `CallStore` finds the frames that its clips lack, their loads
get rows, and the clips are gathered as those of a plan are. A `CallPart` has features that are
loaded together, with one of these policies::

    FileFrames       rows in mapped record files: nothing is loaded, new frames are checked
    ResidentFrames   a row for each frame that samples use, kept for later calls
    CallFrames       a row for each frame of the call, or a row of the batch

So each frame of a call is loaded once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.errors import SeqRecordError
from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.batches import (
    NO_DRAWS,
    CallThreads,
    ClipDraws,
    ClipRows,
    Copy,
    DrawClips,
)
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, HostBatchBuilder, HostBuffers
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.engine.executor import check_rows, gather
from seqrecord.loader.engine.frame_rows import FrameLookup
from seqrecord.loader.engine.loads import CallLoad, RowLoad
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.stores import (
    CallStore,
    FileFrames,
    FramesOfCalls,
    ResidentFrames,
)
from seqrecord.loader.engine.workers import bytes_together, joined_bounds
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.plan import Clips
from seqrecord.store.format.pages import slice_frames
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import ChunkGrid, frame_keys, run_bounds, split_keys

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps

_BLOCK_BYTES = 128 << 10  # of small frames, read at once: as many as Linux reads ahead
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
        frame_bytes: bytes of a frame.
        direct: features that are loaded into the batch.
        resident: policy of resident frames, if they are.
        mapped: rows of features in mapped files, by group; neither in `specs` nor `direct`.
        is_small: whether neighbours of frames are read with them.
    """

    dataset: Dataset
    clip_frames: ClipFrames
    grids: Sequence[ChunkGrid]
    names: Sequence[str]
    specs: Mapping[str, ArraySpec]
    frame_bytes: int
    direct: Sequence[str] = ()
    resident: ResidentFrames | None = None
    mapped: Mapping[int, MappedArena] = field(default_factory=dict)
    is_small: bool = False
    _idle: deque[Arena] = field(default_factory=partial(deque[Arena], maxlen=1))

    @property
    def has_rows(self) -> bool:
        """Whether frames of a call have rows in memory."""
        return self.resident is None and bool(self.specs or self.direct)

    @cached_property
    def feature_sets(self) -> list[tuple[str, ...]]:
        """The features by window."""
        return self.clip_frames.by_window(self.names)

    @cached_property
    def _policies(self) -> dict[int, list[FramesOfCalls]]:
        """The policies of all calls, by group."""
        policies = dict[int, list[FramesOfCalls]]()
        for grid in self.grids:
            policies[grid.group] = [] if self.resident is None else [self.resident]
            if (arena := self.mapped.get(grid.group)) is not None:
                policies[grid.group].append(FileFrames(self.clip_frames, arena))
        return policies

    @cached_property
    def _groups_with_rows(self) -> set[int]:
        """The groups of which frames of a call have rows."""
        mapped, features = self.mapped, self.dataset.features
        groups = {grid.group for grid in self.grids}
        return {group for group in groups if group not in mapped or mapped[group].leaves(features)}

    def store(self, rows_of_call: FramesOfCalls | None) -> CallStore:
        """The frames that stay, and those of a call."""
        if rows_of_call is None:
            return CallStore(self._policies, self.clip_frames)
        policies = {
            group: [*policies, rows_of_call] if group in self._groups_with_rows else policies
            for group, policies in self._policies.items()
        }
        return CallStore(policies, self.clip_frames)

    def acquire(self, num_rows: int) -> Arena:
        """Memory of at least `num_rows` rows for one call."""
        with suppress(IndexError):
            if (arena := self._idle.pop()).num_rows >= num_rows:
                return arena
        return Arena(self.specs, num_rows)

    def release(self, arena: Arena) -> None:
        """Keep an arena for the next call."""
        self._idle.append(arena)

    def loads(self, keys: IntArray) -> Iterator[CallLoad]:
        """Loads of frames, given by ascending keys: one per group."""
        episode, place = split_keys(keys)
        _, frame = self.clip_frames.stored_frames(episode, place)
        for grid in self.grids:
            chunk = grid.row(episode, grid.place(episode, place))
            yield CallLoad(grid.group, episode, place, chunk, frame)

    def with_neighbours(self, keys: IntArray) -> IntArray:
        """Extend keys to the blocks of frames that are read at once, if this is a small feature."""
        if not self.is_small:
            return keys
        [grid], [spec] = self.grids, self.dataset.features.values()
        length = slice_frames(spec)
        block = max(1, _BLOCK_BYTES // (length * spec.nbytes)) * length
        return grid.block_keys(keys, block, self.clip_frames.num_frames)


class CallFrames(FramesOfCalls):
    """Policy with a row for each frame of a call.

    If a part has direct features, rows are those of the batch: a frame goes to its first place, and
    `repeats` copies it to the others.
    """

    def __init__(
        self, part: CallPart, clips: Clips, frames: FrameLookup, builder: HostBatchBuilder
    ) -> None:
        self._feature_sets = part.feature_sets
        wanted = [
            frame_keys(clips.episode[:, None], frames.of(names[0])) for names in self._feature_sets
        ]
        keys = wanted[0] if len(wanted) == 1 else np.concatenate(wanted, axis=1)
        # Each frame once, its first place, and for every place which frame it is.
        self._keys = keys.reshape(-1)
        self._rows = which = np.arange(keys.size)
        if (self._keys[1:] <= self._keys[:-1]).any():  # else sorting costs 20 us of one clip's 400
            self._keys, self._rows, which = np.unique(keys, return_index=True, return_inverse=True)
            if part.direct:
                which = self._rows[which]
            else:
                self._rows = np.arange(len(self._keys))
        self._clip_rows: IntArray = which.reshape(keys.shape)
        self.arena = part.acquire(keys.size if part.direct else len(self._keys))
        self._direct = {name: builder.rows[name] for name in part.direct}
        self._target = self._direct | {name: self.arena[name] for name in part.specs}
        self._frame_nbytes, self._names = part.frame_bytes // len(part.grids), part.specs.keys()

    @property
    def nbytes(self) -> int:
        return len(self._keys) * self._frame_nbytes

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:  # noqa: ARG002
        """See `FramesOfCalls`."""
        return self._keys

    def assign(self, call: CallLoad) -> RowLoad:
        assert len(call.place) == len(self._keys), "a load lacks frames of the call"
        return call.to_rows(self._rows, self._target)

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:  # noqa: ARG002
        stop = 0
        for names in self._feature_sets:
            start, stop = stop, stop + frames.of(names[0]).shape[1]
            names_with_rows = [name for name in names if name in self._names]
            if names_with_rows:
                yield ClipRows(self.arena, self._clip_rows[:, start:stop], names_with_rows)

    def repeats(self) -> Iterator[Copy]:
        """Copies of repeated frames of direct features: from their first place to the others."""
        if not self._direct or len(self._keys) == self._clip_rows.size:
            return
        source = self._clip_rows.reshape(-1)
        target = np.flatnonzero(source != np.arange(len(source)))
        source = source[target]
        for begin, end in pairwise(run_bounds(target, source)):
            to, of = (slice(int(rows[begin]), int(rows[end - 1]) + 1) for rows in (target, source))
            for array in self._direct.values():
                yield Copy(array[to].nbytes, partial(np.copyto, array[to], array[of]))


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
        self._copies_mapped = any(part.mapped for part in parts)  # maybe many bytes
        self._parts = [
            (
                part,
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
                ),
                None if part.has_rows else part.store(None),
            )
            for part in parts
        ]

    def read(
        self, keys: ClipKeys, frames: ClipFrames, draw: DrawClips | None
    ) -> tuple[dict[str, Any], ClipDraws]:
        """Return the features of n clips as a batch, and their random parameters.

        `frames` finds the frames of the clips; `draw` makes their parameters, if there are any.
        """
        count, lookup = len(keys.start), FrameLookup(keys, frames)
        builder, slots = self._buffers_for(count).begin_batch(count), np.arange(count)
        threads, zeros = CallThreads(self._num_threads), np.zeros(count, np.int64)
        place = zeros, zeros, keys.episode, keys.start, zeros, slots  # one cursor, one batch
        clips = Clips(*place, keys.place, keys.sample, slots)
        sources, acquired = list[ClipRows[Any]](), list[tuple[CallPart, Arena]]()
        loaded = list[tuple[CallPart, ChunkLoader, CallStore, int]]()
        for part, loader, fixed_store in self._parts:
            if fixed_store is not None:
                self._fill(part, loader, fixed_store, clips, lookup)
                sources += fixed_store.find(clips, lookup)
                loaded.append((part, loader, fixed_store, 0))
                continue
            rows_of_call = CallFrames(part, clips, lookup, builder)
            acquired.append((part, rows_of_call.arena))
            store = part.store(rows_of_call)
            loaded.append((part, loader, store, loader.num_changes))
            self._load(part, loader, store, store.lacking(clips, lookup), threads)
            threads.copy(rows_of_call.repeats())
            sources += store.find(clips, lookup)
        check_rows(sources, self.stats)
        for part, loader, store, num_changes in loaded:
            if part.mapped:
                store.check_again(clips, loader.check)
            if part.has_rows and loader.num_changes != num_changes:
                self._load(part, loader, store, store.lacking(clips, lookup), threads)
            if part.resident is not None and not part.resident.is_current(loader.num_changes):
                with self._filling:
                    part.resident.forget_placed(loader.num_changes)
                self._fill(part, loader, store, clips, lookup)
        drawn = NO_DRAWS if draw is None else draw(keys, sources)
        if draw is None and not self._copies_mapped:
            threads = CallThreads(1)  # copying takes less time than starting threads
        gather(builder, slots, sources, threads, drawn, self._vectors)
        for part, arena in acquired:
            part.release(arena)
        return builder.finish()[0], drawn

    def _fill(
        self,
        part: CallPart,
        loader: ChunkLoader,
        store: CallStore,
        clips: Clips,
        lookup: FrameLookup,
    ) -> None:
        """Load frames that stay, and their neighbours."""
        if not len(keys := store.lacking(clips, lookup)):
            return
        threads = CallThreads(self._num_threads)
        if part.resident is None:
            self._load(part, loader, store, keys, threads)
            return
        with self._filling:
            keys = store.lacking(clips, lookup)  # another thread may have loaded them
            try:
                self._load(part, loader, store, part.with_neighbours(keys), threads)
            except SeqRecordError:  # of frames that nobody wants, maybe
                self._load(part, loader, store, keys, threads)
            part.resident.end_loads()

    def _load(
        self,
        part: CallPart,
        loader: ChunkLoader,
        store: CallStore,
        keys: IntArray,
        threads: CallThreads,
    ) -> None:
        """Load frames by their keys."""
        if len(keys):
            loads = [load for call in part.loads(keys) for load in store.assign(call)]
            frame_nbytes = part.frame_bytes // len(part.grids)
            nbytes = frame_nbytes * sum(len(load.rows) for load in loads)
            limit = bytes_together(nbytes, threads.num_threads)
            threads.copy(
                copy for load in loads for copy in _copies(loader, load, frame_nbytes, limit)
            )

    def _buffers_for(self, count: int) -> HostBuffers:
        """Memory for `count` clips; a single clip has its own, so that it keeps no batch."""
        buffers = self._buffers.get(count == 1)
        if buffers is None or buffers.needs.batch_size < count:
            buffers = HostBuffers(replace(self._needs, batch_size=count))
            self._buffers[count == 1] = buffers
        return buffers


def _copies(
    loader: ChunkLoader, load: RowLoad, frame_nbytes: int, max_nbytes: int
) -> Iterator[Copy]:
    """A load as tasks for threads: a chunk each, or several small ones of `max_nbytes` together."""
    nbytes, joins = len(load.rows) * frame_nbytes, loader.joins(load.group)
    if joins and 0 < nbytes <= max_nbytes:
        num_chunks = 1 + int(np.count_nonzero(load.chunk[1:] != load.chunk[:-1]))
        yield Copy(nbytes, partial(loader.load, load, num_chunks))
        return
    bounds = run_bounds(constant=load.chunk)
    sizes = [(stop - start) * frame_nbytes for start, stop in pairwise(bounds)]
    for begin, end in joined_bounds(sizes, max_nbytes if joins else 0):
        chunks = load.take(slice(bounds[begin], bounds[end]))
        yield Copy(sum(sizes[begin:end]), partial(loader.load, chunks, end - begin))
