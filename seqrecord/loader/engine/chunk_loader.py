"""Loads frames of chunks into their rows.

Frames that a `FrameReader` has, such as a frame cache, are read from there. Of the others, raw
features are read directly into rows; pages of other features are read into memory and decoded::

    raw         chunk ------------------> rows
    others      chunk --> memory -------> rows
    transform   chunks of all groups --> memory --> frames --> rows
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.buffers import Buffers, ChunkBuffers
from seqrecord.loader.engine.decoding import Fetched, FrameDecoder, Transform
from seqrecord.loader.engine.frame_readers import (
    CachedRows,
    DecodedFrames,
    FrameReader,
    frame_reader,
)
from seqrecord.loader.engine.group_loads import GroupLoads
from seqrecord.loader.engine.loads import AssignedLoad, Load, RowLoad
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.store.reading.chunks import ChunkReader
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.pages import Chunk
from seqrecord.store.reading.raw_frames import frame_runs
from seqrecord.store.storage.ranges import check_wanted
from seqrecord.store.tables.grids import distinct, run_bounds

_MUCH = 128 << 10  # bytes of encoded frames that make a partial load worthwhile


@dataclass(frozen=True, eq=False)
class BegunLoad:
    """A partial load: its open chunk, if it has one, and the remaining frames by index in the load.

    `left` has int64[n] arrays in decoding order; none if a reader had all frames.
    """

    fetched: Fetched | None
    left: Sequence[IntArray]


@dataclass(frozen=True, eq=False)
class FrameChecks:
    """Checks frames where they are; errors name their chunk. Frames of group `counted` count."""

    reader: ChunkReader
    decoder: FrameDecoder
    stats: EngineStats
    counted: int | None

    def check(self, target: MappedArena, chunk: IntArray, frame: IntArray) -> None:
        """Check frames of a group, in rows of the chunk table; int64 [n] each."""
        begin = perf_counter()
        try:
            nbytes = target.load(chunk, frame)
        except Exception as error:
            self.decoder.name(error, self.reader.chunk_at(target.group, int(chunk[0])))
            raise
        self.stats.note_fetch(begin, nbytes, int(chunk[0]))
        self.stats.add(frames_decoded=len(frame) * (target.group == self.counted))


@dataclass(frozen=True, eq=False)
class CachedLoads:
    """Reads frames of loads from a `FrameReader`, if there is one, and adds decoded ones.

    Errors name their chunk. Frames of group `counted` count. `groups` name all features of rows.
    """

    frames: DecodedFrames | None
    clip_frames: ClipFrames
    groups: Mapping[int, GroupLoads]
    reader: ChunkReader
    decoder: FrameDecoder
    stats: EngineStats
    counted: int
    are_mapped: bool

    @classmethod
    def of(
        cls,
        source: FrameReader | None,
        dataset: Dataset,
        transform: Transform | None,
        leading: int,
        clip_frames: ClipFrames,
        groups: Mapping[int, GroupLoads],
        decoder: FrameDecoder,
        stats: EngineStats,
    ) -> CachedLoads:
        """The loads of a dataset's frames from a reader, or of transformed ones."""
        frames = None if source is None else source.frames_of(dataset)
        if transform is not None and frames is not None:
            frames = frames.of_results(leading, transform.specs, transform.cache_key)
        # Frames of one group are counted; its decoded ones too, unless another group leads.
        counted = leading
        if frames is not None and leading not in frames.features:
            counted = min(frames.features, default=leading)
        are_mapped = dataset.contents.verify != "always"
        reader = dataset.contents.chunks
        return cls(frames, clip_frames, groups, reader, decoder, stats, counted, are_mapped)

    def cover(self, load: Load, frames: IntArray) -> bool:
        """Whether these frames of a load seem to be there."""
        if self.frames is None or load.group not in self.frames.features:
            return False
        stored = _stored_frames(self.clip_frames, load, frames)
        return self.frames.covers(load.group, np.full_like(frames, load.chunk), stored)

    def read(self, row_load: RowLoad) -> tuple[RowLoad, dict[str, CachedRows]]:
        """Read frames, or place their rows in mapped files.

        Returns the frames that are not there with all features, and what each feature has of them.
        """
        cached_rows: dict[str, CachedRows] = {}
        group, chunk, frame, rows, out = row_load
        if self.frames is None or not len(frame):
            return row_load, cached_rows
        begin = perf_counter()
        try:
            for name in self.frames.features.get(group, ()):
                places = None
                if self.are_mapped and isinstance(out, Arena):
                    places = out.places(name)
                cached_rows[name] = self.frames.read(name, chunk, frame, out[name], rows, places)
        except Exception as error:  # for example, an original has changed
            self.decoder.name(error, self.reader.chunk_at(group, int(chunk[0])))
            raise
        count = 0
        if cached_rows and group == self.counted:  # as decoded frames: once for all features
            are_read = [rows_of_feature.read for rows_of_feature in cached_rows.values()]
            count = int(np.logical_or.reduce(are_read).sum())
        self.stats.add(frames_from_cache=count, fetch_seconds=perf_counter() - begin)
        if cached_rows.keys() != self.groups[group].names:
            return row_load, cached_rows
        uncached = ~np.logical_and.reduce([cached.there for cached in cached_rows.values()])
        cached_rows = {name: cached.take(uncached) for name, cached in cached_rows.items()}
        return row_load.take(uncached), cached_rows

    def add(
        self,
        cached: Mapping[str, CachedRows],
        names: Collection[str],
        row_load: RowLoad,
        fetched: Fetched | None = None,
    ) -> None:
        """Add decoded frames of these features if they are not there.

        `fetched` are their pages, `None` for raw ones.
        """
        parts = () if fetched is None else (fetched, *fetched.others)
        for name in cached.keys() & names:
            assert self.frames is not None, "they were read"
            _, chunk, frame, rows, out = row_load.take(~cached[name].there)
            pages = [
                (page, part.data[page.feature])
                for part in parts
                for page in part.pages
                if page.feature in part.data
            ]
            self.frames.add(name, chunk, frame, out[name], rows, cached[name].entries, pages)


