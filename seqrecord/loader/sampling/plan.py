"""Base class of epoch plans: the interface for engines, and rounds made of cursors' blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import ClipStats, EpochSegment, PlanSettings
from seqrecord.loader.sampling.budgets import BudgetUse, ClipCosts
from seqrecord.loader.sampling.cursors import Blocks, CursorSchedule
from seqrecord.loader.sampling.orders import Order, find_order
from seqrecord.loader.sampling.runs import Intervals, Runs, Shard, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws, DrawsByPlace, ShardBatches
from seqrecord.loader.sampling.used_frames import LoadFrames, RunFrames, SampleFrames
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ChunkGrid, ragged_arange

if TYPE_CHECKING:
    from seqrecord.loader.sampling.memory import MemoryPlan, MemoryRequest

_WHOLE = Shard()
_CLIPS_AT_ONCE = 1 << 15  # rounds are computed in groups of about so many clips
_PLACE_BITS = 48  # of a clip's place in a segment
_CLIPS_AT_FIRST = 1 << 11  # … an epoch's first ones in smaller groups: batches wait for these

_Rows = TypeVar("_Rows", bound="_Columns")
_OfRounds = TypeVar("_OfRounds", "Loads", "Frees", LoadFrames)


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns of equal length, int64 each; a row is one action for one cursor."""

    cursor: IntArray

    def __len__(self) -> int:
        return len(self.cursor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    def rows(self: _Rows, start: int, stop: int) -> _Rows:
        """Rows `[start, stop)`, without a copy."""
        return type(self)(*[column[start:stop] for column in vars(self).values()])


@dataclass(frozen=True, eq=False, repr=False)
class Loads(_Columns):
    """Chunks to read, and the frames to decode, roughly in the order of use.

    Row `i` loads `count[i]` frames, `first[i]`, `first[i] + frame_step`, … of `episode[i]`, all in
    row `chunk[i]` of the group's chunk table, for run `run[i]` of cursor `cursor[i]`. A cursor may
    have frames of several runs, even the same frames for two of them. Runs are numbered over all
    cursors, equally in all groups. Frames that no clip uses have a place but need not be decoded:
    see `used_frames`.
    """

    run: IntArray
    episode: IntArray
    chunk: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Clips(_Columns):
    """Clips in emitted order.

    Clip `i` consists of the frames in each group's window at `start[i]`, from run `run[i]` of
    cursor `cursor[i]`, and goes to slot `slot[i]` of batch `batch[i]` of the epoch. With
    `batch_size=None` every clip is a batch. `place` and `sample` are as in `ClipKeys`. Clips of all
    runs are numbered by cursor and run, in the order of their starts: `number[i]`.
    """

    run: IntArray
    episode: IntArray
    start: IntArray
    batch: IntArray
    slot: IntArray
    place: IntArray
    sample: IntArray
    number: IntArray

    @property
    def keys(self) -> ClipKeys:
        """The clips for functions of clips."""
        return ClipKeys(self.episode, self.start, self.sample, self.place)


@dataclass(frozen=True, eq=False, repr=False)
class Frees(_Columns):
    """Frames that no later clip of the run needs: `first`, `first + frame_step`, …

    They are sorted as the cursor has loaded them.
    """

    run: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False)
class GroupRound:
    """A round of one group: `loads`, and `frees` after its clips are emitted.

    `used` are the frames of loads that clips use; `None` if they use all.
    """

    loads: Loads
    frees: Frees
    used: LoadFrames | None = None


@dataclass(frozen=True, eq=False)
class Round:
    """One round: first the loads of all groups, then `clips`, then the frees.

    `groups` may be empty if nothing is to be loaded.
    """

    index: int
    clips: Clips
    groups: tuple[GroupRound, ...]


