"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Place, Rows
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.loads import Load
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

__all__ = ["ChunkLoader", "Fetched"]

# Raw pages of at least so many bytes are read straight into their rows. Smaller ones are read
# together with their neighbours and copied; where every request costs, all but large ones are.
_LEAST_STRAIGHT = 64 << 10
_LEAST_STRAIGHT_REMOTE = 8 << 20


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
        transform: called with each frame, for what is stored instead.
        num_threads: that decode.
        stats: counts what is done.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        buffers: Buffers[Any],
        frame_steps: Mapping[int, int],
        leading: int,
        transform: FrameTransform | None,
        num_threads: int,
        stats: EngineStats,
    ) -> None:
        self._dataset = dataset
        self._reader = dataset.chunk_reader()
        self.is_local = self._reader.is_local
        self._buffers = buffers
        self._frame_steps = frame_steps
        self._leading = leading
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
                self._release(fetched)

    def fetch(self, load: Load, places: Sequence[Place] = ()) -> Fetched:
        """Read the load's chunk; with `places`, large raw pages straight into these."""
        begin = perf_counter()
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        fetched = self._fetch(chunk, pages, self._straight(load, chunk, pages, places))
        if self._transform is not None:
            others: list[Fetched] = []
            try:
                others.extend(
                    self._fetch(other, self._reader.pages(other), {})
                    for other in self._chunks_of_others(load)
                )
            except BaseException:
                self._release(replace(fetched, others=others))
                raise
            fetched = replace(fetched, others=others)
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=load.chunk)
        self._stats.add(
            bytes_read=sum(
                page.stop - page.start for part in (fetched, *fetched.others) for page in part.pages
            ),
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

    def _fetch(
        self, chunk: Chunk, pages: Sequence[Page], straight: Mapping[str, list[memoryview]]
    ) -> Fetched:
        shared = [page for page in pages if page.feature not in straight]
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
                data = self._reader.read(pages, into=straight, allocate=allocate)
        except BaseException:
            self._buffers.chunks.release(buffer)
            raise
        return Fetched(chunk, pages, straight.keys(), data, buffer)

    def _release(self, fetched: Fetched) -> None:
        for part in (fetched, *fetched.others):
            self._buffers.chunks.release(part.buffer)

    def _frames(self, load: Load) -> npt.NDArray[np.int64]:
        """The frames that a load brings, counted in the episode; int64[count]."""
        return load.first + np.arange(load.count) * self._frame_steps[load.group]

    def _decode(self, load: Load, places: Sequence[Place], fetched: Fetched) -> None:
        seconds = dict.fromkeys((page.feature for page in fetched.pages), 0.0)
        with self._decoding:
            begin = perf_counter()
            frames = self._frames(load)
            # Frames that lack a feature are in no clip, yet they may lie between others.
            slices = _slices(places, _all_present(fetched, frames))
            if self._transform is not None:
                self._store_transformed(fetched, frames, slices, self._transform)
            else:
                inside = frames - fetched.chunk.first_frame
                with self._naming(fetched.chunk):
                    for page, item in zip(fetched.pages, fetched.data, strict=True):
                        if page.feature not in fetched.straight:
                            start = perf_counter()
                            self._store(page, item, inside, slices)
                            seconds[page.feature] += perf_counter() - start
            end = perf_counter()
        decoded = sum(item.length for item in slices)
        self._stats.trace.add("decode", begin, end, chunk=load.chunk)
        self._stats.add_decoding(seconds)
        self._stats.add(
            loads=1,
            frames_decoded=decoded if load.group == self._leading else 0,
            decode_seconds=end - begin,
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
            start, stop = _span(page)
            if stop - start != page.num_present:
                continue
            parts = [
                item.target[page.feature][
                    item.row + max(0, start - item.first) : item.row
                    + min(item.length, stop - item.first)
                ]
                for item in slices
                if item.first < stop and item.first + item.length > start
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
        fetched: Fetched,
        frames: npt.NDArray[np.int64],
        slices: Iterable[_Slice],
        transform: FrameTransform,
    ) -> None:
        parts = (fetched, *fetched.others)
        for item in slices:
            for i in range(item.length):
                frame = int(frames[item.first + i])
                decoded: dict[str, npt.NDArray[Any]] = {}
                for part in parts:
                    inside = frame - part.chunk.first_frame
                    if 0 <= inside < part.chunk.num_frames:
                        with self._naming(part.chunk):
                            decoded |= self._reader.decode_frame(part.pages, part.data, inside)
                whole = {name: decoded[name] for name in self._reader.features}
                with self._naming(fetched.chunk, frame):
                    arrays = apply_transform(transform, whole)
                    check_arrays(arrays, self._buffers.needs.specs)
                for name, array in arrays.items():
                    item.target[name][item.row + i] = array

    @contextmanager
    def _naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Errors name the chunk, or the frame of its episode that is being transformed."""
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
                add_place(error, "frame_transform", file=file, episode=key, frame=transformed)
            raise


def _all_present(fetched: Fetched, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which frames, counted in the episode, have the features of all pages; bool[frames]."""
    present = np.ones(len(frames), bool)
    for part in (fetched, *fetched.others):
        inside = frames - part.chunk.first_frame
        held = (inside >= 0) & (inside < part.chunk.num_frames)
        for page in part.pages:
            if page.present is not None:
                present[held] &= page.present[inside[held]]
    return present


def _span(page: Page) -> tuple[int, int]:
    """From the first to past the last frame of the chunk that a page has; it has some."""
    if page.present is None:
        return 0, page.chunk.num_frames
    some = np.flatnonzero(page.present)
    return int(some[0]), int(some[-1]) + 1


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
