"""The frames of clips: which loads they need, and in which rows they are.

The clips of a plan come in *steps*; those of a call by number are one step. A step looks its frames
up, loads those that are in no row, copies its clips, and frees the frames whose last clip it had::

    step 0    look up -> load -> copy -> free
    step 1       look up -> load ...... -> copy -> free

A row is a place in the arena's memory, one of a resident frame, which is never freed, or an address
in a mapped file. So a group has one or two `GroupFrames`::

    RunFrames        rows of an arena, which frames of runs take and leave, see `frame_table`
    ResidentFrames   a row for each frame that clips of the shard may use in any epoch
    MappedFrames     rows in mapped files, which loads check; large ones are touched anew
    StepFrames       rows for the frames of one step, as for a call: of an arena, or of the batch

All loads of a chunk in a run are one: it has all frames of the chunk that later clips of the run
use. Where too few rows are free, frames that the step does not use are dropped, and loaded again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import ClipRows, Copy
from seqrecord.loader.engine.frame_rows import FrameLookup, FrameRows
from seqrecord.loader.engine.frame_table import ASKED, NO_ROW, FrameTable, Rows
from seqrecord.loader.engine.loads import BY_USE, AssignedLoad, Load
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.sampling.decoding_units import frames_of_read
from seqrecord.loader.sampling.epoch_plans import Clips, EpochPlan
from seqrecord.store.tables.grids import (
    ChunkGrid,
    distinct,
    frame_keys,
    ragged_arange,
    run_bounds,
    split_keys,
)

_FRAMES_AT_ONCE = 1 << 16  # of clips, in a step or noted together
_NOTED_CLIPS = 256  # of a run, at least

FrameCheck: TypeAlias = Callable[[MappedArena, IntArray, IntArray], None]
"""Checks mapped frames, by rows of the chunk table and stored numbers; see `ChunkLoader.check`."""


@dataclass(eq=False, slots=True)
class Step:
    """Clips that are loaded together.

    Attributes:
        clips: in emitted order.
        lookup: their frames.
        ends_round: whether frames are freed after it.
        exact: whether its loads have only the frames of its clips.
        places: of the frames, int64[n, T] for each set of features of each group.
        waiting: loads that have no rows yet, of each group; those needed first come first.
    """

    clips: Clips
    lookup: FrameLookup
    ends_round: bool
    exact: bool
    places: list[list[IntArray]]
    waiting: list[list[Load]] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        """Whether some loads have no rows yet."""
        return any(self.waiting)

    @property
    def loads(self) -> Iterator[Load]:
        """The loads that have no rows yet."""
        return chain.from_iterable(self.waiting)


class GroupFrames(ABC):
    """The frames of features in one group.

    Args:
        grid: the group's chunks.
        clip_frames: windows of the features.
        arena: rows of the features.
    """

    def __init__(self, grid: ChunkGrid, clip_frames: ClipFrames, arena: Any) -> None:
        self.group, self.arena = grid.group, arena
        self._grid, self._clip_frames = grid, clip_frames
        self._feature_sets = clip_frames.by_window(arena.specs)
        self._frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of frames in memory and of loads in progress."""

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables of frames."""
        return 0

    @abstractmethod
    def places(self, clips: Clips, lookup: FrameLookup) -> list[IntArray]:
        """Places, or rows, of the frames of clips, int64[n, T] for each set of features."""

    @abstractmethod
    def missing(
        self, clips: Clips, lookup: FrameLookup, places: list[IntArray], *, exact: bool
    ) -> list[Load]:
        """The loads of frames that are neither there nor in an earlier load; with `exact`, of the
        frames of these clips alone.
        """

    @abstractmethod
    def place(self, waiting: list[Load], *, ahead: bool) -> list[AssignedLoad]:
        """Assign rows to loads, in their order. Those without room stay in `waiting`."""

    @abstractmethod
    def find(
        self, clips: Clips, lookup: FrameLookup, places: list[IntArray]
    ) -> Iterator[ClipRows[Any]]:
        """Yield the rows of clips, for each set of features."""

    def assigned(self, load: Load, rows: IntArray) -> AssignedLoad:
        """A load to these rows, int64[n]."""
        nbytes = len(load.frames) * self._frame_nbytes
        return AssignedLoad(load.first_use, load, self.arena, load.frames, rows, nbytes)

    def _loads(
        self,
        cursor: IntArray,
        run: IntArray,
        episode: IntArray,
        frame: IntArray,
        places: IntArray,
        use: IntArray,
        grid: ChunkGrid,
    ) -> list[Load]:
        """A load of each chunk of each run; frames of a run are adjacent and ascend."""
        chunk = grid.place(episode, frame)
        bounds = run_bounds(constant=frame_keys(run, chunk))
        opens = np.array(bounds[:-1], np.int64)
        rows = grid.row(episode[opens], chunk[opens])
        of_runs = (column[opens].tolist() for column in (cursor, run, episode))
        of_loads = zip(*of_runs, rows.tolist(), frame[opens].tolist(), strict=True)
        uses = np.minimum.reduceat(use, opens).tolist() if len(opens) else []
        loads = [
            Load(grid.group, *numbers, frame[begin:end], places[begin:end], first_use)  # type: ignore[call-arg]  # of five numbers
            for numbers, first_use, begin, end in zip(
                of_loads, uses, bounds[:-1], bounds[1:], strict=True
            )
        ]
        if grid.stored_grid is not None:  # decoded piece after piece
            earliest: dict[int, int] = {}
            for load in reversed(loads):
                use_of = min(load.first_use, earliest.get(load.cursor, load.first_use))
                load.first_use = earliest[load.cursor] = use_of
        return sorted(loads, key=BY_USE)

    def _chunks_of(
        self, run: IntArray, episode: IntArray, frame: IntArray, use: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The chunks of frames, which are as for `_loads`: the indices of their first frames, their
        first uses, and the frames `[begin, stop)` of each; int64[chunks] each.
        """
        chunk = self._grid.place(episode, frame)
        opens = np.array(run_bounds(constant=frame_keys(run, chunk))[:-1])
        begin, stop = self._grid.bounds(episode[opens], chunk[opens])
        stop = np.minimum(stop, self._clip_frames.num_frames[episode[opens]])
        return opens, np.minimum.reduceat(use, opens), begin, stop


