"""Small chunks of raw pages, read into rows in few steps: for each one Python's share counts.

A page whose wanted frames follow each other is read into their rows, with a little memory for what
lies before and behind them::

    page        | f f f f f f f f f |
    read into     x r r r r r r x x

A page of which every second or third frame is wanted goes through memory, and is copied from there.
Of pages of which few frames are wanted only their slices are read, those of several loads together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.chunk_errors import ChunkErrors
from seqrecord.engine.direct import spares
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.format.pages import aligned, slice_frames
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.raw_chunks import RawChunk, RawChunks

__all__ = ["RawLoads"]

_PART_BYTES = 16 << 10  # of a page are read in the time that one more part of it takes


class _Sparse(NamedTuple):
    """A load of few frames of a chunk, and its number."""

    number: int
    chunk: RawChunk
    load: Load
    place: Place


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
        self._frame = sum(spec.nbytes for spec in raw.specs)
        self._slice = sum(slice_frames(spec) * spec.nbytes for spec in raw.specs)

    def load(self, loads: Sequence[Load], places: Sequence[Place]) -> list[int]:
        """Do loads, each into one place.

        Returns the numbers of those that are not done: of chunks that are large, that lack frames
        or do not match their checksums, or of which parts are better read one by one. What is in
        their rows means nothing.
        """
        begin = last = perf_counter()
        trace = self._stats.trace
        left: list[int] = []
        sparse: list[_Sparse] = []
        nbytes = frames = 0
        found = self._raw.find(np.array([load.chunk for load in loads]))
        for number, (load, place, chunk) in enumerate(zip(loads, places, found, strict=True)):
            assert len(place.frames) == load.count, "a place for some frames of a load"
            if chunk is None:
                left.append(number)
                continue
            if load.count < chunk.num_frames and self._is_sparse(chunk, load.count):
                if self._raw.scattered:
                    sparse.append(_Sparse(number, chunk, load, place))
                else:
                    left.append(number)
                continue
            if not self._do(chunk, load, place):
                left.append(number)
                continue
            nbytes += sum(chunk.lengths)
            frames += load.count
            if trace.is_on:
                now = perf_counter()
                trace.add("fetch", last, now, chunk=load.chunk)
                last = now
        for some in self._together(sparse):
            read = self._read_sparse(some)
            nbytes += read
            if not read:
                left += [item.number for item in some]
                continue
            frames += sum(item.load.count for item in some)
            trace.add("fetch", last, last := perf_counter(), chunks=len(some))
        self._stats.add(
            bytes_read=nbytes,
            fetch_seconds=perf_counter() - begin,
            loads=len(loads) - len(left),
            frames_decoded=frames if self._is_leading else 0,
        )
        return left

    def _do(self, chunk: RawChunk, load: Load, place: Place) -> bool:
        """Read a chunk's pages and have the load's frames in the rows of a place; whether the pages
        are as written."""
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
        """Whether to read slices of a chunk's pages, for `count` frames, takes less time."""
        if not self._raw.scattered:
            parts = count if self._step > 1 else 1
            return any(
                spares(length, count * spec.nbytes, parts, is_local=True)
                for spec, length in zip(self._raw.specs, chunk.lengths, strict=True)
            )
        parts, wanted = 1, count * self._frame + 2 * self._slice
        if self._step > 1:
            parts, wanted = count, count * self._slice
        return sum(chunk.lengths) - wanted >= (parts + 1) * _PART_BYTES * len(chunk.lengths)

    def _together(self, sparse: Sequence[_Sparse]) -> Iterator[list[_Sparse]]:
        """Sparse loads in the order of their frames in the files, as many together as take no more
        memory than a chunk."""
        some: list[_Sparse] = []
        left = 0
        for item in sorted(sparse, key=lambda item: (item.load.chunk, item.load.first)):
            wanted = item.load.count * self._slice
            if some and wanted > left:
                yield some
                some = []
            if not some:
                left = sum(item.chunk.lengths)
            some.append(item)
            left -= wanted
        if some:
            yield some

    def _read_sparse(self, some: Sequence[_Sparse]) -> int:
        """Read the slices that hold the frames of loads, and copy these to their rows.

        How many bytes were read; 0 where two loads have frames in common, or something is wrong.
        """
        step = self._step
        counts = np.array([item.load.count if step > 1 else 1 for item in some])
        at = np.cumsum(counts) - counts  # the first range of each load
        first = np.repeat([item.load.first - item.chunk.first_frame for item in some], counts)
        first += (np.arange(len(first)) - np.repeat(at, counts)) * step
        length = 1 if step > 1 else np.array([item.load.count for item in some])
        stop = first + length
        chunk = np.repeat([item.load.chunk for item in some], counts)
        if ((chunk[1:] == chunk[:-1]) & (first[1:] < stop[:-1])).any():
            return 0
        nbytes = 0
        memory: list[npt.NDArray[np.uint8]] = []
        try:
            found = []
            for scattered in self._raw.scattered:
                if (one := scattered.read(chunk, first, stop, partial(self._lend, memory))) is None:
                    return 0
                found.append(one)
                nbytes += one.frames.nbytes
            for number, item in enumerate(some):
                rows = slice(int(at[number]), int(at[number] + counts[number]))
                with self._buffers.storing([item.place]) as (target,):
                    for spec, one in zip(self._raw.specs, found, strict=True):
                        where = one.rows[rows] if step > 1 else _following(one.rows[rows], item)
                        target.target[spec.name][target.rows] = one.frames[where]
        finally:
            for buffer in memory:
                self._buffers.chunks.release(buffer)
        return nbytes

    def _lend(self, lent: list[npt.NDArray[np.uint8]], nbytes: int) -> npt.NDArray[np.uint8]:
        lent.append(self._buffers.chunks.acquire(nbytes))
        return lent[-1]

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


def _following(row: npt.NDArray[np.int64], item: _Sparse) -> npt.NDArray[np.int64]:
    """The rows of all frames of a load, of which the first is in `row`, int64[1]."""
    return row + np.arange(item.load.count)


def _bytes(rows: npt.NDArray[Any]) -> memoryview:
    """The memory of rows that follow each other."""
    return rows.reshape(-1).view(np.uint8).data