@dataclass(frozen=True)
class GroupPlan:
    """Properties of a feature group in all rounds.

    `group` is its number in the schema. At most `max_resident_frames` frames are in memory: of each
    cursor `cursor_frames`, int64[cursors], or equally many if `None`. With `in_pieces`, a cursor's
    loads of a chunk continue where the last one ended.
    """

    group: int
    window: Window  # of a clip
    max_resident_frames: int  # the arena's rows
    in_pieces: bool = False
    cursor_frames: IntArray | None = None

    def cursor_bounds(self, num_rows: int, num_cursors: int) -> list[int]:
        """The bounds of the cursors' rows in an arena of `num_rows` rows."""
        most = self.cursor_frames
        if most is None:
            most = np.ones(num_cursors, np.int64)
        return [0, *np.cumsum(most * num_rows // max(1, int(most.sum()))).tolist()]


class Plan(ABC):
    """The plan of one shard in one epoch: rounds of cursors, whose clips form one stream of
    batches.

    `windows` are the windows of the groups in `episodes`, how far clips reach; by default whole
    clips. `frames` are the functions that find the frames of clips in each group. In segment
    `segment` of an epoch, `table` has the remaining clips (see `sampling.elastic`). `draws` are
    made for each batch; with `costs`, batches have a budget. A subclass lays out the clips, and
    defines the order of a round's clips.
    """

    settings: PlanSettings
    batches: ShardBatches
    costs: ClipCosts | None
    epoch: int
    shard: Shard
    num_clips: int  # that this shard emits
    num_dropped: int  # that it would emit without `last_batch="drop"`
    num_repeated: int  # of `num_clips`, that another shard emits too
    num_batches: int
    num_rounds: int
    num_cursors: int
    leading: int  # of the groups

    _spec: ClipSpec
    _episodes: EpisodeLayout
    _windows: tuple[Window, ...]  # of each group
    _batch_size: int
    _segment: int
    _stats: ClipStats | None  # of the table, if they are known
    _cursors: CursorSchedule
    _before: IntArray  # clips before each round, and before the end
    _resident: list[int]  # the most frames in memory, of each group
    _resident_of_cursors: IntArray | None = None  # … of each cursor, if these differ

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        shard: Shard = _WHOLE,
        segment: int = 0,
        windows: Sequence[Window] | None = None,
        frames: Sequence[SampleFrames] | None = None,
        draws: BatchDraws | None = None,
        costs: ClipCosts | None = None,
        stats: ClipStats | None = None,
    ) -> None:
        self.settings, self.epoch, self.shard = settings, epoch, shard
        self.batches = ShardBatches.of(settings, draws, epoch, segment, shard)
        self._spec, self._episodes = table.spec, episodes
        self._windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        self._frames = [None] * len(self._windows) if frames is None else frames
        self.leading = episodes.leading
        self._batch_size = settings.batch_size or 1
        self._segment, self.costs, self._stats = segment, costs, stats
        self._lay_out(table, segment)

    @abstractmethod
    def _lay_out(self, table: ClipTable, segment: int) -> None:
        """Set all attributes above that are not arguments."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(epoch {self.epoch}, shard {self.shard.index} of "
            f"{self.shard.count}: {self.num_clips} clips in {self.num_batches} batches, "
            f"{self.num_rounds} rounds of {self.num_cursors} cursors, at most {self._resident} "
            "frames resident)"
        )

    @property
    def counts(self) -> dict[str, int]:
        """Clip counts of this shard for statistics."""
        return {
            "clips_dropped": self.num_dropped,
            "duplicate_clips": self.num_repeated,
            "num_interleaved": self.num_cursors,
        }

    @property
    def is_packed(self) -> bool:
        """Whether lists of a batch come one after another; see `ClipCosts`."""
        return self.costs is not None and self.costs.form == "packed"

    @property
    def budget_use(self) -> BudgetUse | None:
        """The use of a budget by this shard's batches; `None` without a budget or clips."""
        return None

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups, in the order of the episode table."""
        of_cursors = self._resident_of_cursors
        return tuple(
            GroupPlan(
                *(grid.group, window, resident, grid.stored_grid is not None),
                None if of_cursors is None else of_cursors[place],
            )
            for place, (grid, window, resident) in enumerate(
                zip(self._episodes.groups, self._windows, self._resident, strict=True)
            )
        )

    def first_clip(self, batch: int) -> int:
        """The number of clips in batches before this one; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        if not 0 <= batch <= self.num_batches:
            raise IndexError(f"a batch's number is not in [0, {self.num_batches}]: {batch}")
        return self._first_clip(batch)

    def locate_clip(self, clip: int) -> tuple[int, int]:
        """The round of a clip in this shard, and the number of clips before it in that round.

        Clips are counted in emitted order. To resume, load `resident(round)`, continue with
        `rounds(round)`, and skip that number of clips.
        """
        index = int(np.searchsorted(self._before, clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:  # noqa: ARG002
        """Extra columns of a batch, bool[clips] each."""
        return {}

    def resident(self, round_index: int) -> tuple[Loads, ...]:
        """For each group, loads of exactly the frames in memory at the start of a round."""
        blocks = self._cursors.held(round_index)
        return tuple(self._loads(i, b, b.held, b.loaded_before)[1] for i, b in enumerate(blocks))

    def used(self, group: int) -> Intervals:
        """All frames of a group, given by its place, that clips use. Intervals may overlap."""
        window, frames, runs = self._windows[group], self._frames[group], self._planned_runs()
        run_frames = RunFrames(runs, self._episodes.num_frames, window, frames)
        return run_frames.intervals(np.zeros_like(runs.run))[1]

    def used_frames(self, group: int, loads: Loads, index: int) -> LoadFrames | None:
        """The frames of loads that clips from round `index` on use; `None` if they use all."""
        if not len(loads) or (frames := self._frames_of_runs[group]).has_holes is None:
            return None
        clip, end = self._cursors.first_clips(np.array([[index]]))[0], self._cursors.end
        last = loads.first + (loads.count - 1) * self._windows[group].frame_step
        bounds = clip[loads.cursor], end[loads.cursor]
        return frames.in_loads(loads.run, loads.first, last, *bounds)

    def most_loaded(self) -> tuple[int, ...]:
        """For each group, the most frames that any cursor loads in the epoch. Plans all rounds."""
        counts = [np.zeros(max(1, self.num_cursors), np.int64) for _ in self.groups]
        for begin, end in self.spans():
            for count, todo in zip(counts, self.merged(begin, end).groups, strict=True):
                np.add.at(count, todo.loads.cursor, todo.loads.count)
        return tuple(int(count.max()) for count in counts)

    def rounds(self, start: int = 0, stop: int | None = None) -> Iterator[Round]:
        """Yield the rounds `[start, stop)`, computed on demand."""
        for begin, end in self.spans(start, stop):
            yield from self._rounds(begin, end)

    def spans(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield intervals `[begin, end)` of rounds in `[start, stop)` to compute together."""
        clips, stop = _CLIPS_AT_FIRST, self.num_rounds if stop is None else stop
        while start < stop:
            group = max(1, clips * self.num_rounds // max(1, self.num_clips))
            yield start, min(start + group, stop)
            start, clips = start + group, min(4 * clips, _CLIPS_AT_ONCE)

    def merged(self, start: int, stop: int, *, loads: bool = True) -> Round:
        """The rounds `[start, stop)` as one; without `loads`, only its clips.

        For a store with a row for each frame, which knows the frames that clips of the plan use.
        """
        blocks = self._cursors.blocks(start, stop)
        clips = self._clips(*self._in_order(blocks[self.leading]))
        groups = [
            GroupRound(
                self._loads(i, group_blocks, group_blocks.loaded_before, group_blocks.loaded)[1],
                self._frees(i, group_blocks)[1],
            )
            for i, group_blocks in enumerate(blocks)
            if loads
        ]
        return Round(start, clips, tuple(groups))

    # ---- runs of clips, for a store of frames

    @property
    def grids(self) -> tuple[ChunkGrid, ...]:
        """The chunks of each group."""
        return self._episodes.groups

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.episode_of_run)

    @cached_property
    def _first_rows(self) -> IntArray:
        """The first row of each run, int64[runs]."""
        return np.flatnonzero(np.diff(self._cursors.runs.run, prepend=-1))

    @cached_property
    def episode_of_run(self) -> IntArray:
        """The episode of each run, int64[runs]."""
        return self._cursors.runs.episode[self._first_rows]

    @cached_property
    def cursor_of_run(self) -> IntArray:
        """The cursor of each run, int64[runs]."""
        return self._cursors.of_rows[self._first_rows]

    @cached_property
    def end_of_run(self) -> IntArray:
        """The number behind the last clip of each run, int64[runs]."""
        runs = self._cursors.runs
        ends = np.append(runs.first_clip[self._first_rows][1:], runs.num_clips)
        last: IntArray = np.minimum(ends, self._cursors.end[self.cursor_of_run])
        return last

    is_in_order = True
    """Whether clips of a run come in the order of their numbers, from round to round."""

    def times(self, number: IntArray) -> IntArray:
        """When clips come, by their numbers, int64[n] each."""
        return number

    def first_of_round(self, index: int) -> int:
        """The number of clips before a round."""
        return int(self._before[index])

    def numbers_before(self, index: int) -> IntArray:
        """The number of the first clip of each run in round `index` or later, int64[runs]."""
        begins = self._cursors.runs.first_clip[self._first_rows]
        clips = self._cursors.first_clips(np.array([[index]]))[0]
        numbers: IntArray = np.maximum(begins, clips[self.cursor_of_run])
        return numbers

    @cached_property
    def reach(self) -> int:
        """How many clips of a run ahead may use a frame of a clip's chunks."""
        frames = 0
        for grid, window in zip(self.grids, self._windows, strict=True):
            if window.whole:
                return int(self.end_of_run.max(initial=0))
            frames = max(frames, int(grid.max_chunk_frames.max(initial=1)) + 2 * window.span)
        return frames // self._spec.stride + 2

    def keys(self, number: IntArray) -> ClipKeys:
        """Clips by their numbers, int64[n], without their places."""
        runs = self._cursors.runs
        row, start = runs.find(number)
        return ClipKeys(runs.episode[row], start, runs.samples(row, number), np.zeros_like(start))

    def clips(self, start: int, stop: int) -> Clips:
        """The clips of rounds `[start, stop)`."""
        return self.merged(start, stop, loads=False).clips

    def edges(self, start: int, stop: int) -> list[int]:
        """The clips before each of the rounds `[start, stop)` and behind them, from the first."""
        edges: list[int] = (self._before[start : stop + 1] - self._before[start]).tolist()
        return edges

    def clips_between(self, first: int, last: int) -> Clips:
        """The clips `[first, last)` of this shard, in emitted order; loads nothing."""
        index, skip = self.locate_clip(first)
        parts, count = list[Clips](), 0
        for begin, end in self.spans(index):
            if count >= skip + last - first:
                break
            parts.append(self.clips(begin, end))
            count += len(parts[-1])
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Clips(*map(np.concatenate, columns)).rows(skip, skip + last - first)

    @property
    def draws(self) -> DrawsByPlace:
        """The draws of this shard's batches."""
        return DrawsByPlace(self.batches, lambda place: self.batches.find(self.numbers(place))[0])

    def numbers(self, place: IntArray) -> IntArray:
        """The numbers of this shard's clips by `Clips.place`, int64[n] each."""
        numbers: IntArray = (place - (self._segment << _PLACE_BITS)) // self.shard.count
        return numbers

    def _planned_runs(self) -> Runs:
        """The runs of all clips."""
        return self._cursors.runs.slices(self._cursors.begin, self._cursors.end)[0]

    @cached_property
    def _frames_of_runs(self) -> Sequence[RunFrames]:
        """The frames of the cursors' runs, of each group."""
        runs, num_frames = self._cursors.runs, self._episodes.num_frames
        groups = zip(self._windows, self._frames, strict=True)
        return [RunFrames(runs, num_frames, window, frames) for window, frames in groups]

    def _places(self, number: IntArray) -> IntArray:
        """`Clips.place` of clips, by number in this shard."""
        return number * self.shard.count + self.shard.index + (self._segment << _PLACE_BITS)

    def _first_clip(self, batch: int) -> int:
        return min(self.batches.first_clip(batch), self.num_clips)

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        marks = np.arange(start, stop + 1)
        blocks_of_groups = [self._in_order(blocks) for blocks in self._cursors.blocks(start, stop)]
        clips = self._clips(*blocks_of_groups[self.leading])
        groups = []
        for i, (blocks, _) in enumerate(blocks_of_groups):
            rounds, loads = self._loads(i, blocks, blocks.loaded_before, blocks.loaded)
            frees, used = self._frees(i, blocks), self.used_frames(i, loads, start)
            parts = _by_round(rounds, loads, marks), _by_round(*frees, marks)
            used_parts = repeat(None) if used is None else _by_round(rounds, used, marks)
            groups.append(list(map(GroupRound, *parts, used_parts)))
        clips_at = (self._before[start : stop + 1] - self._before[start]).tolist()
        for i, (rows, *of_groups) in enumerate(zip(pairwise(clips_at), *groups, strict=True)):
            yield Round(start + i, clips.rows(*rows), tuple(of_groups))

    def _loads(
        self, group: int, blocks: Blocks, start: IntArray, stop: IntArray
    ) -> tuple[IntArray, Loads]:
        """The round, int64[n], and the load of each chunk with wanted frames in `[start, stop)`.

        `start` and `stop` are int64[rows of blocks].
        """
        grid, window = self._episodes.groups[group], self._windows[group]
        step, phase = window.frame_step, self._spec.phase + window.offset
        is_loaded = stop > start
        first_place = grid.place(blocks.episode, start)
        last_place = grid.place(blocks.episode, np.maximum(stop - 1, start))
        row, offset = ragged_arange(np.where(is_loaded, last_place - first_place + 1, 0))
        place, episode = first_place[row] + offset, blocks.episode[row]
        begin, end = grid.bounds(episode, place)
        start_frame = np.maximum(start[row], begin)
        start_frame += (phase - start_frame) % step
        count = -(-(np.minimum(stop[row], end) - start_frame) // step)
        is_loaded = count > 0
        row, episode = row[is_loaded], episode[is_loaded]
        return blocks.round[row], Loads(
            blocks.cursor[row],
            blocks.run[row],
            episode,
            grid.row(episode, place[is_loaded]),
            start_frame[is_loaded],
            count[is_loaded],
        )

    def _frees(self, group: int, blocks: Blocks) -> tuple[IntArray, Frees]:
        """The frees of rows, and their rounds, int64[n]."""
        is_freed = blocks.kept > blocks.held
        start_frame = blocks.held[is_freed]
        count = -(-(blocks.kept[is_freed] - start_frame) // self._windows[group].frame_step)
        return blocks.round[is_freed], Frees(
            blocks.cursor[is_freed], blocks.run[is_freed], start_frame, count
        )

    @abstractmethod
    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        """Sort the blocks of whole rounds; also the position of each row in its round, int64[n].

        Rows are sorted by round and position: the frames needed first are loaded first.
        """

    @abstractmethod
    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        """The clips of whole rounds in emitted order."""


class PlannedOrder(Order, ABC):
    """An order with its plans."""

    def fit(
        self,
        request: MemoryRequest,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        saved: PlanSettings | None,  # noqa: ARG002
        table: ClipTable,  # noqa: ARG002
        episodes: EpisodeLayout,  # noqa: ARG002
        windows: Sequence[Window],  # noqa: ARG002
        *,
        are_small: bool,  # noqa: ARG002
    ) -> MemoryPlan | None:
        """The settings and memory within `limit` bytes, or the memory of `saved` settings; `None`
        if those of the request are the order's.

        `table` is that of epoch 0 with its windows, and `are_small` says whether all frames are.
        """
        return None

    def shard_runs(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        settings: PlanSettings,
        num_shards: int,
        shards: IntArray | None,
    ) -> tuple[Runs, IntArray]:
        """The runs of `shards`, int64, by default of all, in epoch 0 of an order that
        `keeps_shards`; and the place of each row's shard in them, int64[rows].
        """
        raise NotImplementedError

    @abstractmethod
    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:
        """The class of plans for a segment of an epoch."""

    @abstractmethod
    def returned(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        segment: EpochSegment,
        place: tuple[int, int],
        draws: BatchDraws | None,
        costs: ClipCosts | None,
    ) -> tuple[Runs, Iterable[slice | IntArray]]:
        """All clips of `table` as ordered by the plans of a segment, and the places of returned
        clips in them.

        `place` is the epoch, and the number of the segment in it.
        """


def order_of(settings: PlanSettings) -> PlannedOrder:
    """The order of plans with these settings."""
    order = find_order(settings.order)
    assert isinstance(order, PlannedOrder)
    return order


def _by_round(rounds: IntArray, columns: _OfRounds, marks: IntArray) -> Iterator[_OfRounds]:
    """The rows of each round between two marks; `rounds` is ascending."""
    at = np.searchsorted(rounds, marks).tolist()
    return (columns.rows(*rows) for rows in pairwise(at))
