"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.chunks import Chunk, Page
from seqrecord.engine.trace import Trace
from seqrecord.engine.workspace import Workspace
from seqrecord.format.pages import aligned
from seqrecord.frames import FrameTransform, add_place, apply_transform, check_arrays
from seqrecord.plan import Loads
from seqrecord.reader import Dataset

__all__ = ["ChunkLoader", "Load", "each_load"]


@dataclass(frozen=True)
class Load:
    """One row of a plan's `Loads`."""

    cursor: int
    episode: int
    chunk: int
    first: int
    count: int


def each_load(loads: Loads) -> list[Load]:
    """The rows of `loads`."""
    columns = (loads.cursor, loads.episode, loads.chunk, loads.first, loads.count)
    return [Load(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class ChunkLoader:
    """Does loads, from many threads at once. An error names episode, frame and record file."""

    def __init__(
        self,
        dataset: Dataset,
        workspace: Workspace,
        frame_step: int,
        transform: FrameTransform | None,
        trace: Trace,
    ) -> None:
        self._dataset = dataset
        self._reader = dataset.chunk_reader()
        self._arena = workspace.arena
        self._scratch = workspace.scratch
        self._frame_step = frame_step
        self._transform = transform
        self._trace = trace

    def __call__(self, load: Load, rows: npt.NDArray[np.int64]) -> Mapping[str, float]:
        """Read the load's chunk and decode its frames into `rows`; what that took, for stats."""
        chunk = self._reader.chunk_at(load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        straight = self._straight(load, chunk, pages, rows)
        with self._memory(page for page in pages if page.feature not in straight) as allocate:
            begin = perf_counter()
            with self._naming(chunk):
                data = self._reader.read(pages, into=straight, allocate=allocate)
            middle = perf_counter()
            inside = load.first - chunk.first_frame + np.arange(load.count) * self._frame_step
            # Frames that lack a feature are in no clip, yet they may lie between others.
            wanted = _all_present(pages, inside)
            inside, rows = inside[wanted], rows[wanted]
            if self._transform is not None:
                self._store_transformed(chunk, pages, data, inside, rows, self._transform)
            else:
                with self._naming(chunk):
                    for page, item in zip(pages, data, strict=True):
                        if page.feature not in straight:
                            self._store(page, item, inside, rows)
            del data
        end = perf_counter()
        self._trace.add("fetch", begin, middle, chunk=load.chunk)
        self._trace.add("decode", middle, end, chunk=load.chunk)
        return {
            "bytes_read": sum(page.stop - page.start for page in pages),
            "frames_decoded": len(inside),
            "fetch_seconds": middle - begin,
            "decode_seconds": end - middle,
        }

    def _straight(
        self, load: Load, chunk: Chunk, pages: Sequence[Page], rows: npt.NDArray[np.int64]
    ) -> dict[str, memoryview]:
        """Rows of the arena that whole raw pages can be read into as they are, by feature."""
        whole = load.count == chunk.num_frames and rows[-1] - rows[0] == load.count - 1
        if self._transform is not None or not whole:
            return {}
        found = {}
        for page in pages:
            skipped = (page.present & -page.present).bit_length() - 1
            run = page.present >> max(skipped, 0)
            if self._reader.features[page.feature].is_raw and run and not run & (run + 1):
                first = int(rows[0]) + skipped
                target = self._arena[page.feature][first : first + page.num_present]
                found[page.feature] = memoryview(target.reshape(-1).view(np.uint8))
        return found

    @contextmanager
    def _memory(self, pages: Iterable[Page]) -> Iterator[Callable[[int], memoryview]]:
        """Scratch memory for these pages, until the block is left."""
        block = self._scratch.take(sum(aligned(page.stop - page.start) for page in pages))
        used = 0

        def allocate(length: int) -> memoryview:
            nonlocal used
            used += length
            return block[used - length : used].data

        try:
            yield allocate
        finally:
            self._scratch.give_back(block)

    def _store(
        self,
        page: Page,
        data: memoryview,
        inside: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into rows of their feature."""
        target = self._arena[page.feature]
        if isinstance(target, list):
            frames = inside.tolist()
            shapes = self._reader.shapes(page, data)
            dtype = self._reader.features[page.feature].dtype
            arrays = [np.empty(shapes[page.position(i) or 0], dtype) for i in frames]
            self._reader.decode(page, data, frames, arrays)
            for row, array in zip(rows.tolist(), arrays, strict=True):
                target[row] = array
            return
        # Rows follow each other, but for one place where the ring begins anew.
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(part):
                out = target[rows[part[0]] : rows[part[-1]] + 1]
                self._reader.decode(page, data, _as_range(inside[part].tolist()), out)

    def _store_transformed(
        self,
        chunk: Chunk,
        pages: Sequence[Page],
        data: Sequence[memoryview],
        inside: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        transform: FrameTransform,
    ) -> None:
        for frame, row in zip(inside.tolist(), rows.tolist(), strict=True):
            with self._naming(chunk):
                decoded = self._reader.decode_frame(pages, data, frame)
            with self._naming(chunk, frame):
                arrays = apply_transform(transform, decoded)
                check_arrays(arrays, self._arena.specs)
            for name, array in arrays.items():
                self._arena[name][row] = array

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


def _as_range(frames: list[int]) -> range | list[int]:
    """The frames as a range where they are evenly spaced: it is decoded in one go."""
    step: Any = frames[1] - frames[0] if len(frames) > 1 else 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames
