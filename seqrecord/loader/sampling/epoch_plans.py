"""The plan of one shard in one epoch: clips, and the runs of their frames.

The rows of the epoch are its clips, the pieces of the shard its runs, and rounds are those of the
order: see `epoch_rows` and `epoch_rounds`. A store of frames reads the plan in rounds::

    pieces     run 0: rows 40 to 71      run 1: rows 0 to 31 …
    clips      40 3 51 12 | 44 …         numbered by run: 0 32 11 41 | 4 …
    batches    0  0 0  0  | 1 …

After `last_batch="repeat"`, a shard with fewer rows than others repeats its first ones, in a round
of their own. With a budget, the batches of an epoch are cut at once, see `order_batches`; its
rounds are equal numbers of clips in their order, whose last uses are known by their places in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.clip_costs import BudgetUse, ClipCosts
from seqrecord.loader.sampling.cursor_shares import Pieces, num_used
from seqrecord.loader.sampling.epoch_rounds import (
    ROUND,
    PositionRounds,
    rounds_of,
    rows_before_rounds,
)
from seqrecord.loader.sampling.epoch_rows import EpochRows, frame_groups, runs_of
from seqrecord.loader.sampling.frame_uses import RunFrames, SampleFrames
from seqrecord.loader.sampling.orders import Order, find_order
from seqrecord.loader.sampling.plan_settings import EpochSegment, PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Intervals, Shard, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws, DrawsByPlace, ShardBatches
from seqrecord.loader.sampling.share_orders import EpochKey
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ChunkGrid
from seqrecord.store.text import counted

_WHOLE = Shard()
_CLIPS_AT_ONCE = 1 << 13  # rounds are computed in groups of about so many clips
_CLIPS_AT_FIRST = 1 << 11  # … an epoch's first ones in smaller groups: batches wait for these


@dataclass(frozen=True, eq=False)
class Clips:
    """Clips in emitted order; int64[n] each.

    Clip `i` consists of the frames in each group's window at `start[i]`, from run `run[i]` of
    cursor `cursor[i]`. `place` and `sample` are as in `ClipKeys`. Clips of all runs are numbered by
    cursor and run, in the order of their starts: `number[i]`.
    """

    cursor: IntArray
    run: IntArray
    episode: IntArray
    start: IntArray
    place: IntArray
    sample: IntArray
    number: IntArray

    def __len__(self) -> int:
        return len(self.cursor)

    def __repr__(self) -> str:
        return f"Clips({len(self)})"

    def rows(self, start: int, stop: int) -> Clips:
        """Rows `[start, stop)`, without a copy."""
        return Clips(*[column[start:stop] for column in vars(self).values()])

    @property
    def keys(self) -> ClipKeys:
        """The clips for functions of clips."""
        return ClipKeys(self.episode, self.start, self.sample, self.place)


@dataclass(frozen=True)
class GroupPlan:
    """A feature group of a plan.

    `group` is its number in the schema, and `window` that of a clip. With `in_pieces`, a cursor's
    loads of a chunk continue where the last one ended.
    """

    group: int
    window: Window
    in_pieces: bool = False


class EpochPlan:
    """The plan of one shard in one epoch: rounds of cursors, whose clips form one stream of
    batches.

    `windows` are the windows of the groups in `episodes`, how far clips reach; by default whole
    clips. `frames` are the functions that find the frames of clips in each group. After finished
    `segments` of an epoch, `table` has the remaining clips (see `sampling.elastic`), and
    `num_before` clips came before. `draws` are made for each batch; with `costs`, batches have a
    budget. `rows` are those of the table, if they are known.

    Raises `ClipError` if `last_batch="drop"` leaves no batch in any shard.

    Attributes:
        num_clips: of this shard.
        num_dropped: clips that it would have without `last_batch="drop"`.
        num_repeated: of `num_clips`, that it has a second time.
        num_batches, num_rounds, num_cursors: of this shard.
        leading: the group whose chunks clips are loaded with.
    """

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        shard: Shard = _WHOLE,
        segments: tuple[EpochSegment, ...] = (),
        num_before: int = 0,
        windows: Sequence[Window] | None = None,
        frames: Sequence[SampleFrames] | None = None,
        draws: BatchDraws | None = None,
        costs: ClipCosts | None = None,
        rows: RowTable | None = None,
    ) -> None:
        self.settings, self.epoch, self.shard, self.costs = settings, epoch, shard, costs
        self.segments, segment = segments, len(segments)
        self.leading, self._episodes = episodes.leading, episodes
        self._windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        self._frames = [None] * len(self._windows) if frames is None else frames
        self._num_before, self._stride = num_before, table.spec.stride
        batches = ShardBatches.of(settings, draws, epoch, segment, shard)
        key = EpochKey(settings.seed, epoch, segment)
        self._groups = frame_groups(episodes, self._windows)
        if rows is None:
            rows = RowTable.of(table, in_order=not settings.shuffle)
        self._table = rows
        rows_of_shards = EpochRows(self._table, self._groups, settings, key, costs)
        if not segment and costs is None:
            least = min(settings.batch_size or 1, batches.first_clip(1))
            _check_drop(len(self._table), settings, shard.count, least)
        self._order = order = rows_of_shards.order(shard.index, shard.count)
        sizes = None
        if batches.are_drawn and (drawn := batches.draws) is not None:

            def sizes(batch: IntArray) -> IntArray:
                return drawn.clips(batches.frames(batch))

        self._order_batches = rows_of_shards.batches(order, shard.index, shard.count, sizes)
        self.num_batches = self._order_batches.num_batches
        self.num_repeated = self._order_batches.num_repeated
        if costs is not None and settings.drops and not (segment or self.num_batches):
            raise ClipError(
                'last_batch="drop" leaves no batch at all',
                expected=f"at least {counted(shard.count, 'sample')}, one for each of the shards",
                got=counted(len(self._table), "sample"),
            )
        self._emitted: IntArray | None = None
        if costs is not None:
            self._emitted, self._ends = self._order_batches.rows(0, self.num_batches)
            lengths = costs.lengths(self._table.samples(self._emitted))
            batches = batches.arranged(self._ends, lengths)
            self.num_clips = len(self._emitted)
        else:
            if (widths := rows_of_shards.widths(order)) is not None:
                batches = batches.of_widths(widths)
            self.num_clips = order.num_rows + self.num_repeated
            if settings.drops:
                self.num_clips = batches.first_clip(self.num_batches)
        self.batches = batches
        self.num_dropped = max(0, order.num_rows + self.num_repeated - self.num_clips)
        self._rounds = rounds_of(order, self._table, settings.block_rows)
        self._pieces = _with_single_rows(self._rounds.pieces, self._order_batches.repeated)
        self.num_cursors = int(self._pieces.cursor.max(initial=-1)) + 1
        self._before = self._clips_before_rounds()
        self.num_rounds = len(self._before) - 1

    def __repr__(self) -> str:
        return (
            f"EpochPlan(epoch {self.epoch}, shard {self.shard.index} of {self.shard.count}: "
            f"{self.num_clips} clips in {self.num_batches} batches, {self.num_rounds} rounds of "
            f"{self.num_cursors} cursors)"
        )

    def _clips_before_rounds(self) -> IntArray:
        """The clips before each round and before the end, int64[rounds + 1]."""
        if self._emitted is not None:
            return np.append(np.arange(0, self.num_clips, ROUND), self.num_clips)
        usual = self._num_usual
        before = rows_before_rounds(self._rounds)
        ends = [usual, self.num_clips] if self.num_clips > usual else [usual]
        return np.concatenate((before[: before.searchsorted(usual)], ends))

    @property
    def _num_usual(self) -> int:
        """The clips without repeated ones."""
        return self.num_clips - self.num_repeated

    # ---- numbers

    @property
    def counts(self) -> dict[str, int]:
        """Clip counts of this shard for statistics; permuted batches are mixed from all clips."""
        is_permuted = isinstance(self._rounds, PositionRounds)
        return {
            "clips_dropped": self.num_dropped,
            "duplicate_clips": self.num_repeated,
            "num_interleaved": self.num_clips if is_permuted else self.num_cursors,
            **self._epoch_order.counts(self._table, self._rounds.pieces, self.num_batches),
        }

    @property
    def _epoch_order(self) -> Order:
        return find_order(self.settings.order)

    @property
    def is_packed(self) -> bool:
        """Whether lists of a batch come one after another; see `ClipCosts`."""
        return self.costs is not None and self.costs.form == "packed"

    @property
    def budget_use(self) -> BudgetUse | None:
        """The use of a budget by this shard's batches; `None` without a budget or clips."""
        if self.costs is None or self._emitted is None or not len(self._emitted):
            return None
        cost = self.costs.of(self._table.samples(self._emitted))
        return BudgetUse.of(cost, self._ends, self.costs)

    # ---- batches

    @property
    def draws(self) -> DrawsByPlace:
        """The draws of this shard's batches."""
        return DrawsByPlace(self.batches, lambda place: self.batches.find(self.numbers(place))[0])

    def numbers(self, place: IntArray) -> IntArray:
        """The numbers of this shard's clips by `Clips.place`, int64[n] each."""
        numbers: IntArray = (place - self._num_before) // self.shard.count
        return numbers

    def _places(self, number: IntArray) -> IntArray:
        """`Clips.place` of clips, by number in this shard."""
        return number * self.shard.count + self.shard.index + self._num_before

    def first_clip(self, batch: int) -> int:
        """The number of clips in batches before this one; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        if not 0 <= batch <= self.num_batches:
            raise IndexError(f"a batch's number is not in [0, {self.num_batches}]: {batch}")
        return min(self.batches.first_clip(batch), self.num_clips)

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Extra columns of a batch, bool[clips] each."""
        if not self._epoch_order.columns:
            return {}
        clips = self.clips_between(self.first_clip(batch), self.first_clip(batch + 1))
        is_end = self.settings.drops and batch + 1 == self.num_batches
        return self._epoch_order.batch_columns(
            self._table, self._pieces, clips.number, is_end=is_end
        )

    def left(self, batches: int) -> tuple[IntArray, IntArray]:
        """The rows that come after so many batches; see `OrderBatches`."""
        return self._order_batches.left(batches)

    def left_of_rows(self, number: int) -> tuple[IntArray, IntArray]:
        """The rows that come after so many rows, if these come in their order."""
        return self._order.left(min(number, self._order.num_rows))

    # ---- for a store of frames

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups, in the order of the episode table."""
        return tuple(
            GroupPlan(grid.group, window, grid.stored_grid is not None)
            for grid, window in zip(self.grids, self._windows, strict=True)
        )

    @property
    def grids(self) -> tuple[ChunkGrid, ...]:
        """The chunks of each group."""
        return self._episodes.groups

    def cursor_bounds(self, num_rows: int) -> list[int]:
        """The bounds of the cursors' rows in an arena of `num_rows` rows."""
        count = max(1, self.num_cursors)
        return [number * num_rows // count for number in range(count + 1)]

    def used(self, group: int) -> Intervals:
        """All frames of a group, given by its place, that clips use. Intervals may overlap."""
        window, frames = self._windows[group], self._frames[group]
        runs = runs_of(self._table, self._pieces)
        run_frames = RunFrames(runs, self._episodes.num_frames, window, frames)
        return run_frames.intervals(np.zeros_like(runs.run))[1]

    def most_loaded(self) -> tuple[int, ...]:
        """For each group, the frames that a cursor loads in the epoch, on the average."""
        count = max(1, self.num_cursors)
        return tuple(-(-num_used(self._table, group) // count) for group in self._groups)

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self._pieces)

    @cached_property
    def episode_of_run(self) -> IntArray:
        """The episode of each run, int64[runs]."""
        return self._table.locate(self._pieces.first)[0]

    @property
    def cursor_of_run(self) -> IntArray:
        """The cursor of each run, int64[runs]."""
        return self._pieces.cursor

    @property
    def end_of_run(self) -> IntArray:
        """The number behind the last clip of each run, int64[runs]."""
        return self._pieces.ends

    @property
    def is_in_order(self) -> bool:
        """Whether clips of a run come in the order of their numbers, from round to round."""
        return self._emitted is None

    def times(self, number: IntArray) -> IntArray:
        """When clips come, by their numbers, int64[n] each."""
        return number if self._emitted is None else self._times[number]

    @cached_property
    def _times(self) -> IntArray:
        """The place of each number among the clips, int64[rows]; -1 for dropped ones."""
        times = np.full(int(self._pieces.ends[-1]) if len(self._pieces) else 0, -1)
        times[self._numbers] = np.arange(self.num_clips)
        return times

    @cached_property
    def _numbers(self) -> IntArray:
        """The numbers of the clips with a budget, int64[clips]."""
        assert self._emitted is not None
        pieces, row = self._rounds.pieces, self._emitted[: self._num_usual]
        order = pieces.first.argsort()
        piece = order[pieces.first[order].searchsorted(row, side="right") - 1]
        number = pieces.begins[piece] + row - pieces.first[piece]
        end = int(self._pieces.ends[-1]) if len(self._pieces) else 0
        return np.append(number, np.arange(end - self.num_repeated, end))

    def first_of_round(self, index: int) -> int:
        """The number of clips before a round."""
        return int(self._before[index])

    def numbers_before(self, index: int) -> IntArray:
        """The number of the first clip of each run in round `index` or later, int64[runs]."""
        pieces, rounds = self._pieces, self._rounds
        if self._emitted is not None:
            number = self._numbers[int(self._before[index]) :]
            first: IntArray = pieces.ends.copy()
            np.minimum.at(first, pieces.ends.searchsorted(number, side="right"), number)
            return first
        first = pieces.begins.copy()
        usual = rounds.pieces
        emitted = rounds.emitted(np.array([min(index, rounds.num_rounds)]))[0]
        first[: len(usual)] += np.clip(emitted[usual.cursor] - usual.places, 0, usual.count)
        return first

    @cached_property
    def reach(self) -> int:
        """How many clips of a run ahead may use a frame of a clip's chunks."""
        frames = 0
        for grid, window in zip(self.grids, self._windows, strict=True):
            if window.whole:
                return int(self.end_of_run.max(initial=0))
            frames = max(frames, int(grid.max_chunk_frames.max(initial=1)) + 2 * window.span)
        return frames // self._stride + 2

    def keys(self, number: IntArray) -> ClipKeys:
        """Clips by their numbers, int64[n], without their places."""
        _, row = self._pieces.find(number)
        episode, start = self._table.locate(row)
        return ClipKeys(episode, start, self._table.samples(row), np.zeros_like(start))

    def spans(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield intervals `[begin, end)` of rounds in `[start, stop)` to compute together."""
        # Permuted clips are of all chunks: small groups cut no chunk in two.
        clips = ROUND if isinstance(self._rounds, PositionRounds) else _CLIPS_AT_FIRST
        stop = self.num_rounds if stop is None else stop
        while start < stop:
            group = max(1, clips * self.num_rounds // max(1, self.num_clips))
            yield start, min(start + group, stop)
            start, clips = start + group, min(4 * clips, _CLIPS_AT_ONCE)

    def edges(self, start: int, stop: int) -> list[int]:
        """The clips before each of the rounds `[start, stop)` and behind them, from the first."""
        edges: list[int] = (self._before[start : stop + 1] - self._before[start]).tolist()
        return edges

    def locate_clip(self, clip: int) -> tuple[int, int]:
        """The round of a clip in this shard, and the number of clips before it in that round.

        Clips are counted in emitted order.
        """
        index = int(self._before.searchsorted(clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def clips(self, start: int, stop: int) -> Clips:
        """The clips of rounds `[start, stop)`."""
        begin, end = int(self._before[start]), int(self._before[stop])
        if self._emitted is not None:
            number = self._numbers[begin:end]
        else:
            rounds, usual = self._rounds, self._num_usual
            found = rounds.rows(start, min(stop, rounds.num_rounds))
            of_piece = rounds.pieces.begins - rounds.pieces.first
            number = (of_piece[found.piece] + found.row)[: max(0, min(end, usual) - begin)]
            if end > usual:
                last = int(self._pieces.ends[-1])
                number = np.append(number, np.arange(last - self.num_repeated, last))
        piece, row = self._pieces.find(number)
        place = np.arange(begin, end)
        of_runs = self._pieces.cursor[piece], piece, *self._table.locate(row)
        return Clips(*of_runs, self._places(place), self._table.samples(row), number)

    def clips_between(self, first: int, last: int) -> Clips:
        """The clips `[first, last)` of this shard, in emitted order; loads nothing."""
        index, skip = self.locate_clip(first)
        stop = int(self._before.searchsorted(last, side="left"))
        return self.clips(index, max(stop, index)).rows(skip, skip + last - first)


def _check_drop(total: int, settings: PlanSettings, num_shards: int, size: int) -> None:
    """Raise `ClipError` if `last_batch="drop"` leaves no batch of `size` of `total` clips in any
    shard.
    """
    minimum = num_shards * size
    if settings.drops and 0 < total < minimum:
        raise ClipError(
            'last_batch="drop" leaves no batch at all',
            expected=f"at least {minimum} clips: a batch of {size} in each of {num_shards} shards",
            got=f"{total} clips; smaller batches, fewer workers, or no last_batch",
        )


def _with_single_rows(pieces: Pieces, rows: IntArray) -> Pieces:
    """Pieces, and one more for each of some rows, int64[n], for the first cursor."""
    if not len(rows):
        return pieces
    ones = np.ones_like(rows)
    columns = zip((pieces.first, pieces.count, pieces.cursor), (rows, ones, 0 * ones), strict=True)
    return Pieces(*map(np.concatenate, columns))
