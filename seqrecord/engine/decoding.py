"""Decodes the frames that clips need of a chunk that was read, into their rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from seqrecord.engine.arena import Place
from seqrecord.engine.chunk_errors import ChunkErrors
from seqrecord.engine.direct import Slice, find_slices
from seqrecord.engine.fetching import Fetched
from seqrecord.engine.load_frames import LoadFrames, all_present
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.storing import clear, store
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.frames import ArraySpec, FrameTransform, apply_transform, check_arrays

__all__ = ["FrameStorer", "Transform"]

Transform: TypeAlias = tuple[FrameTransform, Mapping[str, ArraySpec]]
"""A function, and which arrays it makes of a frame."""


class FrameStorer:
    """Decodes frames, and transforms them; at most `num_threads` threads at a time.

    `leading` is the number of the group whose frames are counted in `stats`.
    """

    def __init__(
        self,
        reader: ChunkReader,
        frames: LoadFrames,
        errors: ChunkErrors,
        transform: Transform | None,
        *,
        leading: int,
        num_threads: int,
        stats: EngineStats,
    ) -> None:
        self._reader = reader
        self._frames = frames
        self._errors = errors
        self._transform = transform
        self._leading = leading
        self._decoding = threading.BoundedSemaphore(num_threads)
        self._stats = stats

    def store(self, load: Load, places: Sequence[Place], fetched: Fetched) -> None:
        """Decode a load's frames into `places`."""
        seconds = dict.fromkeys((page.feature for page in fetched.pages), 0.0)
        every = [page for part in (fetched, *fetched.others) for page in part.pages]
        before = sum(map(self._reader.num_decoded, every))
        with self._decoding:
            begin = perf_counter()
            if self._transform is not None:
                decoded = self._store_transformed(load, places, fetched, *self._transform)
            else:
                decoded = self._store(load, places, fetched, seconds)
            end = perf_counter()
        self._stats.trace.add("decode", begin, end, chunk=load.chunk)
        self._stats.add_decoding(seconds)
        self._stats.add(
            loads=1,
            frames_decoded=decoded if load.group == self._leading else 0,
            video_frames_decoded=sum(map(self._reader.num_decoded, every)) - before,
            decode_seconds=end - begin,
        )

    def _store(
        self, load: Load, places: Sequence[Place], fetched: Fetched, seconds: dict[str, float]
    ) -> int:
        """How many frames were decoded; adds to the seconds of each feature."""
        chunk, decoded = fetched.chunk, 0
        frames = self._frames.of(load)
        inside = frames - chunk.first_frame
        for pages in self._frames.alike(fetched.pages):
            # Frames that lack a feature are in no clip, yet they may lie between others.
            present = all_present(chunk, pages, frames)
            slices = find_slices(places, present)
            if not present.all() and self._frames.has_unknown(pages[0].feature):
                for rest in find_slices(places, ~present):
                    clear(self._reader, pages, rest)
            decoded = max(decoded, _length(slices))
            with self._errors.naming(chunk):
                for page in pages:
                    if (item := fetched.data.get(page.feature)) is not None:
                        start = perf_counter()
                        store(self._reader, page, item, inside, slices)
                        seconds[page.feature] += perf_counter() - start
        return decoded

    def _store_transformed(
        self,
        load: Load,
        places: Sequence[Place],
        fetched: Fetched,
        transform: FrameTransform,
        specs: Mapping[str, ArraySpec],
    ) -> int:
        """How many frames were transformed."""
        frames, parts = self._frames.of(load), (fetched, *fetched.others)
        present = np.ones(len(frames), bool)
        for part in parts:
            present &= all_present(part.chunk, part.pages, frames)
        slices = find_slices(places, present)
        for item in slices:
            for i in range(item.length):
                frame = int(frames[item.first + i])
                decoded: dict[str, Any] = {}
                for part in parts:
                    inside = frame - part.chunk.first_frame
                    if 0 <= inside < part.chunk.num_frames:
                        with self._errors.naming(part.chunk):
                            data = list(part.data.values())
                            arrays = self._reader.decode_frame(part.pages, data, inside)
                            for page in part.pages:
                                array = arrays[page.feature]
                                decoded[page.feature] = self._reader.value(page, array, inside)
                whole = {name: decoded[name] for name in self._reader.features}
                with self._errors.naming(fetched.chunk, frame):
                    made = apply_transform(transform, whole)
                    check_arrays(made, specs)
                for name, value in made.items():
                    item.target[name][item.row + i] = value
        return _length(slices)


def _length(slices: Iterable[Slice]) -> int:
    """Frames of these slices."""
    return sum(item.length for item in slices)
