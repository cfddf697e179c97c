"""Assigns rows to frames: rows for loads, rows of clips, and freed rows.

A `FrameStore` has a policy for each group of features. `RingFrames` divides the group's arena into
one ring of rows per cursor. Frames enter and leave a ring in order of their loads, so a row is
found by counting::

    ring of 8 rows        . . f f f f . .
    frames freed              ^ 2       ^ 6     frames loaded

`ResidentFrames` has a row for each frame that clips of the shard may use in any epoch, interval by
interval. A row is looked up, nothing is freed, and each frame is loaded once::

    intervals     |    a    |   b   |      c      |
    rows          x x x . . x x . . . . x x x x x       x: loaded
    loads               - -     - -                     of a round: missing frames

`FileFrames` are copied from mapped files: they have no rows in an arena, and loads check them.

Calls by number use the same policies, and rows of their own in place of rings; see
`random_access`. The loads of a plan are in its rounds; those of a call are the frames of its clips
that `lacking` finds.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, groupby, pairwise, repeat
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FeatureRows
from seqrecord.loader.engine.batches import ClipRows
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.sampling.plan import Clips, Frees, GroupPlan, Loads, Plan, Round
from seqrecord.loader.sampling.runs import Intervals, Window
from seqrecord.loader.sampling.used_frames import LoadFrames
from seqrecord.store.format.index import GroupIndex
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import (
    distinct,
    frame_keys,
    ragged_arange,
    search_keys,
    split_keys,
)

_NO_KEYS = np.empty(0, np.int64)

BY_USE = attrgetter("first_use")
"""Sorts loads."""


class GroupFrames(ABC):
    """Policy of a `FrameStore` for features of one group."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of resident frames and of loads in progress."""

    @abstractmethod
    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:
        """Yield the rows of clips, for each set of features with equal windows."""


class FramesOfPlan(GroupFrames):
    """Policy for the loads of a plan, which come in rounds."""

    @abstractmethod
    def place(self, waiting: Sequence[Load]) -> tuple[list[AssignedLoad], list[Load]]:
        """Assign rows to loads. Returns these, and the loads without room."""

    def finish(self, frees: Frees) -> None:
        """Free frames that no later clip needs. By default, nothing is freed."""

    def missing(self, loads: Loads | None) -> Missing:  # noqa: ARG002
        """Which frames of the plan must be loaded, or of some `loads` of it."""
        return Missing.ROUNDS


class FramesOfCalls(GroupFrames):
    """Policy for the frames of calls."""

    @abstractmethod
    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """Keys of frames in a call's clips that loads must bring first, ascending."""

    @abstractmethod
    def assign(self, call: CallLoad) -> RowLoad:
        """Assign rows to a call's frames, except those that need no load."""


_Policy = TypeVar("_Policy", bound=GroupFrames)

FrameCheck: TypeAlias = Callable[[MappedArena, IntArray, IntArray], None]
"""Checks mapped frames, by rows of the chunk table and stored numbers; see `ChunkLoader.check`."""


class Missing(Enum):
    """Frames that must be loaded before clips can be copied."""

    NONE = "none"
    SOME = "some, in one round as well as in several"
    ROUNDS = "of each round, in its turn"


class FrameLookup:
    """Frames of clips, and their rows, looked up once for features that share a window."""

    def __init__(self, clips: ClipKeys, clip_frames: ClipFrames) -> None:
        self._clips, self._clip_frames = clips, clip_frames
        self._frames: dict[int, IntArray] = {}  # by the `id` of a window
        self._rows: dict[tuple[int, int], IntArray] = {}  # by those of a table of rows, too

    def of(self, feature: str) -> IntArray:
        """The frames of a feature in the clips, int64[n, T]."""
        window = self._clip_frames.windows[feature]
        if (frames := self._frames.get(id(window))) is None:
            frames = window.find(self._clips, self._clip_frames).frames
            self._frames[id(window)] = frames
        return frames

    def rows(self, table: FrameRows, feature: str) -> IntArray:
        """The rows of these frames, int64[n, T]."""
        key = id(table), id(self._clip_frames.windows[feature])
        if (rows := self._rows.get(key)) is None:
            rows = table.find(self._clips.episode[:, None], self.of(feature))
            # A row -1, as tables with gaps have, would be another frame, in silence.
            if table.row_at is not None and rows.size:
                assert rows.min() >= 0, "a clip has a frame without a row"
            self._rows[key] = rows
        return rows


class _ArenaFrames:
    """An arena, as part of policies."""

    def __init__(self, clip_frames: ClipFrames, arena: Any) -> None:
        self._arena, self._clip_frames = arena, clip_frames
        self._feature_sets = clip_frames.by_window(arena.specs)
        self._frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())

    def _assigned(self, load: Load, frames: IntArray, rows: IntArray) -> AssignedLoad:
        nbytes = len(rows) * self._frame_nbytes
        return AssignedLoad(load.first_use, load, self._arena, frames, rows, nbytes)


class FrameStore(Generic[_Policy]):
    """Bookkeeping of frames. Other threads load and copy.

    Args:
        policies: by group number, in the plan's order; features of a group may have several, and
            groups whose rows are assigned together may share one.
        clip_frames: windows of the features.
    """

    def __init__(self, policies: Mapping[int, Sequence[_Policy]], clip_frames: ClipFrames) -> None:
        self._policies, self._clip_frames = policies, clip_frames
        self._all = [*dict.fromkeys(chain.from_iterable(policies.values()))]

    @property
    def nbytes(self) -> int:
        """Bytes of resident frames and of loads in progress."""
        return sum(policy.nbytes for policy in self._all)

    def find(self, clips: Clips, frames: FrameLookup | None = None) -> list[ClipRows[Any]]:
        """Find the rows of clips, for each set of features with equal windows."""
        frames = FrameLookup(clips.keys, self._clip_frames) if frames is None else frames
        sources: list[ClipRows[Any]] = []
        for policy in self._all:
            sources += policy.find(clips, frames)
        return sources

    def check_again(self, clips: Clips, check: FrameCheck) -> None:
        """Check frames of clips whose mapped file somebody may have written to since their load.

        After new versions of the files were looked for, before the frames are copied. Raises as
        loads do.
        """
        for policy in self._all:
            if isinstance(policy, FileFrames) and policy.has_new_versions:
                policy.check_again(clips, FrameLookup(clips.keys, self._clip_frames), check)


class PlanStore(FrameStore[FramesOfPlan]):
    """The frames of a plan."""

    def rounds(self, plan: Plan, start: int) -> Iterator[Round]:
        """Yield rounds of a plan from `start` on.

        Merges consecutive rounds, for fewer steps, if no policy frees a frame in between.
        """
        if Missing.ROUNDS in {policy.missing(None) for policy in self._all}:
            yield from plan.rounds(start)
            return
        for begin, end in plan.spans(start):
            if all(policy.missing(None) is Missing.NONE for policy in self._all):
                yield plan.merged(begin, end, loads=False)
                continue
            merged = plan.merged(begin, end)
            missing = {
                policy.missing(todo.loads)
                for of_group, todo in zip(self._policies.values(), merged.groups, strict=True)
                for policy in of_group
            }
            if Missing.ROUNDS in missing:
                yield from plan.rounds(begin, end)
            else:
                yield merged if Missing.SOME in missing else replace(merged, groups=())

    def place(self, waiting: list[Load]) -> list[AssignedLoad]:
        """Assign rows to loads, group by group. Loads without room remain in `waiting`."""
        assigned: list[AssignedLoad] = []
        late: list[Load] = []
        for number, loads_of_group in groupby(waiting, attrgetter("group")):
            loads = [*loads_of_group]
            for policy in self._policies[number]:
                parts, without_room = policy.place(loads)
                assigned += parts
                if without_room:  # they wait for all features of the group
                    late += without_room
                    waiting_ids = set(map(id, without_room))
                    loads = [load for load in loads if id(load) not in waiting_ids]
        waiting[:] = late
        return assigned

    def finish(self, done: Round) -> None:
        """End a round: free frames that no later clip needs."""
        for policies, todo in zip(self._policies.values(), done.groups, strict=False):
            for policy in policies:
                policy.finish(todo.frees)


