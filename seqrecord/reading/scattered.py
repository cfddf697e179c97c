"""Frames of a small raw feature from many chunks at once: integers of all of them, then reads.

Only the slices that hold wanted frames are read, with those between them where these are few::

    page       | s s s s s s s s s s s |     | s s s s s s s |
    wanted         . x x x .                         . x
    read           r r r r r                         r r
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import has_slices
from seqrecord.errors import SeqRecordError
from seqrecord.format.group_index import GroupIndex
from seqrecord.format.pages import num_slices, page_offsets, slice_frames
from seqrecord.grids import IntArray
from seqrecord.schema import FeatureSpec
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange

__all__ = ["FoundRows", "Pieces", "ScatteredFrames"]

_MOST_FRAME_BYTES = 64 << 10  # of larger frames, copying costs more than what this spares
_MOST_BYTES = 64 << 20  # of one call
_MAX_GAP = 16 << 10  # unwanted bytes of a page that are read along
_KEPT_BYTES = 8 << 20  # of checksums of slices
_OVERHEAD = 200  # bytes that keeping those of a chunk takes beside them


class FoundRows(NamedTuple):
    """Frames that were read, [m, …], and the row of each range's first one, int64[n]."""

    frames: npt.NDArray[Any]
    rows: IntArray


class Pieces(NamedTuple):
    """Frames of n chunks that are read in one go each, int64[n]: whole slices."""

    chunk: IntArray
    """Rows of the chunk table."""
    first: IntArray
    """The first frame of each, counted in its chunk."""
    num_frames: IntArray
    """Of each."""
    ranges: IntArray
    """How many of the ranges that were asked for are in each."""


