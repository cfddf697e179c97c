"""Frames of a small raw feature that stay in memory once they were read.

One array has a row for each frame of the dataset, in the order of the chunk table. Rows that nobody
has asked for take no memory::

    chunks    | 0 1 2 3 4 5 6 7 | 0 1 2 3 4 5 | 0 1 2 3 4 5 6 7 |
    rows        x x x x . . . .   . . . . x x   x x x x . . . .      x: read, and checked

They are read in blocks, here of four.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError
from seqrecord.forks import PerProcess
from seqrecord.format.group_index import GroupIndex
from seqrecord.format.pages import slice_frames
from seqrecord.grids import IntArray
from seqrecord.reading.raw_frames import FrameRuns, RawFrames
from seqrecord.schema import FeatureSpec

__all__ = ["KeptFrames"]

_BLOCK_BYTES = 128 << 10  # of a page that are read at once: as many as Linux reads ahead


class KeptFrames:
    """All frames of one feature, each read with the first clip that has it. Safe to use from many
    threads.

    Args:
        raw: reads them.
        table: the chunks of the feature's group. No frame lacks the feature.
        spec: of the feature.
        block_bytes: of a page that are read at once, or one slice.
    """

    def __init__(
        self,
        raw: RawFrames,
        table: GroupIndex,
        spec: FeatureSpec,
        *,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        held = table.num_frames.astype(np.int64)
        ends = np.cumsum(held)
        total = int(ends[-1]) if len(ends) else 0
        self._ends, self._begins = ends, ends - held  # rows of chunks
        self.first = np.append(self._begins, total)[table.first_chunk]
        """int64[episodes]: the row of each episode's first frame."""
        shape: Any = (total, *spec.shape)
        self._frames = np.empty(shape, spec.dtype)  # memory that nobody touches takes none
        self._is_read = np.zeros(total, np.bool_)  # by row
        length = slice_frames(spec)
        self._block = max(1, block_bytes // (length * spec.nbytes)) * length  # frames
        self._raw, self._name = raw, spec.name
        self._lock = PerProcess(threading.Lock)  # of who reads

    @staticmethod
    def bytes_of(table: GroupIndex, spec: FeatureSpec) -> int:
        """How much memory the frames take once all were read."""
        return int(table.num_frames.sum(dtype=np.int64)) * (spec.nbytes + 1)

    def take(self, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """Copy frames by their rows, int64[n], to `out`, [n, …]; raises as `RawFrames.read`."""
        if not self._is_read[rows].all():
            self._read(rows)
        np.take(self._frames, rows, 0, out=out, mode="clip")

    def _read(self, rows: IntArray) -> None:
        """Read the blocks of what was not read yet."""
        with self._lock.get():
            missing = np.unique(rows[~self._is_read[rows]])
            chunk = np.searchsorted(self._ends, missing, side="right")
            begin = self._begins[chunk]
            first = (missing - begin) // self._block * self._block
            opens = np.ones(len(missing), np.bool_)
            opens[1:] = (np.diff(chunk) != 0) | (np.diff(first) != 0)
            chunk, first, begin = chunk[opens], first[opens], begin[opens]
            count = np.minimum(first + self._block, self._ends[chunk] - begin) - first
            # Exactly: others may be copying what lies between them.
            runs = FrameRuns(chunk, first, count, begin + first)
            try:
                self._raw.read(runs, {self._name: self._frames}, exact=True)
            except SeqRecordError:  # of frames that nobody wants, maybe
                chunk = np.searchsorted(self._ends, missing, side="right")
                wanted = FrameRuns.of(chunk, missing - self._begins[chunk], missing)
                self._raw.read(wanted, {self._name: self._frames}, exact=True)
                self._is_read[missing] = True
                return
            for a, b in zip((begin + first).tolist(), count.tolist(), strict=True):
                self._is_read[a : a + b] = True
