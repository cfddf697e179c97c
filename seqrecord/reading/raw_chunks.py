"""Chunks of raw pages that are small: where their pages lie, found for many chunks at once.

To read such a page takes less time than to find it, one chunk after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.format.index import Index
from seqrecord.format.pages import page_offsets
from seqrecord.schema import Schema

__all__ = ["RawChunk", "RawChunks"]

_MOST_BYTES = 1 << 20  # of a chunk's chosen pages: of larger ones a part may be enough


class RawChunk(NamedTuple):
    """A chunk whose frames have all of the chosen features."""

    file: int  # of the manifest's record files
    first_frame: int
    num_frames: int
    starts: list[int]  # of each chosen page in the record file
    lengths: list[int]
    sums: list[int]  # CRC32C


class RawChunks:
    """The chunks of a group of which all chosen features are raw.

    `names` are those features; that any value of their frames is allowed is given.
    """

    def __init__(self, index: Index, features: Schema, group: int) -> None:
        self._table = index.groups[group]
        self.specs = [spec for spec in features.values() if spec.group == group]
        self._columns = [self._table.schema.position(spec.name) for spec in self.specs]
        self._nbytes = np.array([spec.nbytes for spec in self.specs], np.int64)

    @classmethod
    def of(cls, index: Index, features: Schema, group: int) -> RawChunks | None:
        """`None` for a group with a feature that is decoded, or whose bytes are looked at."""
        specs = [spec for spec in features.values() if spec.group == group]
        if all(spec.is_raw and spec.nbytes and spec.dtype != np.bool_ for spec in specs):
            return cls(index, features, group)
        return None

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
