"""Walks: what cursors that walk runs, a block a round, need of each group of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from seqrecord.clips import EpisodeTable, IntArray
from seqrecord.grids import numbered
from seqrecord.sampling.needs import Blocks, Needs, RowsOfClips
from seqrecord.sampling.runs import Runs, merged
from seqrecord.sampling.windows import Window

__all__ = ["Walk"]

_CUTS_AT_ONCE = 1 << 18


class Walk(ABC):
    """Cursors that walk `runs`; `cursor`, int64[rows], says which one walks each row.

    `cursor` ascends and leaves no number out. `windows` are what clips use of each group. A
    subclass says which clips each block has.
    """

    num_rounds: int

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        episodes: EpisodeTable,
        windows: Sequence[Window],
    ) -> None:
        self._runs = runs
        num_frames = episodes.num_frames[runs.episode]
        self.needs = tuple(
            Needs(runs, grid.take(runs.episode), num_frames, window)
            for grid, window in zip(episodes.groups, windows, strict=True)
        )
        self._cursor = cursor
        last = np.searchsorted(runs.run, runs.run, side="right") - 1
        self._end_runs(runs.first_clip[last] + runs.count[last] - 1)
        self._run_first_clip = runs.first_clip[np.searchsorted(runs.run, runs.run)]
        self.count = int(cursor[-1]) + 1 if len(cursor) else 0
        self._first_row = np.searchsorted(cursor, np.arange(self.count))  # of each cursor
        bounds = np.append(runs.first_clip[self._first_row], runs.num_clips)
        self.begin: IntArray = bounds[:-1]  # where cursors begin, in clips
        self._end: IntArray = bounds[1:]
        self._stop = self._end  # the same, unless a subclass ends before

    def clips_before_rounds(self) -> IntArray:
        """How many clips come before each round, and before the end; int64[num_rounds + 1]."""
        before = [(clips - self.begin).sum(axis=1) for clips in self._all_first_clips()]
        return np.concatenate(before)

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

    @abstractmethod
    def _first_clips(self, rounds: IntArray) -> IntArray:
        """The first clip of each cursor's block in each of `rounds`; int64[rounds, cursors]."""
