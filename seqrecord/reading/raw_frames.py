"""Frames of raw pages go to rows: which bytes are read for that, and how they are checked.

A run of frames is read as the slices of its page that hold it, each of which has a checksum, or
with its whole page. What is read beside the frames goes to memory that nobody looks at::

    page        | s s s s s s s s s s s s s |
    frames          . x x x .       . x
    rows              r r r           r
    read          [ r r r r ]     [ r r ]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, CodecError, FormatError, SeqRecordError
from seqrecord.format.index import Index
from seqrecord.format.pages import page_offsets, slice_frames
from seqrecord.grids import IntArray, followed, numbered
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import Storage, forget_cached
from seqrecord.storage.ranges import ByteRange

__all__ = ["FrameRuns", "Lender", "RawFrames"]

_BLOCK_BYTES = 2 << 20  # read, then summed while the processor's cache holds them
_PADDING = 4 << 10  # unwanted bytes that are read along: one read in place of two
_MAX_GAP = 16 << 10  # … of one page, from a local disk; a storage elsewhere takes more
_PART_BYTES = 16 << 10  # of a page are read in the time that one more part of it takes
_SPARED_REMOTE = 8 << 20  # bytes that a request for less than a page must spare, elsewhere
_MOST_PARTS = 16  # of a small page that are read in turn; more are copied from memory
_COPIED_BYTES = 1 << 20  # … of so many bytes


class FrameRuns(NamedTuple):
    """Frames of chunks of one group, and the rows that they go to: n runs, int64[n] each.

    Run `i` is of the frames `[first[i], first[i] + num_frames[i])` of a chunk, counted from its
    first one; `chunk[i]` is its row in the group's table. They go to `row[i]` and the rows after
    it. Runs ascend, by chunk and then by frame. A frame that two of them have is read twice.
    """

    chunk: IntArray
    first: IntArray
    num_frames: IntArray
    row: IntArray

    @classmethod
    def of(cls, chunk: IntArray, frame: IntArray, row: IntArray) -> FrameRuns:
        """Of single frames, counted in their chunks, and the row of each; int64[n] each.

        They come in any order.
        """
        order = np.lexsort((frame, chunk))
        chunk, frame, row = chunk[order], frame[order], row[order]
        edges = np.array(followed(frame, row, same=chunk), np.int64)
        begin = edges[:-1]
        return cls(chunk[begin], frame[begin], np.diff(edges), row[begin])


class Lender(Protocol):
    """Memory that is used again."""

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """At least so many bytes."""

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Take back what was acquired."""