class MappedRows:
    """Rows in mapped files, as part of `GroupFrames`."""

    arena: MappedArena
    _clip_frames: ClipFrames
    _feature_sets: list[tuple[str, ...]]

    def check_again(self, clips: Clips, lookup: FrameLookup, check: FrameCheck) -> None:
        """See `FrameStore`."""
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, lookup.of(names[0]))
            is_void = ~self.arena.are_checked(chunk, stored_frames)
            if is_void.any():
                keys = distinct(frame_keys(chunk[is_void], stored_frames[is_void]))
                check(self.arena, *split_keys(keys))

    def find(
        self,
        clips: Clips,
        lookup: FrameLookup,
        places: list[IntArray],  # noqa: ARG002
    ) -> Iterator[ClipRows[Any]]:
        """See `GroupFrames`."""
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, lookup.of(names[0]))
            for name in names:
                yield ClipRows(self.arena, self.arena.rows(name, chunk, stored_frames), [name])

    def _chunks(self, clips: Clips, frames: IntArray) -> tuple[IntArray, IntArray]:
        """Rows in the chunk table, and stored numbers, of frames of clips; int64 [n, T] each."""
        episode, frames = self._clip_frames.stored_frames(clips.episode[:, None], frames)
        return self.arena.chunks(episode.repeat(frames.shape[1], axis=1), frames), frames


