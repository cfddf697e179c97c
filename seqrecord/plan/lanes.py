"""Cursors side by side, each walking its lane: what it holds before and after each round.

All lanes have equally many blocks, so that all cursors finish in the same round. Round `r` is the
`r`-th block of every lane. The part of a block that is of one piece, in the middle of a run::

                 first             loaded_before        loaded
                   |                     |                |
    held before    f f f f f f f f f f f
    loads                                f f f f f f f f f
    clip starts    s s s s s s s s
    frees          f f f f f f f f
    held after                     f f f f f f f f f f f f
                                   |
                                 kept = the next part's first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from seqrecord.order import IntArray
from seqrecord.plan.blocks import Pieces
from seqrecord.plan.widths import Widths

__all__ = ["Lanes", "Walk"]

_CUTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class Walk:
    """The parts of blocks of some rounds, by cursor and then by round; int64[n] each.

    A part's clips start at `first` and from there every stride, `count` of them. Its cursor holds
    the frames `[first, loaded_before)` of the run when it comes to the part, `[first, loaded)` once
    it has loaded, and frees `[first, kept)` when the round ends.
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

    def take(self, chosen: IntArray) -> Walk:
        """Some of the parts, in another order."""
        return Walk(*(getattr(self, column.name)[chosen] for column in fields(self)))


