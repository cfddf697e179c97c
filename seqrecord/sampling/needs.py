"""Needs: which frames of one group a cursor holds for its blocks, before and after each round.

What a round's block has of one run, in the middle of the run, for a window of 4 frames that begins
at a clip's start::

                 held             loaded_before        loaded
                   |                     |                |
    held before    f f f f f f f f f f f
    loads                                f f f f f f f f f
    clip starts    s s s s s s s s
    frees          f f f f f f f f
    held after                     f f f f f f f f f f f f
                                   |
                                 kept = held of the next block
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.grids import ChunkGrid
from seqrecord.sampling.runs import Runs
from seqrecord.sampling.windows import Window

__all__ = ["Blocks", "Needs", "RowsOfClips"]


@dataclass(frozen=True, eq=False)
class RowsOfClips:
    """The blocks of some rounds, by cursor and then by round; int64[n] each.

    Row `i` is what a block has of one run, or of one row of it: the clips `[begin, end)`, counted
    over all runs.
    """

    round: IntArray
    cursor: IntArray
    begin: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.round)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of some rounds, and what they need of one group; int64[n] each.

    Row `i` is what a block has of one run, or of one row of it. Its clips start at `first` and
    from there every stride, `count` of them; the first is number `clip`, counted over all runs. Of
    the run its cursor holds the frames
    `[held, loaded_before)` when it comes to the row, and `[held, loaded)` once it has loaded.
    When the round ends it frees `[held, kept)`.
    """

    round: IntArray
    cursor: IntArray
    run: IntArray
    episode: IntArray
    clip: IntArray
    first: IntArray
    count: IntArray
    held: IntArray
    loaded_before: IntArray
    loaded: IntArray
    kept: IntArray

    def __len__(self) -> int:
        return len(self.round)

    def take(self, chosen: IntArray) -> Blocks:
        """Some of the rows, in another order."""
        return Blocks(*(getattr(self, column.name)[chosen] for column in fields(self)))


class Needs:
    """What the clips of `runs` need of one group of features.

    `grid` and `num_frames` are of the episode of each of their rows; int64[rows].
    """

    def __init__(self, runs: Runs, grid: ChunkGrid, num_frames: IntArray, window: Window) -> None:
        self._runs, self._grid, self._num_frames = runs, grid, num_frames
        self.window = window
        self._run_last_clip = self._run_stop = np.zeros(0, np.int64)

    @property
    def are_apart(self) -> bool:
        """Whether clips have frames of their own, and what lies between is not used."""
        return self.window.span < self._runs.stride

    def end_runs(self, last_clip: IntArray) -> None:
        """Say what the last clip of each row's run is, int64[rows]; and so the last frame used."""
        self._run_last_clip = last_clip
        row, start = self._runs.find(np.maximum(last_clip, 0))
        self._run_stop = self._stop(row, start)

    def past(self, clip: IntArray) -> IntArray:
        """Where the chunk ends in which the clip before each one ends."""
        row, start = self._runs.find(np.maximum(clip - 1, 0))
        return self._grid.stop(row, self._stop(row, start) - 1)

    def blocks(self, rows: RowsOfClips, run_first_clip: IntArray) -> Blocks:
        """What the rows need; the first clip of each run's row is `run_first_clip`, int64[rows]."""
        runs, begin, end = self._runs, rows.begin, rows.end
        row, first = runs.find(begin)
        last = first + (end - 1 - begin) * runs.stride
        run_stop = self._run_stop[row]
        held, stop = self._begin(row, first), self._stop(row, last)
        # A chunk is loaded once in a run: as far as the run needs it, or only as far as the one
        # row that uses it does.
        past = self._grid.stop(row, stop - 1)
        past_before = self.past(begin)
        follows = begin > run_first_clip[row]
        goes_on = end <= self._run_last_clip[row]
        following = self._begin(*runs.find(np.where(goes_on, end, 0)))
        shared = (goes_on & (following < past)) | (follows & (past_before == past))
        loaded = np.where(shared, np.minimum(past, run_stop), stop)
        known = follows & (held < past_before)
        return Blocks(
            round=rows.round,
            cursor=rows.cursor,
            run=runs.run[row],
            episode=runs.episode[row],
            clip=begin,
            first=first,
            count=end - begin,
            held=held,
            loaded_before=np.where(known, np.minimum(past_before, run_stop), held),
            loaded=loaded,
            kept=np.where(goes_on, np.minimum(following, loaded), loaded),
        )

    def _begin(self, row: IntArray, start: IntArray) -> IntArray:
        """The first frame that a clip uses, which starts at `start`."""
        return self.window.begin(start, self._num_frames[row] - 1)

    def _stop(self, row: IntArray, start: IntArray) -> IntArray:
        """The frame behind the last that a clip uses, which starts at `start`."""
        stop = start + (self.window.offset + self.window.span)
        return np.clip(stop, 1, self._num_frames[row], out=stop)
