"""Reads frames from raw pages into rows of arrays.

Runs of frames are read as slices of their page, each with a checksum, or with the whole page.
Unneeded bytes beside the frames go to scratch memory::

    page        | s s s s s s s s s s s s s |
    frames          . x x x .       . x
    rows              r r r           r
    read          [ r r r r ]     [ r r ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, CodecError, FormatError, SeqRecordError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import Index
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.pages import aligned
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.resizing import resize_frame
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage, file_url_of, worth_rereading
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.tables.grids import IntArray, ragged_arange, run_bounds

_BLOCK_BYTES = 2 << 20  # read, then checked while in the processor's cache
PADDING = 4 << 10  # unneeded bytes read to merge two reads into one
MAX_GAP = 16 << 10  # … within a page of a local disk; remote storages merge larger gaps
PART_BYTES = 16 << 10  # an additional read costs as much time as this many bytes
SPARED_REMOTE = 8 << 20  # minimum saving of a request for a part of a page, on remote storages
_MOST_PARTS = 16  # read in place from a small page; more are copied from memory
_COPIED_BYTES = 1 << 20  # … of at most this many bytes

_Resizing = Callable[[], AbstractContextManager[object]]


class FrameRun(NamedTuple):
    """Consecutive frames of a chunk and their target rows.

    The frames are `[first_frame, first_frame + num_frames)`, counted from the chunk's start.
    `chunk` is a row of the group's chunk table. Frames go to `row` and the following rows.
    """

    chunk: int
    first_frame: int
    num_frames: int
    row: int


def frame_runs(chunk: IntArray, frame: IntArray, row: IntArray) -> list[FrameRun]:
    """Group frames into runs; int64 [n] each, in any order. `frame` counts from the chunk's start.

    Runs are sorted by chunk and frame. A duplicate frame is in two runs.
    """
    order = np.lexsort((frame, chunk))
    chunk, frame, row = chunk[order], frame[order], row[order]
    edges = run_bounds(frame, row, constant=chunk)
    chunks, frames, rows = (column[edges[:-1]].tolist() for column in (chunk, frame, row))
    counts = [stop - start for start, stop in pairwise(edges)]
    return list(map(FrameRun, chunks, frames, counts, rows))


class BufferAllocator(Protocol):
    """A pool of reusable buffers."""

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of at least `nbytes` bytes."""

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Return a buffer to the pool."""


class _FreshBuffers:
    """A `BufferAllocator` that keeps no buffer."""

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.empty(nbytes, np.uint8)

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Leave the buffer to garbage collection."""


_FRESH = _FreshBuffers()


