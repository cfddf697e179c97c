"""Decodes pages of fetched chunks into rows, and applies frame transforms."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FORMS, FeatureRows
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.frames.array_specs import ArraySpec, add_place, apply_transform, check_arrays
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.pages import Chunk, Page
from seqrecord.store.tables.grids import run_bounds
from seqrecord.store.value_kinds import FrameFunction


class Transform(NamedTuple):
    """A frame transform, the specs of its results, and their key in a frame cache."""

    function: FrameFunction
    specs: Mapping[str, ArraySpec]
    cache_key: str | None = None


@dataclass(frozen=True, eq=False)
class Fetched:
    """Encoded pages of a chunk."""

    chunk: Chunk
    pages: Sequence[Page]
    data: Mapping[str, memoryview]  # by feature; views of `buffer`
    buffer: npt.NDArray[np.uint8]
    others: Sequence[Fetched] = ()  # chunks of other groups, for a frame transform


class FrameDecoder:
    """Decodes frames of chunks; thread-safe. Errors name episode, frame and record file.

    At most `num_threads` threads decode at a time. Arguments: see `ChunkLoader`.
    """

    def __init__(
        self,
        dataset: Dataset,
        leading: int,
        transform: Transform | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames,
    ) -> None:
        self._contents, self._reader = dataset.contents, dataset.contents.chunks
        self._leading, self._transform, self._clip_frames = leading, transform, clip_frames
        self._stats = stats
        self._decoding = threading.BoundedSemaphore(num_threads)

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Context that counts the time as decoding, for resizing raw frames while they are read."""
        with self._decoding:
            begin = perf_counter()
            yield
            seconds = perf_counter() - begin
        self._stats.add(decode_seconds=seconds, fetch_seconds=-seconds)

    def decode(self, fetched: Fetched, frames: IntArray, out: FeatureRows, rows: IntArray) -> None:
        """Decode frames of a chunk into rows, and transform them."""
        seconds = dict.fromkeys((page.feature for page in fetched.pages), 0.0)
        pages = [page for part in (fetched, *fetched.others) for page in part.pages]
        num_before = sum(map(self._reader.num_decoded, pages))
        with self._decoding:
            begin = perf_counter()
            if self._transform is not None:
                decoded = self._store_transformed(fetched, frames, out, rows, self._transform)
            else:
                decoded = self._store(fetched, frames, out, rows, seconds)
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=fetched.chunk.row, frames=len(frames))
        self._stats.add_decoding(seconds)
        self._stats.add(
            frames_decoded=decoded if fetched.chunk.group == self._leading else 0,
            video_frames_decoded=sum(map(self._reader.num_decoded, pages)) - num_before,
            decode_seconds=end - begin,
        )

    def _store(
        self,
        fetched: Fetched,
        frames: IntArray,
        out: FeatureRows,
        rows: IntArray,
        seconds: dict[str, float],
    ) -> int:
        """Returns the number of decoded frames; adds to the seconds of each feature."""
        chunk, decoded = fetched.chunk, 0
        for pages in self._alike(fetched.pages):
            # Frames without a feature belong to no clip, but may be between frames that do.
            present = _all_present(chunk, pages, frames)
            decoded = max(decoded, int(np.count_nonzero(present)))
            if not present.all() and self._clip_frames.has_unknown(pages[0].feature):
                for page in pages:
                    spec = self._reader.features[page.feature]
                    for row in rows[~present].tolist():
                        FORMS[spec.value_kind].clear(spec, out, row, 1)
            positions, places = frames[present] - chunk.first_frame, rows[present]
            runs = list(pairwise(run_bounds(places)))
            with self.naming(chunk):
                for page in pages:
                    if (item := fetched.data.get(page.feature)) is not None:
                        start = perf_counter()
                        for a, b in runs:
                            self._store_run(
                                page, item, positions[a:b].tolist(), out, int(places[a])
                            )
                        seconds[page.feature] += perf_counter() - start
        return decoded

    def _store_run(
        self, page: Page, data: memoryview, frames: list[int], out: FeatureRows, row: int
    ) -> None:
        """Decode frames of a page, relative to the chunk's first frame, into rows from `row` on."""
        reader, target = self._reader, out[page.feature]
        if (open_video := getattr(target, "open_video", None)) is not None:  # rows on a device
            page.memo.setdefault("open_video", open_video)
        FORMS[reader.features[page.feature].value_kind].decode(reader, page, data, frames, out, row)

    def _store_transformed(
        self,
        fetched: Fetched,
        frames: IntArray,
        out: FeatureRows,
        rows: IntArray,
        transform: Transform,
    ) -> int:
        """Returns the number of transformed frames."""
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
                made = apply_transform(transform.function, whole)
                check_arrays("frame_transform", "frame", made, transform.specs)
            for name, value in made.items():
                out[name][row] = value
        return int(np.count_nonzero(present))

    def _alike(self, pages: Sequence[Page]) -> list[list[Page]]:
        """Group pages of features with the same frames in clips."""
        by_name = {page.feature: page for page in pages}
        return [[by_name[name] for name in names] for names in self._clip_frames.by_window(by_name)]

    @contextmanager
    def naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Context in which errors name the chunk, or the frame of its episode being transformed."""
        try:
            yield
        except Exception as error:
            self.name(error, chunk, transformed)
            raise

    def name(self, error: Exception, chunk: Chunk, transformed: int | None = None) -> None:
        """Add the chunk's place to an error, or the frame of its episode being transformed."""
        place = self._reader.raw[chunk.group].place_of(chunk.row)
        if transformed is None:
            add_place(error, "a chunk", **place)
        else:
            place["episode"] = self._contents.index.key(chunk.episode)
            add_place(error, "frame_transform", **place, frame=transformed)


def present_in(parts: Iterable[Fetched], frames: IntArray) -> npt.NDArray[np.bool_]:
    """Whether frames of the episode have the features of all parts; bool[frames]."""
    present = np.ones(len(frames), bool)
    for part in parts:
        present &= _all_present(part.chunk, part.pages, frames)
    return present


def _all_present(chunk: Chunk, pages: Iterable[Page], frames: IntArray) -> npt.NDArray[np.bool_]:
    """Whether frames of the episode have all features of a chunk's pages; bool[frames].

    Frames outside the chunk count as complete.
    """
    present = np.ones(len(frames), bool)
    inside = frames - chunk.first_frame
    contained = (inside >= 0) & (inside < chunk.num_frames)
    for page in pages:
        if page.present is not None:
            present[contained] &= page.present[inside[contained]]
    return present