class CallStore(FrameStore[FramesOfCalls]):
    """The frames of a call."""

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """Keys of frames in a call's clips that loads must bring first, ascending."""
        keys = [policy.lacking(clips, frames) for policy in self._all]
        return keys[0] if len(keys) == 1 else distinct(np.concatenate(keys))

    def assign(self, call: CallLoad) -> list[RowLoad]:
        """Assign rows to a call's frames, for each policy."""
        return [policy.assign(call) for policy in self._policies[call.group]]


class RingFrames(_ArenaFrames, FramesOfPlan):
    """Policy with a ring of rows per cursor. Frames are freed after their last clip.

    Args:
        used: the frames that clips of the plan use, if only these have rows; `None`: all.
    """

    def __init__(
        self,
        plan: GroupPlan,
        clip_frames: ClipFrames,
        arena: Any,
        num_cursors: int,
        used: Intervals | None = None,
    ) -> None:
        super().__init__(clip_frames, arena)
        self._window = plan.window
        bounds, step = plan.cursor_bounds(arena.num_rows, num_cursors), plan.window.frame_step
        self._rings = [Ring(begin, end - begin, step) for begin, end in pairwise(bounds)]
        self._numbers = None if used is None else FrameNumbers(used, clip_frames.num_frames)
        self._episodes: dict[int, int] = {}  # by run

    @property
    def nbytes(self) -> int:
        return sum(ring.resident for ring in self._rings) * self._frame_nbytes

    def place(self, waiting: Sequence[Load]) -> tuple[list[AssignedLoad], list[Load]]:
        late: list[Load] = []
        assigned: list[AssignedLoad] = []
        full: set[int] = set()
        for load in waiting:
            ring, first, count = self._rings[load.cursor], load.first, load.count
            if self._numbers is not None:
                self._episodes[load.run] = load.episode
                first, end = self._numbers.of(
                    load.episode, np.array([first, first + count])
                ).tolist()
                count = end - first
            if load.cursor in full or not ring.has_room(count):
                full.add(load.cursor)  # later loads of the cursor wait too
                late.append(load)
                continue
            rows, frames = ring.load(load.run, first, count), load.frames
            if len(frames) < len(rows):
                numbers = frames
                if self._numbers is not None:
                    numbers = self._numbers.of(load.episode, frames)
                rows = rows[(numbers - first) // load.step]
            if len(frames):
                assigned.append(self._assigned(load, frames, rows))
        return assigned, late

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:
        last = self._clip_frames.num_frames[clips.episode] - 1
        begin, step = self._window.begin(clips.start, last), self._window.frame_step
        numbers, episode = self._numbers, clips.episode
        if numbers is not None:
            begin = numbers.of(episode, begin)
        origin, first, number = (c[:, None] for c in find_rows(self._rings, clips.run, begin))
        for names in self._feature_sets:
            places = frames.of(names[0])
            if numbers is not None:
                places = numbers.of(episode[:, None], places)
            rows = np.add(first, (origin + places // step) % number, dtype=np.int64)
            yield ClipRows(self._arena, rows, names)

    def finish(self, frees: Frees) -> None:
        freed_counts = frees.count
        if self._numbers is not None and len(frees):
            episode = np.array([self._episodes[run] for run in frees.run.tolist()])
            ends = self._numbers.of(episode, np.stack((frees.first, frees.first + frees.count)))
            freed_counts = ends[1] - ends[0]
        counts = np.bincount(frees.cursor, freed_counts, len(self._rings)).astype(np.int64)
        for ring, count in zip(self._rings, counts.tolist(), strict=True):
            if count:
                ring.free(count)


class ResidentFrames(_ArenaFrames, FramesOfCalls):
    """Policy with a row for every frame, which stays once a load has ended (see `ChunkLoader`).

    Args:
        rows: the rows of frames.
    """

    def __init__(self, clip_frames: ClipFrames, arena: Any, rows: FrameRows) -> None:
        super().__init__(clip_frames, arena)
        self._frame_rows, self._are_all_read = rows, False

    @property
    def nbytes(self) -> int:
        return int(np.count_nonzero(self._arena.is_read)) * self._frame_nbytes

    @property
    def nbytes_of_rows(self) -> int:
        """Bytes of all rows."""
        nbytes: int = self._arena.nbytes
        return nbytes

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """See `FramesOfCalls`."""
        keys = _NO_KEYS
        for names in () if self._are_all_read else self._feature_sets:
            are_read = self._arena.is_read[frames.rows(self._frame_rows, names[0])]
            if not are_read.all():
                wanted = frame_keys(clips.episode[:, None], frames.of(names[0]))
                keys = np.append(keys, wanted[~are_read])
        return distinct(keys) if len(keys) else keys

    def is_current(self, num_changes: int) -> bool:
        """Whether nobody has written to mapped files with rows, see `forget_placed`."""
        return bool(self._arena.num_changes == num_changes)

    def forget_placed(self, num_changes: int) -> None:
        """See `Arena`."""
        self._arena.forget_placed(num_changes)
        self._are_all_read = False

    def end_loads(self) -> None:
        """Note whether all frames are there, after the loads of a call."""
        self._are_all_read = bool(self._arena.is_read.all())

    def assign(self, call: CallLoad) -> RowLoad:
        rows = self._frame_rows.find(call.episode, call.place)
        # Blocks may have frames that no clip uses, and some that other calls have loaded.
        is_missing = (rows >= 0) & ~self._arena.is_read[rows]
        return call.to_rows(rows, self._arena).take(is_missing)

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:  # noqa: ARG002
        for names in self._feature_sets:
            yield ClipRows(self._arena, frames.rows(self._frame_rows, names[0]), names)


class PlannedFrames(ResidentFrames, FramesOfPlan):
    """`ResidentFrames` of a plan: a load contains all frames of a chunk that the plan's clips use,
    for any cursor. Those of ended loads stay for later epochs, even if this epoch is left early.

    Args:
        used: rows between the first and last frame of any clip of the plan; bool [rows].
        chunks: chunk table, `None` for a group whose single frames are read equally fast.
    """

    def __init__(
        self,
        clip_frames: ClipFrames,
        arena: Any,
        rows: FrameRows,
        used: npt.NDArray[np.bool_],
        chunks: GroupIndex | None,
    ) -> None:
        super().__init__(clip_frames, arena, rows)
        self._used, self._chunks = used, chunks
        self._asked = arena.is_read.copy()  # rows that are loaded or being loaded
        self._count = int(np.count_nonzero(self._asked))

    @property
    def nbytes(self) -> int:
        return self._count * self._frame_nbytes

    def missing(self, loads: Loads | None) -> Missing:  # noqa: ARG002
        is_full = self._asked[: len(self._used)][self._used].all()
        return Missing.NONE if is_full else Missing.SOME

    def place(self, waiting: Sequence[Load]) -> tuple[list[AssignedLoad], list[Load]]:
        assigned: list[AssignedLoad] = []
        for load in sorted(waiting, key=BY_USE):
            frames, rows = self._missing(load)
            if len(frames):
                assigned.append(self._assigned(load, frames, rows))
            self._asked[rows] = True
            self._count += len(rows)
        return assigned, []

    def _missing(self, load: Load) -> tuple[IntArray, IntArray]:
        """Missing frames of a load, or of its chunk, and their rows."""
        first, stop, step = load.first, load.first + load.count * load.step, load.step
        if (chunks := self._chunks) is not None:
            begin = int(chunks.first_frame[load.chunk])
            first = begin + (first - begin) % step
            stop = max(stop, begin + int(chunks.num_frames[load.chunk]))
        # Chunks of trimmed episodes have frames outside of them.
        stop = min(stop, int(self._clip_frames.num_frames[load.episode]))
        frames = np.arange(first, stop, step)
        frames = frames[frames >= 0]
        rows = self._frame_rows.find(load.episode, frames)
        frames, rows = frames[rows >= 0], rows[rows >= 0]
        is_wanted = self._used[rows]
        if self._frame_rows.fills_gaps and is_wanted.any():
            first, *_, last = np.flatnonzero(is_wanted)[[0, -1]].tolist()
            is_wanted[first : last + 1] = True
        is_wanted &= ~self._asked[rows]
        return frames[is_wanted], rows[is_wanted]


class FileFrames(_ArenaFrames, FramesOfPlan, FramesOfCalls):
    """Policy with frames that are copied from mapped files. Loads check them.

    `frame_step` is the distance of frames in a plan's loads.
    """

    def __init__(self, clip_frames: ClipFrames, arena: MappedArena, frame_step: int = 1) -> None:
        super().__init__(clip_frames, arena)
        self._touches, self._frame_step = arena.touches, frame_step
        self._num_changes = arena.num_changes

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def has_new_versions(self) -> bool:
        """Whether somebody may have written to a mapped file since this was created."""
        return bool(self._arena.num_changes != self._num_changes)

    def check_again(self, clips: Clips, frames: FrameLookup, check: FrameCheck) -> None:
        """See `FrameStore`."""
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, frames.of(names[0]))
            is_void = ~self._arena.are_checked(chunk, stored_frames)
            if is_void.any():
                keys = distinct(frame_keys(chunk[is_void], stored_frames[is_void]))
                check(self._arena, *split_keys(keys))

    def missing(self, loads: Loads | None) -> Missing:
        if self._touches:
            return Missing.ROUNDS
        if loads is None:
            return Missing.SOME
        owner, index = ragged_arange(loads.count)
        frame = loads.first[owner] + index * self._frame_step
        _, frame = self._clip_frames.stored_frames(loads.episode[owner], frame)
        is_checked = self._arena.are_checked(loads.chunk[owner], frame).all()
        return Missing.NONE if is_checked else Missing.ROUNDS

    def place(self, waiting: Sequence[Load]) -> tuple[list[AssignedLoad], list[Load]]:
        no_rows = np.empty(0, np.int64)  # loads of whole frames: a part would save no time
        assigned = []
        for load in waiting:
            frames = load.frames
            if self._touches or not self._are_checked(load, frames):
                place = load.first_use, load, self._arena, frames, no_rows
                assigned.append(AssignedLoad(*place, len(frames) * self._frame_nbytes))
        return assigned, []

    def assign(self, call: CallLoad) -> RowLoad:
        load = call.to_rows(call.frame, self._arena)
        if self._touches:
            return load
        return load.take(~self._arena.are_checked(call.chunk, call.frame))

    def _are_checked(self, load: Load, frames: IntArray) -> bool:
        """Whether all frames of a load were checked."""
        episode, chunk = np.full_like(frames, load.episode), np.full_like(frames, load.chunk)
        _, stored_frames = self._clip_frames.stored_frames(episode, frames)
        return bool(self._arena.are_checked(chunk, stored_frames).all())

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, frames.of(names[0]))
            for name in names:
                yield ClipRows(self._arena, self._arena.rows(name, chunk, stored_frames), [name])

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """See `FramesOfCalls`."""
        keys = _NO_KEYS
        for names in self._feature_sets:
            frames_of_set = frames.of(names[0])
            is_lacking = np.ones(frames_of_set.shape, np.bool_)
            if not self._touches:
                is_lacking = ~self._arena.are_checked(*self._chunks(clips, frames_of_set))
            if is_lacking.any():
                wanted = frame_keys(clips.episode[:, None], frames_of_set)
                keys = np.append(keys, wanted[is_lacking])
        return distinct(keys) if len(keys) else keys

    def _chunks(self, clips: Clips, frames: IntArray) -> tuple[IntArray, IntArray]:
        """Rows in the chunk table, and stored numbers, of frames of clips; int64 [n, T] each."""
        episode, frames = self._clip_frames.stored_frames(clips.episode[:, None], frames)
        return self._arena.chunks(episode.repeat(frames.shape[1], axis=1), frames), frames


def first_rows(num_frames: IntArray, selected: IntArray) -> IntArray:
    """Row of the first frame of each selected episode, int64[episodes]; 0 for other episodes.

    `num_frames`, int64[episodes], are the lengths of all episodes; `selected` ascends.
    """
    lengths = num_frames[selected]
    first = np.zeros(len(num_frames), np.int64)
    first[selected] = np.cumsum(lengths) - lengths
    return first


class FrameRows:
    """Rows of the frames in intervals of episodes, in their order.

    Args:
        intervals: disjoint and ascending.
        num_frames: length of each episode, int64[episodes].
        fills_gaps: whether loads also contain the frames with rows between the frames of a chunk
            that an epoch uses. Later epochs may use them, and they cost little beside the others.
    """

    def __init__(
        self, intervals: Intervals, num_frames: IntArray, *, fills_gaps: bool = False
    ) -> None:
        self.fills_gaps = fills_gaps
        selected = distinct(intervals.episode)
        self._first_place = first_rows(num_frames, selected)  # among all frames of these episodes
        self.row_at: npt.NDArray[np.int32] | None = None  # each place's, -1 for none; `None`: all
        self.num_rows = intervals.num_frames
        if self.num_rows < (num_places := int(num_frames[selected].sum())):
            self.row_at = np.full(num_places, -1, np.int32)
            self.row_at[self._places(*intervals.frames)] = np.arange(self.num_rows, dtype=np.int32)

    @classmethod
    def of_episodes(cls, num_frames: IntArray, selected: IntArray) -> FrameRows:
        """Rows of all frames in `selected` episodes; `num_frames` has all episodes."""
        intervals = Intervals(selected, np.zeros_like(selected), num_frames[selected])
        return cls(intervals, num_frames)

    @cached_property
    def digest(self) -> str:
        """Digest of the frames with rows."""
        digest = hashlib.sha256(np.ascontiguousarray(self._first_place, "<i8").data)
        if self.row_at is not None:
            digest.update(np.ascontiguousarray(self.row_at, "<i4").data)
        return digest.hexdigest()

    def find(self, episode: IntArray | int, frame: IntArray) -> IntArray:
        """Rows of frames, -1 for a frame without a row; int64 arrays that broadcast."""
        places = self._places(episode, frame)
        return places if self.row_at is None else self.row_at[places].astype(np.int64)

    def _places(self, episode: IntArray | int, frame: IntArray) -> IntArray:
        places: IntArray = self._first_place[episode] + frame
        return places


class FrameNumbers:
    """Numbers of frames among the used frames in all episodes: consecutive in each.

    `used` may overlap; `num_frames`, int64[episodes], are the lengths of all episodes.
    """

    def __init__(self, used: Intervals, num_frames: IntArray) -> None:
        selected = distinct(used.episode)
        self._first_place = first_rows(num_frames, selected)
        numbers = np.zeros(int(num_frames[selected].sum()) + 1, np.int32)
        episode, frame = used.frames
        numbers[self._first_place[episode] + frame + 1] = 1
        self._numbers = np.cumsum(numbers)

    def of(self, episode: IntArray | int, frame: IntArray) -> IntArray:
        """The number of used frames before each frame, which is the number of a used one."""
        numbers: IntArray = self._numbers[self._first_place[episode] + frame]
        return numbers


def used_rows(used: Intervals, rows: FrameRows) -> npt.NDArray[np.bool_]:
    """Rows of the frames in some intervals; bool[rows]."""
    is_used = np.zeros(rows.num_rows, np.bool_)
    is_used[rows.find(*used.frames)] = True
    return is_used


class Ring:
    """Rows of one cursor in an arena, with every `step`th frame of its runs."""

    def __init__(self, first_row: int, num_rows: int, step: int = 1) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self._step = step
        self._loaded = 0
        self._freed = 0
        self._next = (-1, -1)  # run and frame that would continue the last load
        self._spans: deque[_RingSpan] = deque()

    def has_room(self, count: int) -> bool:
        return self._loaded + count - self._freed <= self.num_rows

    @property
    def resident(self) -> int:
        """Number of resident frames."""
        return self._loaded - self._freed

    @property
    def spans(self) -> Iterable[_RingSpan]:
        """Spans of consecutive frames in a run, in load order."""
        return self._spans

    def load(self, run: int, first: int, count: int) -> IntArray:
        """Assign rows to the next frames of a run, from `first` on; int64[count]."""
        assert self.has_room(count), "the plan exceeds its frame limit"
        if not count:  # of a load whose frames no clip uses
            return np.zeros(0, np.int64)
        if (run, first) == self._next:
            self._spans[-1] = self._spans[-1]._replace(stop=self._loaded + count)
        else:
            origin = self._loaded - first // self._step
            self._spans.append(_RingSpan(run, first, origin, self._loaded + count))
        self._next = (run, first + count * self._step)
        rows = np.arange(self._loaded, self._loaded + count) % self.num_rows + self.first_row
        self._loaded += count
        return rows

    def free(self, count: int) -> None:
        """Free the `count` oldest frames."""
        self._freed += count
        while self._spans and self._spans[0].stop <= self._freed:
            self._spans.popleft()
        if not self._spans:
            self._next = (-1, -1)


class _RingSpan(NamedTuple):
    """Consecutive frames of a run in a ring, from `first` on.

    Frame `f` is at position `(origin + f // step) % num_rows`; the last one is before `stop`.
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
    """Find clips in rings: origin, first row and number of rows of the ring; int64[n] each.

    Clip `i` starts at frame `start[i]` of run `run[i]`; all its frames are resident. Runs ascend
    over rings and within each. Frame `f` is in row `first + (origin + f // step) % number`.
    """
    spans = [(s.run, s.first, s.origin, r.first_row, r.num_rows) for r in rings for s in r.spans]
    table = np.array(spans, np.int64).reshape(-1, 5)
    keys = frame_keys(table[:, 0], table[:, 1])
    at = np.searchsorted(keys, frame_keys(run, start), side="right") - 1
    return table[at, 2], table[at, 3], table[at, 4]


@dataclass(unsafe_hash=True, slots=True)  # frozen ones take three times as long to create
class Load:
    """One row of a plan's `Loads`, with its group. Immutable by convention.

    Its frames are `step` apart; clips need those in `used`, or all. `first_use` is the index of the
    first clip of its round that needs it.
    """

    group: int
    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    count: int
    first_use: int = 0
    step: int = 1
    used: IntArray | None = field(default=None, compare=False)

    @property
    def frames(self) -> IntArray:
        """The frames that clips need, int64[n]."""
        if self.used is not None:
            return self.used
        return np.arange(self.first, self.first + self.count * self.step, self.step)


class RowLoad(NamedTuple):
    """Frames of a group to load, and their rows: chunk row, frame number and row; int64[n] each.

    Frames of a chunk are ascending.
    """

    group: int
    chunk: IntArray
    frame: IntArray
    rows: IntArray
    out: FeatureRows

    def take(self, index: Any) -> RowLoad:
        """The frames of an index, a mask or a slice."""
        chunk, frame, rows = self.chunk[index], self.frame[index], self.rows[index]
        return self._replace(chunk=chunk, frame=frame, rows=rows)


class CallLoad(NamedTuple):
    """Frames that a call loads in one group, by ascending keys; int64[n] each.

    `frame` are stored numbers, `chunk` rows of the chunk table. With lists of frames, `episode` and
    `place` are excerpts and places.
    """

    group: int
    episode: IntArray
    place: IntArray
    chunk: IntArray
    frame: IntArray

    def to_rows(self, rows: IntArray, out: FeatureRows) -> RowLoad:
        """The load to these arena rows, int64[n]."""
        return RowLoad(self.group, self.chunk, self.frame, rows, out)


class AssignedLoad(NamedTuple):
    """A load: the frames of its episode, in rows of an arena, int64[n] each; and its size in
    bytes.
    """

    first_use: int
    load: Load
    target: Any
    frames: IntArray
    rows: IntArray
    nbytes: int


def loads_of_round(current: Round, groups: Sequence[GroupPlan], num_frames: IntArray) -> list[Load]:
    """Loads of a round. Loads of a cursor are in order of use; empty if the round only has clips.

    `num_frames`, int64[episodes], are the lengths of episodes.
    """
    if not current.groups:
        return []
    waiting: list[Load] = []
    for group, todo in zip(groups, current.groups, strict=True):
        uses = first_uses(todo.loads, current.clips, group.window, num_frames)
        in_order = _ordered_uses(uses, todo.loads, group)
        waiting += each_load(group, todo.loads, in_order, todo.used)
    return waiting


def each_load(
    group: GroupPlan, loads: Loads, first_uses: Sequence[int], used: LoadFrames | None
) -> list[Load]:
    """Convert `loads` of a group to objects."""
    columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
    steps = repeat(group.window.frame_step, len(loads))
    frames = [None] * len(loads) if used is None else used.of_loads()
    lists = (column.tolist() for column in columns)
    rows: Iterator[Any] = zip(*lists, first_uses, steps, frames, strict=True)
    return [Load(group.group, *row) for row in rows]


def first_uses(loads: Loads, clips: Clips, window: Window, num_frames: IntArray) -> IntArray:
    """Index in `clips` of the first clip that needs each load, int64[loads].

    `window` is the window of the loads' group; `num_frames`, int64, has the lengths of episodes by
    index row. `len(clips)` for loads that no clip of the round needs.
    """
    place = frame_keys(clips.run, clips.start)
    order = np.argsort(place, kind="stable")
    place = place[order]
    last = loads.first + (loads.count - 1) * window.frame_step
    low_start, high_start = window.users(loads.first, last, num_frames[loads.episode])
    low = np.searchsorted(place, search_keys(loads.run, low_start))
    high = np.searchsorted(place, search_keys(loads.run, high_start), side="right")
    # The smallest number in each range [low, high): every second result.
    bounds = np.stack((low, high), axis=1).ravel()
    uses = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, uses, len(clips))


def _ordered_uses(uses: IntArray, loads: Loads, group: GroupPlan) -> list[int]:
    """First uses in load order, for groups read in pieces: never later than for a later load.

    Unchanged for other groups.
    """
    ordered: list[int] = uses.tolist()
    if group.in_pieces:
        earliest: dict[int, int] = {}
        for i, cursor in reversed(list(enumerate(loads.cursor.tolist()))):
            ordered[i] = earliest[cursor] = min(ordered[i], earliest.get(cursor, ordered[i]))
    return ordered
