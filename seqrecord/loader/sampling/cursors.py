"""Cursors: each reads its runs a block per round, and keeps the frames of its blocks.

All cursors of a shard have the same number of rounds. A block in the middle of a run, for a window
of 4 frames from the clip's start::

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

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from seqrecord.loader.clips.tables import EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import BlockSizes
from seqrecord.loader.sampling.cost_shares import nearest_clips
from seqrecord.loader.sampling.runs import Runs, Window, merged
from seqrecord.store.tables.grids import ChunkGrid, ragged_arange

# Of blocks by cost, in which cursors of many gaps need longer ones than others.
SLACK = 1.5
_CUTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of some rounds, with the frames that they need of one group; int64[n] each.

    Row `i` is the part of a block in one run, or in one row of it. Its `count` clips start at
    `first` and then every stride; `clip` is the number of the first one over all runs, `sample` its
    sample. In this run, the cursor has the frames `[held, loaded_before)` at first and `[held,
    loaded)` after its loads. The end of the round frees `[held, kept)`.
    """

    round: IntArray
    cursor: IntArray
    run: IntArray
    episode: IntArray
    clip: IntArray
    sample: IntArray
    first: IntArray
    count: IntArray
    held: IntArray
    loaded_before: IntArray
    loaded: IntArray
    kept: IntArray

    def __len__(self) -> int:
        return len(self.round)

    def take(self, index: IntArray) -> Blocks:
        """The chosen rows, in that order."""
        return Blocks(*(getattr(self, column.name)[index] for column in fields(self)))


class _Rows(NamedTuple):
    """The parts of blocks in each run, or each row of it, by cursor and then by round.

    Row `i` has the clips `[begin, end)`, counted over all runs; int64[n] each.
    """

    round: IntArray
    cursor: IntArray
    begin: IntArray
    end: IntArray


