"""Which rows of arenas hold which frames: what a plan says to load of which chunk, where that goes,
where clips' frames are, and what is freed.

Each group of features has an arena. `Rings` gives every cursor of a plan a ring of its rows. Frames
enter a ring in the order in which they are loaded and leave it in the same order, so a row is found
by counting::

    ring of 8 rows        . . f f f f . .
    frames freed              ^ 2       ^ 6     frames loaded

`AllFrames` has a row for each frame that clips of the shard may use, one interval of an episode
after the other, which stays from one epoch to the next. So a row is found by adding, nothing is
freed, and a frame that was read once is loaded no more::

    intervals     |    a    |   b   |      c      |
    rows          x x x . . x x . . . . x x x x x       x: read, and checked
    loads               - -     - -                     of a round: frames that are not there yet
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.clips.frames import ClipFrames
from seqrecord.clips.grids import MAX_FRAMES, followed, frame_keys, sought_keys
from seqrecord.clips.tables import IntArray
from seqrecord.engine.batches import ClipRows
from seqrecord.format.index import GroupIndex
from seqrecord.processes.forks import cached_property
from seqrecord.sampling import Clips, GroupPlan, Intervals, Loads, Plan, Round, Window


class FrameStore(Protocol):
    """The frames that arenas hold for one plan. Counts only: threads load and copy."""

    @property
    def nbytes(self) -> int:
        """Of the frames that are held, or that loads under way bring."""

    def rounds(self, plan: Plan, start: int, stop: int | None = None) -> Iterator[Round]:
        """The rounds `[start, stop)` of a plan, several as one where their order allows that."""

    def place(self, waiting: list[PendingLoad]) -> list[AssignedLoad]:
        """Give rows to those loads for which there is room; the others stay in `waiting`."""

    def find(self, clips: Clips) -> list[FoundRows]:
        """Where the frames of clips are, for features that have the same frames together."""

    def finish(self, done: Round, assigned: Sequence[AssignedLoad]) -> None:
        """A round is over, whose loads these were: keep their frames, but for those that no later
        clip needs."""


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Where an arena has the frames of clips, for features of which each clip has the same frames.

    Frame `f` of clip `i` is in row `first[i] + (origin[i] + f // frame_step) % number[i]`.
    """

    arena: Any
    features: tuple[str, ...]
    clip_frames: ClipFrames
    clips: Clips
    frame_step: int
    origin: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]

    def source(self, start: int, stop: int) -> ClipRows[Any]:
        """Of the clips `[start, stop)`."""
        clips = self.clips.rows(start, stop)
        frames = self.clip_frames.at(clips.place)
        found = frames.find(self.features[0], clips.episode, clips.start)
        origin, first, number = (
            column[start:stop, None] for column in (self.origin, self.first, self.number)
        )
        place = (origin + found.frames // self.frame_step) % number
        return ClipRows(self.arena, np.add(first, place, dtype=np.int64), self.features)


class _Group:
    """A group of features, and the arena of its frames."""

    def __init__(self, plan: GroupPlan, clip_frames: ClipFrames, arena: Any) -> None:
        self.number, self.window = plan.group, plan.window
        self.arena, self.clip_frames = arena, clip_frames
        self.alike = clip_frames.alike(arena.specs)
        self.frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())

    def found(self, clips: Clips, frame_step: int, *columns: IntArray) -> Iterator[FoundRows]:
        for names in self.alike:
            yield FoundRows(self.arena, names, self.clip_frames, clips, frame_step, *columns)

    def assigned(self, use: int, load: Load, rows: IntArray) -> AssignedLoad:
        return AssignedLoad(use, load, self.arena, rows, len(rows) * self.frame_nbytes)