class Lanes:
    """Lanes of `pieces`, one after the other; `lane`, int64[pieces], says whose each piece is.

    `lane` ascends and leaves no number out. `chunk_frames` is int64[number of episodes]; `span` is
    that of a clip.
    """

    def __init__(
        self,
        pieces: Pieces,
        lane: IntArray,
        widths: Widths,
        *,
        chunk_frames: IntArray,
        span: int,
    ) -> None:
        self._pieces, self._widths, self._span = pieces, widths, span
        self._chunk = chunk_frames[pieces.episode]
        self._grid = widths.grid(self._chunk)
        self._lane = lane
        last = np.searchsorted(pieces.run, pieces.run, side="right") - 1
        self._run_end(pieces.first_clip[last] + pieces.count[last] - 1)
        self._run_first_clip = pieces.first_clip[np.searchsorted(pieces.run, pieces.run)]

        self.num_cursors = int(lane[-1]) + 1 if len(lane) else 0
        begin = np.searchsorted(lane, np.arange(self.num_cursors))
        self._clips = np.append(pieces.first_clip[begin], pieces.num_clips)  # where lanes begin
        self._stop = self._clips[1:]  # and where they end, unless `end_before` says
        # How many frames are counted before each piece, from the first lane on. Where a run goes
        # on after a few frames they count, else a gap does, and what the first is past a line.
        apart = pieces.first_start[1:] - pieces.last_start[:-1] - pieces.stride
        near = (np.diff(pieces.run) == 0) & (apart < widths.gap)
        self._near = np.concatenate(([False], near, [False]))  # whether it is so before a piece
        past_line = pieces.first_start % self._grid
        extra = np.where(self._near[:-1], np.append(0, apart), widths.gap + past_line)
        extra[begin] = past_line[begin]
        counted = pieces.count * widths.clip
        self._before = np.cumsum(counted + extra) - counted
        self._from = self._before - np.where(self._near[:-1], 0, past_line)
        end = int(self._before[-1] + counted[-1]) if len(pieces) else 0
        bounds = np.append(self._before[begin] - extra[begin], end)
        self._begin = bounds[:-1]
        self._length = np.diff(bounds)
        self.longest = int(self._length.max(initial=0))  # frames counted in a lane
        self.num_rounds = widths.rounds(self.longest)

    def end_before(self, index: int) -> None:
        """Have no rounds from `index` on."""
        self._stop = self._cut(np.array([index]))[0]
        self._run_end(np.minimum(self._run_last_clip, self._stop[self._lane] - 1))

    def _run_end(self, last_clip: IntArray) -> None:
        """Say what the last clip of each piece's run is, and so the last frame it uses."""
        self._run_last_clip = last_clip
        self._run_stop = self._pieces.find(np.maximum(last_clip, 0))[1] + self._span

    def clips_before_rounds(self) -> IntArray:
        """How many clips come before each round, and before the end; int64[num_rounds + 1]."""
        before = [cuts - self._clips[:-1] for _, cuts in self._each_round()]
        return np.concatenate([cuts.sum(axis=1) for cuts in before])

    def share_chunks(self) -> bool:
        """Whether any round needs a chunk that a later one needs too, for the same run."""
        for _, cuts in self._each_round():
            inner = cuts[(cuts > self._clips[:-1]) & (cuts < self._clips[1:])]
            piece, start = self._pieces.find(inner)
            past = self._past(inner)
            if np.any((inner > self._run_first_clip[piece]) & (start < past)):
                return True
        return False

    def held(self, index: int) -> Walk:
        """What cursors hold when round `index` begins, `[first, loaded_before)`, as parts of it."""
        clip = self._cut(np.array([index]))[0]
        cursor = np.flatnonzero(clip < self._stop)
        clip = clip[cursor]
        return self._parts(np.full(len(clip), index), cursor, clip, clip + 1)

    def walk(self, start: int, stop: int) -> Walk:
        """The parts of the blocks of rounds `[start, stop)`."""
        cuts = self._cut(np.arange(start, stop + 1))
        low, high = cuts[0], cuts[-1]
        first_piece = np.searchsorted(self._pieces.first_clip, low, side="right")
        number = np.searchsorted(self._pieces.first_clip, high, side="left") - first_piece
        number = np.where(high > low, np.maximum(number, 0), 0)
        piece = _ranges(first_piece, number)
        bounds = self._pieces.first_clip[piece]
        if self._span < self._pieces.stride:  # a part for each clip: what lies between is not used
            bounds = _ranges(low, high - low)
        flat = cuts.T.ravel()  # by cursor and round: never falling
        bounds = np.union1d(bounds, flat)
        place = np.searchsorted(flat, bounds, side="right") - 1
        cursor, index = np.divmod(place, stop + 1 - start)
        some = index < stop - start
        ends = np.append(bounds[1:], bounds[-1:])
        return self._parts(index[some] + start, cursor[some], bounds[some], ends[some])

    def _each_round(self) -> Iterator[tuple[int, IntArray]]:
        """Where all blocks begin, as clips, [rounds, cursors], some rounds at a time."""
        group = max(1, _CUTS_AT_ONCE // max(1, self.num_cursors))
        for start in range(0, self.num_rounds + 1, group):
            yield start, self._cut(np.arange(start, min(start + group, self.num_rounds + 1)))

    def _cut(self, rounds: IntArray) -> IntArray:
        """The clip with which each lane's block of each of `rounds` begins; [rounds, cursors]."""
        clips = self._find(rounds, snap=False)
        late = (rounds >= self._widths.free) & (self._span >= self._pieces.stride)
        if late.any():
            clips = np.where(late[:, None], self._find(rounds, snap=True), clips)
        clips[rounds == 0] = self._clips[:-1]
        clips[rounds >= self.num_rounds] = self._clips[1:]
        return np.clip(clips, self._clips[:-1], self._clips[1:])

    def _find(self, rounds: IntArray, *, snap: bool) -> IntArray:
        """The first clip at or past the place where each block begins; [rounds, cursors].

        With `snap` at or past the next grid line.
        """
        widths, pieces = self._widths, self._pieces
        place = widths.places(self._length, rounds, self.num_rounds) + self._begin
        piece = np.searchsorted(self._from, place, side="right") - 1
        beyond = place - self._before[piece]
        if snap:
            start, grid = pieces.first_start[piece] + beyond, self._grid[piece]
            within = (beyond < pieces.count[piece] * widths.clip) | self._near[piece + 1]
            place = place + np.where(within, -start % grid, 0)
            piece = np.searchsorted(self._from, place, side="right") - 1
            beyond = place - self._before[piece]
        step = np.maximum(-(-beyond // widths.clip), 0)
        clips: IntArray = pieces.first_clip[piece] + np.minimum(step, pieces.count[piece])
        return clips

    def _past(self, clip: IntArray) -> IntArray:
        """Where the chunk ends in which the clip before each one ends."""
        before, start = self._pieces.find(np.maximum(clip - 1, 0))
        chunk = self._chunk[before]
        past: IntArray = -(-(start + self._span) // chunk) * chunk
        return past

    def _parts(self, index: IntArray, cursor: IntArray, begin: IntArray, end: IntArray) -> Walk:
        """Parts of the clips `[begin, end)`, each of one piece."""
        pieces, span = self._pieces, self._span
        piece, first = pieces.find(begin)
        last = first + (end - 1 - begin) * pieces.stride
        chunk, run_stop = self._chunk[piece], self._run_stop[piece]
        # A chunk is loaded once in a run: as far as the run needs it, or only as far as the one
        # part that uses it does.
        past = -(-(last + span) // chunk) * chunk
        past_before = self._past(begin)
        follows = begin > self._run_first_clip[piece]
        goes_on = end <= self._run_last_clip[piece]
        _, following = pieces.find(np.where(goes_on, end, 0))
        shared = (goes_on & (following < past)) | (follows & (past_before == past))
        loaded = np.where(shared, np.minimum(past, run_stop), last + span)
        known = follows & (first < past_before)
        return Walk(
            index,
            cursor,
            pieces.run[piece],
            pieces.episode[piece],
            first,
            end - begin,
            np.where(known, np.minimum(past_before, run_stop), first),
            loaded,
            np.where(goes_on, np.minimum(following, loaded), loaded),
        )


def _ranges(first: IntArray, number: IntArray) -> IntArray:
    """`number[i]` numbers from `first[i]` on, for each `i`, one range after the other."""
    inside = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
    ranges: IntArray = np.repeat(first, number) + inside
    return ranges
