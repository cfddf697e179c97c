"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.clips import IntArray
from seqrecord.engine.arena import Place, Rows
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.stats import EngineStats
from seqrecord.format.pages import aligned
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.frames import (
    FrameTransform,
    add_place,
    apply_transform,
    check_arrays,
)
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.sampling import Clips, Loads

__all__ = ["ChunkLoader", "Fetched", "Load", "each_load", "first_uses", "frame_key"]

# Raw pages of at least so many bytes are read straight into their rows. Smaller ones are read
# together with their neighbours and copied; where every request costs, all but large ones are.
_LEAST_STRAIGHT = 64 << 10
_LEAST_STRAIGHT_REMOTE = 8 << 20

_FRAMES = 1 << 40  # more than an episode has


@dataclass(frozen=True)
class Load:
    """One row of a plan's `Loads`."""

    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    count: int


def each_load(loads: Loads) -> list[Load]:
    """The rows of `loads`."""
    columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
    return [Load(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def frame_key(run: IntArray, frame: IntArray) -> IntArray:
    """A number for each frame of a run, int64[n]; it ascends with runs, and with frames in them."""
    return run * _FRAMES + frame


def first_uses(loads: Loads, clips: Clips, *, span: int, frame_step: int) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    A load that no clip of the round needs gets `len(clips)`. A clip spans `span` frames.
    """
    place = frame_key(clips.run, clips.start)
    order = np.argsort(place, kind="stable")
    place = place[order]
    first, last = loads.first, loads.first + (loads.count - 1) * frame_step
    low = np.searchsorted(place, frame_key(loads.run, np.maximum(first - span + 1, 0)))
    high = np.searchsorted(place, frame_key(loads.run, last), side="right")
    # The least number in each of the ranges [low, high): every second of these.
    bounds = np.stack((low, high), axis=1).ravel()
    least = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, least, len(clips))


class _Slice(NamedTuple):
    """Frames `[first, first + length)` of a load go into rows `[row, row + length)`."""

    target: Rows
    first: int
    row: int
    length: int


@dataclass(frozen=True, eq=False)
class Fetched:
    """A chunk's pages as they are stored, but for those that were read straight into rows."""

    chunk: Chunk
    pages: Sequence[Page]
    straight: Collection[str]  # features
    data: Sequence[memoryview]  # by page, in `buffer`
    buffer: npt.NDArray[np.uint8]


class ChunkLoader:
    """Does loads, from many threads at once. An error names episode, frame and record file.

    At most `num_threads` of them decode at a time, however many read.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        buffers: Buffers[Any],
        frame_step: int,
        transform: FrameTransform | None,
        num_threads: int,
        stats: EngineStats,
    ) -> None:
        self._dataset = dataset
        self._reader = dataset.chunk_reader()
        self.is_local = self._reader.is_local
        self._buffers = buffers
        self._frame_step = frame_step
        self._transform = transform
        self._decoding = threading.BoundedSemaphore(num_threads)
        self._stats = stats

    def __call__(self, load: Load, places: Sequence[Place], fetched: Fetched | None = None) -> None:
        """Read the load's chunk, unless it is `fetched`, and decode its frames into `places`.

        Frames of the load that have no place are not decoded.
        """
        with self._buffers.storing(places) as targets:
            if fetched is None:
                fetched = self.fetch(load, targets)
            try:
                self._decode(load, targets, fetched)
            finally:
                self._buffers.chunks.release(fetched.buffer)

    def fetch(self, load: Load, places: Sequence[Place] = ()) -> Fetched:
        """Read the load's chunk; with `places`, large raw pages straight into these."""
        chunk = self._reader.chunk_at(load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        straight = self._straight(load, chunk, pages, places)
        shared = [page for page in pages if page.feature not in straight]
        buffer = self._buffers.chunks.acquire(
            sum(aligned(page.stop - page.start) for page in shared)
        )
        used = 0

        def allocate(length: int) -> memoryview:
            nonlocal used
            used += length
            return buffer[used - length : used].data

        begin = perf_counter()
        try:
            with self._naming(chunk):
                data = self._reader.read(pages, into=straight, allocate=allocate)
        except BaseException:
            self._buffers.chunks.release(buffer)
            raise
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=load.chunk)
        self._stats.add(
            bytes_read=sum(page.stop - page.start for page in pages), fetch_seconds=end - begin
        )
        return Fetched(chunk, pages, straight.keys(), data, buffer)

    def _decode(self, load: Load, places: Sequence[Place], fetched: Fetched) -> None:
        chunk, pages = fetched.chunk, fetched.pages
        seconds = dict.fromkeys(self._reader.features, 0.0)
        with self._decoding:
            begin = perf_counter()
            inside = load.first - chunk.first_frame + np.arange(load.count) * self._frame_step
            # Frames that lack a feature are in no clip, yet they may lie between others.
            slices = _slices(places, _all_present(pages, inside))
            if self._transform is not None:
                self._store_transformed(chunk, pages, fetched.data, inside, slices, self._transform)
            else:
                with self._naming(chunk):
                    for page, item in zip(pages, fetched.data, strict=True):
                        if page.feature not in fetched.straight:
                            start = perf_counter()
                            self._store(page, item, inside, slices)
                            seconds[page.feature] += perf_counter() - start
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=load.chunk)
        self._stats.add_decoding(seconds)
        self._stats.add(
            loads=1, frames_decoded=sum(item.length for item in slices), decode_seconds=end - begin
        )

    def _straight(
        self, load: Load, chunk: Chunk, pages: Sequence[Page], places: Sequence[Place]
    ) -> dict[str, list[memoryview]]:
        """Rows that whole raw pages can be read into as they are, by feature."""
        if self._transform is not None or load.count != chunk.num_frames:
            return {}
        slices = _slices(places, np.ones(load.count, bool))
        if sum(item.length for item in slices) != load.count:
            return {}
        found = {}
        least = _LEAST_STRAIGHT if self._reader.is_local else _LEAST_STRAIGHT_REMOTE
        for page in pages:
            spec, size = self._reader.features[page.feature], page.stop - page.start
            if not spec.is_raw or size < least or size != page.num_present * spec.nbytes:
                continue
            skipped = (page.present & -page.present).bit_length() - 1
            if page.present >> skipped != (1 << page.num_present) - 1:
                continue
            parts = [
                item.target[page.feature][
                    item.row + max(0, skipped - item.first) : item.row
                    + min(item.length, skipped + page.num_present - item.first)
                ]
                for item in slices
                if item.first < skipped + page.num_present and item.first + item.length > skipped
            ]
            found[page.feature] = [memoryview(p.reshape(-1).view(np.uint8)) for p in parts]
        return found

    def _store(
        self,
        page: Page,
        data: memoryview,
        inside: npt.NDArray[np.int64],
        slices: Iterable[_Slice],
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into rows of their feature."""
        for item in slices:
            target = item.target[page.feature]
            frames = inside[item.first : item.first + item.length].tolist()
            if page.largest is not None:
                shapes = self._reader.shapes(page, data)
                arrays = target.make(item.row, [shapes[page.position(i) or 0] for i in frames])
                self._reader.decode(page, data, frames, arrays)
            else:
                out = target[item.row : item.row + item.length]
                self._reader.decode(page, data, _as_range(frames), out)

    def _store_transformed(
        self,
        chunk: Chunk,
        pages: Sequence[Page],
        data: Sequence[memoryview],
        inside: npt.NDArray[np.int64],
        slices: Iterable[_Slice],
        transform: FrameTransform,
    ) -> None:
        for item in slices:
            for i in range(item.length):
                frame = int(inside[item.first + i])
                with self._naming(chunk):
                    decoded = self._reader.decode_frame(pages, data, frame)
                with self._naming(chunk, frame):
                    arrays = apply_transform(transform, decoded)
                    check_arrays(arrays, self._buffers.needs.specs)
                for name, array in arrays.items():
                    item.target[name][item.row + i] = array

    @contextmanager
    def _naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Errors name the chunk, or the frame that is being transformed, counted in the chunk."""
        try:
            yield
        except Exception as error:
            file = f"{self._dataset.url}/{chunk.path}"
            key = str(self._dataset.index.keys[chunk.episode].as_py())
            first, last = chunk.first_frame, chunk.first_frame + chunk.num_frames - 1
            if transformed is None:
                episode = f"{key} (frames {first} to {last})"
                add_place(error, "a chunk", file=file, episode=episode)
            else:
                frame = first + transformed
                add_place(error, "frame_transform", file=file, episode=key, frame=frame)
            raise


def _all_present(pages: Sequence[Page], inside: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the frames, counted from the chunk's first, have the features of all pages."""
    present = ~0
    for page in pages:
        present &= page.present
    return np.array([bool(present >> i & 1) for i in inside.tolist()], bool)


def _slices(places: Sequence[Place], wanted: npt.NDArray[np.bool_]) -> list[_Slice]:
    """The wanted frames of the places, as slices of consecutive frames and rows, by frame.

    Rows mostly follow each other, but for one place where a ring begins anew.
    """
    found = []
    for place in places:
        some = wanted[place.frames]
        frames, rows = place.frames[some], place.rows[some]
        breaks = np.flatnonzero((np.diff(frames) != 1) | (np.diff(rows) != 1)) + 1
        edges = [0, *breaks.tolist(), len(frames)]
        for start, stop in pairwise(edges):
            if start < stop:
                found.append(
                    _Slice(place.target, int(frames[start]), int(rows[start]), stop - start)
                )
    return sorted(found, key=lambda item: item.first)


def _as_range(frames: list[int]) -> range | list[int]:
    """The frames as a range where they are evenly spaced: it is decoded in one go."""
    step: Any = frames[1] - frames[0] if len(frames) > 1 else 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames
