"""Cuts: at which clips runs, and the shares of cursors, begin. Pure integers.

They begin at the first clip that uses no frame before a chunk, so that little is read twice. Where
raw frames are read one by one, and chunks are longer than clips, they begin anywhere. Chunks of
video that are decoded in pieces count whole: they begin at keyframes, and what begins behind one
has to decode all frames from there on::

    chunks                              |               |
    clips of frames s to s + 3          f f f f                 begin at the chunk's first frame
    clips of frames s - 1 and s         f s                     begin at its second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqrecord.clips import EpisodeTable, IntArray
from seqrecord.grids import ChunkGrid
from seqrecord.sampling.windows import Window

__all__ = ["Cuts", "cut_group"]


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where rows of clips may be cut; int64[rows] each, but for `offset`.

    `grid` has the chunks of each row's episode, whose last frame is `last`. Clips use frames from
    `offset` on, counted from their starts.
    """

    grid: ChunkGrid
    last: IntArray
    offset: int = 0

    @classmethod
    def of(
        cls,
        episode: IntArray,
        episodes: EpisodeTable,
        windows: Sequence[Window],
        *,
        anywhere: bool = False,
    ) -> Cuts:
        """Of rows of these episodes, int64[rows]; `windows` are those of the table's groups.

        To cut `anywhere` costs nothing where all frames that are loaded stay in memory.
        """
        place = cut_group(episodes)
        grid = episodes.groups[place]
        grid = grid if grid.whole is None else grid.whole
        if grid.by_frame or anywhere:
            size = grid.chunk_frames
            grid = replace(grid, chunk_frames=np.where(size > windows[place].span, 1, size))
        last = episodes.num_frames[episode] - 1
        return cls(grid.take(episode), last, windows[place].offset)

    @property
    def longest(self) -> int:
        """The most frames within which clips start that begin to use frames in one chunk."""
        return int(self.grid.largest.max(initial=1)) + max(0, -self.offset)

    def chunks(self, row: IntArray, start: IntArray) -> tuple[IntArray, IntArray]:
        """First and past-the-last start, int64[n] each, of the clips that begin to use frames in
        the same chunk as the clip of each row that starts at `start`."""
        frame = np.clip(start + self.offset, 0, self.last[row])
        begin, end = self.grid.bounds(row, self.grid.place(row, frame))
        # The clips of an episode's first chunk are all that begin before the second one.
        return np.where(begin > 0, begin - self.offset, 0), end - self.offset


def cut_group(episodes: EpisodeTable) -> int:
    """The place of the group whose chunks count: that of the longest that are decoded in pieces,
    else the leading one."""
    longest = [
        0 if grid.whole is None else int(grid.whole.largest.max(initial=0))
        for grid in episodes.groups
    ]
    return int(np.argmax(longest)) if any(longest) else episodes.leading
