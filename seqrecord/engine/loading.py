"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.chunks import Chunk, Page
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.workspace import Scratch
from seqrecord.format.pages import aligned
from seqrecord.frames import ArraySpec, FrameTransform, add_place, apply_transform, check_arrays
from seqrecord.plan import Loads
from seqrecord.reader import Dataset

__all__ = ["ChunkLoader", "Fetched", "Load", "Place", "Rows", "each_load"]

# Raw pages of at least so many bytes are read straight into their rows. Smaller ones are read
# together with their neighbours and copied; where every request costs, all but large ones are.
_LEAST_STRAIGHT = 64 << 10
_LEAST_STRAIGHT_REMOTE = 8 << 20


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


class Rows(Protocol):
    """Rows of frames by feature: an array [rows, …], or what can `make` arrays in its rows."""

    def __getitem__(self, feature: str) -> Any: ...


@dataclass(frozen=True, eq=False)
class Place:
    """Where some of a load's frames go: `frames`, counted in the load, into `rows`; int64[n]."""

    target: Rows
    frames: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class _Run(NamedTuple):
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
    data: Sequence[memoryview]  # by page, in `block`
    block: npt.NDArray[np.uint8]


class ChunkLoader:
    """Does loads, from many threads at once. An error names episode, frame and record file.

    At most `num_threads` of them decode at a time, however many read.
    """

    def __init__(
        self,
        dataset: Dataset,
        scratch: Scratch,
        specs: Mapping[str, ArraySpec],
        frame_step: int,
        transform: FrameTransform | None,
        num_threads: int,
        stats: EngineStats,
    ) -> None:
        self._dataset = dataset
        self._reader = dataset.chunk_reader()
        self._scratch = scratch
        self._specs = specs
        self._frame_step = frame_step
        self._transform = transform
        self._decoding = threading.BoundedSemaphore(num_threads)
        self._stats = stats

    def __call__(self, load: Load, places: Sequence[Place], fetched: Fetched | None = None) -> None:
        """Read the load's chunk, unless it is `fetched`, and decode its frames into `places`.

        Frames of the load that have no place are not decoded.
        """
        if fetched is None:
            fetched = self.fetch(load, places)
        try:
            self._decode(load, places, fetched)
        finally:
            self._scratch.give_back(fetched.block)

    def fetch(self, load: Load, places: Sequence[Place] = ()) -> Fetched:
        """Read the load's chunk; with `places`, large raw pages straight into these."""
        chunk = self._reader.chunk_at(load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        straight = self._straight(load, chunk, pages, places)
        shared = [page for page in pages if page.feature not in straight]
        block = self._scratch.take(sum(aligned(page.stop - page.start) for page in shared))
        used = 0

        def allocate(length: int) -> memoryview:
            nonlocal used
            used += length
            return block[used - length : used].data

        begin = perf_counter()
        try:
            with self._naming(chunk):
                data = self._reader.read(pages, into=straight, allocate=allocate)
        except BaseException:
            self._scratch.give_back(block)
            raise
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=load.chunk)
        self._stats.add(
            bytes_read=sum(page.stop - page.start for page in pages), fetch_seconds=end - begin
        )
        return Fetched(chunk, pages, straight.keys(), data, block)

    def _decode(self, load: Load, places: Sequence[Place], fetched: Fetched) -> None:
        chunk, pages = fetched.chunk, fetched.pages
        seconds = dict.fromkeys(self._reader.features, 0.0)
        with self._decoding:
            begin = perf_counter()
            inside = load.first - chunk.first_frame + np.arange(load.count) * self._frame_step
            # Frames that lack a feature are in no clip, yet they may lie between others.
            runs = _runs(places, _all_present(pages, inside))
            if self._transform is not None:
                self._store_transformed(chunk, pages, fetched.data, inside, runs, self._transform)
            else:
                with self._naming(chunk):
                    for page, item in zip(pages, fetched.data, strict=True):
                        if page.feature not in fetched.straight:
                            start = perf_counter()
                            self._store(page, item, inside, runs)
                            seconds[page.feature] += perf_counter() - start
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=load.chunk)
        self._stats.add_decoding(seconds)
        self._stats.add(
            loads=1, frames_decoded=sum(run.length for run in runs), decode_seconds=end - begin
        )

    def _straight(
        self, load: Load, chunk: Chunk, pages: Sequence[Page], places: Sequence[Place]
    ) -> dict[str, list[memoryview]]:
        """Rows that whole raw pages can be read into as they are, by feature."""
        if self._transform is not None or load.count != chunk.num_frames:
            return {}
        runs = _runs(places, np.ones(load.count, bool))
        if sum(run.length for run in runs) != load.count:
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
                run.target[page.feature][
                    run.row + max(0, skipped - run.first) : run.row
                    + min(run.length, skipped + page.num_present - run.first)
                ]
                for run in runs
                if run.first < skipped + page.num_present and run.first + run.length > skipped
            ]
            found[page.feature] = [memoryview(p.reshape(-1).view(np.uint8)) for p in parts]
        return found

    def _store(
        self,
        page: Page,
        data: memoryview,
        inside: npt.NDArray[np.int64],
        runs: Iterable[_Run],
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into rows of their feature."""
        for run in runs:
            target = run.target[page.feature]
            frames = inside[run.first : run.first + run.length].tolist()
            if page.largest is not None:
                shapes = self._reader.shapes(page, data)
                arrays = target.make(run.row, [shapes[page.position(i) or 0] for i in frames])
                self._reader.decode(page, data, frames, arrays)
            else:
                out = target[run.row : run.row + run.length]
                self._reader.decode(page, data, _as_range(frames), out)

    def _store_transformed(
        self,
        chunk: Chunk,
        pages: Sequence[Page],
        data: Sequence[memoryview],
        inside: npt.NDArray[np.int64],
        runs: Iterable[_Run],
        transform: FrameTransform,
    ) -> None:
        for run in runs:
            for i in range(run.length):
                frame = int(inside[run.first + i])
                with self._naming(chunk):
                    decoded = self._reader.decode_frame(pages, data, frame)
                with self._naming(chunk, frame):
                    arrays = apply_transform(transform, decoded)
                    check_arrays(arrays, self._specs)
                for name, array in arrays.items():
                    run.target[name][run.row + i] = array

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


def _runs(places: Sequence[Place], wanted: npt.NDArray[np.bool_]) -> list[_Run]:
    """The wanted frames of the places, as runs of consecutive frames and rows, by frame.

    Rows mostly follow each other, but for one place where a ring begins anew.
    """
    runs = []
    for place in places:
        some = wanted[place.frames]
        frames, rows = place.frames[some], place.rows[some]
        breaks = np.flatnonzero((np.diff(frames) != 1) | (np.diff(rows) != 1)) + 1
        edges = [0, *breaks.tolist(), len(frames)]
        for start, stop in pairwise(edges):
            if start < stop:
                runs.append(_Run(place.target, int(frames[start]), int(rows[start]), stop - start))
    return sorted(runs, key=lambda run: run.first)


def _as_range(frames: list[int]) -> range | list[int]:
    """The frames as a range where they are evenly spaced: it is decoded in one go."""
    step: Any = frames[1] - frames[0] if len(frames) > 1 else 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames
