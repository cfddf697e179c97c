"""The frames that arenas hold: what is loaded, in which rows it is, and what is freed.

Each group of features has an arena, which gives every cursor of a plan a ring of rows. Frames enter
a ring in the order in which they are loaded and leave it in the same order, so a row is found by
counting::

    ring of 8 rows        . . f f f f . .
    frames freed              ^ 2       ^ 6     frames loaded
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.batches import Source
from seqrecord.engine.joined import GroupRoom
from seqrecord.engine.loads import Load
from seqrecord.frame_keys import frame_keys
from seqrecord.sampling import Clips, Plan, Round, Window

__all__ = ["Places", "Resident", "Ring", "find_rows"]


class Resident:
    """The frames that arenas hold for one plan: what is loaded, where it is, and what is freed."""

    def __init__(self, plan: Plan, clip_frames: ClipFrames, arenas: Sequence[Any]) -> None:
        self._places = {group.group: place for place, group in enumerate(plan.groups)}
        self._groups = {
            group.group: _GroupRows(group.window, clip_frames, arena, plan.num_cursors)
            for group, arena in zip(plan.groups, arenas, strict=True)
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the frames held."""
        return sum(group.nbytes for group in self._groups.values())

    def rooms(self) -> list[GroupRoom]:
        """The rows of each group, and how many frames its rings hold now."""
        return [
            GroupRoom(group.num_rows, group.frame_nbytes, held)
            for group in self._groups.values()
            for held in [np.array([ring.resident for ring in group.rings], np.int64)]
        ]

    def ring(self, load: Load) -> Ring:
        """Where a load's frames go."""
        return self._groups[load.group].rings[load.cursor]

    def nbytes_of(self, load: Load) -> int:
        """Bytes of the frames that a load brings."""
        return load.count * self._groups[load.group].frame_nbytes

    def place(self, load: Load) -> tuple[Any, IntArray]:
        """The arena, and the rows of a load's frames, int64[count], for which its ring has room."""
        return self._groups[load.group].place(load)

    def find(self, clips: Clips) -> list[Places]:
        """Where the frames of clips are, for features that have the same frames together."""
        return [places for group in self._groups.values() for places in group.find(clips)]

    def free(self, done: Round) -> None:
        """Make room: forget the frames that no clip after this round needs."""
        for number, group in self._groups.items():
            frees = done.groups[self._places[number]].frees
            counts = np.bincount(frees.cursor, frees.count, len(group.rings)).astype(np.int64)
            for ring, count in zip(group.rings, counts.tolist(), strict=True):
                if count:
                    ring.free(count)


class _GroupRows:
    """The rows of one group's arena: a ring for each cursor, all of the same length."""

    def __init__(
        self, window: Window, clip_frames: ClipFrames, arena: Any, num_cursors: int
    ) -> None:
        self._window = window
        self._clip_frames = clip_frames
        self._alike = clip_frames.alike(arena.specs)
        self._arena = arena
        self.frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())
        self.num_rows = rows = arena.num_rows // max(1, num_cursors)  # of each ring
        self.rings = [Ring(cursor * rows, rows) for cursor in range(num_cursors)]

    @property
    def nbytes(self) -> int:
        """Bytes of the frames held."""
        return sum(ring.resident for ring in self.rings) * self.frame_nbytes

    def place(self, load: Load) -> tuple[Any, IntArray]:
        ring = self.rings[load.cursor]
        return self._arena, ring.load(load.run, load.first, load.count, self._window.frame_step)

    def find(self, clips: Clips) -> list[Places]:
        """Where the frames of clips are."""
        last = self._clip_frames.num_frames[clips.episode] - 1
        begin = self._window.begin(clips.start, last)
        rows = find_rows(self.rings, clips.run, begin)
        return [
            Places(self._arena, names, self._clip_frames, clips, self._window.frame_step, *rows)
            for names in self._alike
        ]


@dataclass(frozen=True, eq=False)
class Places:
    """Where an arena has the frames of clips, for features of which each clip has the same frames.

    The last three columns are as from `find_rows`.
    """

    arena: Any
    features: tuple[str, ...]
    clip_frames: ClipFrames
    clips: Clips
    frame_step: int
    origin: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]

    def source(self, start: int, stop: int) -> Source[Any]:
        """Of the clips `[start, stop)`."""
        clips = self.clips.rows(start, stop)
        found = self.clip_frames.find(self.features[0], clips.episode, clips.start)
        origin, first, number = (
            column[start:stop, None] for column in (self.origin, self.first, self.number)
        )
        place = (origin + found.frames // self.frame_step) % number
        return Source(self.arena, np.add(first, place, dtype=np.int64), self.features)


class Ring:
    """Which rows of the arena hold which frames of one cursor. Counts only, in a plan's order."""

    def __init__(self, first_row: int, num_rows: int) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self._loaded = 0
        self._freed = 0
        self._next = (-1, -1)  # run and frame that would continue what was loaded last
        self._held: deque[_Held] = deque()

    def has_room(self, count: int) -> bool:
        return self._loaded + count - self._freed <= self.num_rows

    @property
    def resident(self) -> int:
        """Frames held."""
        return self._loaded - self._freed

    @property
    def held(self) -> Iterable[_Held]:
        """Consecutive frames of one run each, in the order of their loads."""
        return self._held

    def load(self, run: int, first: int, count: int, step: int) -> IntArray:
        """Rows for frames `first`, `first + step`, … of a run, which follow those loaded last;
        int64[count]."""
        assert self.has_room(count), "the plan holds more frames than it said"
        if (run, first) == self._next:
            self._held[-1] = self._held[-1]._replace(stop=self._loaded + count)
        else:
            origin = self._loaded - first // step
            self._held.append(_Held(run, first, origin, self._loaded + count))
        self._next = (run, first + count * step)
        rows = np.arange(self._loaded, self._loaded + count) % self.num_rows + self.first_row
        self._loaded += count
        return rows

    def free(self, count: int) -> None:
        """Forget the `count` frames that were loaded first."""
        self._freed += count
        while self._held and self._held[0].stop <= self._freed:
            self._held.popleft()
        if not self._held:
            self._next = (-1, -1)


class _Held(NamedTuple):
    """Frames of a run from `first` on, which a ring holds one after the other.

    Frame `f` is at place `(origin + f // step) % num_rows` of the ring, up to place `stop`.
    """

    run: int
    first: int
    origin: int
    stop: int


def find_rows(
    rings: Sequence[Ring],
    run: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where clips' frames are: origin, ring's first row and number of rows; int64[n] each.

    Clip `i` starts at frame `start[i]` of run `run[i]`; all of its frames are held. Runs ascend
    over the rings, and within each. Frame `f` is in row `first + (origin + f // step) % number`.
    """
    held = [(h.run, h.first, h.origin, r.first_row, r.num_rows) for r in rings for h in r.held]
    table = np.array(held, np.int64).reshape(-1, 5)
    keys = frame_keys(table[:, 0], table[:, 1])
    at = np.searchsorted(keys, frame_keys(run, start), side="right") - 1
    return table[at, 2], table[at, 3], table[at, 4]