class ChunkFetcher:
    """Reads pages of chunks into memory, and keeps chunks open between loads; thread-safe.

    Args:
        in_pieces: groups whose chunks stay open between loads of a cursor: long video chunks.
        mapped: see `ChunkLoader`.
    """

    def __init__(
        self,
        dataset: Dataset,
        decoder: FrameDecoder,
        buffers: ChunkBuffers,
        stats: EngineStats,
        in_pieces: Collection[int],
        mapped: Mapping[int, MappedArena],
    ) -> None:
        self._mapped = mapped
        self._reader, self._index = dataset.contents.chunks, dataset.contents.index
        self._groups = sorted({spec.group for spec in dataset.features.values()})
        self._decoder, self._buffers, self._stats = decoder, buffers, stats
        self.in_pieces = in_pieces
        self._open: dict[tuple[int, int], tuple[int, Fetched]] = {}  # by group and cursor

    def read(self, chunk: Chunk, without: Collection[str] = ()) -> Fetched:
        """Read pages of a chunk into memory, except features in `without`."""
        begin, pages = perf_counter(), self._reader.pages(chunk)
        if (mapped := self._mapped.get(chunk.group)) is not None:
            pages = [page for page in pages if page.feature not in mapped.specs]
        selected_pages = [page for page in pages if page.feature not in without]
        buffer = self._buffers.acquire(sum([page.buffer_bytes for page in selected_pages]))
        try:
            with self._decoder.naming(chunk):
                data = self._reader.read(selected_pages, buffer)
        except BaseException:
            self._buffers.release(buffer)
            raise
        if selected_pages:
            self._stats.note_fetch(begin, sum([page.nbytes for page in selected_pages]), chunk.row)
        names = (page.feature for page in selected_pages)
        return Fetched(chunk, pages, dict(zip(names, data, strict=True)), buffer)

    def read_chunk(self, load: Load) -> Fetched:
        """Read the chunk of a load into memory."""
        return self.read(self._reader.chunk_at(load.group, load.chunk))

    def release(self, *chunks: Fetched | None) -> None:
        """Release the memory of chunks, and of chunks that were read together with them."""
        for fetched in chunks:
            for part in () if fetched is None else (fetched, *fetched.others):
                self._buffers.release(part.buffer)

    def take(self, load: Load) -> Fetched | None:
        """Take the chunk that the cursor's previous load has left open, if it is the load's."""
        run, fetched = self._open.pop((load.group, load.cursor), (-1, None))
        if fetched is None or (run == load.run and fetched.chunk.row == load.chunk):
            return fetched
        self.release(fetched)
        return None

    def keep(self, load: Load, fetched: Fetched, stop: int) -> None:
        """Leave a chunk open for the cursor's next load if it has frames from `stop` on; release it
        otherwise.

        The same applies to chunks of other groups.
        """
        if load.group not in self.in_pieces or stop >= fetched.chunk.stop_frame:
            self.release(fetched)
            return
        open_chunks = [chunk for chunk in fetched.others if chunk.chunk.stop_frame > stop]
        self.release(*(chunk for chunk in fetched.others if chunk not in open_chunks))
        self._open[load.group, load.cursor] = (load.run, replace(fetched, others=open_chunks))

    def with_others(self, fetched: Fetched, frames: IntArray) -> Fetched:
        """Add the chunks of other groups with these frames to a chunk.

        `fetched` is unchanged on errors.
        """
        had = {
            (companion.chunk.group, companion.chunk.row): companion for companion in fetched.others
        }
        companions: list[Fetched] = []
        read: list[Fetched] = []
        try:
            for chunk in self._chunks_of_others(fetched.chunk, frames):
                companion = had.pop((chunk.group, chunk.row), None)
                if companion is None:
                    read.append(companion := self.read(chunk))
                companions.append(companion)
        except BaseException:
            self.release(*read)
            raise
        self.release(*had.values())
        return replace(fetched, others=companions)

    def _chunks_of_others(self, chunk: Chunk, frames: IntArray) -> Iterator[Chunk]:
        """Yield the chunks of other groups with these frames of an episode."""
        for group in self._groups:
            if group != chunk.group:
                rows = self._index.groups[group].chunks_of(chunk.episode, frames)
                for row in distinct(rows).tolist():
                    yield self._reader.chunk_at(group, row, chunk.episode)

    def close(self) -> None:
        """Release open chunks, after all loads."""
        self.release(*(fetched for _, fetched in self._open.values()))
        self._open.clear()


