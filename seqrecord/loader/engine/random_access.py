"""Random access: makes and executes the row tables of clips by number, in the caller's thread.

A `FrameSet` is a store of frames for calls, as a `FrameStore` is for plans. Its policy says which
frames to load into which rows, and from which rows clips are copied::

    mapped      rows in mapped record files: nothing is loaded, new frames are checked
    resident    a row for each frame of the selected episodes, kept for later calls
    others      a row for each frame of the call
    direct      rows of the batch: a frame goes to its first place, and is copied to the others

So each frame of a call is loaded once.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError
from seqrecord.loader.engine.arena import Arena, FeatureRows
from seqrecord.loader.engine.batches import (
    NO_DRAWS,
    CallThreads,
    ClipDraws,
    ClipRows,
    Copy,
    DrawClips,
)
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, HostBuffers
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.engine.executor import gather
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.stores import RowLoad
from seqrecord.store.clips.frames import ClipFrames, ClipKeys
from seqrecord.store.clips.grids import ChunkGrid, distinct, frame_keys, run_bounds, split_keys
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.format.pages import slice_frames
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps

_BLOCK_BYTES = 128 << 10  # of small frames, read at once: as many as Linux reads ahead
_KEEP = 3  # batches that nobody uses


@dataclass(frozen=True, eq=False)
class FrameSet:
    """Features that are loaded together: with equal frames in clips, or for one transform.

    Attributes:
        dataset: opened with these features only.
        grids: the groups to load; with a transform, a load of one brings all others.
        windows: their names by number of window; features of a window have equal frames.
        specs: dtypes and shapes of features that have rows in an arena.
        direct: the other features, which are loaded into the batch.
        frame_bytes: bytes of a frame.
        is_small: whether one thread loads all frames of a group.
        resident: the arena of resident frames, if there are any.
        mapped: rows of features in mapped files, by group; neither in `specs` nor `direct`.
    """

    dataset: Dataset
    grids: Sequence[ChunkGrid]
    windows: Mapping[int, Sequence[str]]
    specs: Mapping[str, ArraySpec]
    frame_bytes: int
    direct: Sequence[str] = ()
    is_small: bool = False
    resident: Arena | None = None
    mapped: Mapping[int, MappedArena] = field(default_factory=dict)
    _idle: deque[Arena] = field(default_factory=partial(deque[Arena], maxlen=1))

    @property
    def has_loads(self) -> bool:
        """Whether any feature has rows in memory."""
        return bool(self.specs or self.direct)

    def acquire(self, num_rows: int) -> Arena:
        """Memory of at least `num_rows` rows for one call."""
        with suppress(IndexError):
            if (arena := self._idle.pop()).num_rows >= num_rows:
                return arena
        return Arena(self.specs, num_rows)

    def release(self, arena: Arena) -> None:
        """Keep an arena for the next call."""
        self._idle.append(arena)

    def loads(self, keys: IntArray, rows: IntArray, target: Any) -> Iterator[RowLoad]:
        """Loads of frames, given by ascending keys, into rows of `target`: one per chunk, or one
        per group of small frames.
        """
        episode, frame = split_keys(keys)
        for grid in self.grids:
            mapped = self.mapped.get(grid.group)
            if mapped is not None and not mapped.leaves(self.dataset.features):
                continue
            chunk = grid.row(episode, grid.place(episode, frame))
            for a, b in pairwise([0, len(keys)] if self.is_small else run_bounds(constant=chunk)):
                yield RowLoad(grid.group, chunk[a:b], frame[a:b], rows[a:b], target)

    def with_neighbours(self, keys: IntArray) -> IntArray:
        """Extend keys to the blocks of frames that are read at once, if this is a small feature."""
        if not self.is_small:
            return keys
        [grid], [spec] = self.grids, self.dataset.features.values()
        length = slice_frames(spec)
        block = max(1, _BLOCK_BYTES // (length * spec.nbytes)) * length
        return grid.block_keys(keys, block, self.dataset.contents.episode_table.num_frames)


class RandomAccess:
    """Reads the clips of calls, in the caller's thread and threads that end with it. Thread-safe.

    Args:
        sets: the features of clips.
        frames: windows of the features.
        first_row: row of each episode's first frame in resident arenas, int64[episodes].
        made, lengths, vectors: see `Job`.
        transform: called once per frame. Then there is one set.
        num_threads: limit of decoding threads, and of a call's threads.
        shared: whether batches are sent to another process.
    """

    def __init__(
        self,
        sets: Sequence[FrameSet],
        frames: ClipFrames,
        first_row: IntArray,
        made: Mapping[str, ArraySpec],
        lengths: Mapping[str, int],
        vectors: VectorSteps,
        transform: Transform | None,
        *,
        num_threads: int,
        shared: bool,
    ) -> None:
        self._first_row, self._vectors, self._num_threads = first_row, vectors, num_threads
        self.stats = EngineStats()
        self._filling = threading.Lock()  # while resident frames are read
        self._needs = BufferNeeds((), made, lengths, 0, _KEEP, shared=shared)
        self._buffers = dict[bool, HostBuffers]()  # for one clip, and for several
        chunks = Buffers[Arena](self._needs)
        self._copies_mapped = any(part.mapped for part in sets)  # maybe many bytes
        self._sets = [
            (
                part,
                ChunkLoader(
                    part.dataset,
                    chunks,
                    part.grids[0].group,
                    transform,
                    num_threads,
                    self.stats,
                    frames,
                    exact=part.resident is not None,
                    mapped=part.mapped,
                ),
            )
            for part in sets
        ]
        self._leaders = {
            number: names[0] for part in sets for number, names in part.windows.items()
        }

    def read(
        self, clips: ClipKeys, frames: ClipFrames, draw: DrawClips | None
    ) -> tuple[dict[str, Any], ClipDraws]:
        """Return the features of n clips as a batch, and their random parameters.

        `frames` finds the frames of the clips; `draw` makes their parameters, if there are any.
        """
        count = len(clips.start)
        builder = self._buffers_for(count).begin_batch(count)
        threads = CallThreads(self._num_threads)
        keys = {
            number: frame_keys(
                *frames.stored_frames(clips.episode[:, None], frames.find(name, clips).frames)
            )
            for number, name in self._leaders.items()
        }
        sources, acquired = list[ClipRows[Any]](), list[tuple[FrameSet, Arena]]()
        for part, loader in self._sets:
            if part.resident is not None:
                sources += self._resident(part, part.resident, loader, keys)
                continue
            wanted = np.concatenate([keys[number].reshape(-1) for number in part.windows])
            # Each frame once, its first place, and for every place which frame it is.
            unique, place, which = np.unique(wanted, return_index=True, return_inverse=True)
            which = which.reshape(-1)
            shapes = {number: keys[number].shape for number in part.windows}
            for rows_in_files in part.mapped.values():
                sources += self._mapped(part, rows_in_files, loader, unique, which, shapes)
            if not part.has_loads:
                continue
            direct = {name: builder.rows[name] for name in part.direct}
            rows = place if direct else np.arange(len(unique))
            arena = part.acquire(len(wanted) if direct else len(unique))
            acquired.append((part, arena))
            target = direct | {name: arena[name] for name in part.specs}
            threads.copy(_copies(part, loader, unique, rows, target))
            rows = rows[which]
            threads.copy(_repeats([*direct.values()], rows))
            stop = 0
            for number, names in part.windows.items():
                start, stop = stop, stop + keys[number].size
                clip_rows = rows[start:stop].reshape(keys[number].shape)
                sources.append(ClipRows(arena, clip_rows, [n for n in names if n in part.specs]))
        drawn = NO_DRAWS if draw is None else draw(clips, sources)
        if draw is None and not self._copies_mapped:
            threads = CallThreads(1)  # copying takes less time than starting threads
        gather(builder, np.arange(count), sources, threads, drawn, self._vectors)
        for part, arena in acquired:
            part.release(arena)
        return builder.finish()[0], drawn

    def _mapped(
        self,
        part: FrameSet,
        arena: MappedArena,
        loader: ChunkLoader,
        unique: IntArray,
        which: IntArray,
        shapes: Mapping[int, tuple[int, ...]],
    ) -> Iterator[ClipRows[MappedArena]]:
        """The rows of mapped frames, after checking new ones.

        `unique` are keys, ascending, and `which` of them the windows of these `shapes` have, one
        window after the other.
        """
        episode, frame = split_keys(unique)
        chunk = arena.chunks(episode, frame)
        is_missing = ~arena.are_checked(chunk, frame)
        if arena.touches or is_missing.any():
            index = slice(None) if arena.touches else is_missing
            loader.check(arena, chunk[index], frame[index])
        for name in arena.specs:
            rows, stop = arena.rows(name, chunk, frame), 0
            arena.check(name, rows)
            for number, names in part.windows.items():
                start, stop = stop, stop + math.prod(shapes[number])
                if name in names:
                    clip_rows = rows[which[start:stop]].reshape(shapes[number])
                    self.stats.add(frames_mapped=stop - start)
                    yield ClipRows(arena, clip_rows, [name])

    def _resident(
        self, part: FrameSet, arena: Arena, loader: ChunkLoader, keys: Mapping[int, IntArray]
    ) -> list[ClipRows[Arena]]:
        """The rows of resident frames, after loading the missing ones."""
        rows = {number: self._rows(keys[number]) for number in part.windows}
        missing = [keys[number][~arena.is_read[places]] for number, places in rows.items()]
        if any(map(len, missing)):
            self._load_missing(part, arena, loader, distinct(np.concatenate(missing)))
        return [ClipRows(arena, rows[number], names) for number, names in part.windows.items()]

    def _load_missing(
        self, part: FrameSet, arena: Arena, loader: ChunkLoader, keys: IntArray
    ) -> None:
        """Load resident frames, and their neighbours."""

        def load(keys: IntArray) -> None:
            keys = keys[~arena.is_read[self._rows(keys)]]  # others may be copied just now
            rows = self._rows(keys)
            threads = CallThreads(1 if part.is_small else self._num_threads)
            threads.copy(_copies(part, loader, keys, rows, arena))
            arena.is_read[rows] = True

        with self._filling:
            keys = keys[~arena.is_read[self._rows(keys)]]  # another thread may have loaded them
            if not len(keys):
                return
            try:
                load(part.with_neighbours(keys))
            except SeqRecordError:  # of frames that nobody wants, maybe
                load(keys)

    def _rows(self, keys: IntArray) -> IntArray:
        """Rows of resident frames, by keys."""
        episode, frame = split_keys(keys)
        rows: IntArray = self._first_row[episode] + frame
        return rows

    def _buffers_for(self, count: int) -> HostBuffers:
        """Memory for `count` clips; a single clip has its own, so that it keeps no batch."""
        buffers = self._buffers.get(count == 1)
        if buffers is None or buffers.needs.batch_size < count:
            buffers = HostBuffers(replace(self._needs, batch_size=count))
            self._buffers[count == 1] = buffers
        return buffers


def _copies(
    part: FrameSet, loader: ChunkLoader, keys: IntArray, rows: IntArray, target: FeatureRows
) -> Iterator[Copy]:
    """The loads of frames as tasks for threads."""
    for load in part.loads(keys, rows, target):
        nbytes = part.frame_bytes // len(part.grids) * len(load.frame)
        yield Copy(nbytes, partial(loader.load, load))


def _repeats(arrays: Sequence[npt.NDArray[Any]], source: IntArray) -> Iterator[Copy]:
    """Copies of repeated frames: row `source[i]` of each array to row `i`."""
    target = np.flatnonzero(source != np.arange(len(source))) if arrays else source[:0]
    source = source[target]
    for begin, end in pairwise(run_bounds(target, source)):
        to, of = (slice(int(rows[begin]), int(rows[end - 1]) + 1) for rows in (target, source))
        for array in arrays:
            yield Copy(array[to].nbytes, partial(np.copyto, array[to], array[of]))