@dataclass(eq=False, slots=True)
class _PageRange:
    """A byte range of a page, read at once.

    `parts` are the targets of consecutive bytes: memory, or a number of bytes to discard. If `rows`
    is set, the whole range is read into scratch memory, and its `frames` are copied to `rows`.
    """

    feature: str
    chunk: int  # row of the chunk table
    file: int
    start: int  # offset in the file
    nbytes: int
    skipped: int  # bytes of the page before this range
    parts: list[memoryview | int] = field(default_factory=list)
    rows: IntArray | None = None
    frames: IntArray | None = None
    slice_bytes: int = 0
    sums_range: ByteRange | None = None  # checksums of the slices; `None` for the whole page
    sums: Sequence[int] = ()  # CRC32C of each slice, or of the page
    num_checked: int = 0  # bytes
    crc: int = 0  # of the last slice checked

    def take(self, runs: Sequence[FrameRun], nbytes: int, memory: memoryview) -> None:
        """Set the targets of page positions `runs`, `nbytes` per frame: rows in `memory`."""
        if len(runs) > _MOST_PARTS and self.nbytes <= _COPIED_BYTES:
            _, first_frame, count, row = np.array(runs).T
            owner, place = ragged_arange(count)
            self.parts.append(self.nbytes)
            self.frames = first_frame[owner] + place - self.skipped // nbytes
            self.rows = row[owner] + place
            return
        position, stop = self.skipped, self.skipped + self.nbytes
        for _, first_frame, count, row in runs:
            if (run_start := first_frame * nbytes) > position:
                self.parts.append(run_start - position)
            position = run_start + count * nbytes
            self.parts.append(memory[row * nbytes : (row + count) * nbytes])
        if stop > position:
            self.parts.append(stop - position)

    def checksum_error(self) -> ChecksumError:
        """Error for its last slice, whose checksum is wrong."""
        text, offset = "a page does not match its checksum", 0
        if self.sums_range is not None:
            text = "frames of a page do not match their checksum"
            offset = self.skipped + self.last_slice * self.slice_bytes
        return ChecksumError.of(text, self.sums[self.last_slice], self.crc, offset=offset)

    def has_bools(self, array: npt.NDArray[Any]) -> bool:
        """Return whether all bytes read for rows of `array` are 0 or 1."""
        arrays: list[Any] = [part for part in self.parts if not isinstance(part, int)]
        if self.rows is not None:
            arrays = [array[self.rows]]
        return all(np.frombuffer(values, np.uint8).max() <= 1 for values in arrays)

    def is_right(self, data: memoryview) -> bool:
        """Check the next bytes against the checksums of all slices completed so far."""
        start, stop, size = 0, len(data), self.slice_bytes
        while start < stop:
            number, offset = divmod(self.num_checked, size)
            end = min(start + size - offset, stop)
            part = data if end - start == stop else data[start:end]
            self.crc = crc32c(part, start=self.crc if offset else 0)
            self.num_checked, start = self.num_checked + end - start, end
            is_end = self.num_checked == self.nbytes or not self.num_checked % size
            if is_end and self.crc != self.sums[number]:
                return False
        return True

    def copy_frames(self, data: memoryview, array: npt.NDArray[Any]) -> None:
        """Copy the range's frames to rows of `array`, if `data` was read into scratch memory."""
        if self.rows is not None:
            frames = np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:])
            array[self.rows] = frames[self.frames]

    @property
    def last_slice(self) -> int:
        """Number of the last checked slice."""
        return (self.num_checked - 1) // self.slice_bytes


