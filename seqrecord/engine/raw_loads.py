"""Small chunks of raw pages, read into rows in few steps: for each one Python's share counts.

A page whose wanted frames follow each other is read into their rows, with a little memory for what
lies before and behind them::

    page        | f f f f f f f f f |
    read into     x r r r r r r x x

A page of which every second or third frame is wanted goes through memory, and is copied from there.
Pages of several chunks are read, and then checked, while the processor's cache holds them.
Of pages of which few frames are wanted only their slices are read, those of several loads together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Arena, Place
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.direct import spares
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import SeqRecordError
from seqrecord.format.pages import aligned, slice_frames
from seqrecord.reading.raw_chunks import RawChunk, RawChunks

__all__ = ["RawLoads"]

_PART_BYTES = 16 << 10  # of a page are read in the time that one more part of it takes
_AT_ONCE = 1 << 20  # bytes that are read before they are checked


class _Task(NamedTuple):
    """A load of a job, by its number, and its chunk.

    The chunk's pages have `size` bytes, of which `beside` are not read straight into rows.
    """

    number: int
    chunk: RawChunk
    load: Load
    place: Place
    size: int
    beside: int


class RawLoads:
    """Loads of a group of which all features are raw, from a local disk; from many threads at once.

    A place has all frames of its load, `step` apart, in rows that follow each other, but for where
    a ring begins anew.
    """

    def __init__(
        self,
        buffers: Buffers[Any],
        raw: RawChunks,
        stats: EngineStats,
        *,
        step: int,
        is_leading: bool,
    ) -> None:
        self._buffers, self._raw, self._stats = buffers, raw, stats
        self._step, self._is_leading = step, is_leading
        self._sizes = [(spec.name, spec.nbytes) for spec in raw.specs]
        self._frame = sum(size for _, size in self._sizes)
        self._slice = sum(slice_frames(spec) * spec.nbytes for spec in raw.specs)

    def load(self, loads: Sequence[Load], places: Sequence[Place]) -> list[int]:
        """Do loads, each into one place.

        Returns the numbers, ascending, of those that are not done: of chunks that are large, that
        lack frames, cannot be read or do not match their checksums, or of which parts are better
        read one by one. What is in their rows means nothing.
        """
        begin = last = perf_counter()
        trace = self._stats.trace
        left: list[int] = []
        whole: list[_Task] = []
        sparse: list[_Task] = []
        found = self._raw.find(np.array([load.chunk for load in loads]))
        for number, (load, place, chunk) in enumerate(zip(loads, places, found, strict=True)):
            if chunk is None:
                left.append(number)
                continue
            size = sum(chunk.lengths)
            beside = size - load.count * self._frame
            if self._is_spread(load):
                beside = sum(map(aligned, chunk.lengths))
            task = _Task(number, chunk, load, place, size, beside)
            if load.count == chunk.num_frames or not self._is_sparse(chunk, load.count):
                whole.append(task)
            elif self._raw.scattered:
                sparse.append(task)
            else:
                left.append(number)
        nbytes = frames = 0
        for some in self._at_once(whole):
            if failed := self._read_whole(some):
                left += failed
                some = [task for task in some if task.number not in failed]
            nbytes += sum(task.size for task in some)
            frames += sum(task.load.count for task in some)
            trace.add("fetch", last, last := perf_counter(), chunks=len(some))
        for some in self._together(sparse):
            read = self._read_sparse(some)
            nbytes += read
            if not read:
                left += [task.number for task in some]
                continue
            frames += sum(task.load.count for task in some)
            trace.add("fetch", last, last := perf_counter(), chunks=len(some))
        self._stats.add(
            bytes_read=nbytes,
            fetch_seconds=perf_counter() - begin,
            loads=len(loads) - len(left),
            frames_decoded=frames if self._is_leading else 0,
        )
        return sorted(left)

    def _at_once(self, whole: Sequence[_Task]) -> Iterator[list[_Task]]:
        """Those of one record file that follow each other, as many together as are read before
        they are checked, and take no more memory beside their rows than a chunk.

        On a device that is one: it has memory for the frames of one load a thread.
        """
        some: list[_Task] = []
        left = room = 0
        for task in whole:
            left, room = left - task.size, room - task.beside
            if some and (left < 0 or room < 0 or task.chunk.file != some[0].chunk.file):
                yield some
                some = []
            if not some:
                left = _AT_ONCE - task.size if isinstance(task.place.target, Arena) else 0
                room = task.size - task.beside
            some.append(task)
        if some:
            yield some

    def _read_whole(self, some: Sequence[_Task]) -> list[int]:
        """Read all pages of chunks of one record file, and have the loads' frames in their rows.

        The numbers of loads that are not done, for something is wrong with what was read.
        """
        places = [task.place for task in some]
        memory = self._buffers.chunks.acquire(sum(task.beside for task in some))
        try:
            with self._buffers.storing(places) as targets:
                parts: list[list[list[memoryview]]] = []
                used = 0
                for task, target in zip(some, targets, strict=True):
                    through = memory.data[used : used + task.beside]
                    parts.append(self._parts(task, target, through))
                    used += task.beside
                chunks = [task.chunk for task in some]
                are_right = self._raw.read(chunks, parts)
                for task, target, pages in zip(some, targets, parts, strict=True):
                    if self._is_spread(task.load):
                        self._spread(task, target, pages)
        except (SeqRecordError, OSError):
            return [task.number for task in some]
        finally:
            self._buffers.chunks.release(memory)
        return [task.number for task, right in zip(some, are_right, strict=True) if not right]

    def _is_spread(self, load: Load) -> bool:
        """Whether a load's frames are apart in their pages."""
        return self._step > 1 and load.count > 1

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

    def _together(self, sparse: Sequence[_Task]) -> Iterator[list[_Task]]:
        """Sparse loads in the order of their frames in the files, as many together as take no more
        memory than a chunk."""
        some: list[_Task] = []
        left = 0
        for item in sorted(sparse, key=lambda item: (item.load.chunk, item.load.first)):
            wanted = item.load.count * self._slice
            if some and wanted > left:
                yield some
                some = []
            if not some:
                left = item.size
            some.append(item)
            left -= wanted
        if some:
            yield some

    def _read_sparse(self, some: Sequence[_Task]) -> int:
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

    def _parts(self, task: _Task, place: Place, through: memoryview) -> list[list[memoryview]]:
        """Where each page of a chunk is read to, part after part: rows, and memory beside them."""
        chunk, count = task.chunk, task.load.count
        found, used = [], 0
        if self._is_spread(task.load):
            for length in chunk.lengths:
                found.append([through[used : used + length]])
                used += aligned(length)
            return found
        skipped = task.load.first - chunk.first_frame
        behind = chunk.num_frames - skipped - count
        for name, size in self._sizes:
            parts = _rows(place, name, size)
            if skipped or behind:
                middle, end = used + skipped * size, used + (skipped + behind) * size
                parts = [through[used:middle], *parts, through[middle:end]]
                parts = [part for part in parts if len(part)]
                used = end
            found.append(parts)
        return found

    def _spread(self, task: _Task, place: Place, pages: Sequence[Sequence[memoryview]]) -> None:
        """Copy a load's frames from pages to their rows."""
        chunk, load, step = task.chunk, task.load, self._step
        first = load.first - chunk.first_frame
        for spec, (page,) in zip(self._raw.specs, pages, strict=True):
            rows: Any = place.target[spec.name]
            frames = np.frombuffer(page, spec.dtype).reshape(chunk.num_frames, *rows.shape[1:])
            chosen, done = frames[first : first + (load.count - 1) * step + 1 : step], 0
            for a, b in place.bounds:
                rows[a:b] = chosen[done : done + b - a]
                done += b - a


def _rows(place: Place, feature: str, size: int) -> list[memoryview]:
    """The memory of a place's rows of a feature, part after part; a row has so many bytes."""
    target = place.target
    if isinstance(target, Arena):
        memory = target.memory(feature)
        return [memory[a * size : b * size] for a, b in place.bounds]
    rows = target[feature]
    return [memoryview(rows[a:b].reshape(-1).view(np.uint8)) for a, b in place.bounds]


def _following(row: npt.NDArray[np.int64], item: _Task) -> npt.NDArray[np.int64]:
    """The rows of all frames of a load, of which the first is in `row`, int64[1]."""
    return row + np.arange(item.load.count)
