"""Cursors: each walks its runs, a block a round.

All cursors of a part take equally many rounds, so that all end in the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqrecord.clips import EpisodeTable, IntArray
from seqrecord.grids import ChunkGrid
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.runs import Runs
from seqrecord.sampling.walks import Walk
from seqrecord.sampling.windows import Window

__all__ = ["Cursors"]


class Cursors(Walk):
    """The cursors that walk `runs`; `cursor`, int64[rows], says which one walks each row.

    `cursor` ascends and leaves no number out. `windows` are what clips use of each group.
    """

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        sizes: BlockSizes,
        episodes: EpisodeTable,
        windows: Sequence[Window],
    ) -> None:
        super().__init__(runs, cursor, episodes, windows)
        self._sizes = sizes
        self._lead = self.needs[episodes.leading]
        self._lines = _Lines(episodes.lead.take(runs.episode), sizes)
        begin = self._first_row
        # How many frames are counted before each row, from the first cursor on. Where a run goes
        # on after a few frames these count, else a gap does, and for a cursor's first row how far
        # it begins past a grid line.
        apart = runs.first_start[1:] - runs.last_start[:-1] - runs.stride
        near = (np.diff(runs.run) == 0) & (apart < sizes.gap)
        self._near = np.concatenate(([False], near, [False]))  # whether it is so before a row
        past_line = runs.first_start - self._lines.before(np.arange(len(runs)), runs.first_start)
        extra = np.where(self._near[:-1], np.append(0, apart), sizes.gap + past_line)
        extra[begin] = past_line[begin]
        counted = runs.count * sizes.clip
        self._before = np.cumsum(counted + extra) - counted
        self._from = self._before - np.where(self._near[:-1], 0, past_line)
        end = int(self._before[-1] + counted[-1]) if len(runs) else 0
        bounds = np.append(self._before[begin] - extra[begin], end)
        self._begin = bounds[:-1]
        self.lengths = np.diff(bounds)  # frames that each cursor counts
        self.longest = int(self.lengths.max(initial=0))
        self.num_rounds = sizes.rounds(self.longest)

    def end_before(self, index: int) -> None:
        """Have no rounds from `index` on."""
        self._stop = self._first_clips(np.array([index]))[0]
        self._end_runs(np.minimum(self._run_last_clip, self._stop[self._cursor] - 1))

    def first_clips(self, index: IntArray) -> IntArray:
        """The first clip of each cursor's block in round `index` of the cursor; int64[cursors]."""
        found: IntArray = self._first_clips(index[None])[0]
        return found

    def lead_blocks(self, begin: IntArray, end: IntArray) -> Blocks:
        """Of the leading group, the blocks of clips `[begin, end)`, int64[cursors] each.

        All count as of round 0.
        """
        rows = self._rows(np.stack((begin, end)), 0, self._lead.are_apart)
        return self._lead.blocks(rows, self._run_first_clip)

    def _first_clips(self, rounds: IntArray) -> IntArray:
        """See `Walk`; `rounds` is int64[rounds], or [rounds, cursors] where cursors differ."""
        rounds = rounds[:, None] if rounds.ndim == 1 else rounds
        clips = self._find(rounds, snap=False)
        late = (rounds >= self._sizes.unaligned) & (not self._lead.are_apart)
        if late.any():
            clips = np.where(late, self._find(rounds, snap=True), clips)
        clips = np.where(rounds == 0, self.begin, clips)
        clips = np.where(rounds >= self.num_rounds, self._end, clips)
        return np.clip(clips, self.begin, self._end)

    def _find(self, rounds: IntArray, *, snap: bool) -> IntArray:
        """The first clip at or past the place where each block begins; [rounds, cursors].

        With `snap` at or past the next grid line. `rounds` is [rounds, cursors], or [rounds, 1].
        """
        runs, counted = self._runs, self._sizes.clip
        place = self._sizes.begins(self.lengths, rounds, self.num_rounds) + self._begin
        row = np.searchsorted(self._from, place, side="right") - 1
        beyond = place - self._before[row]
        if snap:
            start = runs.first_start[row] + beyond
            within = (beyond < runs.count[row] * counted) | self._near[row + 1]
            place = place + np.where(within, self._lines.after(row, start) - start, 0)
            row = np.searchsorted(self._from, place, side="right") - 1
            beyond = place - self._before[row]
        step = np.maximum(-(-beyond // counted), 0)
        clips: IntArray = runs.first_clip[row] + np.minimum(step, runs.count[row])
        return clips


class _Lines:
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
