"""Pages of fetched chunks are decoded into rows, and frames transformed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.frames import ClipFrames
from seqrecord.clips.grids import followed
from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import Padded, Rows, clear_rows
from seqrecord.engine.device.video import DeviceFrames
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import (
    ArraySpec,
    FrameTransform,
    add_place,
    apply_transform,
    check_arrays,
    mask_name,
)

Transform: TypeAlias = tuple[FrameTransform, Mapping[str, ArraySpec]]
"""A function, and which arrays it makes of a frame."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """Pages of a chunk as they are stored."""

    chunk: Chunk
    pages: Sequence[Page]
    data: Mapping[str, memoryview]  # by feature, in `buffer`
    buffer: npt.NDArray[np.uint8]
    others: Sequence[Fetched] = ()  # chunks of other groups, for a transform of whole frames


class FrameDecoder:
    """Decodes frames of chunks, from many threads at once. An error names episode, frame and record
    file.

    At most `num_threads` of them decode at a time. Arguments are those of `ChunkLoader`.
    """

    def __init__(
        self,
        dataset: Dataset,
        leading: int,
        transform: Transform | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames | None,
    ) -> None:
        self._contents, self._reader = dataset.contents, dataset.contents.chunks
        self._leading, self._transform, self._clip_frames = leading, transform, clip_frames
        self._stats = stats
        self._decoding = threading.BoundedSemaphore(num_threads)

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Counts as decoding what reading raw frames takes to resize them."""
        with self._decoding:
            begin = perf_counter()
            yield
            seconds = perf_counter() - begin
        self._stats.add(decode_seconds=seconds, fetch_seconds=-seconds)

    def decode(self, fetched: Fetched, frames: IntArray, out: Rows, rows: IntArray) -> None:
        """Decode frames of a chunk into rows, and transform them."""
        seconds = dict.fromkeys((page.feature for page in fetched.pages), 0.0)
        every = [page for part in (fetched, *fetched.others) for page in part.pages]
        before = sum(map(self._reader.num_decoded, every))
        with self._decoding:
            begin = perf_counter()
            if self._transform is not None:
                decoded = self._store_transformed(fetched, frames, out, rows, *self._transform)
            else:
                decoded = self._store(fetched, frames, out, rows, seconds)
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=fetched.chunk.row, frames=len(frames))
        self._stats.add_decoding(seconds)
        self._stats.add(
            frames_decoded=decoded if fetched.chunk.group == self._leading else 0,
            video_frames_decoded=sum(map(self._reader.num_decoded, every)) - before,
            decode_seconds=end - begin,
        )

    def _store(
        self,
        fetched: Fetched,
        frames: IntArray,
        out: Rows,
        rows: IntArray,
        seconds: dict[str, float],
    ) -> int:
        """How many frames were decoded; adds to the seconds of each feature."""
        chunk, decoded = fetched.chunk, 0
        for pages in self._alike(fetched.pages):
            # Frames that lack a feature are in no clip, yet they may lie between others.
            present = _all_present(chunk, pages, frames)
            decoded = max(decoded, int(np.count_nonzero(present)))
            known = self._clip_frames
            if not present.all() and known is not None and known.has_unknown(pages[0].feature):
                for page in pages:
                    spec = self._reader.features[page.feature]
                    for row in rows[~present].tolist():
                        clear_rows(spec, out, row, 1)
            inside, places = frames[present] - chunk.first_frame, rows[present]
            runs = list(pairwise(followed(places)))
            with self.naming(chunk):
                for page in pages:
                    if (item := fetched.data.get(page.feature)) is not None:
                        start = perf_counter()
                        for a, b in runs:
                            self._store_run(page, item, inside[a:b].tolist(), out, int(places[a]))
                        seconds[page.feature] += perf_counter() - start
        return decoded

    def _store_run(
        self, page: Page, data: memoryview, frames: list[int], out: Rows, row: int
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into rows from `row` on."""
        reader, target = self._reader, out[page.feature]
        spec = reader.features[page.feature]
        if isinstance(target, DeviceFrames):
            page.memo.setdefault("open_video", target.open)
        if spec.is_fixed:
            reader.decode(page, data, _as_range(frames), target[row : row + len(frames)])
            return
        found = reader.shapes(page, data)
        shapes = [found[i] for i in page.positions(frames).tolist()]
        if spec.value == "array" and not isinstance(target, np.ndarray):
            reader.decode(page, data, frames, target.make(row, shapes))
            return
        if spec.value == "array":
            target = Padded(spec, target, out[mask_name(page.feature)])
        for at, (frame, shape) in enumerate(zip(frames, shapes, strict=True), row):
            array = np.empty(shape, spec.dtype)
            reader.decode(page, data, [frame], [array])
            try:
                target.put(at, reader.value(page, array, frame))
            except ClipError as error:
                raise error.located(frame=page.chunk.first_frame + frame) from None

    def _store_transformed(
        self,
        fetched: Fetched,
        frames: IntArray,
        out: Rows,
        rows: IntArray,
        transform: FrameTransform,
        specs: Mapping[str, ArraySpec],
    ) -> int:
        """How many frames were transformed."""
        parts = (fetched, *fetched.others)
        present = present_in(parts, frames)
        for frame, row in zip(frames[present].tolist(), rows[present].tolist(), strict=True):
            decoded: dict[str, Any] = {}
            for part in parts:
                inside = frame - part.chunk.first_frame
                if 0 <= inside < part.chunk.num_frames:
                    with self.naming(part.chunk):
                        for page in part.pages:
                            data = part.data[page.feature]
                            value = self._reader.value_of(page, data, inside)
                            decoded[page.feature] = value
            whole = {name: decoded[name] for name in self._reader.features}
            with self.naming(fetched.chunk, frame):
                made = apply_transform(transform, whole)
                check_arrays("frame_transform", "frame", made, specs)
            for name, value in made.items():
                out[name][row] = value
        return int(np.count_nonzero(present))

    def _alike(self, pages: Sequence[Page]) -> list[list[Page]]:
        """The pages, together those of features of which clips have the same frames."""
        by_name = {page.feature: page for page in pages}
        if self._clip_frames is None:
            return [list(pages)]
        return [[by_name[name] for name in names] for names in self._clip_frames.alike(by_name)]

    @contextmanager
    def naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Errors name the chunk, or the frame of its episode that is being transformed."""
        try:
            yield
        except Exception as error:
            self.name(error, chunk, transformed)
            raise

    def name(self, error: Exception, chunk: Chunk, transformed: int | None = None) -> None:
        """Have an error name the chunk, or the frame of its episode that is being transformed."""
        place = self._reader.raw[chunk.group].place_of(chunk.row)
        if transformed is None:
            add_place(error, "a chunk", **place)
        else:
            place["episode"] = self._contents.index.key(chunk.episode)
            add_place(error, "frame_transform", **place, frame=transformed)


def present_in(parts: Iterable[Fetched], frames: IntArray) -> npt.NDArray[np.bool_]:
    """Which frames, counted in the episode, lack nothing in any of these parts; bool[frames]."""
    present = np.ones(len(frames), bool)
    for part in parts:
        present &= _all_present(part.chunk, part.pages, frames)
    return present


def _all_present(chunk: Chunk, pages: Iterable[Page], frames: IntArray) -> npt.NDArray[np.bool_]:
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


def _as_range(frames: list[int]) -> range | list[int]:
    """The frames as a range where they are evenly spaced: it is decoded in one go."""
    step: Any = frames[1] - frames[0] if len(frames) > 1 else 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames
