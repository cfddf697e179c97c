"""Loads frames of chunks into their rows.

Frames in the frame cache are read from there. Of the others, raw features are read directly into
rows; pages of other features are read into memory and decoded::

    raw         chunk ------------------> rows
    others      chunk --> memory -------> rows
    transform   chunks of all groups --> memory --> frames --> rows
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.frames import ClipFrames
from seqrecord.clips.grids import ragged_arange, run_bounds
from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import FeatureRows
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.decoding import Fetched, FrameDecoder, Transform
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import AssignedLoad, Load
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.raw_frames import frame_runs
from seqrecord.storage.ranges import check_wanted

_MUCH = 128 << 10  # bytes of encoded frames that make a partial load worthwhile


@dataclass(frozen=True, eq=False)
class BegunLoad:
    """A partial load: its open chunk, and the remaining frames by index in the load.

    `left` has int64[n] arrays in decoding order; none if all frames were in the frame cache.
    """

    fetched: Fetched | None
    left: Sequence[IntArray]


class ChunkLoader:
    """Performs loads; thread-safe. Errors name episode, frame and record file.

    At most `num_threads` threads decode at a time; more may read.

    A transform needs whole frames. The plan then has one group, and each load also reads the chunks
    of other groups with its frames.

    Args:
        dataset: opened with the requested features.
        buffers: source of memory.
        frame_steps: distance between loaded frames, by group.
        leading: group whose frames are counted.
        transform: frame transform, and the specs of its results.
        num_threads: number of decoding threads.
        stats: counters.
        clip_frames: windows of the features. Default: the same for all.
        in_pieces: groups whose chunks stay open between loads of a cursor: long video chunks.
        exact: read only the slices of raw features that contain the frames; see `RawFrames.read`.
    """

    def __init__(
        self,
        dataset: Dataset,
        buffers: Buffers[Any],
        frame_steps: Mapping[int, int],
        leading: int,
        transform: Transform | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames | None = None,
        in_pieces: Collection[int] = (),
        exact: bool = False,
    ) -> None:
        self.in_pieces, self._exact = in_pieces, exact
        self._open: dict[tuple[int, int], tuple[int, Fetched]] = {}  # by group and cursor
        self._videos = {spec.group for spec in dataset.features.values() if spec.is_video}
        self._dataset = dataset
        self._reader = reader = dataset.contents.chunks
        self.is_local = reader.is_local
        self._buffers = buffers
        self._steps, self._leading, self._clip_frames = frame_steps, leading, clip_frames
        self._transform = transform
        self._cached = None if buffers.needs.decoded_there else dataset.contents.cached_frames
        if transform is not None and self._cached is not None:
            self._cached = self._cached.of_results(leading, transform.specs, transform.cache_key)
        self._stats = stats
        self._decoder = FrameDecoder(dataset, leading, transform, num_threads, stats, clip_frames)

    def __call__(
        self, loads: Sequence[Load], target: Any, rows: IntArray, fetched: Fetched | None = None
    ) -> None:
        """Perform loads of one group. Their frames go to `rows` of `target`, an arena.

        `rows`, int64[frames of all loads], lists the rows load by load. The chunk of a single load
        may already be `fetched`.
        """
        group, (chunk, frame) = loads[0].group, self._frames(loads)
        still_open = self._take(loads[0]) if len(loads) == 1 else None
        if fetched is None:
            fetched = still_open
        elif still_open is not None:
            self._release(still_open)
        with self._buffers.storing(target, rows) as (out, places):
            fetched = self._load(group, chunk, frame, out, places, fetched)
            if fetched is not None:
                self._keep(loads[0], fetched)
        self._stats.add(loads=len(loads))

    def begin(
        self, load: Load, target: Any, rows: IntArray, needed: npt.NDArray[np.bool_]
    ) -> BegunLoad:
        """Perform part of a load: its `needed` frames, bool[frames].

        For video, includes the frames that a decoder would otherwise decode twice. `rows` are those
        of all frames. `finish` loads the remaining frames.
        """
        chunk, frame = self._frames([load])
        if self.is_cached(load):
            self([load], target, rows)
            return BegunLoad(None, ())
        fetched = self._take(load) or self._read_chunk(load)
        try:
            first = self._first_part(load, fetched, frame, needed)
        except BaseException:
            self._release(fetched)
            raise
        last = int(np.flatnonzero(first)[-1]) + 1
        left = np.flatnonzero(~first)
        # The decoder continues before it seeks back.
        parts = [left[left >= last], left[left < last]] if load.group in self._videos else [left]
        begun = BegunLoad(fetched, parts)
        return self._go_on(begun, np.flatnonzero(first), load.group, chunk, frame, target, rows)

    def finish(self, load: Load, target: Any, rows: IntArray, begun: BegunLoad) -> None:
        """Complete a partial load."""
        if begun.fetched is None:
            return
        chunk, frame = self._frames([load])
        for some in begun.left:
            if len(some):
                begun = self._go_on(begun, some, load.group, chunk, frame, target, rows)
        assert begun.fetched is not None, "its chunk was read"
        self._keep(load, begun.fetched)
        self._stats.add(loads=1)

    def _go_on(
        self,
        begun: BegunLoad,
        some: IntArray,
        group: int,
        chunk: IntArray,
        frame: IntArray,
        target: Any,
        rows: IntArray,
    ) -> BegunLoad:
        """Load `some` frames of a load, by index."""
        with self._buffers.storing(target, rows[some]) as (out, places):
            found = self._load(group, chunk[some], frame[some], out, places, begun.fetched)
        assert found is not None, "its chunk was read"
        return replace(begun, fetched=found)

    def _first_part(
        self, load: Load, fetched: Fetched, frame: IntArray, needed: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Frames of a load to decode for the needed ones; bool[frames].

        Of the last GOP, frames up to the last needed one: its decoder stays open.
        """
        wanted: npt.NDArray[np.bool_] = needed.copy()
        before: npt.NDArray[np.bool_] = np.arange(len(needed)) <= np.flatnonzero(needed)[-1]
        if load.group in self.in_pieces:
            return before
        for page in fetched.pages:
            if self._reader.features[page.feature].is_video:
                inside = frame - fetched.chunk.first_frame
                with self._decoder.naming(fetched.chunk):
                    gop = self._reader.gops(page, fetched.data[page.feature], inside)
                wanted |= before & np.isin(gop, gop[wanted])
        return wanted

    def load_frames(
        self,
        group: int,
        chunk: IntArray,
        frame: IntArray,
        out: FeatureRows,
        rows: IntArray,
    ) -> None:
        """Load frames of a group into rows, given chunk, frame number and row; int64[n] each.

        Frames of a chunk must be consecutive and ascending.
        """
        fetched = self._load(group, chunk, frame, out, rows, None)
        if fetched is not None:
            self._release(fetched)

    def is_cached(self, load: Load) -> bool:
        """Whether all frames of a load seem to be in the frame cache."""
        if self._cached is None or load.group not in self._cached.features:
            return False
        return self._cached.covers(load.group, *self._frames([load]))

    def joins(self, load: Load) -> bool:
        """Whether small loads like this one should share a thread."""
        return self.is_local and self._transform is None and load.group not in self._videos

    def begins_chunk(self, load: Load) -> bool:
        """Whether the load must read its chunk: no earlier load keeps it open."""
        if load.group not in self.in_pieces:
            return True
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        return load.first == max(chunk.first_frame, 0)

    def has_parts(self, item: AssignedLoad) -> bool:
        """Whether a partial load saves time; see `begin`."""
        if self._transform is not None:
            return True
        group = item.load.group
        if group in self._videos:
            return not self._buffers.needs.decoded_there  # devices have few decoders
        return item.nbytes > _MUCH and not self._reader.raw[group].specs

    def is_compact(self, load: Load) -> bool:
        """Whether the encoded chunk is smaller than its decoded frames."""
        if self._transform is not None:
            return False
        specs = [s for s in self._reader.features.values() if s.group == load.group]
        return all(spec.is_video or spec.stored_shape is None for spec in specs)

    def fetch(self, load: Load) -> Fetched:
        """Read the chunk of a load whose frames have no rows yet."""
        fetched = self._read_chunk(load)
        if self._transform is None:
            return fetched
        try:
            return self._with_others(fetched, self._frames([load])[1])
        except BaseException:
            self._release(fetched)
            raise

    def _read_chunk(self, load: Load) -> Fetched:
        chunk = self._reader.chunk_at(load.group, load.chunk)
        return self._read(chunk, self._reader.pages(chunk))

    def _frames(self, loads: Sequence[Load]) -> tuple[IntArray, IntArray]:
        """Chunk row and frame number of each frame of loads in one group; int64[n] each."""
        owner, inside = ragged_arange(np.array([load.count for load in loads]))
        frame = (
            np.array([load.first for load in loads])[owner] + inside * self._steps[loads[0].group]
        )
        chunk = np.array([load.chunk for load in loads])[owner]
        if self._clip_frames is not None:
            episode = np.array([load.episode for load in loads])[owner]
            frame = self._clip_frames.stored(episode, frame)[1]
        return chunk, frame

    def close(self) -> None:
        """Release open chunks, after all loads."""
        for _, fetched in self._open.values():
            self._release(fetched)
        self._open.clear()

    def _load(
        self,
        group: int,
        chunk: IntArray,
        frame: IntArray,
        out: FeatureRows,
        rows: IntArray,
        fetched: Fetched | None,
    ) -> Fetched | None:
        """Like `load_frames`; returns the last chunk, which the caller must release.

        `fetched` is released when another chunk is read, and on errors.
        """
        stored = {spec.name for spec in self._reader.features.values() if spec.group == group}
        if self._transform is not None:
            stored = {*self._transform.specs}
        there = self._read_cached(group, chunk, frame, out, rows, fetched)
        straight = {name for name, found in there.items() if found.all()}
        if there.keys() == stored:
            some = ~np.logical_and.reduce([*there.values()])
            chunk, frame, rows = chunk[some], frame[some], rows[some]
            there = {name: found[some] for name, found in there.items()}
            if not len(frame):
                return fetched
        if self._transform is not None:
            straight = set()  # it needs all features
        # From remote storage, raw pages are read together with the other pages.
        may_read = self.is_local or stored == self._reader.raw[group].specs.keys()
        if self._transform is None and fetched is None and may_read:
            straight |= self._read_raw(group, chunk, frame, out, rows, straight)
            self._add_cached(there, straight, chunk, frame, out, rows)
        if stored == straight and not self._reader.raw[group].has_gaps:
            self._stats.add(frames_decoded=len(frame) if group == self._leading else 0)
            return None
        try:
            for begin, stop in pairwise(run_bounds(same=chunk)):
                check_wanted(self._dataset.url)
                if fetched is None or fetched.chunk.row != chunk[begin]:
                    if fetched is not None:
                        self._release(fetched)
                        fetched = None
                    place = self._reader.chunk_at(group, int(chunk[begin]))
                    fetched = self._read(place, self._reader.pages(place), straight)
                some = slice(begin, stop)
                if self._transform is not None:
                    fetched = self._with_others(fetched, frame[some])
                self._decode(fetched, frame[some], out, rows[some])
                added = {n: found[some] for n, found in there.items() if n not in straight}
                self._add_cached(added, added, chunk[some], frame[some], out, rows[some])
        except BaseException:
            if fetched is not None:
                self._release(fetched)
            raise
        return fetched

    def _read_raw(
        self,
        group: int,
        chunk: IntArray,
        frame: IntArray,
        out: FeatureRows,
        rows: IntArray,
        without: Collection[str] = (),
    ) -> set[str]:
        """Read raw features directly into rows, `without` some; returns their names."""
        raw, table = self._reader.raw[group], self._dataset.contents.index.groups[group]
        targets = {name: out[name] for name in raw.specs if name not in without}
        if not targets:
            return set()
        begin = perf_counter()
        runs = frame_runs(chunk, frame - table.first_frame[chunk], rows)
        try:
            pool, exact = self._buffers.chunks, self._exact
            nbytes = raw.read(runs, targets, pool, exact=exact, resizing=self._decoder.resizing)
        except Exception as error:
            if chunk[0] != chunk[-1]:
                for a, b in pairwise(run_bounds(same=chunk)):  # find the wrong chunk
                    self._read_raw(group, chunk[a:b], frame[a:b], out, rows[a:b], without)
            # If each chunk alone is right, name the first.
            self._decoder.name(error, self._reader.chunk_at(group, int(chunk[0])))
            raise
        self._note_fetch(begin, nbytes, chunk)
        return set(targets)

    def _read_cached(
        self,
        group: int,
        chunk: IntArray,
        frame: IntArray,
        out: FeatureRows,
        rows: IntArray,
        fetched: Fetched | None,
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Read frames that are in the frame cache; returns which, bool[n], of each feature.

        `fetched` is released on errors, for example if an original has changed.
        """
        found: dict[str, npt.NDArray[np.bool_]] = {}
        if self._cached is None or not len(frame):
            return found
        begin = perf_counter()
        try:
            for name in self._cached.features.get(group, ()):
                found[name] = self._cached.read(name, chunk, frame, out[name], rows)
        except Exception as error:
            self._decoder.name(error, self._reader.chunk_at(group, int(chunk[0])))
            if fetched is not None:
                self._release(fetched)
            raise
        count = sum(int(np.count_nonzero(some)) for some in found.values())
        self._stats.add(frames_from_cache=count, fetch_seconds=perf_counter() - begin)
        return found

    def _add_cached(
        self,
        there: Mapping[str, npt.NDArray[np.bool_]],
        names: Collection[str],
        chunk: IntArray,
        frame: IntArray,
        out: FeatureRows,
        rows: IntArray,
    ) -> None:
        """Add decoded frames of these features to the frame cache if they are not `there`."""
        for name in there.keys() & names:
            assert self._cached is not None, "it was asked"
            new = ~there[name]
            self._cached.add(name, chunk[new], frame[new], out[name], rows[new])

    def _read(self, chunk: Chunk, pages: Sequence[Page], without: Collection[str] = ()) -> Fetched:
        """Read pages of a chunk into memory, except features in `without`."""
        begin = perf_counter()
        wanted = [page for page in pages if page.feature not in without]
        buffer = self._buffers.chunks.acquire(sum([page.buffer_bytes for page in wanted]))
        try:
            with self._decoder.naming(chunk):
                data = self._reader.read(wanted, buffer)
        except BaseException:
            self._buffers.chunks.release(buffer)
            raise
        if wanted:
            self._note_fetch(begin, sum([page.nbytes for page in wanted]), [chunk.row])
        names = (page.feature for page in wanted)
        return Fetched(chunk, pages, dict(zip(names, data, strict=True)), buffer)

    def _release(self, fetched: Fetched) -> None:
        """Release the memory of chunks that were read together."""
        for part in (fetched, *fetched.others):
            self._buffers.chunks.release(part.buffer)

    def _take(self, load: Load) -> Fetched | None:
        """Take the chunk that the cursor's previous load has left open, if it is the load's."""
        run, fetched = self._open.pop((load.group, load.cursor), (-1, None))
        if fetched is None or (run == load.run and fetched.chunk.row == load.chunk):
            return fetched
        self._release(fetched)
        return None

    def _keep(self, load: Load, fetched: Fetched) -> None:
        """Leave a chunk open for the cursor's next load if it has more frames; release it
        otherwise.

        The same applies to chunks of other groups.
        """
        stop = load.first + load.count * self._steps[load.group]
        if load.group not in self.in_pieces or stop >= fetched.chunk.stop_frame:
            self._release(fetched)
            return
        kept = []
        for other in fetched.others:
            if other.chunk.stop_frame > stop:
                kept.append(other)
            else:
                self._buffers.chunks.release(other.buffer)
        self._open[load.group, load.cursor] = (load.run, replace(fetched, others=kept))

    def _with_others(self, fetched: Fetched, frames: IntArray) -> Fetched:
        """Add the chunks of other groups with these frames to a chunk.

        `fetched` is unchanged on errors.
        """
        had = {(other.chunk.group, other.chunk.row): other for other in fetched.others}
        others: list[Fetched] = []
        read: list[Fetched] = []
        try:
            for chunk in self._chunks_of_others(fetched.chunk, frames):
                other = had.get((chunk.group, chunk.row))
                if other is None:
                    other = self._read(chunk, self._reader.pages(chunk))
                    read.append(other)
                others.append(other)
        except BaseException:
            for other in read:
                self._buffers.chunks.release(other.buffer)
            raise
        for other in fetched.others:
            if other not in others:
                self._buffers.chunks.release(other.buffer)
        return replace(fetched, others=others)

    def _chunks_of_others(self, chunk: Chunk, frames: IntArray) -> Iterator[Chunk]:
        """Yield the chunks of other groups with these frames of an episode."""
        for group in sorted({spec.group for spec in self._dataset.features.values()}):
            if group != chunk.group:
                rows = self._dataset.contents.index.groups[group].chunks_of(chunk.episode, frames)
                for row in np.unique(rows).tolist():
                    yield self._reader.chunk_at(group, row, chunk.episode)

    def _decode(self, fetched: Fetched, frames: IntArray, out: FeatureRows, rows: IntArray) -> None:
        self._decoder.decode(fetched, frames, out, rows)

    def _note_fetch(self, begin: float, nbytes: int, chunks: Sequence[int] | IntArray) -> None:
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=int(chunks[0]))
        self._stats.add(bytes_read=nbytes, fetch_seconds=end - begin)