@dataclass(eq=False, slots=True)
class _Piece:
    """Bytes of a page that are read in one go.

    `parts` are where they go, one after the other; of a number, so many go nowhere. With `rows` all
    are read into memory, and the frames `of` the piece copied to these rows.
    """

    spec: FeatureSpec
    chunk: int  # row of the chunk table
    file: int
    page: int  # where the page begins in the file
    start: int  # where the piece does
    nbytes: int
    parts: Sequence[memoryview | int]
    rows: IntArray | None = None
    of: IntArray | None = None
    sums_at: int = -1  # where the checksums of its slices lie; or it is the whole page
    sums: Sequence[int] = ()  # CRC32C of each slice, or of the page
    slice_bytes: int = 0
    # Of what was read so far:
    at: int = 0  # slices that were right
    left: int = 0  # bytes of the next one
    crc: int = 0  # of what is read of it
    scratch: memoryview | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Nothing was read yet."""
        self.at, self.crc = 0, 0
        self.left = min(self.slice_bytes, self.nbytes)

    def is_right(self, data: memoryview) -> bool:
        """Whether what was read next is as it was written, as far as slices have ended."""
        while len(data):
            part = data[: self.left]
            self.crc = crc32c(part, start=self.crc)
            self.left -= len(part)
            if self.left:
                return True
            if self.crc != self.sums[self.at]:
                return False
            self.at, self.crc = self.at + 1, 0
            self.left = min(self.slice_bytes, self.nbytes - self.at * self.slice_bytes)
            data = data[len(part) :]
        return True


class _BrokenError(Exception):
    """A slice of a piece is not as it was written."""

    def __init__(self, piece: _Piece) -> None:
        self.piece = piece


class RawFrames:
    """Reads frames of the raw features of one group. Safe to use from many threads.

    With `verify` all that is read is checked: by the checksum of its page, or of slices.

    Args:
        storage: of the record files.
        paths: of the record files.
        index: of the dataset.
        group: its number.
        features: of the dataset that are chosen; the others are not read.
        is_local: whether a read costs little beside its bytes.
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
        self._verify, self._is_local = verify, is_local
        self.specs = {
            spec.name: spec
            for spec in features.values()
            if spec.name in table.schema and spec.is_raw and spec.is_fixed and spec.nbytes
        }
        self._columns = {name: table.schema.position(name) for name in self.specs}
        self._facts = {  # column, bytes of a frame, and frames that are checked together
            name: (self._columns[name], spec.nbytes, slice_frames(spec) if verify else 1)
            for name, spec in self.specs.items()
        }
        every = [spec if spec.is_raw and spec.nbytes else None for spec in table.schema.values()]
        self._is_raw = np.array([spec is not None for spec in every])
        self._slice_bytes = np.array(
            [1 if spec is None else slice_frames(spec) * spec.nbytes for spec in every]
        )

    def read(
        self,
        runs: FrameRuns,
        rows: Mapping[str, npt.NDArray[Any]],
        lender: Lender | None = None,
        *,
        exact: bool = False,
    ) -> int:
        """Read frames of features, of which these are the rows: C-contiguous arrays, [rows, …].

        The row of a frame that lacks a feature keeps what is in it. Whole pages are read where that
        takes less time; but with `exact` only slices that hold the frames. Memory for what is read
        beside them comes from the lender: 3 MiB, or from elsewhere than a local disk as many bytes
        as that are. Returns how many bytes were asked for.

        Raises `ChecksumError` for what is not as it was written, `CodecError` for a bool that is
        neither 0 nor 1, and `FormatError` for a page that is not as long as its frames.
        """
        if not len(runs.chunk):
            return 0
        pieces = list(self._pieces(runs, rows, exact))
        pieces.sort(key=lambda piece: (piece.file, piece.start))
        nbytes = 0
        for file, some in groupby(pieces, key=lambda piece: piece.file):
            padding = 0 if exact else _PADDING
            nbytes += self._read_file(self._paths[file], list(some), rows, lender, padding)
        for name, array in rows.items():
            if array.dtype == np.bool_:
                self._check_bools(name, runs, array)
        return nbytes

    def _pieces(
        self, runs: FrameRuns, rows: Mapping[str, npt.NDArray[Any]], exact: bool
    ) -> Iterator[_Piece]:
        """What to read of all features, one feature after the other: computed at once, for most
        reads are of few frames."""
        table, specs = self._table, [self.specs[name] for name in rows]
        lengths = table.page_length[runs.chunk].astype(np.int64)
        offsets = page_offsets(lengths) + table.offset[runs.chunk].astype(np.int64)[:, None]
        positions = [self._positions(spec, runs) for spec in specs]
        owner = np.concatenate([some for some, _ in positions])
        if not len(owner):
            return
        chunk, first, count, row = map(
            np.concatenate, zip(*(at for _, at in positions), strict=True)
        )
        facts = [(number, *self._facts[name]) for number, name in enumerate(rows)]
        repeats = [len(some) for some, _ in positions]
        feature, column, nbytes, size = np.array(facts).T.repeat(repeats, axis=1)
        page, length = offsets[owner, column], lengths[owner, column]
        held = length // nbytes
        wrong = (held * nbytes != length) | (held > table.num_frames[chunk])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise self._wrong_length(specs[feature[at]], int(chunk[at]), int(length[at]))
        begin, end = first // size * size, first + count
        stop = np.minimum(-(-end // size) * size, held)
        is_new = np.ones(len(chunk), np.bool_)
        is_new[1:] = (chunk[1:] != chunk[:-1]) | (feature[1:] != feature[:-1])
        if not exact:  # whole pages, where that takes less time than their parts
            some = np.flatnonzero(is_new)
            wanted = np.add.reduceat((stop - begin) * nbytes, some)
            parts = np.diff(some, append=len(chunk))
            least = (parts + 1) * _PART_BYTES
            if not self._is_local:
                least = np.maximum(wanted, _SPARED_REMOTE)
            is_whole = np.repeat(length[some] - wanted < least, parts)
            begin, stop = np.where(is_whole, 0, begin), np.where(is_whole, held, stop)
        # Runs that share a piece, for they are near each other.
        gap = (begin[1:] - stop[:-1]) * nbytes[1:]
        opens = is_new
        opens[1:] |= (gap > (0 if exact else _MAX_GAP)) | (first[1:] < end[:-1])
        some = opens.nonzero()[0]
        edges = np.concatenate((some, [len(chunk)]))
        first_byte = begin[some] * nbytes[some]
        last_byte = np.maximum.reduceat(stop, some) * nbytes[some]
        is_copied = (edges[1:] - some > _MOST_PARTS) & (last_byte - first_byte <= _COPIED_BYTES)
        slices = -(-lengths // self._slice_bytes) * self._is_raw
        sums = offsets[:, -1:] + 4 * (slices.cumsum(axis=1) - slices)
        columns = (
            feature[some],
            chunk[some],
            table.file[chunk[some]],
            page[some],
            first_byte,
            last_byte,
            length[some],
            sums[owner[some], column[some]],
            is_copied,
        )
        each = zip(pairwise(edges.tolist()), *(one.tolist() for one in columns), strict=True)
        firsts, lasts = (first * nbytes).tolist(), (end * nbytes).tolist()
        targets = (row * nbytes).tolist()
        memories = [array.reshape(-1).view(np.uint8).data for array in rows.values()]
        for (a, b), number, at, file, page_start, low, high, whole, sums_at, copied in each:
            spec, memory = specs[number], memories[number]
            parts_of: list[memoryview | int] = []
            if copied:
                parts_of.append(high - low)
            else:
                done = low
                for i in range(a, b):
                    if firsts[i] > done:
                        parts_of.append(firsts[i] - done)
                    done = lasts[i]
                    parts_of.append(memory[targets[i] : targets[i] + done - firsts[i]])
                if high > done:
                    parts_of.append(high - done)
            piece = _Piece(spec, at, file, page_start, page_start + low, high - low, parts_of)
            if copied:
                owners, inside = numbered(count[a:b])
                piece.of = first[a:b][owners] + inside - low // spec.nbytes
                piece.rows = row[a:b][owners] + inside
            if not self._verify:
                pass
            elif high - low == whole:
                piece.slice_bytes = whole
                piece.sums = (int(table.page_crc32c[at, self._columns[spec.name]]),)
            else:
                piece.slice_bytes = int(self._slice_bytes[self._columns[spec.name]])
                piece.sums_at = sums_at + 4 * (low // piece.slice_bytes)
            yield piece

    def _positions(self, spec: FeatureSpec, runs: FrameRuns) -> tuple[IntArray, FrameRuns]:
        """The runs as positions in their pages, without frames that lack the feature; and which of
        `runs` each of them is of, int64."""
        table, every = self._table, np.arange(len(runs.chunk))
        if not len(table.gaps):
            return every, runs
        feature = int(table.features[self._columns[spec.name]])
        present = {
            row: found
            for row in np.unique(runs.chunk).tolist()
            if (found := table.present(row, feature)) is not None
        }
        if not present:
            return every, runs
        owner, inside = numbered(runs.num_frames)
        frame, position = runs.first[owner] + inside, runs.first[owner] + inside
        is_there = np.ones(len(owner), np.bool_)
        for row, mask in present.items():
            mine = np.flatnonzero(runs.chunk[owner] == row)
            is_there[mine] = mask[frame[mine]]
            position[mine] = np.cumsum(mask)[frame[mine]] - 1
        owner, position = owner[is_there], position[is_there]
        rows = runs.row[owner] + inside[is_there]
        edges = np.array(followed(position, rows, same=owner), np.int64)
        some = edges[:-1]
        found_runs = FrameRuns(runs.chunk[owner[some]], position[some], np.diff(edges), rows[some])
        return owner[some], found_runs

    def _read_file(
        self,
        path: str,
        pieces: Sequence[_Piece],
        rows: Mapping[str, npt.NDArray[Any]],
        lender: Lender | None,
        padding: int,
    ) -> int:
        """Read pieces of one file, and once more where a cache had damaged bytes."""
        try:
            return self._fill(path, pieces, rows, lender, padding)
        except _BrokenError as error:
            ranges = [ByteRange(piece.start, piece.start + piece.nbytes) for piece in pieces]
            ranges += [_sums_range(piece) for piece in pieces if piece.sums_at >= 0]
            broken = error.piece
            if not forget_cached(self._storage, path, ranges):
                raise self._broken(broken) from None
        try:
            return self._fill(path, pieces, rows, lender, padding)
        except _BrokenError as error:
            raise self._broken(error.piece) from None

    def _fill(
        self,
        path: str,
        pieces: Sequence[_Piece],
        rows: Mapping[str, npt.NDArray[Any]],
        lender: Lender | None,
        padding: int,
    ) -> int:
        """Read pieces of one file; how many bytes. Raises `_BrokenError`."""
        ranges: list[ByteRange] = []
        views: list[memoryview] = []
        sums: list[tuple[_Piece, npt.NDArray[np.uint32]]] = []
        for piece in pieces:
            piece.begin()
            if piece.sums_at >= 0:
                at = _sums_range(piece)
                found = np.empty(at.length // 4, "<u4")
                sums.append((piece, found))
                ranges.append(at)
                views.append(found.view(np.uint8).data)
        nbytes = sum(item.length for item in ranges) + sum(piece.nbytes for piece in pieces)
        for block in _blocks(pieces, _BLOCK_BYTES if self._is_local else nbytes + 1):
            between = sum(part for _, _, part in block if isinstance(part, int)) + padding
            scratch = np.empty(between, np.uint8) if lender is None else lender.acquire(between)
            try:
                read = _places(block, scratch.data, padding, ranges, views)
                self._storage.read_ranges(path, ranges, views)
                for piece, found in sums:
                    piece.sums = found.tolist()
                for (piece, _, part), data in zip(block, read, strict=True):
                    if self._verify and not piece.is_right(data):
                        raise _BrokenError(piece)
                    if piece.rows is not None and isinstance(part, int):
                        _copy(piece, data, rows[piece.spec.name])
                del read
            finally:
                ranges, views, sums = [], [], []
                if lender is not None:
                    lender.release(scratch)
        return nbytes

    def _broken(self, piece: _Piece) -> SeqRecordError:
        text, offset = "a page does not match its checksum", 0
        if piece.sums_at >= 0:
            text = "frames of a page do not match their checksum"
            offset = piece.start - piece.page + piece.at * piece.slice_bytes
        error = ChecksumError(
            text,
            offset=offset,
            expected=f"CRC32C {piece.sums[piece.at]:08x}",
            got=f"{piece.crc:08x}",
        )
        return self._located(error, piece.chunk, piece.spec.name)

    def _located(self, error: SeqRecordError, row: int, feature: str) -> SeqRecordError:
        """The error of a feature's page in a chunk, with its place; offsets are from the file's
        start on."""
        table = self._table
        page = page_offsets(table.page_length[row])[self._columns[feature]]
        first, count = int(table.first_frame[row]), int(table.num_frames[row])
        key = self._index.key(table.episode_of(row))
        file = f"{self._storage.url}/{self._paths[int(table.file[row])]}"
        error.offset = int(table.offset[row]) + int(page) + (error.offset or 0)
        episode = f"{key} (frames {first} to {first + count - 1})"
        return error.located(file=file, episode=episode, feature=feature)

    def _wrong_length(self, spec: FeatureSpec, chunk: int, length: int) -> SeqRecordError:
        """Of a page that does not hold whole frames, one for each that is there."""
        error = FormatError(
            "a raw page is not as long as its frames",
            expected=f"{spec.nbytes} bytes for each of {int(self._table.num_frames[chunk])} frames",
            got=f"{length} bytes",
        )
        return self._located(error, chunk, spec.name)

    def _check_bools(self, name: str, runs: FrameRuns, array: npt.NDArray[Any]) -> None:
        values = array.reshape(len(array), -1).view(np.uint8)
        _, found = self._positions(self.specs[name], runs)
        for chunk, count, row in zip(
            found.chunk.tolist(), found.num_frames.tolist(), found.row.tolist(), strict=True
        ):
            if values[row : row + count].max(initial=0) > 1:
                error = CodecError("a bool that is neither 0 nor 1", expected="bytes 0 and 1")
                raise self._located(error, chunk, name)


_Block = list[tuple[_Piece, int, "memoryview | int"]]


def _blocks(pieces: Sequence[_Piece], most: int) -> Iterator[_Block]:
    """Parts of pieces, each with its piece and where it lies in the file; together `most` bytes, or
    a few more where a piece is copied from memory, which is read in one go."""
    block: _Block = []
    room = most
    for piece in pieces:
        at = piece.start
        if piece.rows is not None and block and room < piece.nbytes:
            yield block
            block, room = [], most
        for part in piece.parts:
            length = part if isinstance(part, int) else len(part)
            done = 0
            while done < length:
                size = length - done
                if piece.rows is None:
                    size = min(size, room)
                taken = size if isinstance(part, int) else part[done : done + size]
                block.append((piece, at + done, taken))
                done, room = done + size, room - size
                if room <= 0:
                    yield block
                    block, room = [], most
            at += length
    if block:
        yield block


def _places(
    block: _Block,
    scratch: memoryview,
    padding: int,
    ranges: list[ByteRange],
    views: list[memoryview],
) -> list[memoryview]:
    """Where each part of a block is read to; that is added to `ranges` and `views`, with what lies
    between two of them: so many bytes at most."""
    found: list[memoryview] = []
    used, end = padding, -1
    for _, start, part in block:
        if isinstance(part, int):
            view = scratch[used : used + part]
            used += part
        else:
            view = part
        if end >= 0 and 0 < start - end <= padding:  # whoever reads next may overwrite it
            ranges.append(ByteRange(end, start))
            views.append(scratch[: start - end])
        end = start + len(view)
        ranges.append(ByteRange(start, end))
        views.append(view)
        found.append(view)
    return found


def _copy(piece: _Piece, data: memoryview, array: npt.NDArray[Any]) -> None:
    """Copy frames of a piece, which was read into memory, to their rows."""
    frames = np.frombuffer(data, array.dtype).reshape(-1, *array.shape[1:])
    array[piece.rows] = frames[piece.of]


def _sums_range(piece: _Piece) -> ByteRange:
    count = -(-piece.nbytes // piece.slice_bytes)
    return ByteRange(piece.sums_at, piece.sums_at + 4 * count)