class RunFrames(GroupFrames):
    """Frames of runs, from their first clips to their last ones; see `FrameTable`.

    Args:
        plan: the plan.
        place: of the group in the plan.
        bounds: of the cursors' rows in the arena.
    """

    def __init__(
        self, plan: EpochPlan, place: int, clip_frames: ClipFrames, arena: Any, bounds: list[int]
    ) -> None:
        super().__init__(plan.grids[place], clip_frames, arena)
        self._plan = plan
        self._table = FrameTable(plan.num_runs)
        self._worth = frames_of_read(self._frame_nbytes)
        self._rows = Rows(bounds)
        self._freed = list[tuple[IntArray, IntArray]]()  # places, and numbers of their last clips

    @property
    def nbytes(self) -> int:
        return self._rows.num_used * self._frame_nbytes

    @property
    def table_bytes(self) -> int:
        """See `GroupFrames`."""
        return self._table.nbytes + self._rows.nbytes

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._rows.is_free)

    def begin(self, run: IntArray, num_frames: IntArray) -> None:
        """Begin new runs, of episodes of so many frames; int64[n] each."""
        self._table.begin(run, num_frames)

    def note(self, run: IntArray, time: IntArray, lookup: FrameLookup) -> None:
        """Note the frames that clips of runs use, at times; int64[n] each."""
        ascends = len(self._feature_sets) == 1 and self._plan.is_in_order
        for names in self._feature_sets:
            frames = lookup.of(names[0])
            places = self._table.places(run, frames).ravel()
            numbers = np.repeat(time, frames.shape[1])
            if not ascends:
                np.maximum.at(self._table.last, places, numbers)
            else:  # of places that repeat, the last number stays
                self._table.last[places] = numbers

    def places(self, clips: Clips, lookup: FrameLookup) -> list[IntArray]:
        """See `GroupFrames`."""
        found, number = [], self._plan.times(clips.number)[:, None]
        for names in self._feature_sets:
            places = self._table.places(clips.run, lookup.of(names[0]))
            late = self._table.last[places] < number
            if late.any():  # of frames that draws chose, other than was expected
                numbers = np.broadcast_to(number, places.shape)[late]
                np.maximum.at(self._table.last, places[late], numbers)
            found.append(places)
        return found

    def missing(
        self,
        clips: Clips,  # noqa: ARG002
        lookup: FrameLookup,  # noqa: ARG002
        places: list[IntArray],
        *,
        exact: bool,
    ) -> list[Load]:
        """See `GroupFrames`."""
        row = self._table.row
        place, use, _ = _first_places(places, [row[found] == NO_ROW for found in places], row)
        if not len(place):
            return []
        row[place] = NO_ROW
        run, frame = self._table.find(place)
        by_run = np.argsort(frame_keys(run, frame))
        run, frame, place, use = (column[by_run] for column in (run, frame, place, use))
        if not exact:
            run, frame, place, use = self._whole_chunks(run, frame, use)
        row[place] = ASKED
        plan = self._plan
        cursor, episode = plan.cursor_of_run[run], plan.episode_of_run[run]
        return self._loads(cursor, run, episode, frame, place, use, self._grid)

    def _whole_chunks(
        self, run: IntArray, frame: IntArray, use: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The frames of the same chunks that are not there, and have a use to come; as many as
        `frames_of_read` where frames are read one by one.
        """
        episode = self._plan.episode_of_run[run]
        opens, use, begin, stop = self._chunks_of(run, episode, frame, use)
        if self._grid.by_frame:  # as many as are worth a read of their own
            ends = np.append(opens[1:], len(frame)) - 1
            begin = frame[opens]
            stop = np.minimum(stop, np.maximum(begin + self._worth, frame[ends] + 1))
        owner, offset = ragged_arange(stop - begin)
        frames = begin[owner] + offset
        run = run[opens][owner]
        index, place = self._table.known(run, frames)
        is_missing = self._table.row[place] == NO_ROW
        index, place = index[is_missing], place[is_missing]
        return run[index], frames[index], place, use[owner[index]]

    def place(self, waiting: list[Load], *, ahead: bool) -> list[AssignedLoad]:
        """See `GroupFrames`."""
        assigned, late, full = list[AssignedLoad](), list[Load](), set[int]()
        for load in waiting:
            rows = None
            if load.cursor not in full:  # else it waits for the cursor's earlier loads
                rows = self._rows.take(load.cursor, len(load.frames), ahead=ahead)
            if rows is None:
                full.add(load.cursor)
                late.append(load)
                continue
            self._table.row[load.places] = rows
            self._rows.place[rows] = load.places
            assigned.append(self.assigned(load, rows))
        waiting[:] = late
        return assigned

    def find(
        self,
        clips: Clips,  # noqa: ARG002
        lookup: FrameLookup,  # noqa: ARG002
        places: list[IntArray],
    ) -> Iterator[ClipRows[Any]]:
        """See `GroupFrames`."""
        for names, found in zip(self._feature_sets, places, strict=True):
            rows = self._table.row[found].astype(np.int64)
            assert rows.min(initial=0) >= 0, "a clip has a frame without a row"
            yield ClipRows(self.arena, rows, names)

    def note_copied(self, clips: Clips, places: list[IntArray]) -> None:
        """Note frames of which these were the last clips."""
        number = self._plan.times(clips.number)
        for found in places:
            is_last = self._table.last[found] == number[:, None]
            self._freed.append((found[is_last], number[np.nonzero(is_last)[0]]))

    def end_round(self) -> None:
        """Free the noted frames."""
        if not self._freed:
            return
        place, number = (np.concatenate(columns) for columns in zip(*self._freed, strict=True))
        self._freed.clear()
        # A later step may have been looked up meanwhile, with clips that were not expected.
        place = distinct(place[self._table.last[place] == number])
        if len(place):
            self._free(place)
            self._table.clear(place)

    def _free(self, place: IntArray) -> None:
        """Free the rows at places, int64[n]."""
        rows = self._table.row[place].astype(np.int64)
        self._rows.free(rows[rows >= 0])

    def withdraw(self, waiting: list[Load]) -> None:
        """Forget loads that have no rows yet."""
        for load in waiting:
            self._table.row[load.places] = NO_ROW
        waiting.clear()

    def drop(self, places: list[IntArray], count: int, done: IntArray) -> int:
        """Drop frames, except those at `places`, until `count` rows are free, as far as possible.

        First those that were noted for clips up to the ones that are `done`, int64[runs], which
        had other frames; then those whose last use is farthest. Returns how many are free.
        """
        kept = distinct(np.concatenate([found.ravel() for found in places]))
        kept = self._table.row[kept]
        is_used = ~self._rows.is_free
        is_used[kept[kept >= 0]] = False
        rows = np.flatnonzero(is_used)
        if self._rows.num_free < count and len(rows):
            place = self._rows.place[rows].astype(np.int64)
            last = self._table.last[place]
            is_over = last <= done[self._table.find(place)[0]]
            order = np.lexsort((-last, ~is_over))
            number = max(count - self._rows.num_free, np.count_nonzero(is_over))
            dropped = order[:number]
            self._table.row[place[dropped]] = NO_ROW
            self._rows.free(rows[dropped])
        return self._rows.num_free


class RowFrames(GroupFrames):
    """Frames whose places are their rows."""

    def place(self, waiting: list[Load], *, ahead: bool) -> list[AssignedLoad]:  # noqa: ARG002
        """See `GroupFrames`."""
        assigned = [self.assigned(load, load.places) for load in waiting]
        waiting.clear()
        return assigned

    def find(
        self,
        clips: Clips,  # noqa: ARG002
        lookup: FrameLookup,  # noqa: ARG002
        places: list[IntArray],
    ) -> Iterator[ClipRows[Any]]:
        """See `GroupFrames`."""
        for names, rows in zip(self._feature_sets, places, strict=True):
            yield ClipRows(self.arena, rows, names)


class ResidentFrames(RowFrames):
    """A row for each frame that clips may use; frames of ended loads stay for later epochs, even if
    this epoch is left early. A load has all frames of its chunk, or of blocks in it, that clips of
    the plan use.

    Calls have one step at a time, except those that lack no frame.

    Args:
        frame_rows: the rows.
        used: rows of frames that clips of the plan use; bool[rows]. `None` for calls.
        in_chunks: whether chunks are read whole; else single frames are read equally fast.
        block_frames: neighbours that are read with a frame, in blocks of so many; 0 for none.
    """

    def __init__(
        self,
        grid: ChunkGrid,
        clip_frames: ClipFrames,
        arena: Any,
        frame_rows: FrameRows,
        used: npt.NDArray[np.bool_] | None,
        *,
        in_chunks: bool = False,
        block_frames: int = 0,
    ) -> None:
        super().__init__(grid.whole_chunks, clip_frames, arena)
        self._frame_rows, self._used = frame_rows, used
        self._in_chunks, self._block_frames = in_chunks, block_frames
        # Rows that are loaded or being loaded. A call has no loads ahead, and its loads may fail.
        self._asked = arena.is_read if used is None else arena.is_read.copy()
        self._count = int(np.count_nonzero(self._asked))
        self._marks: npt.NDArray[np.int32] | None = None  # of rows, while some are missing

    @property
    def nbytes(self) -> int:
        return self._count * self._frame_nbytes

    @property
    def table_bytes(self) -> int:
        """See `GroupFrames`."""
        if self._used is None:  # `Arena.is_read`
            return 0
        marks = 0 if self._marks is None else self._marks.nbytes
        return int(marks + self._asked.nbytes + self._used.nbytes)

    def places(self, clips: Clips, lookup: FrameLookup) -> list[IntArray]:  # noqa: ARG002
        """See `GroupFrames`: the rows."""
        return [lookup.rows(self._frame_rows, names[0]) for names in self._feature_sets]

    @property
    def has_all(self) -> bool:
        """Whether all frames that clips of the plan use are there."""
        return bool(self._asked[self._used].all())

    def missing(
        self,
        clips: Clips,
        lookup: FrameLookup,
        places: list[IntArray],
        *,
        exact: bool,
    ) -> list[Load]:
        """See `GroupFrames`."""
        if self._count == len(self._asked):
            self._marks = None
            return []
        is_missing = [~self._asked[rows] for rows in places]
        if not any(map(np.any, is_missing)):
            return []
        marks = np.empty(len(self._asked), np.int32) if self._marks is None else self._marks
        rows, use, index = _first_places(places, is_missing, marks)
        frames = np.concatenate([lookup.of(names[0]).ravel() for names in self._feature_sets])
        episode, frame = clips.episode[use], frames[index]
        order = np.argsort(rows)  # by episode and frame
        episode, frame, use = episode[order], frame[order], use[order]
        if self._in_chunks:
            episode, frame, use = self._whole_chunks(episode, frame, use)
        elif self._block_frames and not exact:
            episode, frame, use = self._whole_blocks(episode, frame, use)
        rows = self._frame_rows.find(episode, frame)
        if self._used is not None:
            self._asked[rows], self._marks = True, marks
            self._count += len(rows)
        zeros = np.zeros_like(frame)
        return self._loads(zeros, episode, episode, frame, rows, use, self._grid)

    def _whole_chunks(
        self, episode: IntArray, frame: IntArray, use: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """The frames of the same chunks that clips of the plan use, and have not been asked for."""
        opens, use, begin, stop = self._chunks_of(episode, episode, frame, use)
        episode = episode[opens]
        owner, offset = ragged_arange(stop - begin)
        frame = begin[owner] + offset
        rows = self._frame_rows.find(episode[owner], frame)
        has_row = np.flatnonzero(rows >= 0)
        owner, frame, rows = owner[has_row], frame[has_row], rows[has_row]
        assert self._used is not None, "of a plan"
        is_wanted = self._used[rows]
        if self._frame_rows.fills_gaps:
            place = np.arange(len(rows))
            low, high = np.full(len(opens), len(rows)), np.full(len(opens), -1)
            np.minimum.at(low, owner[is_wanted], place[is_wanted])
            np.maximum.at(high, owner[is_wanted], place[is_wanted])
            is_wanted = (place >= low[owner]) & (place <= high[owner])
        is_wanted &= ~self._asked[rows]
        owner = owner[is_wanted]
        return episode[owner], frame[is_wanted], use[owner]

    def _whole_blocks(
        self, episode: IntArray, frame: IntArray, use: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """The frames of the same blocks that have rows, are used, and are not there."""
        keys, num_frames = frame_keys(episode, frame), self._clip_frames.num_frames
        of_blocks = self._grid.block_keys(keys, self._block_frames, num_frames)
        rows = self._frame_rows.find(*split_keys(of_blocks))
        is_wanted = (rows >= 0) & ~self._asked[rows]
        if self._used is not None:
            is_wanted &= self._used[rows]
        # A load begins for its first use, and each has a frame that was missing. A call in another
        # thread may have loaded it since.
        uses, place = np.full(len(of_blocks), use.max()), of_blocks.searchsorted(keys)
        uses[place], is_wanted[place] = use, True
        return *split_keys(of_blocks[is_wanted]), uses[is_wanted]

    def end_loads(self) -> None:
        """Count the frames that are there, after the loads of a call."""
        self._count = int(np.count_nonzero(self._asked))

    def forget_placed(self, num_changes: int) -> None:
        """See `Arena`; for calls."""
        self.arena.forget_placed(num_changes)
        self.end_loads()


class StepFrames(RowFrames):
    """A row for each frame of one step, with which they go::

        clips               3 4 5 | 4 5 6 | 8 9 10
        rows                0 1 2 | 1 2 3 | 4 5 6       of an arena
        of the batch        0 1 2 | 1 2 5 | 6 7 8       frames 4 and 5 are copied to rows 3 and 4

    Features of groups with the same frames in clips share the rows. If some are loaded into the
    batch, all rows are numbered as those of the batch: a frame goes to its first place, and
    `repeats` copies it to the others.

    Args:
        grids: chunks of the groups.
        feature_sets: the features by window; a single set if any are loaded into the batch.
        clips, lookup: of the step.
        acquire: returns an arena of at least so many rows, for the features that are not loaded
            into the batch.
        direct: rows of the batch [clips * frames, …], of the others.
    """

    def __init__(
        self,
        grids: Sequence[ChunkGrid],
        clip_frames: ClipFrames,
        feature_sets: Sequence[Sequence[str]],
        clips: Clips,
        lookup: FrameLookup,
        acquire: Callable[[int], Any],
        direct: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        episode, frames = clips.episode[:, None], [lookup.of(names[0]) for names in feature_sets]
        keys = [frame_keys(episode, of_set) for of_set in frames]
        of_clips = keys[0] if len(keys) == 1 else np.concatenate(keys, axis=1)
        # Each frame once, its first place, and for every place which frame it is.
        self._keys = of_clips.reshape(-1)
        self._rows = number = np.arange(of_clips.size)
        if (self._keys[1:] <= self._keys[:-1]).any():  # else sorting costs 20 us of one clip's 400
            self._keys, self._rows, number = np.unique(
                of_clips, return_index=True, return_inverse=True
            )
            if direct:
                number = self._rows[number]
            else:
                self._rows = np.arange(len(self._keys))
        super().__init__(
            grids[0], clip_frames, acquire(of_clips.size if direct else len(self._keys))
        )
        self._grids, self.direct = grids, direct
        self._clip_rows: IntArray = number.reshape(of_clips.shape)
        edges = accumulate([of_set.shape[1] for of_set in frames], initial=0)
        self._places = [self._clip_rows[:, slice(*bounds)] for bounds in pairwise(edges)]
        self._target = {**direct, **{name: self.arena[name] for name in self.arena.specs}}
        for rows in direct.values():
            self._frame_nbytes += rows.nbytes // len(rows)

    @property
    def nbytes(self) -> int:
        return len(self._keys) * self._frame_nbytes

    def places(self, clips: Clips, lookup: FrameLookup) -> list[IntArray]:  # noqa: ARG002
        """See `GroupFrames`: the rows of features in the arena."""
        return self._places[: len(self._feature_sets)]

    def missing(
        self,
        clips: Clips,  # noqa: ARG002
        lookup: FrameLookup,  # noqa: ARG002
        places: list[IntArray],  # noqa: ARG002
        *,
        exact: bool,  # noqa: ARG002
    ) -> list[Load]:
        """See `GroupFrames`: all of the step's frames."""
        episode, frame = split_keys(self._keys)
        zeros = np.zeros_like(frame)
        loads = list[Load]()
        for grid in self._grids:
            loads += self._loads(zeros, episode, episode, frame, self._rows, zeros, grid)
        return loads

    def assigned(self, load: Load, rows: IntArray) -> AssignedLoad:
        """See `GroupFrames`: of all groups, equal parts of a frame."""
        nbytes = len(rows) * (self._frame_nbytes // len(self._grids))
        return AssignedLoad(load.first_use, load, self._target, load.frames, rows, nbytes)

    def repeats(self) -> Iterator[Copy]:
        """Copies of repeated frames in the batch: from their first place to the others."""
        if not self.direct or len(self._keys) == self._clip_rows.size:
            return
        source = self._clip_rows.reshape(-1)
        target = np.flatnonzero(source != np.arange(len(source)))
        source = source[target]
        for begin, end in pairwise(run_bounds(target, source)):
            to, of = (slice(int(rows[begin]), int(rows[end - 1]) + 1) for rows in (target, source))
            for array in self.direct.values():
                yield Copy(array[to].nbytes, partial(np.copyto, array[to], array[of]))


class TouchedFrames(MappedRows, RunFrames):
    """Frames in mapped files that each run touches: the page cache may have dropped them."""

    @property
    def nbytes(self) -> int:
        return 0

    def place(self, waiting: list[Load], *, ahead: bool) -> list[AssignedLoad]:  # noqa: ARG002
        """See `GroupFrames`: frames need no rows."""
        for load in waiting:
            self._table.row[load.places] = 0
        return _without_rows(self, waiting)

    def _free(self, place: IntArray) -> None:
        """See `RunFrames`: frames have no rows."""


class MappedFrames(MappedRows, GroupFrames):
    """Frames in mapped files. Loads check new ones; those of calls touch large ones anew."""

    @property
    def nbytes(self) -> int:
        return 0

    def places(self, clips: Clips, lookup: FrameLookup) -> list[IntArray]:  # noqa: ARG002
        """See `GroupFrames`: none."""
        return []

    def missing(
        self,
        clips: Clips,
        lookup: FrameLookup,
        places: list[IntArray],  # noqa: ARG002
        *,
        exact: bool,  # noqa: ARG002
    ) -> list[Load]:
        """See `GroupFrames`."""
        keys, uses = list[IntArray](), list[IntArray]()
        for names in self._feature_sets:
            frames = lookup.of(names[0])
            is_missing = np.ones(frames.shape, np.bool_)
            if not self.arena.touches:
                is_missing = ~self.arena.are_checked(*self._chunks(clips, frames))
            if is_missing.any():
                keys.append(frame_keys(clips.episode[:, None], frames)[is_missing])
                uses.append(np.nonzero(is_missing)[0])
        if not keys:
            return []
        episode, frame, use = _first_uses(keys, uses)
        zeros = np.zeros_like(frame)
        return self._loads(zeros, episode, episode, frame, zeros, use, self._grid)

    def place(self, waiting: list[Load], *, ahead: bool) -> list[AssignedLoad]:  # noqa: ARG002
        """See `GroupFrames`: frames need no rows."""
        return _without_rows(self, waiting)


def _without_rows(frames: GroupFrames, waiting: list[Load]) -> list[AssignedLoad]:
    """Loads of whole frames to mapped files: a part would save no time."""
    no_rows = np.empty(0, np.int64)
    assigned = [frames.assigned(load, no_rows) for load in waiting]
    waiting.clear()
    return assigned


def _first_places(
    places: Sequence[IntArray],
    is_chosen: Sequence[npt.NDArray[np.bool_]],
    marks: npt.NDArray[np.int32],
) -> tuple[IntArray, IntArray, IntArray]:
    """The distinct chosen ones of places, int64[n, T] each, in the order of their first use: their
    places, the clips that use them first, and their indices in all `places`; int64[m] each.

    Overwrites the `marks` of these places, int32, with negative numbers.
    """
    index, use, before = list[IntArray](), list[IntArray](), 0
    for found, chosen in zip(places, is_chosen, strict=True):
        index.append(np.flatnonzero(chosen))
        use.append(index[-1] // max(1, found.shape[1]))
        index[-1] += before
        before += found.size
    of_all, uses = np.concatenate(index), np.concatenate(use)
    if len(places) > 1:
        order = np.argsort(uses, kind="stable")
        of_all, uses = of_all[order], uses[order]
    place = np.concatenate([found.ravel() for found in places])[of_all]
    # Of indices that repeat, NumPy assigns the last value: here that of the first use.
    number = -np.arange(3, 3 + len(place), dtype=np.int32)
    marks[place[::-1]] = number[::-1]
    is_first = marks[place] == number
    return place[is_first], uses[is_first], of_all[is_first]


def _first_uses(
    keys: Sequence[IntArray], uses: Sequence[IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Episode and frame of distinct keys, ascending, and the first use of each; int64[n] each."""
    key, use = np.concatenate(keys), np.concatenate(uses)
    order = np.argsort(key, kind="stable")
    key, use = key[order], use[order]
    opens = np.flatnonzero(np.diff(key, prepend=-1) != 0)
    return *split_keys(key[opens]), np.minimum.reduceat(use, opens)


def _is_mapped(frames: GroupFrames) -> TypeGuard[MappedFrames | TouchedFrames]:
    return isinstance(frames, MappedRows)


class StepStore:
    """The frames of steps, such as one call.

    Args:
        clip_frames: windows of the features.
        frames: of each group.
    """

    def __init__(self, clip_frames: ClipFrames, frames: Sequence[GroupFrames]) -> None:
        self.frames, self._clip_frames = frames, clip_frames
        self._num_changes = {id(one): one.arena.num_changes for one in frames if _is_mapped(one)}

    @property
    def nbytes(self) -> int:
        """Bytes of frames in memory, and of loads in progress."""
        return sum(one.nbytes for one in self.frames)

    def step(
        self,
        clips: Clips,
        lookup: FrameLookup | None = None,
        *,
        ends_round: bool = True,
        exact: bool = False,
    ) -> Step:
        """Look the frames of clips up."""
        lookup = lookup or FrameLookup(clips.keys, self._clip_frames)
        places = [one.places(clips, lookup) for one in self.frames]
        step = Step(clips, lookup, ends_round, exact, places)
        self._look_for_missing(step)
        return step

    def _look_for_missing(self, step: Step) -> None:
        step.waiting = [
            one.missing(step.clips, step.lookup, places, exact=step.exact)
            for one, places in zip(self.frames, step.places, strict=True)
        ]

    def place(self, step: Step, *, ahead: bool = False) -> list[AssignedLoad]:
        """Assign rows to the loads of a step, `ahead` of the step before; those without room keep
        waiting.
        """
        assigned = list[AssignedLoad]()
        for one, waiting in zip(self.frames, step.waiting, strict=True):
            if waiting:
                assigned += one.place(waiting, ahead=ahead)
        return assigned

    def find(self, step: Step) -> list[ClipRows[Any]]:
        """The rows of a step's clips, for each set of features with equal windows."""
        sources = list[ClipRows[Any]]()
        for one, places in zip(self.frames, step.places, strict=True):
            sources += one.find(step.clips, step.lookup, places)
        return sources

    def check_again(
        self, clips: Clips, check: FrameCheck, lookup: FrameLookup | None = None
    ) -> None:
        """Check frames of clips whose mapped file somebody may have written to since their load.

        After new versions of the files were looked for, before the frames are copied. Raises as
        loads do.
        """
        for one in self.frames:
            if _is_mapped(one) and one.arena.num_changes != self._num_changes[id(one)]:
                lookup = lookup or FrameLookup(clips.keys, self._clip_frames)
                one.check_again(clips, lookup, check)


class FrameStore(StepStore):
    """The frames of a plan.

    Args:
        plan: the plan.
        clip_frames: windows of the features.
        usual_frames: … of clips whose batches are not known yet, which may have a number of frames
            of their own.
        frames: of each group, in the order of the plan's groups.
    """

    def __init__(
        self,
        plan: EpochPlan,
        clip_frames: ClipFrames,
        usual_frames: ClipFrames,
        frames: Sequence[GroupFrames],
    ) -> None:
        super().__init__(clip_frames, frames)
        self._plan, self._usual_frames = plan, usual_frames
        self._of_runs = [one for one in frames if isinstance(one, RunFrames)]
        most = max((window.length for window in clip_frames.windows.values()), default=1)
        self._most_clips = max(1, _FRAMES_AT_ONCE // max(1, most))
        self._most_noted = max(1, _FRAMES_AT_ONCE // max(1, most * len(clip_frames.windows)))
        if self._of_runs:
            self._reach = plan.reach
            self._most = np.full(plan.num_runs, -1)  # number of a clip of each run in a step,
            self._done = np.full(plan.num_runs, -1)  # … in a round that has ended
            self._is_begun = np.zeros(plan.num_runs, np.bool_)

    @property
    def has_all(self) -> bool:
        """Whether no frame of the plan needs a load, except checks of mapped ones."""
        resident = [one for one in self.frames if isinstance(one, ResidentFrames)]
        return not self._of_runs and all(one.has_all for one in resident)

    @property
    def touched_bytes(self) -> int:
        """Bytes of the tables of frames."""
        return sum(one.table_bytes for one in self.frames)

    def steps(self, index: int, skip: int) -> Iterator[Step]:
        """Yield the steps from a round on, without its first `skip` clips.

        A round is a step, or several; without frames to free, rounds are joined.
        """
        plan = self._plan
        if self._of_runs:
            self._noted = plan.numbers_before(index)
            self._begin = plan.first_of_round(index)
        for begin, end in plan.spans(index):
            clips = plan.clips(begin, end)
            edges = plan.edges(begin, end) if self._of_runs else [0, len(clips)]
            for first, last in pairwise(edges):
                if skip:
                    self._skip(clips.rows(first, first + skip))
                for start in range(first + skip, last, self._most_clips):
                    stop = min(start + self._most_clips, last)
                    yield self.step(clips.rows(start, stop), ends_round=stop == last)
                skip = 0

    def step(
        self,
        clips: Clips,
        lookup: FrameLookup | None = None,
        *,
        ends_round: bool = True,
        exact: bool = False,
    ) -> Step:
        """See `StepStore`."""
        self._note(clips)
        return super().step(clips, lookup, ends_round=ends_round, exact=exact)

    def _skip(self, clips: Clips) -> None:
        """Note clips that are not copied."""
        self._note(clips)
        lookup = FrameLookup(clips.keys, self._clip_frames)
        for one in self._of_runs:
            one.note_copied(clips, one.places(clips, lookup))

    def _note(self, clips: Clips) -> None:
        """Note until which clips frames are used, for the runs of these clips, as far ahead as
        their chunks reach.
        """
        if not self._of_runs:
            return
        plan, most = self._plan, self._most
        np.maximum.at(most, clips.run, clips.number)
        runs = distinct(clips.run)
        new = runs[~self._is_begun[runs]]
        if len(new):
            num_frames = self._clip_frames.num_frames[plan.episode_of_run[new]]
            for one in self._of_runs:
                one.begin(new, num_frames)
            self._is_begun[new] = True
        stop = np.minimum(most[runs] + 1 + self._reach, plan.end_of_run[runs])
        noted = self._noted[runs]
        is_short = noted < stop
        if not is_short.any():
            return
        runs, noted, stop = runs[is_short], noted[is_short], stop[is_short]
        stop = np.minimum(np.maximum(stop, noted + _NOTED_CLIPS), plan.end_of_run[runs])
        self._noted[runs] = stop
        ends = np.cumsum(stop - noted)
        for first in range(0, int(ends[-1]), self._most_noted):
            place = np.arange(first, min(first + self._most_noted, int(ends[-1])))
            owner = np.searchsorted(ends, place, side="right")
            number = stop[owner] - ends[owner] + place
            run, time = runs[owner], plan.times(number)
            if not plan.is_in_order:  # without the clips that came before
                is_left = time >= self._begin
                number, run, time = number[is_left], run[is_left], time[is_left]
            lookup = FrameLookup(plan.keys(number), self._usual_frames, checks=False)
            for one in self._of_runs:
                one.note(run, time, lookup)

    def finish(self, step: Step) -> None:
        """End a step whose clips have been copied."""
        if self._of_runs:
            np.maximum.at(self._done, step.clips.run, self._plan.times(step.clips.number))
        for one, places in zip(self.frames, step.places, strict=True):
            if isinstance(one, RunFrames):
                one.note_copied(step.clips, places)
                if step.ends_round:
                    one.end_round()

    def make_room(self, step: Step, later: Sequence[Step]) -> list[Step]:
        """Drop frames that a step does not use, so that its loads have room: the step, or its
        halves if its frames do not fit.

        All loads with rows must have ended, and all copies. `later` are the steps that were looked
        up after it.

        Raises `MemoryLimitError` if the frames of one clip do not fit.
        """
        for after in later:
            self._withdraw(after)
        is_enough = True
        for one, places, waiting in zip(self.frames, step.places, step.waiting, strict=True):
            if waiting:
                assert isinstance(one, RunFrames), "other loads need no room"
                count = sum(len(load.frames) for load in waiting)
                is_enough &= one.drop(places, count, self._done) >= count
        steps = [step]
        if not is_enough:
            self._withdraw(step)
            steps = self._parts(step)
        for after in later:
            self._look_for_missing(after)
        return steps

    def _withdraw(self, step: Step) -> None:
        """Forget the loads of a step that have no rows."""
        for one, waiting in zip(self.frames, step.waiting, strict=True):
            if isinstance(one, RunFrames):
                one.withdraw(waiting)

    def _parts(self, step: Step) -> list[Step]:
        """The halves of a step; or a single clip, without other frames of its chunks."""
        count = len(step.clips)
        if count == 1 and step.exact:
            raise MemoryLimitError(
                "memory_limit is too small for the frames of one clip",
                expected="a larger memory_limit, or shorter clips",
                got=", ".join(
                    f"{one.num_rows} rows for features of group {one.group}"
                    for one in self._of_runs
                ),
            )
        middle = -(-count // 2)
        halves = [(0, middle), (middle, count)] if count > 1 else [(0, 1)]
        return [
            self.step(
                step.clips.rows(*half), ends_round=step.ends_round and half[1] == count, exact=True
            )
            for half in halves
        ]