class ScatteredFrames:
    """Reads frames of one raw feature from chunks of a local disk. Safe to use from many threads.

    With `verify` every slice that is read is checked. The checksums of slices are kept once they
    were read, those of some chunks: up to 8 MiB.

    Args:
        storage: of the record files.
        paths: of the record files.
        table: the chunks of the feature's group.
        spec: of the feature: raw, of a fixed shape, and not of bools, which must be looked at.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        table: GroupIndex,
        spec: FeatureSpec,
        *,
        verify: bool,
    ) -> None:
        self._storage = storage
        self._paths = paths
        self._table = table
        self._spec = spec
        self._verify = verify
        self._slice = slice_frames(spec) if verify else 1  # frames
        self._column = table.schema.position(spec.name)
        before = list(table.schema.values())[: self._column]
        self._raw_before = [(i, one) for i, one in enumerate(before) if one.is_raw]
        self._kept: dict[int, list[int]] = {}  # checksums of slices, by chunk
        self._kept_bytes = 0

    @classmethod
    def suits(cls, table: GroupIndex, spec: FeatureSpec) -> bool:
        """Whether a feature can be read so: its frames are small, raw, and all there."""
        return (
            spec.is_raw
            and spec.is_fixed
            and spec.dtype != np.bool_
            and 0 < spec.nbytes <= _MOST_FRAME_BYTES
            and not len(table.gaps)
        )

    def read(
        self,
        chunk: IntArray,
        first: IntArray,
        stop: IntArray,
        allocate: Callable[[int], npt.NDArray[np.uint8]],
    ) -> FoundRows | None:
        """The frames `[first, stop)` of chunks, int64[n] each: rows of the chunk table, and frames
        counted in these.

        The ranges ascend, by chunk and then by frame. None is empty, and no two have a frame in
        common. What is returned lies in memory from `allocate`, called once with a number of
        bytes. The frames of a range are in rows that follow each other; so do those of two ranges,
        of which one ends with a chunk and the next begins with one.

        `None` where they are too many, or what was read is not as it should be, or cannot be read
        at all: whoever reads whole chunks then finds out what is wrong, and where.
        """
        pieces = self.pieces(chunk, first, stop, max_gap=_MAX_GAP)
        nbytes = self._spec.nbytes
        ends = np.cumsum(pieces.num_frames)
        if (total := int(ends[-1]) * nbytes) > _MOST_BYTES:
            return None
        memory = allocate(total)[:total]
        at, views = [0, *(ends * nbytes).tolist()], memory.data
        if not self.fill(pieces, [views[a:b] for a, b in pairwise(at)]):
            return None
        shape: Any = (-1, *self._spec.shape)
        rows = first + np.repeat(ends - pieces.num_frames - pieces.first, pieces.ranges)
        return FoundRows(memory.view(self._spec.dtype).reshape(shape), rows)

    def pieces(self, chunk: IntArray, first: IntArray, stop: IntArray, *, max_gap: int) -> Pieces:
        """What to read for ranges of frames, which are as of `read`.

        Up to `max_gap` unwanted bytes between two of them are read along.
        """
        held, length = self._table.num_frames[chunk].astype(np.int64), self._slice
        begin, end = first // length, -(-stop // length)  # slices
        gap = max_gap // (length * self._spec.nbytes)
        apart = (chunk[1:] != chunk[:-1]) | (begin[1:] - end[:-1] > gap)
        edges = np.concatenate(([0], apart.nonzero()[0] + 1, [len(chunk)]))
        some, last = edges[:-1], edges[1:] - 1
        skipped = begin[some] * length
        count = np.minimum(end[last] * length, held[some]) - skipped
        return Pieces(chunk[some], skipped, count, last - some + 1)

    def fill(self, pieces: Pieces, memory: Sequence[memoryview]) -> bool:
        """Read pieces into memory, bytes that are as long; whether all is as it should be.

        If not, the memory may hold anything.
        """
        spec, table, chunk = self._spec, self._table, pieces.chunk
        nbytes, lengths = spec.nbytes, table.page_length[chunk]
        held = table.num_frames[chunk].astype(np.int64)
        if np.count_nonzero(lengths[:, self._column] != held * nbytes):
            return False
        offsets = page_offsets(lengths) + table.offset[chunk].astype(np.int64)[:, None]
        start = offsets[:, self._column] + pieces.first * nbytes
        reads = list(map(ByteRange, start.tolist(), (start + pieces.num_frames * nbytes).tolist()))
        try:
            self._read_files(table.file[chunk], reads, memory)
            if self._verify:
                begin = pieces.first // self._slice
                end = begin - (-pieces.num_frames // self._slice)
                sums = self._sums(chunk, lengths, offsets)
                columns = sums, begin.tolist(), end.tolist(), memory
                for known, a, b, part in zip(*columns, strict=True):
                    if not has_slices(part, self._slice * nbytes, known[a:b]):
                        return False
        except (SeqRecordError, OSError):
            return False
        return True

    def _read_files(
        self,
        file: npt.NDArray[np.integer[Any]],
        reads: Sequence[ByteRange],
        parts: Sequence[memoryview],
    ) -> None:
        """Read the ranges of record files, int[n], into memory."""
        edges = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist(), len(file)]
        for a, b in pairwise(edges):
            self._storage.read_ranges(self._paths[int(file[a])], reads[a:b], parts[a:b])

    def _sums(
        self, chunks: IntArray, lengths: npt.NDArray[np.uint32], offsets: IntArray
    ) -> list[list[int]]:
        """The checksums of the slices of each of some chunks' pages."""
        found = []
        for i, row in enumerate(chunks.tolist()):
            known = self._kept.get(row)
            if known is None:
                known = self._read_sums(row, lengths[i], int(offsets[i, -1]))
            found.append(known)
        return found

    def _read_sums(self, row: int, lengths: npt.NDArray[np.uint32], start: int) -> list[int]:
        """Those of a chunk, whose slice tables begin at `start`."""
        for column, spec in self._raw_before:
            start += 4 * num_slices(spec, int(lengths[column]) // spec.nbytes)
        count = num_slices(self._spec, int(lengths[self._column]) // self._spec.nbytes)
        sums = np.empty(count, "<u4")
        path = self._paths[int(self._table.file[row])]
        self._storage.read_ranges(
            path, [ByteRange(start, start + sums.nbytes)], [sums.view(np.uint8).data]
        )
        known: list[int] = sums.tolist()
        if self._kept_bytes > _KEPT_BYTES:
            self._kept, self._kept_bytes = {}, 0
        self._kept[row] = known
        self._kept_bytes += _OVERHEAD + 40 * count
        return known
