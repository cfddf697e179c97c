"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import ClipFrames
from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.crop_rows import WindowRows
from seqrecord.engine.direct import (
    Direct,
    Slice,
    WindowedPage,
    find_slices,
    parts_of,
    whole_pages,
    windowed_pages,
)
from seqrecord.engine.loads import Load
from seqrecord.engine.raw_loads import load_raw
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.storing import clear, store
from seqrecord.format.pages import aligned
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.frames import (
    ArraySpec,
    FrameTransform,
    add_place,
    apply_transform,
    check_arrays,
)
from seqrecord.reading.raw_chunks import RawChunk, RawChunks
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["ChunkLoader", "Fetched"]


@dataclass(frozen=True, eq=False)
class Fetched:
    """A chunk's pages as they are stored, but for those that were read straight into rows."""

    chunk: Chunk
    pages: Sequence[Page]  # also those
    data: Mapping[str, memoryview]  # by feature, in `buffer`
    buffer: npt.NDArray[np.uint8]
    nbytes: int  # that were read
    others: Sequence[Fetched] = ()  # chunks of other groups, for a transform of whole frames


class ChunkLoader:
    """Does loads, from many threads at once. An error names episode, frame and record file.

    At most `num_threads` of them decode at a time, however many read.

    A transform is called with whole frames. So each load of a group, which is then the only one of
    the plan, reads what chunks of other groups have of its frames too.

    Args:
        dataset: with the requested features.
        buffers: where loads get memory from.
        frame_steps: frames between two that a load of a group brings, by the group's number.
        leading: of which group to count the frames.
        transform: called with each frame, for what is stored instead; and what that is, of which
            dtypes and shapes.
        num_threads: that decode.
        stats: counts what is done.
        clip_frames: which frames clips have of each feature; by default the same of all.
        in_pieces: numbers of groups of which a chunk stays open from one load of a cursor to the
            next, which decodes more of its frames: long chunks of video.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        buffers: Buffers[Any],
        frame_steps: Mapping[int, int],
        leading: int,
        transform: tuple[FrameTransform, Mapping[str, ArraySpec]] | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames | None = None,
        in_pieces: Collection[int] = (),
    ) -> None:
        self.in_pieces = in_pieces
        self._open: dict[tuple[int, int], tuple[int, Fetched]] = {}  # by group and cursor
        self._dataset = dataset
        self._clip_frames = clip_frames
        self._reader = dataset.chunk_reader()
        self.is_local = self._reader.is_local
        self._buffers = buffers
        self._frame_steps = frame_steps
        self._leading = leading
        self._transform = transform
        self._raw = {} if transform is not None else self._reader.raw
        self._decoding = threading.BoundedSemaphore(num_threads)
        self._stats = stats

    def __call__(self, load: Load, places: Sequence[Place], fetched: Fetched | None = None) -> None:
        """Read the load's chunk, unless it is `fetched`, and decode its frames into `places`.

        Frames of the load that have no place are not decoded.
        """
        with self._buffers.storing(places) as targets:
            still_open = self._take(load)
            fetched = fetched or still_open or self.fetch(load, targets)
            try:
                self._decode(load, targets, fetched)
            except BaseException:
                self._release(fetched)
                raise
            self._keep(load, fetched)

    def is_quick(self, load: Load) -> bool:
        """Whether a load takes so little time that several should be done by one thread: a small
        one of raw frames."""
        return load.group in self._raw

    def load_together(self, loads: Sequence[Load], places: Sequence[Place]) -> None:
        """Do loads, each into one place, one after the other.

        Small chunks of raw pages of one group are found together. That spares most of their time.
        """
        group = loads[0].group
        raw = self._raw.get(group)
        if raw is None or any(load.group != group for load in loads):
            for load, place in zip(loads, places, strict=True):
                self(load, [place])
            return
        found = raw.find(np.array([load.chunk for load in loads]))
        step, trace = self._frame_steps[group], self._stats.trace
        begin = last = perf_counter()
        nbytes = frames = done = 0
        for load, place, chunk in zip(loads, places, found, strict=True):
            if chunk is None or not self._load_raw(raw, load, place, chunk, step):
                self(load, [place])
                begin += (now := perf_counter()) - last  # it has counted its own
                last = now
                continue
            nbytes += sum(chunk.lengths)
            frames += load.count
            done += 1
            now = perf_counter()
            trace.add("fetch", last, now, chunk=load.chunk)
            last = now
        self._stats.add(
            bytes_read=nbytes,
            fetch_seconds=last - begin,
            loads=done,
            frames_decoded=frames if group == self._leading else 0,
        )

    def _load_raw(
        self, raw: RawChunks, load: Load, place: Place, chunk: RawChunk, step: int
    ) -> bool:
        """Read a chunk's raw pages into rows; whether that was done, see `load_raw`."""
        try:
            with self._buffers.storing([place]) as (target,):
                return load_raw(self._reader, self._buffers.chunks, raw, chunk, load, target, step)
        except Exception as error:
            self._name(error, self._reader.chunk_at(load.group, load.chunk, load.episode))
            raise

    def begins_chunk(self, load: Load) -> bool:
        """Whether the load is certain to need a read: no load before it has kept its chunk open."""
        if load.group not in self.in_pieces:
            return True
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        return load.first == chunk.first_frame

    def _take(self, load: Load) -> Fetched | None:
        """The load's chunk, where the cursor's load before has left it open."""
        run, fetched = self._open.pop((load.group, load.cursor), (-1, None))
        if fetched is None or (run == load.run and fetched.chunk.row == load.chunk):
            return fetched
        self._release(fetched)
        return None

    def _keep(self, load: Load, fetched: Fetched) -> None:
        """Leave a chunk open for the cursor's next load, where it has more frames."""
        chunk = fetched.chunk
        stop = load.first + load.count * self._frame_steps[load.group]
        if load.group in self.in_pieces and stop < chunk.first_frame + chunk.num_frames:
            self._open[load.group, load.cursor] = (load.run, fetched)
        else:
            self._release(fetched)

    def fetch(self, load: Load, places: Sequence[Place] = ()) -> Fetched:
        """Read the load's chunk; with `places`, large raw pages, or parts of these, straight into
        them."""
        begin = perf_counter()
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        fetched = self._fetch(chunk, pages, self._direct(load, chunk, pages, places))
        if self._transform is not None:
            others: list[Fetched] = []
            try:
                others.extend(
                    self._fetch(other, self._reader.pages(other), Direct({}, ()))
                    for other in self._chunks_of_others(load)
                )
            except BaseException:
                self._release(replace(fetched, others=others))
                raise
            fetched = replace(fetched, others=others)
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=load.chunk)
        self._stats.add(
            bytes_read=sum(part.nbytes for part in (fetched, *fetched.others)),
            fetch_seconds=end - begin,
        )
        return fetched

    def _chunks_of_others(self, load: Load) -> Iterator[Chunk]:
        """The chunks of other groups that have the load's frames."""
        index, frames = self._dataset.index, self._frames(load)
        for group in sorted({spec.group for spec in self._dataset.features.values()}):
            if group != load.group:
                rows = index.groups[group].chunks_of(load.episode, frames)
                for row in np.unique(rows).tolist():
                    yield self._reader.chunk_at(group, row, load.episode)

    def _fetch(self, chunk: Chunk, pages: Sequence[Page], direct: Direct) -> Fetched:
        in_part = {part.page.feature for part in direct.parts}
        in_part |= {item.page.feature for item in direct.windows}
        whole = [page for page in pages if page.feature not in in_part]
        shared = [page for page in whole if page.feature not in direct.whole]
        buffer = self._buffers.chunks.acquire(
            sum(aligned(page.stop - page.start) for page in shared)
        )
        used = 0

        def allocate(length: int) -> memoryview:
            nonlocal used
            used += length
            return buffer[used - length : used].data

        try:
            with self._naming(chunk):
                data = self._reader.read(whole, into=direct.whole, allocate=allocate)
                nbytes = sum(page.stop - page.start for page in whole)
                nbytes += self._reader.read_parts(direct.parts)
                for item in direct.windows:
                    nbytes += self._read_windows(item)
        except BaseException:
            self._buffers.chunks.release(buffer)
            raise
        read = dict(zip((page.feature for page in whole), data, strict=True))
        for name in direct.features:
            read.pop(name, None)
        return Fetched(chunk, pages, read, buffer, nbytes)

    def _read_windows(self, item: WindowedPage) -> int:
        """Read a page and copy windows of its frames; how many bytes were read."""
        memory = self._buffers.chunks.acquire(item.memory)
        try:
            self._reader.read_in_turn(item.page, memory[: item.memory], item.take)
        finally:
            self._buffers.chunks.release(memory)
        return item.page.stop - item.page.start

    def _release(self, fetched: Fetched) -> None:
        for part in (fetched, *fetched.others):
            self._buffers.chunks.release(part.buffer)

    def _frames(self, load: Load) -> npt.NDArray[np.int64]:
        """The frames that a load brings, counted in the episode; int64[count]."""
        return load.first + np.arange(load.count) * self._frame_steps[load.group]

    def _decode(self, load: Load, places: Sequence[Place], fetched: Fetched) -> None:
        seconds = dict.fromkeys((page.feature for page in fetched.pages), 0.0)
        every = [page for part in (fetched, *fetched.others) for page in part.pages]
        before = sum(map(self._reader.num_decoded, every))
        with self._decoding:
            begin = perf_counter()
            frames = self._frames(load)
            # Frames that lack a feature are in no clip, yet they may lie between others.
            decoded = 0
            if self._transform is not None:
                present = np.ones(len(frames), bool)
                for part in (fetched, *fetched.others):
                    present &= _all_present(part.chunk, part.pages, frames)
                slices = find_slices(places, present)
                decoded = _length(slices)
                self._store_transformed(fetched, frames, slices, *self._transform)
            else:
                inside = frames - fetched.chunk.first_frame
                for pages in self._alike(fetched.pages):
                    present = _all_present(fetched.chunk, pages, frames)
                    slices = find_slices(places, present)
                    if not present.all() and self._has_unknown(pages[0].feature):
                        for rest in find_slices(places, ~present):
                            clear(self._reader, pages, rest)
                    decoded = max(decoded, _length(slices))
                    with self._naming(fetched.chunk):
                        for page in pages:
                            if (item := fetched.data.get(page.feature)) is not None:
                                start = perf_counter()
                                store(self._reader, page, item, inside, slices)
                                seconds[page.feature] += perf_counter() - start
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=load.chunk)
        self._stats.add_decoding(seconds)
        self._stats.add(
            loads=1,
            frames_decoded=decoded if load.group == self._leading else 0,
            video_frames_decoded=sum(map(self._reader.num_decoded, every)) - before,
            decode_seconds=end - begin,
        )

    def _direct(
        self, load: Load, chunk: Chunk, pages: Sequence[Page], places: Sequence[Place]
    ) -> Direct:
        """What is read straight into rows."""
        if self._transform is not None or not places:
            return Direct({}, ())
        features, is_local = self._reader.features, self._reader.is_local
        cropped = [p for p in pages if isinstance(places[0].target[p.feature], WindowRows)]
        if cropped:
            return self._direct_windows(load, chunk, pages, cropped, places)
        if load.count == chunk.num_frames:
            whole = whole_pages(pages, features, places, is_local=is_local)
            if whole:
                return Direct(whole, ())
        frames = self._frames(load)
        inside, parts = frames - chunk.first_frame, []
        for some in self._alike(pages):
            slices = find_slices(places, _all_present(chunk, some, frames))
            parts += parts_of(some, features, inside, slices, is_local=is_local)
        return Direct({}, parts)

    def _has_unknown(self, feature: str) -> bool:
        """Whether clips may have frames of a feature for which nothing is known: zeros."""
        known = None if self._clip_frames is None else self._clip_frames.known.get(feature)
        return known is not None and known.has_unknown

    def _direct_windows(
        self,
        load: Load,
        chunk: Chunk,
        pages: Sequence[Page],
        cropped: Sequence[Page],
        places: Sequence[Place],
    ) -> Direct:
        """Raw pages of a local disk, of which rows get windows: frames go through little memory."""
        if not self.is_local:
            return Direct({}, ())
        frames = self._frames(load)
        slices = find_slices(places, _all_present(chunk, pages, frames))
        inside = frames - chunk.first_frame
        features = self._reader.features
        return Direct({}, (), windowed_pages(cropped, features, inside, slices))

    def _alike(self, pages: Sequence[Page]) -> list[list[Page]]:
        """The pages, together those of features of which clips have the same frames."""
        by_name = {page.feature: page for page in pages}
        if self._clip_frames is None:
            return [list(pages)]
        return [[by_name[name] for name in names] for names in self._clip_frames.alike(by_name)]

    def _store_transformed(
        self,
        fetched: Fetched,
        frames: npt.NDArray[np.int64],
        slices: Iterable[Slice],
        transform: FrameTransform,
        specs: Mapping[str, ArraySpec],
    ) -> None:
        parts = (fetched, *fetched.others)
        for item in slices:
            for i in range(item.length):
                frame = int(frames[item.first + i])
                decoded: dict[str, Any] = {}
                for part in parts:
                    inside = frame - part.chunk.first_frame
                    if 0 <= inside < part.chunk.num_frames:
                        with self._naming(part.chunk):
                            data = list(part.data.values())
                            arrays = self._reader.decode_frame(part.pages, data, inside)
                            for page in part.pages:
                                array = arrays[page.feature]
                                decoded[page.feature] = self._reader.value(page, array, inside)
                whole = {name: decoded[name] for name in self._reader.features}
                with self._naming(fetched.chunk, frame):
                    made = apply_transform(transform, whole)
                    check_arrays(made, specs)
                for name, value in made.items():
                    item.target[name][item.row + i] = value

    @contextmanager
    def _naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Errors name the chunk, or the frame of its episode that is being transformed."""
        try:
            yield
        except Exception as error:
            self._name(error, chunk, transformed)
            raise

    def _name(self, error: Exception, chunk: Chunk, transformed: int | None = None) -> None:
        """Have an error name the chunk, or the frame of its episode that is being transformed."""
        file = f"{self._dataset.url}/{chunk.path}"
        key = str(self._dataset.index.keys[chunk.episode].as_py())
        first, last = chunk.first_frame, chunk.first_frame + chunk.num_frames - 1
        if transformed is None:
            episode = f"{key} (frames {first} to {last})"
            add_place(error, "a chunk", file=file, episode=episode)
        else:
            add_place(error, "frame_transform", file=file, episode=key, frame=transformed)


def _all_present(
    chunk: Chunk, pages: Iterable[Page], frames: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which frames, counted in the episode, lack no feature of a chunk's pages; bool[frames].

    Frames of other chunks count as lacking nothing.
    """
    present = np.ones(len(frames), bool)
    inside = frames - chunk.first_frame
    held = (inside >= 0) & (inside < chunk.num_frames)
    for page in pages:
        if page.present is not None:
            present[held] &= page.present[inside[held]]
    return present


def _length(slices: Iterable[Slice]) -> int:
    """Frames of these slices."""
    return sum(item.length for item in slices)