class Rings:
    """A ring of rows for each cursor: memory is that of the frames which later clips need."""

    def __init__(self, plan: Plan, clip_frames: ClipFrames, arenas: Sequence[Any]) -> None:
        self._groups = {
            group.group: _Group(group, clip_frames, arena)
            for group, arena in zip(plan.groups, arenas, strict=True)
        }
        self._rings: dict[int, list[Ring]] = {}  # by group
        for group in self._groups.values():
            rows = group.arena.num_rows // max(1, plan.num_cursors)
            self._rings[group.number] = [
                Ring(cursor * rows, rows, group.window.frame_step)
                for cursor in range(plan.num_cursors)
            ]

    @property
    def nbytes(self) -> int:
        return sum(
            sum(ring.resident for ring in self._rings[number]) * group.frame_nbytes
            for number, group in self._groups.items()
        )

    def rounds(self, plan: Plan, start: int, stop: int | None = None) -> Iterator[Round]:
        return plan.rounds(start, stop)

    def place(self, waiting: list[PendingLoad]) -> list[AssignedLoad]:
        late: list[PendingLoad] = []
        assigned: list[AssignedLoad] = []
        full: set[tuple[int, int]] = set()
        for item in waiting:
            load = item.load
            ring = self._rings[load.group][load.cursor]
            if (load.group, load.cursor) in full or not ring.has_room(load.count):
                full.add((load.group, load.cursor))  # its loads stay in order
                late.append(item)
            else:
                rows = ring.load(load.run, load.first, load.count)
                assigned.append(self._groups[load.group].assigned(item.first_use, load, rows))
        waiting[:] = late
        return assigned

    def find(self, clips: Clips) -> list[FoundRows]:
        found: list[FoundRows] = []
        for number, group in self._groups.items():
            last = group.clip_frames.num_frames[clips.episode] - 1
            begin = group.window.begin(clips.start, last)
            rows = find_rows(self._rings[number], clips.run, begin)
            found += group.found(clips, group.window.frame_step, *rows)
        return found

    def finish(self, done: Round, assigned: Sequence[AssignedLoad]) -> None:  # noqa: ARG002
        for rings, todo in zip(self._rings.values(), done.groups, strict=True):
            frees = todo.frees
            counts = np.bincount(frees.cursor, frees.count, len(rings)).astype(np.int64)
            for ring, count in zip(rings, counts.tolist(), strict=True):
                if count:
                    ring.free(count)


class AllFrames:
    """A row for each frame that there is: many rounds are one.

    What a load brings counts as read when its round is over: if an epoch ends before, the next one
    reads it again. A load brings all that the plan's clips use of a chunk, of which another cursor
    may need the rest.

    Args:
        rows: of each group of the plan.
        chunks: the chunk tables of groups, by their numbers, but for those of which any frames are
            read as quickly.
    """

    def __init__(
        self,
        plan: Plan,
        clip_frames: ClipFrames,
        arenas: Sequence[Any],
        rows: Sequence[FrameRows],
        chunks: Mapping[int, GroupIndex],
    ) -> None:
        self._groups = {
            group.group: _Group(group, clip_frames, arena)
            for group, arena in zip(plan.groups, arenas, strict=True)
        }
        self._rows = {group.group: of for group, of in zip(plan.groups, rows, strict=True)}
        self._chunks = chunks
        # Read, or loads under way bring it.
        self._asked = {number: g.arena.is_read.copy() for number, g in self._groups.items()}
        self._counts = {n: int(np.count_nonzero(asked)) for n, asked in self._asked.items()}
        self._used: dict[int, npt.NDArray[np.bool_]] = {}  # by clips of the plan
        for place, group in enumerate(plan.groups):
            if group.group in chunks:
                self._used[group.group] = used_rows(plan, place, rows[place])

    @property
    def nbytes(self) -> int:
        return sum(self._counts[n] * group.frame_nbytes for n, group in self._groups.items())

    def rounds(self, plan: Plan, start: int, stop: int | None = None) -> Iterator[Round]:
        for begin, end in plan.spans(start, stop):
            is_full = all(self._counts[n] == rows.num_rows for n, rows in self._rows.items())
            yield plan.merged(begin, end, loads=not is_full)

    def place(self, waiting: list[PendingLoad]) -> list[AssignedLoad]:
        assigned: list[AssignedLoad] = []
        for use, load in sorted(waiting, key=lambda item: item.first_use):
            group, step = self._groups[load.group], self._groups[load.group].window.frame_step
            frames, rows = self._missing(load, step)
            for a, b in pairwise(followed(frames // step)):
                part = replace(load, first=int(frames[a]), count=b - a)
                assigned.append(group.assigned(use, part, rows[a:b]))
            self._asked[load.group][rows] = True
            self._counts[load.group] += len(rows)
        waiting.clear()
        return assigned

    def _missing(self, load: Load, step: int) -> tuple[IntArray, IntArray]:
        """The frames to load, of those of a load, or of its chunk; and their rows."""
        first, stop = load.first, load.first + load.count * step
        if (chunks := self._chunks.get(load.group)) is not None:
            begin = int(chunks.first_frame[load.chunk])
            first = begin + (first - begin) % step
            stop = max(stop, begin + int(chunks.num_frames[load.chunk]))
        frames = np.arange(first, stop, step)
        frames, rows = self._rows[load.group].find(load.episode, frames)
        missing = ~self._asked[load.group][rows]
        if chunks is not None:  # from the first to the last that is used
            used = frames[self._used[load.group][rows]]
            missing &= frames >= min(load.first, int(used.min(initial=load.first)))
            missing &= frames <= max(load.first + (load.count - 1) * step, int(used.max(initial=0)))
        return frames[missing], rows[missing]

    def find(self, clips: Clips) -> list[FoundRows]:
        found: list[FoundRows] = []
        for number, group in self._groups.items():
            last = group.clip_frames.num_frames[clips.episode] - 1
            shift = self._rows[number].shift(clips.episode, group.window.begin(clips.start, last))
            nothing = np.zeros_like(shift)
            found += group.found(clips, 1, shift, nothing, nothing + len(self._asked[number]))
        return found

    def finish(self, done: Round, assigned: Sequence[AssignedLoad]) -> None:  # noqa: ARG002
        for item in assigned:
            item.target.is_read[item.rows] = True


def first_rows(num_frames: IntArray, selected: IntArray) -> IntArray:
    """The row of the first frame of each selected episode, int64[episodes]; 0 of the others.

    Episodes have `num_frames`, int64[episodes], and `selected` are some of them, ascending.
    """
    held = num_frames[selected]
    first = np.zeros(len(num_frames), np.int64)
    first[selected] = np.cumsum(held) - held
    return first


class FrameRows:
    """The row of each frame of some intervals of episodes, in their order."""

    def __init__(self, intervals: Intervals) -> None:
        self._intervals = intervals
        self._key = frame_keys(intervals.episode, intervals.begin)
        count = intervals.stop - intervals.begin
        self._shift = np.cumsum(count) - count - intervals.begin
        self.num_rows = intervals.num_frames

    @classmethod
    def of_episodes(cls, num_frames: IntArray, selected: IntArray) -> FrameRows:
        """Those of all frames of `selected` episodes; `num_frames` is of all."""
        return cls(Intervals(selected, np.zeros_like(selected), num_frames[selected]))

    @cached_property
    def digest(self) -> str:
        """Identifies the intervals."""
        found = hashlib.sha256()
        for column in self._intervals:
            found.update(np.ascontiguousarray(column, "<i8").data)
        return found.hexdigest()

    def shift(self, episode: IntArray, frame: IntArray) -> IntArray:
        """Row minus frame in the intervals that have these frames, int64[n]."""
        at = np.searchsorted(self._key, frame_keys(episode, frame), side="right") - 1
        found: IntArray = self._shift[at]
        return found

    def find(self, episode: int, frames: IntArray) -> tuple[IntArray, IntArray]:
        """Those frames of an episode that have rows, and these; int64[n] each."""
        key = frame_keys(np.full_like(frames, episode), frames)
        at = np.maximum(np.searchsorted(self._key, key, side="right") - 1, 0)
        owner, begin, stop = (column[at] for column in self._intervals)
        some = (owner == episode) & (frames >= begin) & (frames < stop)
        return frames[some], frames[some] + self._shift[at[some]]


def used_rows(plan: Plan, place: int, rows: FrameRows) -> npt.NDArray[np.bool_]:
    """Which rows a plan's clips use, and those between the frames of a clip; bool[rows].

    They are those of the group at this place of the plan.
    """
    episode, begin, stop = plan.used(place)
    shift = rows.shift(episode, begin)
    ends = (np.bincount(shift + at, minlength=rows.num_rows + 1) for at in (begin, stop))
    return np.cumsum(np.subtract(*ends)[:-1]) > 0


class Ring:
    """Which rows of the arena hold which frames of one cursor, every `step`th of their runs."""

    def __init__(self, first_row: int, num_rows: int, step: int = 1) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self._step = step
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

    def load(self, run: int, first: int, count: int) -> IntArray:
        """Rows for frames of a run from `first` on, behind those loaded last; int64[count]."""
        assert self.has_room(count), "the plan holds more frames than it said"
        if (run, first) == self._next:
            self._held[-1] = self._held[-1]._replace(stop=self._loaded + count)
        else:
            origin = self._loaded - first // self._step
            self._held.append(_Held(run, first, origin, self._loaded + count))
        self._next = (run, first + count * self._step)
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


@dataclass(unsafe_hash=True, slots=True)  # to make a frozen one takes three times as long
class Load:
    """One row of a plan's `Loads`, those of a group of features. It is not changed."""

    group: int
    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    count: int


class PendingLoad(NamedTuple):
    """A load that waits for room, and the number of the first clip of its round that needs it."""

    first_use: int
    load: Load


class AssignedLoad(NamedTuple):
    """A load that has room: its frames, of so many bytes, go to rows of an arena, int64[count]."""

    first_use: int
    load: Load
    target: Any
    rows: IntArray
    nbytes: int


def loads_of_round(
    current: Round, groups: Sequence[GroupPlan], num_frames: IntArray
) -> list[PendingLoad]:
    """The loads of a round, those of a cursor in the order in which it needs them; none of one that
    has clips alone.

    Episodes have `num_frames`, int64[episodes].
    """
    if not current.groups:
        return []
    waiting: list[PendingLoad] = []
    for group, todo in zip(groups, current.groups, strict=True):
        uses = first_uses(todo.loads, current.clips, group.window, num_frames)
        in_order = _ordered_uses(uses, todo.loads, group)
        waiting += map(PendingLoad, in_order, each_load(group.group, todo.loads))
    return waiting


def each_load(group: int, loads: Loads) -> list[Load]:
    """The rows of `loads`, which are those of this group of features."""
    columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
    return [Load(group, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def first_uses(loads: Loads, clips: Clips, window: Window, num_frames: IntArray) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    The loads are those of a group of which clips use frames in this window, of episodes that have
    `num_frames` by the index's rows; int64[rows]. A load that no clip of the round needs gets
    `len(clips)`.
    """
    place = frame_keys(clips.run, clips.start)
    order = np.argsort(place, kind="stable")
    place = place[order]
    first = loads.first - window.offset
    last = first + (loads.count - 1) * window.frame_step
    # An episode's first and last frame are also those of windows that begin before or end behind.
    begins = loads.first == 0
    ends = last + window.offset == num_frames[loads.episode] - 1
    least = np.where(begins, 0, first - window.span + 1)
    most = np.where(ends, MAX_FRAMES, last)
    low = np.searchsorted(place, sought_keys(loads.run, least))
    high = np.searchsorted(place, sought_keys(loads.run, most), side="right")
    # The least number in each of the ranges [low, high): every second of these.
    bounds = np.stack((low, high), axis=1).ravel()
    found = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, found, len(clips))


def _ordered_uses(uses: IntArray, loads: Loads, group: GroupPlan) -> list[int]:
    """Of a group whose loads go on where the cursor's load before ended, the first uses such that
    none comes before that of a load before it; `uses` themselves of others."""
    found: list[int] = uses.tolist()
    if group.in_pieces:
        least: dict[int, int] = {}
        for i, cursor in reversed(list(enumerate(loads.cursor.tolist()))):
            found[i] = least[cursor] = min(found[i], least.get(cursor, found[i]))
    return found
