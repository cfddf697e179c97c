"""Frames that stay in memory from one epoch to the next: each is read with the first clip that
needs it, and then no more.

An arena has a row for each frame of all episodes that may have clips, one episode after the other.
So a row is found by adding, nothing is freed, and once all is read rounds mean nothing: the clips
of many are gathered as one. What was not read yet is loaded as the plan says, without the frames
that are there::

    episodes      |    a    |   b   |      c      |
    rows          x x x . . x x . . . . x x x x x       x: read, and checked
    loads               - -     - -                     of a round: what it lacks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.ahead import LoadedRound
from seqrecord.engine.arena import StayingArena
from seqrecord.engine.batches import Source
from seqrecord.engine.loads import Load
from seqrecord.engine.workers import Loading, Placed, WorkerPool
from seqrecord.grids import numbered
from seqrecord.sampling import Clips, GroupPlan, Loads, Plan, Round

__all__ = ["StayingRounds", "first_rows"]

_AT_FIRST = 1 << 8  # clips of the first rounds, whose frames must be read: batches wait for these
_ROWS_AT_ONCE = 1 << 18  # of clips' frames that are looked at together


def first_rows(num_frames: IntArray, selected: IntArray) -> IntArray:
    """The row of the first frame of each selected episode, int64[episodes]; 0 of the others.

    Episodes have `num_frames`, int64[episodes], and `selected` are some of them, ascending.
    """
    held = num_frames[selected]
    first = np.zeros(len(num_frames), np.int64)
    first[selected] = np.cumsum(held) - held
    return first


class StayingRounds:
    """The clips of a plan in their order, many rounds as one, with loads of what no epoch before
    has read. As `RoundsAhead`, for arenas that are `StayingArena`s.

    What a load brings counts as read when its round is over: if an epoch ends before, the next one
    reads it again.

    Args:
        first_row: of each episode, see `first_rows`.
    """

    def __init__(
        self,
        plan: Plan,
        clip_frames: ClipFrames,
        arenas: Sequence[StayingArena],
        workers: WorkerPool,
        first_row: IntArray,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._groups = [
            _Group(group, arena, clip_frames, first_row)
            for group, arena in zip(plan.groups, arenas, strict=True)
        ]

    def run(self, first_round: int) -> Iterator[LoadedRound]:
        """The rounds from `first_round` on, many as one."""
        at_first = {} if all(group.is_full for group in self._groups) else {"at_first": _AT_FIRST}
        spans = self._plan.clips(first_round, **at_first)
        following = next(spans, None)
        ahead = [] if following is None else self._load(*following)
        while following is not None:
            (start, _, clips), loading = following, ahead
            following = next(spans, None)
            ahead = [] if following is None else self._load(*following)
            places = [found for group in self._groups for found in group.places(clips)]
            loaded = LoadedRound(Round(start, clips, ()), places, loading, self._workers)
            yield loaded
            loaded.wait()
            for group in self._groups:
                group.note_read(start)

    @property
    def resident_bytes(self) -> int:
        """Of the frames that arenas hold, or that loads under way bring."""
        return sum(group.nbytes for group in self._groups)

    def later(self) -> Iterator[Load]:
        """No loads wait for room."""
        return iter(())

    def _load(self, start: int, stop: int, clips: Clips) -> list[Loading]:
        """Start the loads of what the clips of rounds `[start, stop)` need and nobody has read."""
        if all(group.has(clips) for group in self._groups):
            return []
        resident = self._plan.resident(start)
        rounds = list(islice(self._plan.rounds(start), stop - start))
        placed: list[Placed] = []
        for i, group in enumerate(self._groups):
            loads = [resident[i], *(current.groups[i].loads for current in rounds)]
            placed += group.place(start, _one_after_other(loads), clips)
            assert group.has(clips), "the plan loads all frames of its clips"
        sizes = {group.number: group.frame_nbytes for group in self._groups}
        return self._workers.start(placed, lambda load: load.count * sizes[load.group])


class _Group:
    """One group of features: what its arena holds, and what loads under way bring."""

    def __init__(
        self, plan: GroupPlan, arena: StayingArena, clip_frames: ClipFrames, first_row: IntArray
    ) -> None:
        self.number = plan.group
        self.frame_nbytes = sum(spec.nbytes for spec in arena.specs.values())
        self._step = plan.window.frame_step
        self._arena = arena
        self._clip_frames = clip_frames
        self._alike = clip_frames.alike(arena.specs)
        self._first_row = first_row
        self._asked = arena.is_read.copy()  # read, or loads under way bring it
        self._num_asked = int(np.count_nonzero(self._asked))
        self._loading: dict[int, list[IntArray]] = {}  # rows, by the first round that needs them

    @property
    def is_full(self) -> bool:
        """Whether all frames that there are are there, or loads under way bring them."""
        return self._num_asked == len(self._asked)

    @property
    def nbytes(self) -> int:
        """Of the frames that are there, or that loads under way bring."""
        return self._num_asked * self.frame_nbytes

    def places(self, clips: Clips) -> list[_Places]:
        """Where the frames of clips are."""
        return [
            _Places(self._arena, names, self._clip_frames, clips, self._first_row)
            for names in self._alike
        ]

    def has(self, clips: Clips) -> bool:
        """Whether all frames of clips are there, or loads under way bring them."""
        if self.is_full:
            return True
        return all(self._asked[rows].all() for _, rows in self._rows(clips))

    def place(self, start: int, loads: Loads, clips: Clips) -> Iterator[Placed]:
        """Those frames of loads that nobody has asked for, as loads into their rows; each with the
        first clip that needs it. They are for clips of rounds from `start` on."""
        owner, inside = numbered(loads.count)
        rows = self._first_row[loads.episode[owner]] + loads.first[owner] + inside * self._step
        fresh = np.flatnonzero(~self._asked[rows])
        fresh = fresh[np.sort(np.unique(rows[fresh], return_index=True)[1])]  # each frame once
        if not len(fresh):
            return
        owner, rows = owner[fresh], rows[fresh]
        self._asked[rows] = True
        self._num_asked += len(rows)
        self._loading.setdefault(start, []).append(rows)
        ends = (owner[1:] != owner[:-1]) | (rows[1:] != rows[:-1] + self._step)
        begins = np.append(0, np.flatnonzero(ends) + 1)
        uses = np.minimum.reduceat(self._first_uses(clips)[rows], begins)
        of, row = owner[begins], rows[begins]
        columns = (
            uses,
            row,
            loads.cursor[of],
            loads.run[of],
            loads.episode[of],
            loads.chunk[of],
            row - self._first_row[loads.episode[of]],
            np.diff(np.append(begins, len(rows))),
        )
        each = zip(*(one.tolist() for one in columns), strict=True)
        for use, begin, cursor, run, episode, chunk, first, count in each:
            load = Load(self.number, cursor, run, episode, chunk, first, count)
            rows = begin + np.arange(count) * self._step
            yield Placed(use, load, self._arena, rows)

    def note_read(self, start: int) -> None:
        """All loads for the round `start` and those before it are done."""
        for number in [number for number in self._loading if number <= start]:
            for rows in self._loading.pop(number):
                self._arena.is_read[rows] = True

    def _first_uses(self, clips: Clips) -> npt.NDArray[np.int32]:
        """Of each row the first clip that needs it, or the number of clips; int32[rows]."""
        uses = np.full(len(self._asked), len(clips), np.int32)
        for start, rows in self._rows(clips):
            flat = rows.reshape(-1)
            clip = start + np.repeat(np.arange(len(rows)), rows.shape[1])
            np.minimum.at(uses, flat, clip.astype(np.int32))
        return uses

    def _rows(self, clips: Clips) -> Iterator[tuple[int, IntArray]]:
        """The rows of clips' frames, int64[some clips, frames], and the number of the first one."""
        for places in self.places(clips):
            length = len(self._clip_frames.offsets[places.features[0]])
            at_once = max(1, _ROWS_AT_ONCE // max(1, length))
            for start in range(0, len(clips), at_once):
                yield start, places.rows(start, min(start + at_once, len(clips)))


@dataclass(frozen=True, eq=False)
class _Places:
    """Where an arena has the frames of clips, of features that have the same frames in each."""

    arena: StayingArena
    features: tuple[str, ...]
    clip_frames: ClipFrames
    clips: Clips
    first_row: IntArray

    def source(self, start: int, stop: int) -> Source[Any]:
        """Of the clips `[start, stop)`."""
        return Source(self.arena, self.rows(start, stop), self.features)

    def rows(self, start: int, stop: int) -> IntArray:
        """The rows of their frames, int64[clips, frames]."""
        clips = self.clips.rows(start, stop)
        found = self.clip_frames.find(self.features[0], clips.episode, clips.start)
        rows: IntArray = self.first_row[clips.episode][:, None] + found.frames
        return rows


def _one_after_other(loads: Sequence[Loads]) -> Loads:
    columns = zip(*(vars(some).values() for some in loads), strict=True)
    return Loads(*map(np.concatenate, columns))