class CursorSchedule(ABC):
    """Base class of cursor schedules: the clips of each cursor in each round.

    `cursor`, int64[rows], is the cursor for each row of `runs`, ascending without gaps. `windows`
    are the windows of the groups. A subclass defines the clips of blocks.
    """

    num_rounds: int

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
    ) -> None:
        self.runs, self._cursor, self._windows = runs, cursor, windows
        self._num_frames = episodes.num_frames[runs.episode]
        self._grids = [grid.take(runs.episode) for grid in episodes.groups]  # of each row's episode
        self._apart = [window.span < runs.stride for window in windows]
        last_row = np.searchsorted(runs.run, runs.run, side="right") - 1
        self._end_runs(runs.first_clip[last_row] + runs.count[last_row] - 1)
        self._run_first_clip = runs.first_clip[np.searchsorted(runs.run, runs.run)]
        self.of_rows = cursor
        self.count = int(cursor[-1]) + 1 if len(cursor) else 0
        self._first_row = np.searchsorted(cursor, np.arange(self.count))  # of each cursor
        bounds = np.append(runs.first_clip[self._first_row], runs.num_clips)
        self.begin: IntArray = bounds[:-1]  # where cursors begin, in clips
        self._last: IntArray = bounds[1:]
        self.end = self._last  # the same, unless a subclass ends before

    @abstractmethod
    def first_clips(self, rounds: IntArray) -> IntArray:
        """The first clip of each cursor's block in `rounds`; int64[rounds, cursors].

        `rounds` is [rounds, 1], or [rounds, cursors] if cursors differ.
        """

    def clips_before_rounds(self) -> IntArray:
        """The number of clips before each round, and before the end; int64[num_rounds + 1]."""
        rounds, width = np.arange(self.num_rounds + 1), max(1, _CUTS_AT_ONCE // max(1, self.count))
        parts = (rounds[i : i + width, None] for i in range(0, len(rounds), width))
        return np.concatenate([(self.first_clips(r) - self.begin).sum(axis=1) for r in parts])

    def held(self, index: int) -> list[Blocks]:
        """For each group, the frames in memory at the start of round `index`: `[held,
        loaded_before)`.
        """
        clip = self.first_clips(np.array([[index]]))[0]
        cursor = np.flatnonzero(clip < self.end)
        clip = clip[cursor]
        rows = _Rows(np.full(len(clip), index), cursor, clip, clip + 1)
        return [self._blocks(group, rows) for group in range(len(self._grids))]

    def blocks(self, start: int, stop: int) -> list[Blocks]:
        """For each group, the blocks of rounds `[start, stop)`."""
        clips = self.first_clips(np.arange(start, stop + 1)[:, None])
        rows_by_distance = {
            apart: self._rows(clips, start, apart=apart) for apart in set(self._apart)
        }
        return [
            self._blocks(group, rows_by_distance[apart]) for group, apart in enumerate(self._apart)
        ]

    def _rows(self, clips: IntArray, start: int, *, apart: bool) -> _Rows:
        """Divide blocks that begin at `clips`, int64[rounds + 1, cursors], into rows.

        With `apart` there is a row for each clip, because clips share no frames.
        """
        low, high = clips[0], clips[-1]
        if apart:
            owner, offset = ragged_arange(high - low)
            bounds = low[owner] + offset
        else:
            first_clip = self.runs.first_clip
            first_row = np.searchsorted(first_clip, low, side="right")
            number = np.searchsorted(first_clip, high, side="left") - first_row
            owner, offset = ragged_arange(np.where(high > low, np.maximum(number, 0), 0))
            bounds = first_clip[first_row[owner] + offset]
        flat = clips.T.ravel()  # by cursor and round: never falling
        bounds = merged(bounds, flat)
        place = np.searchsorted(flat, bounds, side="right") - 1
        cursor, index = np.divmod(place, len(clips))
        is_block = index < len(clips) - 1
        ends = np.append(bounds[1:], bounds[-1:])
        return _Rows(index[is_block] + start, cursor[is_block], bounds[is_block], ends[is_block])

    def _blocks(self, group: int, rows: _Rows) -> Blocks:
        """The frames that rows need of a group."""
        runs, grid, (_, _, begin, end) = self.runs, self._grids[group], rows
        row, block_start = runs.find(begin)
        block_end = block_start + (end - 1 - begin) * runs.stride
        run_stop = self._run_stops[group][row]
        held, stop = (
            self._used_from(group, row, block_start),
            self._used_until(group, row, block_end),
        )
        # A chunk is loaded once in a run: as far as the run needs it, or only as far as the one
        # row that uses it does.
        past = grid.stop(row, stop - 1)
        row_before, previous_start = runs.find(np.maximum(begin - 1, 0))
        past_before = grid.stop(row_before, self._used_until(group, row_before, previous_start) - 1)
        follows = begin > self._run_first_clip[row]
        goes_on = end <= self._run_last_clip[row]
        following = self._used_from(group, *runs.find(np.where(goes_on, end, 0)))
        shared = (goes_on & (following < past)) | (follows & (past_before == past))
        loaded = np.where(shared, np.minimum(past, run_stop), stop)
        known = follows & (held < past_before)
        return Blocks(
            rows.round,
            rows.cursor,
            runs.run[row],
            runs.episode[row],
            clip=begin,
            sample=runs.samples(row, begin),
            first=block_start,
            count=end - begin,
            held=held,
            loaded_before=np.where(known, np.minimum(past_before, run_stop), held),
            loaded=loaded,
            kept=np.where(goes_on, np.minimum(following, loaded), loaded),
        )

    def _used_from(self, group: int, row: IntArray, start: IntArray) -> IntArray:
        """The first frame used by clips with these starts."""
        return self._windows[group].begin(start, self._num_frames[row] - 1)

    def _used_until(self, group: int, row: IntArray, start: IntArray) -> IntArray:
        """The frame behind the last one used by clips with these starts."""
        return self._windows[group].stop(start, self._num_frames[row] - 1)

    def _end_runs(self, last_clip: IntArray) -> None:
        """Set the last clip of each row's run, int64[rows], and the last used frame."""
        self._run_last_clip = last_clip
        ends = self.runs.find(np.maximum(last_clip, 0))
        self._run_stops = [self._used_until(i, *ends) for i in range(len(self._grids))]


class Cursors(CursorSchedule):
    """A schedule with blocks of the lengths `sizes`; see `CursorSchedule`.

    With `costs` of the clips, int64[clips], a round has equal parts of the costs of all cursors, as
    far as no block exceeds its nominal length. By counted frames, cursors of long clips would have
    more clips in the first rounds, because they have fewer gaps between runs: a correlation of -.6
    of length and batch for .1.
    """

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        sizes: BlockSizes,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        costs: IntArray | None = None,
    ) -> None:
        super().__init__(runs, cursor, episodes, windows)
        self._sizes, self._leading = sizes, episodes.leading
        self._grid: ChunkGrid = self._grids[episodes.leading]
        self._lines_apart = sizes.apart(self._grid.chunk_frames)
        begin = self._first_row
        # How many frames are counted before each row, from the first cursor on. Where a run goes
        # on after a few frames these count, else a gap does, and for a cursor's first row how far
        # it begins past a grid line.
        apart = runs.first_start[1:] - runs.last_start[:-1] - runs.stride
        near = (np.diff(runs.run) == 0) & (apart < sizes.gap)
        self._near = np.concatenate(([False], near, [False]))  # whether it is so before a row
        past_line = self._past_line(np.arange(len(runs)), runs.first_start)
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
        if costs is not None and self.num_rounds > 1:
            self.num_rounds = sizes.rounds(int(SLACK * self.longest))
        self._marks = np.arange(self.num_rounds + 1)  # the first block of each round
        self.most_frames: IntArray | None = None  # of each cursor, in joined rounds; by group
        self._begins = None if costs is None else self._begins_by_cost(costs)

    def join_rounds(self, costs: IntArray, most_cost: int, most_frames: Sequence[int]) -> None:
        """Join consecutive rounds into rounds of about `most_cost`; `costs`, int64[clips], are
        those of the clips.

        The frames of all cursors are at most `most_frames` of each group. That is a bound of the
        first rounds, which need less: it has blocks of the longest cursor for all of them.
        """
        needs = [*self._needs(costs)]
        most = np.maximum.reduce([held for _, held, _ in needs])
        marks, cost, frames = list[int](), most_cost, most
        for index, (cost_of_round, held, loaded) in enumerate(needs):
            joined = np.maximum(frames + loaded, held)  # a round without clips has frames, too
            more = np.maximum(most, joined)
            has_room = cost + cost_of_round // 2 <= most_cost
            if index and has_room and (more.sum(axis=1) <= most_frames).all():
                cost, frames, most = cost + cost_of_round, joined, more
            else:
                marks.append(index)
                cost, frames = cost_of_round, held
        self._marks = np.array([*marks, self.num_rounds])
        self.num_rounds, self.most_frames = len(marks), most

    def _needs(self, costs: IntArray) -> Iterator[tuple[int, IntArray, IntArray]]:
        """For each round: its cost, the frames of each group that each cursor has in it, and those
        that it loads; int64[groups, cursors] each.
        """
        paid, width = np.append(0, np.cumsum(costs)), max(1, _CUTS_AT_ONCE // max(1, self.count))
        for start in range(0, self.num_rounds, width):
            stop = min(start + width, self.num_rounds)
            begins = self.first_clips(np.arange(start, stop + 1)[:, None])
            shape = stop - start, len(self._windows), self.count
            held, loaded = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            for group, blocks in enumerate(self.blocks(start, stop)):
                step = self._windows[group].frame_step
                block = (blocks.round - start) * self.count + blocks.cursor
                more = -((blocks.loaded_before - blocks.loaded) // step)
                # The first row of a block begins with frames of the block before.
                is_first = np.diff(block, prepend=-1) != 0
                before = np.where(is_first, -((blocks.held - blocks.loaded_before) // step), 0)
                for frames, numbers in ((loaded, more), (held, before)):
                    sums = np.bincount(block, numbers, (stop - start) * self.count)
                    frames[:, group] = sums.reshape(stop - start, self.count)
            costs_of_rounds = np.diff(paid[begins].sum(axis=1)).tolist()
            yield from zip(costs_of_rounds, held + loaded, loaded, strict=True)

    def end_before(self, index: int) -> None:
        """Remove the rounds from `index` on."""
        self.end = self.first_clips(np.array([[index]]))[0]
        self._end_runs(np.minimum(self._run_last_clip, self.end[self._cursor] - 1))

    def first_clips(self, rounds: IntArray) -> IntArray:
        """See `CursorSchedule`."""
        block = self._marks[np.minimum(rounds, self.num_rounds)]
        clips = self._find(block, snap=False)
        late = (block >= self._sizes.unaligned) & (not self._apart[self._leading])
        if late.any():
            clips = np.where(late, self._find(block, snap=True), clips)
        clips = np.where(rounds == 0, self.begin, clips)
        clips = np.where(rounds >= self.num_rounds, self._last, clips)
        return np.clip(clips, self.begin, self._last)

    def _find(self, block: IntArray, *, snap: bool) -> IntArray:
        """The first clip at or behind the start of each block; [rounds, cursors].

        `snap` moves starts to the next grid line. `block` is [rounds, cursors] or [rounds, 1].
        """
        runs, counted = self.runs, self._sizes.clip
        if self._begins is None:
            num_blocks = int(self._marks[-1])
            place = self._sizes.begins(self.lengths, block, num_blocks) + self._begin
        else:
            place = self._begins[block, np.arange(self.count)] + self._begin
        row = np.searchsorted(self._from, place, side="right") - 1
        beyond = place - self._before[row]
        if snap:
            start = runs.first_start[row] + beyond
            ahead = -self._past_line(row, start) % self._lines_apart[row]
            if self._grid.edges is not None:  # a chunk's end is a line, too
                odd = self._grid.chunk_frames[row] == 0
                room = np.maximum(self._grid.stop(row, start) - start, 0)  # or behind the end
                ahead = np.where(odd, np.minimum(ahead, room), ahead)
            within = (beyond < runs.count[row] * counted) | self._near[row + 1]
            place = place + np.where(within, ahead, 0)
            row = np.searchsorted(self._from, place, side="right") - 1
            beyond = place - self._before[row]
        step = np.maximum(-(-beyond // counted), 0)
        clips: IntArray = runs.first_clip[row] + np.minimum(step, runs.count[row])
        return clips

    def _begins_by_cost(self, costs: IntArray) -> IntArray:
        """The starts of cursors' blocks, in counted frames; int64[rounds + 1, cursors]."""
        runs, paid = self.runs, np.append(0, np.cumsum(costs))
        before = paid[self.begin]
        targets = before + self._sizes.parts(paid[self._last] - before, self.num_rounds)
        clip = np.minimum(nearest_clips(paid, targets), np.maximum(self._last - 1, 0))
        row = np.searchsorted(runs.first_clip, clip, side="right") - 1
        step = (clip - runs.first_clip[row]) * self._sizes.clip
        place = self._before[row] + step - self._begin
        # No block exceeds its nominal length. Those that would are begun late or early, in equal
        # parts: late ones alone put long clips first, a correlation of -.12 of length and batch.
        nominal = self._sizes.nominal(np.arange(self.num_rounds + 1))[:, None]
        ahead = np.clip(place - nominal, self.lengths - nominal[-1:], 0)
        late, early = np.minimum.accumulate(ahead), np.maximum.accumulate(ahead[::-1])[::-1]
        begins: IntArray = nominal + (late + early) // 2
        return begins

    def _past_line(self, row: IntArray, frame: IntArray) -> IntArray:
        """The distance of frames from the last grid line before them; see `BlockSizes`."""
        if self._grid.edges is not None:  # irregular episodes count from the chunk's first frame
            odd = self._grid.chunk_frames[row] == 0
            frame = frame - np.where(odd, self._grid.start(row, frame), 0)
        return frame % self._lines_apart[row]
