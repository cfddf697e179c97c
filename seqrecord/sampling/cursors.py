"""Cursors: each walks its runs, a block a round.

All cursors of a part take equally many rounds, so that all end in the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seqrecord.clips import EpisodeTable, IntArray
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.lines import Lines
from seqrecord.sampling.needs import Blocks, Needs, RowsOfClips
from seqrecord.sampling.runs import Runs, merged, numbered
from seqrecord.sampling.windows import Window

__all__ = ["Cursors"]

_CUTS_AT_ONCE = 1 << 18


class Cursors:
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
        self._runs, self._sizes = runs, sizes
        num_frames = episodes.num_frames[runs.episode]
        grids = [grid.take(runs.episode) for grid in episodes.groups]
        self.needs = tuple(
            Needs(runs, grid, num_frames, window)
            for grid, window in zip(grids, windows, strict=True)
        )
        self._lead = self.needs[episodes.leading]
        self._lines = Lines(grids[episodes.leading], sizes)
        self._cursor = cursor
        last = np.searchsorted(runs.run, runs.run, side="right") - 1
        self._end_runs(runs.first_clip[last] + runs.count[last] - 1)
        self._run_first_clip = runs.first_clip[np.searchsorted(runs.run, runs.run)]

        self.count = int(cursor[-1]) + 1 if len(cursor) else 0
        begin = np.searchsorted(cursor, np.arange(self.count))
        self._clips = np.append(runs.first_clip[begin], runs.num_clips)  # where cursors begin
        self._stop = self._clips[1:]  # and where they end, unless `end_before` says
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
        self._length = np.diff(bounds)
        self.longest = int(self._length.max(initial=0))  # frames that a cursor counts
        self.num_rounds = sizes.rounds(self.longest)

    def end_before(self, index: int) -> None:
        """Have no rounds from `index` on."""
        self._stop = self._first_clips(np.array([index]))[0]
        self._end_runs(np.minimum(self._run_last_clip, self._stop[self._cursor] - 1))

    def clips_before_rounds(self) -> IntArray:
        """How many clips come before each round, and before the end; int64[num_rounds + 1]."""
        before = [(clips - self._clips[:-1]).sum(axis=1) for clips in self._all_first_clips()]
        return np.concatenate(before)

    def share_chunks(self, group: int) -> bool:
        """Whether any round needs a chunk that a later one needs too, for the same run."""
        for clips in self._all_first_clips():
            inner = clips[(clips > self._clips[:-1]) & (clips < self._clips[1:])]
            shared = self.needs[group].share_chunk(inner)
            if np.any(shared > self._run_first_clip[self._runs.find(shared)[0]]):
                return True
        return False

    def held(self, index: int) -> list[Blocks]:
        """Of each group, what cursors hold when round `index` begins, `[held, loaded_before)`."""
        clip = self._first_clips(np.array([index]))[0]
        cursor = np.flatnonzero(clip < self._stop)
        clip = clip[cursor]
        rows = RowsOfClips(np.full(len(clip), index), cursor, clip, clip + 1)
        return [needs.blocks(rows, self._run_first_clip) for needs in self.needs]

    def blocks(self, start: int, stop: int) -> list[Blocks]:
        """Of each group, the blocks of rounds `[start, stop)`."""
        clips = self._first_clips(np.arange(start, stop + 1))
        found = {apart: self._rows(clips, start, apart) for apart in self._kinds_of_rows}
        return [n.blocks(found[n.are_apart], self._run_first_clip) for n in self.needs]

    @property
    def _kinds_of_rows(self) -> set[bool]:
        return {needs.are_apart for needs in self.needs}

    def _rows(self, clips: IntArray, start: int, apart: bool) -> RowsOfClips:
        """What the blocks that begin at `clips`, int64[rounds + 1, cursors], have of each row.

        With `apart` there is a row for each clip: what lies between is not used.
        """
        low, high = clips[0], clips[-1]
        if apart:
            owner, inside = numbered(high - low)
            bounds = low[owner] + inside
        else:
            first_clip = self._runs.first_clip
            first_row = np.searchsorted(first_clip, low, side="right")
            number = np.searchsorted(first_clip, high, side="left") - first_row
            owner, inside = numbered(np.where(high > low, np.maximum(number, 0), 0))
            bounds = first_clip[first_row[owner] + inside]
        flat = clips.T.ravel()  # by cursor and round: never falling
        bounds = merged(bounds, flat)
        place = np.searchsorted(flat, bounds, side="right") - 1
        cursor, index = np.divmod(place, len(clips))
        some = index < len(clips) - 1
        ends = np.append(bounds[1:], bounds[-1:])
        return RowsOfClips(index[some] + start, cursor[some], bounds[some], ends[some])

    def _end_runs(self, last_clip: IntArray) -> None:
        """Say what the last clip of each row's run is."""
        self._run_last_clip = last_clip
        for needs in self.needs:
            needs.end_runs(last_clip)

    def _all_first_clips(self) -> Iterator[IntArray]:
        """Those of all rounds and of the end, some rounds at a time."""
        group = max(1, _CUTS_AT_ONCE // max(1, self.count))
        for start in range(0, self.num_rounds + 1, group):
            yield self._first_clips(np.arange(start, min(start + group, self.num_rounds + 1)))

    def _first_clips(self, rounds: IntArray) -> IntArray:
        """The first clip of each cursor's block in each of `rounds`; int64[rounds, cursors]."""
        clips = self._find(rounds, snap=False)
        late = (rounds >= self._sizes.unaligned) & (not self._lead.are_apart)
        if late.any():
            clips = np.where(late[:, None], self._find(rounds, snap=True), clips)
        clips[rounds == 0] = self._clips[:-1]
        clips[rounds >= self.num_rounds] = self._clips[1:]
        return np.clip(clips, self._clips[:-1], self._clips[1:])

    def _find(self, rounds: IntArray, *, snap: bool) -> IntArray:
        """The first clip at or past the place where each block begins; [rounds, cursors].

        With `snap` at or past the next grid line.
        """
        runs, counted = self._runs, self._sizes.clip
        place = self._sizes.begins(self._length, rounds, self.num_rounds) + self._begin
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
