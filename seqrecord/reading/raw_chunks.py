"""Chunks of raw pages that are small: where their pages lie, found for many chunks at once.

To read such a page takes less time than to find it, one chunk after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.clips import IntArray
from seqrecord.format.index import Index
from seqrecord.format.pages import page_offsets
from seqrecord.reading.scattered import ScatteredFrames
from seqrecord.schema import Schema
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange

__all__ = ["RawChunk", "RawChunks"]

_MOST_BYTES = 1 << 20  # of a chunk's chosen pages: of larger ones a part may be enough
_MAX_GAP = 4 << 10  # bytes between pages that are read along: one read in place of two


class RawChunk(NamedTuple):
    """A chunk whose frames have all of the chosen features."""

    file: int  # of the manifest's record files
    first_frame: int
    num_frames: int
    starts: list[int]  # of each chosen page in the record file
    lengths: list[int]
    sums: list[int]  # CRC32C


class RawChunks:
    """The chunks of a group of which all chosen features are raw. Safe to use from many threads.

    Args:
        storage: of the record files.
        paths: of the record files.
        index: of the dataset.
        features: that are chosen. Any value of the frames of those in the group is allowed.
        group: its number.
        verify: whether pages are checked.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Index,
        features: Schema,
        group: int,
        *,
        verify: bool,
    ) -> None:
        self._storage, self._paths, self._verify = storage, paths, verify
        self._table = index.groups[group]
        self.specs = [spec for spec in features.values() if spec.group == group]
        self._columns = [self._table.schema.position(spec.name) for spec in self.specs]
        self._nbytes = np.array([spec.nbytes for spec in self.specs], np.int64)
        self.scattered: list[ScatteredFrames] = []
        """What reads a few frames of many chunks, for each of `specs`; none where that can't be."""
        if all(ScatteredFrames.suits(self._table, spec) for spec in self.specs):
            self.scattered = [
                ScatteredFrames(storage, paths, self._table, spec, verify=verify)
                for spec in self.specs
            ]

    @staticmethod
    def suits(features: Schema, group: int) -> bool:
        """Whether no chosen feature of a group is decoded, nor are its bytes looked at."""
        specs = [spec for spec in features.values() if spec.group == group]
        return all(spec.is_raw and spec.nbytes and spec.dtype != np.bool_ for spec in specs)

    def find(self, rows: IntArray) -> list[RawChunk | None]:
        """The chunks at these rows of the group's chunk table, int64[n].

        `None` for a large one, and for one whose pages lack a frame, or are not as long as they
        should be.
        """
        table = self._table
        lengths = table.page_length[rows]
        starts = table.offset[rows].astype(np.int64)[:, None] + page_offsets(lengths)
        chosen = lengths[:, self._columns].astype(np.int64)
        num_frames = table.num_frames[rows].astype(np.int64)
        fits = (chosen == num_frames[:, None] * self._nbytes).all(axis=1)
        fits &= chosen.sum(axis=1) <= _MOST_BYTES
        columns = (
            table.file[rows],
            table.first_frame[rows],
            num_frames,
            starts[:, self._columns],
            chosen,
            table.page_crc32c[rows][:, self._columns],
        )
        found = map(RawChunk, *(column.tolist() for column in columns))
        return [item if fit else None for item, fit in zip(found, fits.tolist(), strict=True)]

    def read(
        self, chunks: Sequence[RawChunk], targets: Sequence[Sequence[Sequence[memoryview]]]
    ) -> list[bool]:
        """Read the pages of chunks of one record file in one call to the storage.

        `targets` are those of each chunk: for each page memory of its length, part after part.
        Whether the pages of each chunk match their checksums; `ChunkReader.read` says what is wrong
        with one that does not.
        """
        ranges: list[ByteRange] = []
        buffers: list[memoryview] = []
        at = 0
        between = np.empty(_MAX_GAP, np.uint8).data  # whoever reads next may overwrite it
        for chunk, pages in zip(chunks, targets, strict=True):
            for start, parts in zip(chunk.starts, pages, strict=True):
                if ranges and 0 < start - at <= _MAX_GAP:
                    ranges.append(ByteRange(at, start))
                    buffers.append(between[: start - at])
                at = start
                for part in parts:
                    ranges.append(ByteRange(at, at := at + len(part)))
                    buffers.append(part)
        self._storage.read_ranges(self._paths[chunks[0].file], ranges, buffers)
        return [
            not self._verify or [crc32c(*parts) for parts in pages] == chunk.sums
            for chunk, pages in zip(chunks, targets, strict=True)
        ]
