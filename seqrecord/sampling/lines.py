"""Lines: where the blocks of rows of runs may end."""

from __future__ import annotations

import numpy as np

from seqrecord.grids import ChunkGrid, IntArray
from seqrecord.sampling.blocks import BlockSizes

__all__ = ["Lines"]


class Lines:
    """The grid lines of the leading group, `grid`, of each row: see `BlockSizes`.

    The methods take rows and frames, arrays of one shape.
    """

    def __init__(self, grid: ChunkGrid, sizes: BlockSizes) -> None:
        self._grid = grid
        self._apart = sizes.apart(grid.chunk_frames)
        self._all_regular = grid.edges is None

    def before(self, row: IntArray, frame: IntArray) -> IntArray:
        """The last line at or before each frame."""
        apart = self._apart[row]
        if self._all_regular:
            return frame // apart * apart
        begin = self._begin(row, frame)
        return begin + (frame - begin) // apart * apart

    def after(self, row: IntArray, frame: IntArray) -> IntArray:
        """The first line at or after each frame."""
        apart = self._apart[row]
        if self._all_regular:
            return frame + -frame % apart
        begin = self._begin(row, frame)
        past = begin + -(-(frame - begin) // apart) * apart
        odd = self._grid.chunk_frames[row] == 0
        return np.where(odd, np.minimum(past, self._grid.stop(row, frame)), past)

    def _begin(self, row: IntArray, frame: IntArray) -> IntArray:
        """Where lines are counted from: in irregular episodes the chunk's first frame."""
        odd = self._grid.chunk_frames[row] == 0
        return np.where(odd, self._grid.start(row, frame), 0)