class RawFrames:
    """Reads frames of one group's raw features. Thread-safe.

    `verify` checks all bytes read, by the checksum of the page or its slices.

    Args:
        storage: storage of the record files.
        paths: record files, by the index's numbers.
        index: index of the dataset.
        group: group number.
        features: selected features; others are not read.
        is_local: whether the cost of a read depends mostly on its bytes.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Index,
        group: int,
        features: Schema,
        *,
        verify: bool,
        is_local: bool,
    ) -> None:
        self._storage, self._paths, self._index = storage, paths, index
        self._table = table = index.groups[group]
        self._verify, self.is_local = verify, is_local
        self._columns = [
            p for p, n in zip(table.features, table.schema, strict=True) if n in features
        ]
        self.slice_bytes = [
            kind.slice_bytes(spec) if (kind := page_kind(spec)).in_slices else 0
            for spec in table.schema.values()
        ]
        """See `PageKind`; for each feature of the group, selected or not, 0 without slices."""
        slice_bytes = dict(zip(table.schema, self.slice_bytes, strict=True))
        self.specs = {n: spec.stored for n, spec in features.items() if slice_bytes.get(n)}
        self._resized = {n: features[n] for n in self.specs if features[n] is not self.specs[n]}
        self._sizes = {  # column, bytes per frame, frames per slice
            name: (
                table.schema.position(name),
                spec.nbytes,
                slice_bytes[name] // spec.nbytes if verify else 1,
            )
            for name, spec in self.specs.items()
        }

    @cached_property
    def has_gaps(self) -> bool:
        """Whether any frame lacks a selected feature of the group."""
        return bool(np.isin(self._table.gaps["feature"], self._columns).any())

    def places(self, row: int) -> tuple[list[int], list[int]]:
        """Return file offsets of a chunk: page starts and the last page's end, then the same for
        the slice checksums of each page.
        """
        lengths = self._table.page_length[row].tolist()
        starts = list(accumulate(map(aligned, lengths), initial=int(self._table.offset[row])))
        pairs = zip(lengths, self.slice_bytes, strict=True)
        sums = (4 * -(-length // size) if size else 0 for length, size in pairs)
        return starts, list(accumulate(sums, initial=starts[-1]))

    def place_of(self, row: int) -> dict[str, Any]:
        """Return file and frames of a chunk, for errors."""
        table = self._table
        start, count = int(table.first_frame[row]), int(table.num_frames[row])
        episode = table.episode_of(row)
        key, total = self._index.key(episode), int(self._index.num_frames[episode])
        return {
            "file": file_url_of(self._storage, self._paths[int(table.file[row])]),
            "episode": f"{key} (frames {max(start, 0)} to {min(start + count, total) - 1})",
        }

    def located(self, error: SeqRecordError, row: int, feature: str) -> SeqRecordError:
        """Add file, episode and feature to an error. Its offset becomes relative to the file."""
        starts, _ = self.places(row)
        error.offset = starts[self._table.schema.position(feature)] + (error.offset or 0)
        return error.located(**self.place_of(row), feature=feature)

    def read(
        self,
        runs: Sequence[FrameRun],
        rows: Mapping[str, npt.NDArray[Any]],
        pool: BufferAllocator | None = None,
        *,
        exact: bool = False,
        resizing: _Resizing = nullcontext,
    ) -> int:
        """Read frames into `rows`, C-contiguous arrays [rows, …] by feature. Returns bytes read.

        Rows of frames without the feature keep their values. Whole pages are read if that is
        faster, unless `exact` is set. Scratch memory comes from `pool`: 3 MiB on a local disk,
        elsewhere as much as the unneeded bytes.

        Frames to be resized are read into buffers of `pool`, chunk by chunk, and resized in
        the context `resizing`.

        Raises `ChecksumError` for damaged bytes, `CodecError` for a bool other than 0 or 1, and
        `FormatError` for a page whose length does not match its frames.
        """
        pool = _FRESH if pool is None else pool
        if not self._resized:
            return self._read(runs, rows, pool, exact)
        nbytes = 0
        for name in rows.keys() & self._resized:
            for _, chunk_runs in groupby(runs, key=attrgetter("chunk")):
                nbytes += self._read_resized(
                    name, list(chunk_runs), rows[name], pool, exact, resizing
                )
        rows = {name: array for name, array in rows.items() if name not in self._resized}
        return nbytes + self._read(runs, rows, pool, exact)

    def _read_resized(
        self,
        name: str,
        runs: Sequence[FrameRun],
        rows: npt.NDArray[Any],
        pool: BufferAllocator,
        exact: bool,
        resizing: _Resizing,
    ) -> int:
        """Read stored frames of one feature and chunk, and resize them into rows."""
        spec, counts = self.specs[name], [run.num_frames for run in runs]
        size = sum(counts) * spec.nbytes
        buffer = pool.acquire(size)
        try:
            frames = buffer[:size].view(spec.dtype).reshape(-1, *spec.shape)
            starts = accumulate(counts, initial=0)
            buffer_runs = [
                run._replace(row=start) for run, start in zip(runs, starts, strict=False)
            ]
            nbytes = self._read(buffer_runs, {name: frames}, pool, exact)
            mask = self._table.present(
                runs[0].chunk, int(self._table.features[self._sizes[name][0]])
            )
            with resizing():
                for target, source in zip(runs, buffer_runs, strict=True):
                    for i in range(target.num_frames):
                        if mask is None or mask[target.first_frame + i]:
                            resize_frame(
                                self._resized[name], frames[source.row + i], rows[target.row + i]
                            )
            return nbytes
        finally:
            pool.release(buffer)

    def _read(
        self,
        runs: Sequence[FrameRun],
        rows: Mapping[str, npt.NDArray[Any]],
        pool: BufferAllocator,
        exact: bool,
    ) -> int:
        """Like `read`, without resizing."""
        memories = {n: array.reshape(-1).view(np.uint8).data for n, array in rows.items()}
        pieces = [
            piece
            for chunk, members in groupby(runs, key=attrgetter("chunk"))
            for piece in self._pieces(chunk, list(members), memories, exact)
        ]
        pieces.sort(key=attrgetter("file", "start"))
        nbytes = 0
        for file, members in groupby(pieces, key=attrgetter("file")):
            padding = 0 if exact else PADDING
            nbytes += self._read_file(self._paths[file], list(members), rows, pool, padding)
        for piece in pieces:
            if rows[piece.feature].dtype == np.bool_ and not piece.has_bools(rows[piece.feature]):
                problem = "a bool that is neither 0 nor 1"
                raise self.located(
                    CodecError(problem, expected="bytes 0 and 1"), piece.chunk, piece.feature
                )
        return nbytes

    def _pieces(
        self, chunk: int, runs: Sequence[FrameRun], memories: Mapping[str, memoryview], exact: bool
    ) -> Iterator[_PageRange]:
        """Yield the page ranges of a chunk. Not with NumPy: most chunks have one run of frames."""
        table, (starts, sums) = self._table, self.places(chunk)
        file, frames = int(table.file[chunk]), int(table.num_frames[chunk])
        for name, memory in memories.items():
            column, nbytes, size = self._sizes[name]
            length = int(table.page_length[chunk, column])
            num_present, remainder = divmod(length, nbytes)
            if remainder or num_present > frames:
                problem, got = "a raw page does not match its number of frames", f"{length} bytes"
                expected = f"{nbytes} bytes for each of {frames} frames"
                raise self.located(FormatError(problem, expected=expected, got=got), chunk, name)
            positions = list(self._positions(chunk, column, runs)) if self.has_gaps else runs
            bounds = [
                (start // size * size, min(-(-(start + count) // size) * size, num_present))
                for _, start, count, _ in positions
            ]
            if not exact:  # whole pages if faster than their parts
                used_bytes = sum(stop - begin for begin, stop in bounds) * nbytes
                min_saving = max(used_bytes, SPARED_REMOTE)
                if self.is_local:
                    min_saving = (len(bounds) + 1) * PART_BYTES
                if length - used_bytes < min_saving:
                    bounds = [(0, num_present)] * len(bounds)
            begins = [0] * bool(positions)  # runs near each other share a range
            for i in range(1, len(positions)):
                gap = (bounds[i][0] - bounds[i - 1][1]) * nbytes
                previous = positions[i - 1]
                is_again = positions[i].first_frame < previous.first_frame + previous.num_frames
                if is_again or gap > (0 if exact else MAX_GAP):
                    begins.append(i)
            for a, b in pairwise([*begins, len(positions)]):
                low, high = bounds[a][0] * nbytes, bounds[b - 1][1] * nbytes
                piece = _PageRange(name, chunk, file, starts[column] + low, high - low, low)
                piece.take(positions[a:b], nbytes, memory)
                if self._verify and high - low == length:
                    piece.slice_bytes = length
                    piece.sums = (int(table.page_crc32c[chunk, column]),)
                elif self._verify:
                    piece.slice_bytes = size * nbytes
                    begin, count = low // piece.slice_bytes, -(-piece.nbytes // piece.slice_bytes)
                    sums_start = sums[column] + 4 * begin
                    piece.sums_range = ByteRange(sums_start, sums_start + 4 * count)
                yield piece

    def _positions(self, chunk: int, column: int, runs: Sequence[FrameRun]) -> Iterator[FrameRun]:
        """Convert runs to page positions, without frames that lack the feature."""
        mask = self._table.present(chunk, int(self._table.features[column]))
        if mask is None:
            yield from runs
            return
        position = np.cumsum(mask) - 1
        for _, first_frame, count, row in runs:
            present_frames = np.flatnonzero(mask[first_frame : first_frame + count])
            for a, b in pairwise(run_bounds(present_frames)):
                place = int(present_frames[a])
                yield FrameRun(chunk, int(position[first_frame + place]), b - a, row + place)

    def _read_file(
        self,
        path: str,
        pieces: Sequence[_PageRange],
        rows: Mapping[str, npt.NDArray[Any]],
        pool: BufferAllocator,
        padding: int,
    ) -> int:
        """Read ranges of one file, with a second attempt for damaged bytes. Returns bytes read."""
        sums = {piece: checksums for piece in pieces if (checksums := piece.sums_range)}
        # Twice: bytes may be damaged on the way, and a cache may have kept them so
        # (tests/store/test_raw_frames.py::test_a_slice_damaged_in_transfer_is_read_again).
        for is_again in (False, True):
            broken = self._fill(path, pieces, sums, rows, pool, padding)
            if broken is None:
                break
            ranges = [*sums.values(), *(ByteRange(p.start, p.start + p.nbytes) for p in pieces)]
            if is_again or not worth_rereading(self._storage, path, ranges):
                raise self.located(broken.checksum_error(), broken.chunk, broken.feature)
        return sum(item.length for item in sums.values()) + sum(piece.nbytes for piece in pieces)

    def _fill(
        self,
        path: str,
        pieces: Sequence[_PageRange],
        sums: Mapping[_PageRange, ByteRange],
        rows: Mapping[str, npt.NDArray[Any]],
        pool: BufferAllocator,
        padding: int,
    ) -> _PageRange | None:
        """Read ranges of one file once. Returns the first range with a wrong checksum."""
        tables = {piece: np.empty(item.length // 4, "<u4") for piece, item in sums.items()}
        ranges = list(sums.values())
        views = [table.view(np.uint8).data for table in tables.values()]
        for piece in pieces:
            piece.num_checked = 0
        for block in _blocks(pieces, _BLOCK_BYTES if self.is_local else 1 << 62):
            between = sum([part for _, _, part in block if isinstance(part, int)]) + padding
            scratch = pool.acquire(between)
            try:
                part_views, scratch_used, end = [], padding, -1 - padding
                for _, start, part in block:
                    if isinstance(part, int):
                        view = scratch[scratch_used : scratch_used + part].data
                        scratch_used += part
                    else:
                        view = part
                    if 0 < start - end <= padding:  # overwritten by later reads
                        ranges.append(ByteRange(end, start))
                        views.append(scratch[: start - end].data)
                    end = start + len(view)
                    ranges.append(ByteRange(start, end))
                    views.append(view)
                    part_views.append(view)
                self._storage.read_ranges(path, ranges, views)
                for piece, table in tables.items():
                    piece.sums = table.tolist()
                for (piece, _, _), data in zip(block, part_views, strict=True):
                    if self._verify and not piece.is_right(data):
                        return piece
                    piece.copy_frames(data, rows[piece.feature])
                del part_views
            finally:
                ranges, views, tables = [], [], {}
                pool.release(scratch)
        return None


_Block = list[tuple[_PageRange, int, "memoryview | int"]]


def _blocks(pieces: Sequence[_PageRange], max_bytes: int) -> Iterator[_Block]:
    """Split page ranges into blocks of about `max_bytes`. Ranges copied from memory are not split.

    Each item has its page range, file offset and target.
    """
    block: _Block = []
    room = max_bytes
    for piece in pieces:
        offset, is_whole = piece.start, piece.rows is not None
        for part in piece.parts:
            length = part if isinstance(part, int) else len(part)
            num_done = 0
            while num_done < length:
                if block and room < (length if is_whole else 1):
                    yield block
                    block, room = [], max_bytes
                size = length if is_whole else min(length - num_done, room)
                target = size if isinstance(part, int) else part[num_done : num_done + size]
                block.append((piece, offset + num_done, target))
                num_done, room = num_done + size, room - size
            offset += length
    if block:
        yield block
