"""Cursors: each walks its runs, a block a round. What they hold before and after each round.

All cursors of a part take equally many rounds, so that all end in the same one. What a round's
block has of one run, in the middle of the run::

                 first             loaded_before        loaded
                   |                     |                |
    held before    f f f f f f f f f f f
    loads                                f f f f f f f f f
    clip starts    s s s s s s s s
    frees          f f f f f f f f
    held after                     f f f f f f f f f f f f
                                   |
                                 kept = first of the next block
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.runs import Runs, numbered

__all__ = ["Blocks", "Cursors"]

_CUTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of some rounds, by cursor and then by round; int64[n] each.

    Row `i` is what a block has of one run, or of one row of it. Its clips start at `first` and
    from there every stride, `count` of them. Of the run its cursor holds the frames
    `[first, loaded_before)` when it comes to the row, and `[first, loaded)` once it has loaded.
    When the round ends it frees `[first, kept)`.
    """

    round: IntArray
    cursor: IntArray
    run: IntArray
    episode: IntArray
    first: IntArray
    count: IntArray
    loaded_before: IntArray
    loaded: IntArray
    kept: IntArray

    def __len__(self) -> int:
        return len(self.round)

    def take(self, chosen: IntArray) -> Blocks:
        """Some of the rows, in another order."""
        return Blocks(*(getattr(self, column.name)[chosen] for column in fields(self)))


class Cursors:
    """The cursors that walk `runs`; `cursor`, int64[rows], says which one walks each row.

    `cursor` ascends and leaves no number out. `chunk_frames` is int64[number of episodes]; `span`
    is that of a clip.
    """

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        sizes: BlockSizes,
        *,
        chunk_frames: IntArray,
        span: int,
    ) -> None:
        self._runs, self._sizes, self._span = runs, sizes, span
        self._chunk = chunk_frames[runs.episode]
        self._grid = sizes.grid(self._chunk)
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
        past_line = runs.first_start % self._grid
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

    def share_chunks(self) -> bool:
        """Whether any round needs a chunk that a later one needs too, for the same run."""
        for clips in self._all_first_clips():
            inner = clips[(clips > self._clips[:-1]) & (clips < self._clips[1:])]
            row, start = self._runs.find(inner)
            if np.any((inner > self._run_first_clip[row]) & (start < self._past(inner))):
                return True
        return False

    def held(self, index: int) -> Blocks:
        """What cursors hold when round `index` begins, `[first, loaded_before)`."""
        clip = self._first_clips(np.array([index]))[0]
        cursor = np.flatnonzero(clip < self._stop)
        clip = clip[cursor]
        return self._blocks(np.full(len(clip), index), cursor, clip, clip + 1)

    def blocks(self, start: int, stop: int) -> Blocks:
        """The blocks of rounds `[start, stop)`."""
        clips = self._first_clips(np.arange(start, stop + 1))
        low, high = clips[0], clips[-1]
        first_clip = self._runs.first_clip
        first_row = np.searchsorted(first_clip, low, side="right")
        number = np.searchsorted(first_clip, high, side="left") - first_row
        owner, inside = numbered(np.where(high > low, np.maximum(number, 0), 0))
        bounds = first_clip[first_row[owner] + inside]
        if self._span < self._runs.stride:  # a row for each clip: what lies between is not used
            owner, inside = numbered(high - low)
            bounds = low[owner] + inside
        flat = clips.T.ravel()  # by cursor and round: never falling
        bounds = np.union1d(bounds, flat)
        place = np.searchsorted(flat, bounds, side="right") - 1
        cursor, index = np.divmod(place, stop + 1 - start)
        some = index < stop - start
        ends = np.append(bounds[1:], bounds[-1:])
        return self._blocks(index[some] + start, cursor[some], bounds[some], ends[some])

    def _end_runs(self, last_clip: IntArray) -> None:
        """Say what the last clip of each row's run is, and so the last frame it uses."""
        self._run_last_clip = last_clip
        self._run_stop = self._runs.find(np.maximum(last_clip, 0))[1] + self._span

    def _all_first_clips(self) -> Iterator[IntArray]:
        """Those of all rounds and of the end, some rounds at a time."""
        group = max(1, _CUTS_AT_ONCE // max(1, self.count))
        for start in range(0, self.num_rounds + 1, group):
            yield self._first_clips(np.arange(start, min(start + group, self.num_rounds + 1)))

    def _first_clips(self, rounds: IntArray) -> IntArray:
        """The first clip of each cursor's block in each of `rounds`; int64[rounds, cursors]."""
        clips = self._find(rounds, snap=False)
        late = (rounds >= self._sizes.unaligned) & (self._span >= self._runs.stride)
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
            start, grid = runs.first_start[row] + beyond, self._grid[row]
            within = (beyond < runs.count[row] * counted) | self._near[row + 1]
            place = place + np.where(within, -start % grid, 0)
            row = np.searchsorted(self._from, place, side="right") - 1
            beyond = place - self._before[row]
        step = np.maximum(-(-beyond // counted), 0)
        clips: IntArray = runs.first_clip[row] + np.minimum(step, runs.count[row])
        return clips

    def _past(self, clip: IntArray) -> IntArray:
        """Where the chunk ends in which the clip before each one ends."""
        before, start = self._runs.find(np.maximum(clip - 1, 0))
        chunk = self._chunk[before]
        past: IntArray = -(-(start + self._span) // chunk) * chunk
        return past

    def _blocks(self, index: IntArray, cursor: IntArray, begin: IntArray, end: IntArray) -> Blocks:
        """Rows of the clips `[begin, end)`, each within one row of the runs."""
        runs, span = self._runs, self._span
        row, first = runs.find(begin)
        last = first + (end - 1 - begin) * runs.stride
        chunk, run_stop = self._chunk[row], self._run_stop[row]
        # A chunk is loaded once in a run: as far as the run needs it, or only as far as the one
        # row that uses it does.
        past = -(-(last + span) // chunk) * chunk
        past_before = self._past(begin)
        follows = begin > self._run_first_clip[row]
        goes_on = end <= self._run_last_clip[row]
        _, following = runs.find(np.where(goes_on, end, 0))
        shared = (goes_on & (following < past)) | (follows & (past_before == past))
        loaded = np.where(shared, np.minimum(past, run_stop), last + span)
        known = follows & (first < past_before)
        return Blocks(
            round=index,
            cursor=cursor,
            run=runs.run[row],
            episode=runs.episode[row],
            first=first,
            count=end - begin,
            loaded_before=np.where(known, np.minimum(past_before, run_stop), first),
            loaded=loaded,
            kept=np.where(goes_on, np.minimum(following, loaded), loaded),
        )