class ChunkLoader:
    """Performs loads; thread-safe. Errors name episode, frame and record file.

    At most `num_threads` threads decode at a time; more may read.

    A transform needs whole frames. The plan then has one group, and each load also reads the chunks
    of other groups with its frames.

    Args:
        dataset: opened with the requested features.
        buffers: source of memory.
        leading: group whose frames are counted.
        transform: frame transform, and the specs of its results.
        num_threads: number of decoding threads.
        stats: counters.
        clip_frames: windows of the features.
        in_pieces: see `ChunkFetcher`.
        frames_stay: mark loaded rows for later epochs. Each load marks its own as it ends: an epoch
            may be left at any time.
        exact: read only the slices of raw features that contain the frames; see `RawFrames.read`.
        mapped: rows of mapped features by group, which loads to other arenas leave out.
        decoded_there: whether a device decodes video.
    """

    def __init__(
        self,
        dataset: Dataset,
        buffers: Buffers[Any],
        leading: int,
        transform: Transform | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames,
        in_pieces: Collection[int] = (),
        frames_stay: bool = False,
        exact: bool = False,
        mapped: Mapping[int, MappedArena] = MappingProxyType({}),
        decoded_there: bool = False,
    ) -> None:
        self._mapped, self._frames_stay, self._decoded_there = mapped, frames_stay, decoded_there
        self._dataset, self._reader = dataset, dataset.contents.chunks
        self.is_local, self.in_pieces = self._reader.is_local, in_pieces
        storage = dataset.contents.storage
        self._store = storage if isinstance(storage, ChunkStore) else None
        # The store reads the rest of a page itself.
        self._exact = exact or self._store is not None
        self._groups = GroupLoads.of_groups(
            self._reader,
            None if transform is None else transform.specs,
            has_store=self._store is not None,
        )
        self._buffers, self._stats, self._transform = buffers, stats, transform
        self._leading, self._clip_frames = leading, clip_frames
        self._decoder = FrameDecoder(dataset, leading, transform, num_threads, stats, clip_frames)
        source = None if decoded_there else frame_reader(dataset)
        self._cache = CachedLoads.of(
            *(source, dataset, transform, leading, clip_frames, self._groups, self._decoder, stats)
        )
        # Frames of the leading group count once: where its other features are decoded, if any.
        arena = mapped.get(leading)
        is_mapped = arena is not None and arena.specs.keys() == self._groups[leading].names
        counted = leading if is_mapped else None
        self._checks = FrameChecks(self._reader, self._decoder, stats, counted)
        self._fetcher = ChunkFetcher(
            dataset, self._decoder, buffers.chunks, stats, in_pieces, mapped
        )
        self.check, self.close = self._checks.check, self._fetcher.close

    def find_changes(self) -> None:
        """Ask mapped files of the frame cache whether somebody may have written to them."""
        if self._cache.frames is not None:
            self._cache.frames.find_changes()

    @property
    def num_changes(self) -> int:
        """How often somebody may have written to mapped files of the frame cache."""
        return 0 if self._cache.frames is None else self._cache.frames.num_changes

    def __call__(self, items: Sequence[AssignedLoad], fetched: Fetched | None = None) -> None:
        """Perform loads of one group, to rows of one arena.

        The chunk of a single load may already be `fetched`.
        """
        load, chunks = items[0].load, _stored(self._clip_frames, items)
        still_open = self._fetcher.take(load) if len(items) == 1 else None
        if fetched is None:
            fetched = still_open
        else:
            self._fetcher.release(still_open)
        rows = items[0].rows if len(items) == 1 else np.concatenate([item.rows for item in items])
        row_load = RowLoad(load.group, *chunks, rows, items[0].target)
        self._keep(load, self._load_rows(row_load, len(items), fetched))

    def _load_rows(
        self, row_load: RowLoad, num_loads: int, fetched: Fetched | None
    ) -> Fetched | None:
        """Like `_load`, with arena rows as targets."""
        target: Any = row_load.out
        rows = row_load.rows
        if isinstance(target, MappedArena):
            self.check(target, row_load.chunk, row_load.frame)
        else:
            with self._buffers.storing(target, rows) as (out, places):
                fetched = self._load(row_load._replace(rows=places, out=out), fetched)
            if self._frames_stay:
                target.is_read[rows] = True
        self._stats.add(loads=num_loads)
        return fetched

    def begin(self, item: AssignedLoad, needed: npt.NDArray[np.bool_]) -> BegunLoad:
        """Perform part of a load: its `needed` frames, bool[frames].

        Includes the frames that a decoder would otherwise decode twice. `finish` loads the
        remaining frames.
        """
        load = item.load
        if self._cache.cover(load, item.frames):
            self([item])
            return BegunLoad(None, ())
        if self.reads_frames(load):
            begun_load = BegunLoad(None, [np.flatnonzero(~needed)])
            begun_load = self._go_on(item, begun_load, np.flatnonzero(needed))
            # It lacks raw pages, which `finish` must read, too.
            self._fetcher.release(begun_load.fetched)
            return replace(begun_load, fetched=None)
        fetched = self._fetcher.take(load) or self._fetcher.read_chunk(load)
        try:
            is_in_part = self._first_part(item, fetched, needed)
        except BaseException:
            self._fetcher.release(fetched)
            raise
        stop, remaining = int(np.flatnonzero(is_in_part)[-1]) + 1, np.flatnonzero(~is_in_part)
        # The decoder continues before it seeks back.
        in_order = self._groups[load.group].in_order
        parts = (
            [remaining[remaining >= stop], remaining[remaining < stop]] if in_order else [remaining]
        )
        return self._go_on(item, BegunLoad(fetched, parts), np.flatnonzero(is_in_part))

    def finish(self, item: AssignedLoad, begun_load: BegunLoad) -> None:
        """Complete a partial load."""
        for frames in begun_load.left:
            if len(frames):
                begun_load = self._go_on(item, begun_load, frames)
        self._keep(item.load, begun_load.fetched)
        self._stats.add(loads=min(1, len(begun_load.left)))

    def _go_on(self, item: AssignedLoad, begun_load: BegunLoad, index: IntArray) -> BegunLoad:
        """Load the frames of a load at `index`."""
        chunk, frame = _stored(self._clip_frames, [item])
        with self._buffers.storing(item.target, item.rows[index]) as (out, places):
            row_load = RowLoad(item.load.group, chunk[index], frame[index], places, out)
            begun_load = replace(begun_load, fetched=self._load(row_load, begun_load.fetched))
        if self._frames_stay:
            item.target.is_read[item.rows[index]] = True
        return begun_load

    def _first_part(
        self, item: AssignedLoad, fetched: Fetched, needed: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Frames of a load to decode for the needed ones; bool[frames].

        Of the last run (a group of pictures), frames up to the last needed one: its decoder stays
        open.
        """
        is_in_part: npt.NDArray[np.bool_] = needed.copy()
        is_up_to_last: npt.NDArray[np.bool_] = np.arange(len(needed)) <= np.flatnonzero(needed)[-1]
        if item.load.group in self.in_pieces:
            return is_up_to_last
        for page in fetched.pages:
            frames = _stored_frames(self._clip_frames, item.load, item.frames)
            position = frames - fetched.chunk.first_frame
            with self._decoder.naming(fetched.chunk):
                run = self._reader.runs(page, fetched.data, position)
            if run is not None:
                is_in_part |= is_up_to_last & np.isin(run, run[is_in_part])
        return is_in_part

    def reads(self, load: Load) -> bool:
        """Whether a load must read its chunk: some of its frames are needed, and do not seem to be
        in the frame cache, and no earlier load keeps the chunk open.
        """
        if load.group in self.in_pieces:
            chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
            if load.first != max(chunk.first_frame, 0):
                return False
        frames = load.frames
        return len(frames) > 0 and not self._cache.cover(load, frames)

    def joins(self, group: int) -> bool:
        """Whether small loads in a group should share a thread."""
        in_order = self._groups[group].in_order
        return self.is_local and self._transform is None and not in_order

    def has_parts(self, item: AssignedLoad) -> bool:
        """Whether a partial load saves time; see `begin`."""
        if self._transform is not None or self.reads_frames(item.load):
            return True
        group = item.load.group
        if self._groups[group].in_order:
            return not self._decoded_there  # devices have few decoders
        return item.nbytes > _MUCH and not self._reader.raw[group].specs

    def reads_frames(self, load: Load) -> bool:
        """Whether a load reads its frames alone, by way of the chunk store, and no whole chunk."""
        return self._store is not None and self._groups[load.group].by_frame

    def is_compact(self, load: Load) -> bool:
        """Whether the encoded chunk is smaller than its decoded frames."""
        return self._groups[load.group].is_compact

    def fetch(self, load: Load) -> Fetched | None:
        """Read the chunk of a load whose frames have no rows yet.

        `None` if the chunk store has the bytes of the load, or no room for them: a load of few
        frames must not read its whole chunk.
        """
        if self._store is not None and self.reads_frames(load):
            self._read_ahead(self._store, load)
            return None
        fetched = self._fetcher.read_chunk(load)
        if self._transform is None:
            return fetched
        try:
            return self._fetcher.with_others(
                fetched, _stored_frames(self._clip_frames, load, load.frames)
            )
        except BaseException:
            self._fetcher.release(fetched)
            raise

    def _read_ahead(self, store: ChunkStore, load: Load) -> None:
        """Read the bytes of a load into the chunk store, if it has room."""
        begin, chunk = perf_counter(), self._reader.chunk_at(load.group, load.chunk)
        frames = _stored_frames(self._clip_frames, load, load.frames) - chunk.first_frame
        start, stop = int(frames.min()), int(frames.max()) + 1
        step = int(np.diff(frames).min(initial=stop - start))
        if stop - start > len(frames) * step:
            return  # frames of a list, far from each other
        with self._decoder.naming(chunk):
            store.prefetch(chunk.path, self._reader.ranges(chunk, range(start, stop)))
        self._stats.note_fetch(begin, 0, chunk.row)

    def _keep(self, load: Load, fetched: Fetched | None) -> None:
        """Leave the chunk of a finished load open, if the cursor's next load continues there."""
        if fetched is not None:
            self._fetcher.keep(load, fetched, load.stop)

    def _load(self, row_load: RowLoad, fetched: Fetched | None) -> Fetched | None:
        """Load frames into rows; returns the last chunk, which the caller must release.

        `fetched` is released when another chunk is read, and on errors.
        """
        group, names = row_load.group, self._groups[row_load.group].names
        try:
            row_load, cached_rows = self._cache.read(row_load)
            if not len(row_load.frame):
                return fetched
            straight = {name for name, cached in cached_rows.items() if cached.there.all()}
            if (mapped := self._mapped.get(group)) is not None:
                straight |= mapped.specs.keys()
            if self._transform is not None:
                straight = set()  # it needs all features
            if self._groups[group].is_direct and fetched is None:
                straight |= self._read_raw(row_load, straight)
                self._cache.add(cached_rows, straight, row_load)
            if straight == names and not self._reader.raw[group].has_gaps:
                count = len(row_load.frame) if group == self._leading else 0
                self._stats.add(frames_decoded=count)
                return None
            for begin, stop in pairwise(run_bounds(constant=row_load.chunk)):
                check_wanted(self._dataset.url)
                index = slice(begin, stop)
                part, row = row_load.take(index), int(row_load.chunk[begin])
                if fetched is None or fetched.chunk.row != row:
                    previous, fetched = fetched, None
                    self._fetcher.release(previous)
                    fetched = self._fetcher.read(self._reader.chunk_at(group, row), straight)
                if self._transform is not None:
                    fetched = self._fetcher.with_others(fetched, part.frame)
                self._decoder.decode(fetched, part.frame, part.out, part.rows)
                decoded = [name for name in cached_rows if name not in straight]
                added = {name: cached_rows[name].take(index) for name in decoded}
                self._cache.add(added, added, part, fetched)
        except BaseException:
            self._fetcher.release(fetched)
            raise
        return fetched

    def _read_raw(self, row_load: RowLoad, without: Collection[str]) -> set[str]:
        """Read raw features directly into rows, `without` some; returns their names."""
        group, chunk = row_load.group, row_load.chunk
        raw, table = self._reader.raw[group], self._dataset.contents.index.groups[group]
        targets = {name: row_load.out[name] for name in raw.specs if name not in without}
        if not targets:
            return set()
        begin = perf_counter()
        runs = frame_runs(chunk, row_load.frame - table.first_frame[chunk], row_load.rows)
        try:
            pool, exact = self._buffers.chunks, self._exact
            nbytes = raw.read(runs, targets, pool, exact=exact, resizing=self._decoder.resizing)
        except Exception as error:
            if chunk[0] != chunk[-1]:
                for a, b in pairwise(run_bounds(constant=chunk)):  # find the wrong chunk
                    self._read_raw(row_load.take(slice(a, b)), without)
            # If each chunk alone is right, name the first.
            self._decoder.name(error, self._reader.chunk_at(group, int(chunk[0])))
            raise
        self._stats.note_fetch(begin, nbytes, int(chunk[0]))
        return set(targets)


def _stored_frames(clip_frames: ClipFrames, load: Load, frames: IntArray) -> IntArray:
    """Stored numbers of a load's frames, int64[n]."""
    return clip_frames.stored_frames(np.array([load.episode]), frames)[1]


def _stored(clip_frames: ClipFrames, items: Sequence[AssignedLoad]) -> tuple[IntArray, IntArray]:
    """Chunk row and stored number of each loaded frame, int64[n] each."""
    if len(items) == 1:  # as most loads of calls
        [item] = items
        chunk = np.full(len(item.frames), item.load.chunk)
        return chunk, _stored_frames(clip_frames, item.load, item.frames)
    frames = [item.frames for item in items]
    count = list(map(len, frames))
    chunk = np.repeat([item.load.chunk for item in items], count)
    episode = np.repeat([item.load.episode for item in items], count)
    return chunk, clip_frames.stored_frames(episode, np.concatenate(frames))[1]
