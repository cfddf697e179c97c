"""Small chunks of raw pages, read into rows in few steps: for each one Python's share counts.

A page whose wanted frames follow each other is read into their rows, with a little memory for what
lies before and behind them::

    page        | f f f f f f f f f |
    read into     x r r r r r r x x

A page of which every second or third frame is wanted goes through memory, and is copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.chunk_errors import ChunkErrors
from seqrecord.engine.direct import spares
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.format.pages import aligned
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.raw_chunks import RawChunk, RawChunks

__all__ = ["RawLoads"]


class RawLoads:
    """Loads of a group of which all features are raw, from a local disk; from many threads at once.

    A place has all frames of its load, `step` apart, in rows that follow each other, but for where
    a ring begins anew.
    """

    def __init__(
        self,
        reader: ChunkReader,
        buffers: Buffers[Any],
        raw: RawChunks,
        errors: ChunkErrors,
        stats: EngineStats,
        *,
        step: int,
        is_leading: bool,
    ) -> None:
        self._reader, self._buffers, self._raw = reader, buffers, raw
        self._errors, self._stats = errors, stats
        self._step, self._is_leading = step, is_leading

    def load(self, loads: Sequence[Load], places: Sequence[Place]) -> list[int]:
        """Do loads, each into one place.

        Returns the numbers of those that are not done: of chunks that are large, that lack frames
        or do not match their checksums, or of which parts should be read. What is in their rows
        means nothing.
        """
        begin = last = perf_counter()
        trace = self._stats.trace
        left: list[int] = []
        nbytes = frames = 0
        found = self._raw.find(np.array([load.chunk for load in loads]))
        for number, (load, place, chunk) in enumerate(zip(loads, places, found, strict=True)):
            if chunk is None or not self._do(chunk, load, place):
                left.append(number)
                continue
            nbytes += sum(chunk.lengths)
            frames += load.count
            if trace.is_on:
                now = perf_counter()
                trace.add("fetch", last, now, chunk=load.chunk)
                last = now
        self._stats.add(
            bytes_read=nbytes,
            fetch_seconds=perf_counter() - begin,
            loads=len(loads) - len(left),
            frames_decoded=frames if self._is_leading else 0,
        )
        return left

    def _do(self, chunk: RawChunk, load: Load, place: Place) -> bool:
        """Read a chunk's pages and have the load's frames in the rows of a place, if that is the
        way to read them; whether it was done."""
        assert len(place.frames) == load.count, "a place for some frames of a load"
        if load.count < chunk.num_frames and self._is_sparse(chunk, load.count):
            return False
        try:
            with self._buffers.storing([place]) as (target,):
                if self._step == 1 or load.count == 1:
                    return self._read_straight(chunk, load, target)
                return self._read_spread(chunk, load, target)
        except Exception as error:
            where = self._reader.chunk_at(load.group, load.chunk, load.episode)
            self._errors.name(error, where)
            raise

    def _is_sparse(self, chunk: RawChunk, count: int) -> bool:
        """Whether to read parts of a chunk's pages, with `count` wanted frames, takes less time."""
        parts = count if self._step > 1 else 1
        return any(
            spares(length, count * spec.nbytes, parts, is_local=True)
            for spec, length in zip(self._raw.specs, chunk.lengths, strict=True)
        )

    def _read_straight(self, chunk: RawChunk, load: Load, place: Place) -> bool:
        """Read frames that follow each other into their rows; whether the pages are as written."""
        count, skipped = load.count, load.first - chunk.first_frame
        behind = chunk.num_frames - skipped - count
        bounds, specs = _bounds(place), self._raw.specs
        targets = []
        if skipped == behind == 0:
            for spec in specs:
                rows = place.target[spec.name]
                targets.append([_bytes(rows[a:b]) for a, b in bounds])
            return self._raw.read(chunk, targets)
        memory = self._buffers.chunks.acquire(sum(chunk.lengths))
        try:
            used = 0
            for spec in specs:
                rows, nbytes = place.target[spec.name], spec.nbytes
                wanted = [_bytes(rows[a:b]) for a, b in bounds]
                middle, end = used + skipped * nbytes, used + (skipped + behind) * nbytes
                parts = [memory[used:middle].data, *wanted, memory[middle:end].data]
                targets.append([part for part in parts if len(part)])
                used = end
            return self._raw.read(chunk, targets)
        finally:
            self._buffers.chunks.release(memory)

    def _read_spread(self, chunk: RawChunk, load: Load, place: Place) -> bool:
        """Read pages into memory and copy frames to their rows; whether they are as written."""
        count, step, first = load.count, self._step, load.first - chunk.first_frame
        *starts, end = accumulate(map(aligned, chunk.lengths), initial=0)
        memory = self._buffers.chunks.acquire(end)
        try:
            pages = [memory[at : at + n] for at, n in zip(starts, chunk.lengths, strict=True)]
            if not self._raw.read(chunk, [[page.data] for page in pages]):
                return False
            for spec, page in zip(self._raw.specs, pages, strict=True):
                rows: Any = place.target[spec.name]
                frames = page.view(spec.dtype).reshape(chunk.num_frames, *rows.shape[1:])
                chosen, done = frames[first : first + (count - 1) * step + 1 : step], 0
                for a, b in _bounds(place):
                    rows[a:b] = chosen[done : done + b - a]
                    done += b - a
        finally:
            self._buffers.chunks.release(memory)
        return True


def _bounds(place: Place) -> list[tuple[int, int]]:
    """The rows of a place, as bounds of those that follow each other: two where a ring begins
    anew."""
    rows = place.rows
    count, first, last = len(rows), int(rows[0]), int(rows[-1])
    if last - first == count - 1:
        return [(first, last + 1)]
    before = int(rows.argmin())  # the ring's first row
    begin = int(rows[before])
    return [(first, first + before), (begin, begin + count - before)]


def _bytes(rows: npt.NDArray[Any]) -> memoryview:
    """The memory of rows that follow each other."""
    return rows.reshape(-1).view(np.uint8).data
