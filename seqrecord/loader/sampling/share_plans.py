"""`order="shares"`: the order of `share_orders`, executed as plans of cursors.

Undocumented, until it is the only order. The pieces of a shard are the runs of a plan, the rounds
of `CursorRounds` are its rounds, and rows its clips.

Frames that stay in memory are read in this order in epoch 0, and their rows are permuted in later
epochs; those of small frames in each epoch. After `last_batch="repeat"`, a shard with fewer rows
than others repeats its first ones, in a round of their own.

With a budget, the batches of an epoch are cut at once, see `order_batches`. Its rounds are equal
numbers of clips in their order, whose last uses are known by their places in it.

`PlanSettings` have the settings of shares: `block_frames` is the rows of a block, `num_shares` the
number of the group, from 1, whose units begins align with, and `run_frames` how many of 2^20 begins
do, from 1. They are `None` if each epoch is a permutation of its rows. `first_block_frames` is the
rotation, from 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import EpochSegment, PlanSettings
from seqrecord.loader.sampling.budgets import BudgetUse, ClipCosts
from seqrecord.loader.sampling.cost_batches import BatchLimit
from seqrecord.loader.sampling.cursor_shares import (
    EpisodeSequence,
    Pieces,
    even_shares,
    leading,
    num_used,
    share_out,
)
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.epoch import check_drop_last
from seqrecord.loader.sampling.memory import MemoryPlan, MemoryRequest
from seqrecord.loader.sampling.order_batches import (
    CostBatches,
    OrderBatches,
    SizedBatches,
    counts_of_shards,
    num_in_order,
    steps_of_shards,
)
from seqrecord.loader.sampling.plan import Clips, Plan, PlannedOrder
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Runs, Shard, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    PermutedOrder,
    RowOrder,
    SequenceOrder,
    SharedOrder,
    order_of_shard,
)
from seqrecord.loader.sampling.share_rounds import CursorRounds, RoundRows
from seqrecord.loader.sampling.share_settings import (
    MOST_REREAD,
    CursorWalk,
    ShareRequest,
    ShareSettings,
)
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.text import counted
from seqrecord.store.units import format_size

_ALIGNED_PARTS = 1 << 20
_ROUND = 1 << 10  # clips, where rounds have no blocks
_ENOUGH_EPISODES = 0.85  # of a full shuffle's
_MUCH_REREAD = 0.1  # of frames that are decoded twice
_COUNTED_BATCHES = 32
_LEAST_BLOCK = 32  # rows of an unshuffled round
_BLOCKS_AT_ONCE = 1 << 18
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of an epoch, or of its rest, in all shards.

    Attributes:
        table: the rows.
        groups: the groups of features.
        settings: of the plan.
        key: of the epoch.
        costs: of samples, with a budget.
    """

    table: RowTable
    groups: Sequence[FrameGroup]
    settings: PlanSettings
    key: EpochKey
    costs: ClipCosts | None

    @cached_property
    def cost(self) -> IntArray | None:
        """The cost of each row, int64[rows]."""
        if self.costs is None:
            return None
        return self.costs.of(self.table.samples(np.arange(len(self.table))))

    @cached_property
    def limit(self) -> BatchLimit:
        """What a batch may cost."""
        costs, cost = self.costs, self.cost
        assert costs is not None
        assert cost is not None
        max_rows = min(costs.max_rows, costs.budget)
        return BatchLimit(costs.budget, max_rows, costs.pads, int(cost.max(initial=1)))

    @cached_property
    def weight(self) -> IntArray | None:
        """The parts of batches before each row and behind all, int64[rows + 1]."""
        if self.cost is None or not len(self.table):
            return None
        return np.append(0, np.cumsum(self.limit.parts(self.cost)))

    @property
    def shares(self) -> ShareSettings:
        parts = self.settings.run_frames
        return ShareSettings(
            self.settings.num_cursors,
            self.settings.block_frames,
            1.0 if parts is None else (parts - 1) / _ALIGNED_PARTS,
            self.settings.first_block_frames - 1,
            is_resident=self.settings.resident,
            is_permuted=parts is None,
        )

    def order(self, shard: int, num_shards: int) -> RowOrder:
        """The order of a shard."""
        if not len(self.table):
            return _NoRows()
        group = self.groups[(self.settings.num_shares or 1) - 1]
        place = shard, num_shards, self.settings.batch_size or 1
        shuffle = self.settings.shuffle
        return order_of_shard(
            self.table, [group], self.shares, self.key, *place, shuffle=shuffle, weight=self.weight
        )

    def num_rows(self, num_shards: int) -> IntArray:
        """The rows of each shard, int64[shards]."""
        if self.weight is None or not self.settings.shuffle or self.shares.is_permuted:
            low, more = divmod(len(self.table), num_shards)
            return low + (np.arange(num_shards) < more)
        pieces, shard = self.pieces(num_shards)
        return np.bincount(shard, pieces.count, num_shards).astype(np.int64)

    def pieces(self, num_shards: int) -> tuple[Pieces, IntArray]:
        """The pieces of all shards, and the shard of each, int64[pieces]."""
        if not self.settings.shuffle:
            sequence = EpisodeSequence.in_order(self.table)
            pieces = even_shares(sequence, num_shards, 1).pieces
            return pieces, pieces.cursor
        shares = self.shares
        key = self.key._replace(epoch=0) if shares.is_resident else self.key
        group = self.groups[(self.settings.num_shares or 1) - 1]
        sequence = EpisodeSequence.shuffled(self.table, key.of(), self.weight)
        place = num_shards, shares.num_cursors, key.of(), shares.aligned, shares.rotation
        pieces = share_out(sequence, [group], *place).pieces
        return pieces, pieces.cursor // shares.num_cursors

    def batches(
        self,
        order: RowOrder,
        shard: int,
        num_shards: int,
        size: int | Any,
    ) -> OrderBatches:
        """The batches of a shard's order."""
        num_rows, last_batch = self.num_rows(num_shards), self.settings.last_batch
        if self.cost is None:
            return SizedBatches(order, num_rows, size, last_batch)  # type: ignore[arg-type]
        steps = self._steps(shard, num_shards)
        key = self.key.of(shard) if self.settings.shuffle else None
        return CostBatches(order, self.cost, self.limit, steps, num_rows, key, last_batch)  # type: ignore[arg-type]

    def _steps(self, shard: int, num_shards: int) -> int:
        """The batches of each shard; of this one alone with `last_batch="keep"`."""
        cost, limit = self.cost, self.limit
        assert cost is not None
        if not len(cost):
            return 0
        is_alone = self.settings.last_batch == "keep"
        shards = [shard] if is_alone else range(num_shards)
        if not self.settings.shuffle or self.shares.is_permuted:
            orders = [self.order(one, num_shards) for one in shards]
            rows = [order.rows(0, order.num_rows) for order in orders]
            if not self.settings.shuffle:
                return num_in_order(cost, limit, rows)
            counts = np.stack(
                [np.bincount(limit.levels(cost[of]), minlength=limit.num_levels) for of in rows]
            )
            return steps_of_shards(limit, counts)
        pieces, owner = self.pieces(num_shards)
        counts = counts_of_shards(cost, limit, pieces.first, pieces.count, owner, num_shards)
        return steps_of_shards(limit, counts[shard : shard + 1] if is_alone else counts)


class _NoRows(RowOrder):
    """The order of no rows."""

    num_rows = 0

    def rows(self, first: int, last: int) -> IntArray:  # noqa: ARG002
        """See `RowOrder`."""
        return _NO_ROWS

    def left(self, number: int) -> tuple[IntArray, IntArray]:  # noqa: ARG002
        """See `RowOrder`."""
        return _NO_ROWS, _NO_ROWS


class SharesPlan(Plan):
    """The plan of one shard in one epoch."""

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        settings, shard = self.settings, self.shard
        groups = frame_groups(self._episodes, self._windows)
        key = EpochKey(settings.seed, self.epoch, segment)
        rows = _Rows(RowTable.of(table), groups, settings, key, self.costs)
        self._table, total = rows.table, len(rows.table)
        if not segment and self.costs is None:
            least = min(self._batch_size, self.batches.first_clip(1))
            check_drop_last(total, replace(settings, batch_size=least), shard.count)
        self._order = order = rows.order(shard.index, shard.count)
        size: Any = self._batch_size
        if self.batches.are_drawn:
            size = self._drawn_sizes
        self._order_batches = rows.batches(order, shard.index, shard.count, size)
        self.num_batches, self.num_repeated = (
            self._order_batches.num_batches,
            self._order_batches.num_repeated,
        )
        if self.costs is not None and settings.drops and not (segment or self.num_batches):
            raise ClipError(
                'last_batch="drop" leaves no batch at all',
                expected=f"at least {counted(shard.count, 'sample')}, one for each of the shards",
                got=counted(total, "sample"),
            )
        emitted, ends = _NO_ROWS, _NO_ROWS
        if self.costs is not None or self.num_repeated:
            emitted, ends = self._order_batches.rows(0, self.num_batches)
        self._emitted = None if self.costs is None else emitted
        if self.costs is not None:
            self.num_clips = len(emitted)
            lengths = self.costs.lengths(self._table.samples(emitted))
            self.batches = self.batches.arranged(ends, lengths)
        elif settings.last_batch == "drop":
            self.num_clips = self.batches.first_clip(self.num_batches)
        else:
            self.num_clips = order.num_rows + self.num_repeated
        self.num_dropped = max(0, order.num_rows + self.num_repeated - self.num_clips)
        self._of_shares = _rounds_of(order, self._table, settings.block_frames)
        self._pieces = _with_single_rows(
            self._of_shares.pieces, emitted[len(emitted) - self.num_repeated :]
        )
        self.num_cursors = int(self._pieces.cursor.max(initial=-1)) + 1
        self._lay_out_rounds()
        self._resident = [1] * len(self._windows)

    def _drawn_sizes(self, batch: IntArray) -> IntArray:
        draws = self.batches.draws
        assert draws is not None
        return draws.clips(self.batches.frames(batch))

    def _lay_out_rounds(self) -> None:
        """Set `num_rounds` and `_before`."""
        if self._emitted is not None:
            edges = np.arange(0, self.num_clips, _ROUND)
            self._before = np.append(edges, self.num_clips)
            self.num_rounds = len(edges)
            return
        usual = min(self.num_clips, self._order.num_rows)
        before = _rows_before(self._of_shares)
        before = np.append(before[: np.searchsorted(before, usual)], usual)
        if self.num_clips > usual:  # the repeated rows
            before = np.append(before, self.num_clips)
        self._before, self.num_rounds = before, len(before) - 1

    @property
    def budget_use(self) -> BudgetUse | None:
        """See `Plan`."""
        if self.costs is None or self._emitted is None or not len(self._emitted):
            return None
        cost = self.costs.of(self._table.samples(self._emitted))
        _, ends = self._order_batches.rows(0, self.num_batches)
        return BudgetUse.of(cost, ends, self.costs)

    def left(self, batches: int) -> tuple[IntArray, IntArray]:
        """The rows that come after so many batches; see `OrderBatches`."""
        return self._order_batches.left(batches)

    # ---- for a store of frames

    def most_loaded(self) -> tuple[int, ...]:
        """See `Plan`: in equal parts."""
        groups = frame_groups(self._episodes, self._windows)
        return tuple(
            -(-num_used(self._table, group) // max(1, self.num_cursors)) for group in groups
        )

    @property
    def num_runs(self) -> int:
        """See `Plan`."""
        return len(self._pieces)

    @cached_property
    def episode_of_run(self) -> IntArray:
        """See `Plan`."""
        return self._table.locate(self._pieces.first)[0]

    @cached_property
    def cursor_of_run(self) -> IntArray:
        """See `Plan`."""
        return self._pieces.cursor

    @cached_property
    def end_of_run(self) -> IntArray:
        """See `Plan`."""
        return self._pieces.ends

    def numbers_before(self, index: int) -> IntArray:
        """See `Plan`."""
        pieces, rounds = self._pieces, self._of_shares
        if self._emitted is not None:
            number = self._numbers[int(self._before[index]) :]
            first: IntArray = pieces.ends.copy()
            np.minimum.at(first, np.searchsorted(pieces.ends, number, side="right"), number)
            return first
        first = pieces.begins.copy()
        usual = rounds.pieces
        emitted = rounds.emitted(np.array([min(index, rounds.num_rounds)]))[0]
        first[: len(usual)] += np.clip(emitted[usual.cursor] - usual.places, 0, usual.count)
        return first

    @property
    def counts(self) -> dict[str, int]:
        """See `Plan`: permuted batches are mixed from all clips."""
        counts, is_permuted = super().counts, isinstance(self._of_shares, _PositionRounds)
        return {**counts, "num_interleaved": self.num_clips} if is_permuted else counts

    @property
    def is_in_order(self) -> bool:  # type: ignore[override]
        """See `Plan`."""
        return self._emitted is None

    def times(self, number: IntArray) -> IntArray:
        """See `Plan`."""
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
        usual = self.num_clips - self.num_repeated
        pieces = self._of_shares.pieces
        order = np.argsort(pieces.first)
        row = self._emitted[:usual]
        piece = order[np.searchsorted(pieces.first[order], row, side="right") - 1]
        number = pieces.begins[piece] + row - pieces.first[piece]
        end = int(self._pieces.ends[-1]) if len(self._pieces) else 0
        return np.append(number, np.arange(end - self.num_repeated, end))

    def keys(self, number: IntArray) -> ClipKeys:
        """See `Plan`."""
        _, row = self._pieces.find(number)
        episode, start = self._table.locate(row)
        return ClipKeys(episode, start, self._table.samples(row), np.zeros_like(start))

    def clips(self, start: int, stop: int) -> Clips:
        """See `Plan`."""
        begin, end = int(self._before[start]), int(self._before[stop])
        if self._emitted is not None:
            number = self._numbers[begin:end]
        else:
            rounds, usual = self._of_shares, self.num_clips - self.num_repeated
            found = rounds.rows(start, min(stop, rounds.num_rounds))
            of_piece = rounds.pieces.begins - rounds.pieces.first
            number = (of_piece[found.piece] + found.row)[: max(0, min(end, usual) - begin)]
            if end > usual:
                last = int(self._pieces.ends[-1])
                number = np.append(number, np.arange(last - self.num_repeated, last))
        piece, row = self._pieces.find(number)
        place = np.arange(begin, end)
        of_runs = self._pieces.cursor[piece], piece, *self._table.locate(row)
        of_batches = *self.batches.find(place), self._places(place)
        return Clips(*of_runs, *of_batches, self._table.samples(row), number)

    def clips_between(self, first: int, last: int) -> Clips:
        """See `Plan`."""
        index, skip = self.locate_clip(first)
        stop = int(np.searchsorted(self._before, last, side="left"))
        return self.clips(index, max(stop, index)).rows(skip, skip + last - first)

    def _planned_runs(self) -> Runs:
        return _runs_of(self._table, self._pieces)

    def _in_order(self, blocks: Any) -> Any:
        raise NotImplementedError

    def _clips(self, blocks: Any, position: Any) -> Any:
        raise NotImplementedError


class _PositionRounds:
    """Rounds of an order without cursors: rows at consecutive places.

    Args:
        order: of the shard.
        table: whose rows have their numbers in it.
    """

    def __init__(self, order: RowOrder, table: RowTable) -> None:
        self._order, self.num_rows = order, order.num_rows
        bounds = table.bounds if len(table) else np.zeros(1, np.int64)
        pieces = order.pieces if isinstance(order, PermutedOrder) else None
        first, count = bounds[:-1], np.diff(bounds)
        if pieces is not None and len(pieces):
            by_first = np.argsort(pieces.first)
            first, count = pieces.first[by_first], pieces.count[by_first]
        self.pieces = Pieces(first, count, np.zeros_like(first))
        self.num_rounds = -(-order.num_rows // _ROUND)

    def before(self, rounds: IntArray) -> IntArray:
        """The rows before rounds, int64[n]."""
        return np.minimum(rounds * _ROUND, self.num_rows)

    def emitted(self, rounds: IntArray) -> IntArray:
        """See `CursorRounds`: no number is known to be passed."""
        return np.zeros((len(rounds), 1), np.int64)

    def rows(self, start: int, stop: int) -> RoundRows:
        """See `CursorRounds`."""
        row = self._order.rows(*self.before(np.array([start, stop])).tolist())
        piece = np.searchsorted(self.pieces.first, row, side="right") - 1
        return RoundRows(row, np.zeros_like(row), piece)


class _SequenceRounds:
    """Rounds of a `SequenceOrder`, with so many rows of each share."""

    def __init__(self, order: SequenceOrder, step: int) -> None:
        self._order, self.pieces, self.num_rows = order, order.pieces, order.num_rows
        self._counts, self._step = order.counts, step
        self.num_rounds = -(-int(order.counts.max(initial=0)) // step)

    def before(self, rounds: IntArray) -> IntArray:
        """The rows before rounds, int64[n]."""
        return np.minimum(rounds * self._step * len(self._counts), self.num_rows)

    def emitted(self, rounds: IntArray) -> IntArray:
        """See `CursorRounds`."""
        emitted: IntArray = np.minimum(rounds[:, None] * self._step, self._counts)
        return emitted

    def rows(self, start: int, stop: int) -> RoundRows:
        """See `CursorRounds`."""
        piece, row = self._order.find(*self.before(np.array([start, stop])).tolist())
        return RoundRows(row, np.zeros_like(row), piece)


def _with_single_rows(pieces: Pieces, rows: IntArray) -> Pieces:
    """Pieces, and one more for each of some rows, int64[n], for the first cursor."""
    if not len(rows):
        return pieces
    ones = np.ones_like(rows)
    columns = zip((pieces.first, pieces.count, pieces.cursor), (rows, ones, 0 * ones), strict=True)
    return Pieces(*map(np.concatenate, columns))


def _rounds_of(order: RowOrder, table: RowTable, block: int) -> Any:
    """The rounds of an order."""
    if isinstance(order, SharedOrder):
        return order.rounds
    if isinstance(order, SequenceOrder) and order.num_rows:
        return _SequenceRounds(order, block)
    return _PositionRounds(order, table)


def _rows_before(rounds: Any) -> IntArray:
    """The rows before each round, and before the end; int64[num_rounds + 1]."""
    numbers = np.arange(rounds.num_rounds + 1)
    if not isinstance(rounds, CursorRounds):
        before: IntArray = rounds.before(numbers)
        return before
    width = max(1, _BLOCKS_AT_ONCE // max(1, rounds.num_cursors))
    parts = [numbers[i : i + width] for i in range(0, len(numbers), width)]
    return np.concatenate([rounds.emitted(part).sum(axis=1) for part in parts])


def _runs_of(table: RowTable, pieces: Pieces) -> Runs:
    """The pieces of a shard as runs, a row for each run of the table in a piece."""
    ends = np.cumsum(table.count)
    stop = pieces.first + pieces.count
    low = np.searchsorted(ends, pieces.first, side="right")
    high = np.searchsorted(ends, stop - 1, side="right")
    piece, offset = ragged_arange(high - low + 1)
    run = low[piece] + offset
    first = np.maximum(pieces.first[piece], ends[run] - table.count[run])
    count = np.minimum(stop[piece], ends[run]) - first
    of_rows = *table.locate(first), count, piece, table.samples(first)
    return Runs(table.stride, *of_rows, table.sample_step)


def frame_groups(
    episodes: EpisodeLayout, windows: Sequence[Window], nbytes: Sequence[int] | None = None
) -> list[FrameGroup]:
    """The groups of a plan, whose frames have `nbytes` bytes each."""
    sizes = [1] * len(windows) if nbytes is None else nbytes
    return [
        FrameGroup(
            window.offset + np.arange(0, window.span, window.frame_step)
            if window.offsets is None
            else np.array(window.offsets),
            episodes.num_frames,
            size,
            grid,
        )
        for window, grid, size in zip(windows, episodes.groups, sizes, strict=True)
    ]


@dataclass(frozen=True)
class _SharesMemory(MemoryPlan):
    """Memory of shares, which is too little for good batches seldom, and then with a warning."""

    notice_level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, eq=False)
class _Fit:
    """The choice of settings for a memory limit; see `PlannedOrder.fit`."""

    request: MemoryRequest
    table: ClipTable
    episodes: EpisodeLayout
    windows: Sequence[Window]

    @cached_property
    def rows(self) -> RowTable:
        return RowTable.of(self.table)

    @cached_property
    def groups(self) -> list[FrameGroup]:
        return frame_groups(self.episodes, self.windows, self.request.sizes.frames)

    @cached_property
    def _sequence(self) -> EpisodeSequence:
        if self.request.settings.shuffle:
            return EpisodeSequence.shuffled(self.rows, 0)
        return EpisodeSequence.in_order(self.rows)

    @cached_property
    def _walks(self) -> list[CursorWalk]:
        """A walk of each group, which counts frames."""
        groups = [replace(group, nbytes=1, decoder_bytes=0) for group in self.groups]
        return [CursorWalk(self._sequence, [group]) for group in groups]

    def plan_memory(self, limit: int, saved: PlanSettings | None, *, are_small: bool) -> MemoryPlan:
        """The settings with most cursors of all divisions of the limit."""
        best: MemoryPlan | None = None
        request = self.request
        least = request.sizes.held(self._frames_of_row)
        for prefetch, loads, arena, room in request.sizes.divisions(limit, least, *self._user):
            of_request = request.settings, request.sizes
            memory: MemoryPlan = _SharesMemory(*of_request, arena, prefetch, loads)
            permuted = memory
            if are_small and saved is None and request.settings.shuffle:
                # Of several shards, each permutes the rows of all.
                is_single = request.num_shards == 1
                frames = request.frames_in_memory if is_single else self._all_frames
                permuted = memory.with_all(frames)
            memory = memory.with_all(request.frames_in_memory)
            if saved is not None:
                chosen = replace(memory, settings=saved)
                if memory.in_memory is None and _stay(saved):
                    least = request.limit_to_stay
                    continue
            elif permuted.in_memory is not None:
                settings = replace(request.settings, num_cursors=1, run_frames=None)
                chosen = replace(permuted, settings=settings)
            else:
                chosen = self._chosen(memory, room)
            if chosen.in_memory is None:
                chosen = replace(chosen, resident=self._frames(chosen.settings, arena))
            if best is None or chosen.settings.num_cursors > best.settings.num_cursors:
                best = chosen
            if not best.of_memory:
                break
        if best is None:
            request.sizes.divisions(limit, least, *self._user)  # raises
        assert best is not None
        return replace(best, of_memory=False)  # the notice has the limit that suffices

    @property
    def _user(self) -> tuple[str, str]:
        return self.request.what, self.request.url

    def _chosen(self, memory: MemoryPlan, room: int) -> MemoryPlan:
        """The settings for frames in `room` bytes."""
        stays = memory.in_memory is not None
        if not self.request.settings.shuffle:
            return replace(memory, settings=self._in_order(room))
        shares = self._choice(room, stays=stays)
        settings = self._settings(shares, stays=stays)
        most = self._choice(1 << 62, stays=stays)
        of_memory = most.num_cursors > shares.num_cursors
        limited = None
        if self.request.num_cursors is None and self.request.shuffle_buffer is None:
            limited = self._notice(shares, settings, most if of_memory else None, room)
        return replace(memory, settings=settings, limited=limited, of_memory=of_memory)

    def _in_order(self, room: int) -> PlanSettings:
        """The settings of an unshuffled epoch: blocks of `_LEAST_BLOCK` rows or a batch, as far as
        memory allows.
        """
        block = max(self.request.settings.batch_size or 1, _LEAST_BLOCK)
        while block > 1 and self.request.sizes.held(self._walked(1, block)) > room:
            block //= 2
        return self._settings(ShareSettings(1, block))

    def _choice(self, room: int, *, stays: bool) -> ShareSettings:
        request = self.request
        if not len(self.rows):
            return ShareSettings(1, 1)
        wanted = ShareRequest(
            self.rows,
            self.groups,
            request.settings.batch_size or 1,
            request.num_shards,
            room=room,
            keeps_frames=stays,
            max_cursors=request.num_cursors,
            max_round_rows=request.shuffle_buffer,
        )
        try:
            return wanted.choose()
        except MemoryLimitError:  # the store drops frames
            return ShareSettings(1, 1)

    def _settings(self, shares: ShareSettings, *, stays: bool = False) -> PlanSettings:
        return replace(
            self.request.settings,
            num_cursors=shares.num_cursors,
            block_frames=shares.block_rows,
            first_block_frames=1 + shares.rotation,
            run_frames=1 + round(shares.aligned * _ALIGNED_PARTS),
            num_shares=1 + self.groups.index(leading(self.groups)),
            resident=stays and self.request.settings.shuffle,
        )

    @cached_property
    def _all_frames(self) -> tuple[int, ...]:
        """The frames of each group that rows need, about."""
        return tuple(num_used(self.rows, group) for group in self.groups) if len(self.rows) else ()

    @cached_property
    def _frames_of_row(self) -> tuple[int, ...]:
        """The most frames of each group in one row."""
        frames = []
        for group in self.groups:
            lengths = group.num_frames[self.rows.episode]
            frames.append(int(min(len(group.offsets), lengths.max(initial=1))))
        return tuple(frames)

    def _walked(self, num_cursors: int, block: int) -> tuple[int, ...]:
        """The frames of each group that cursors have, with those of chunks that are decoded
        whole.
        """
        if not len(self.rows):
            return (1,) * len(self.groups)
        counts = []
        for group, walk in zip(self.groups, self._walks, strict=True):
            frames = walk.total(num_cursors, block)
            frames += num_cursors * (group.num_together(self.rows.episode) - 1)
            counts.append(max(1, min(frames, num_used(self.rows, group))))
        return tuple(counts)

    def _frames(self, settings: PlanSettings, arena: int) -> tuple[int, ...]:
        """The rows of each group: as many as its frames need, in equal parts of `arena` bytes if
        these have less.
        """
        sizes = self.request.sizes
        frames = self._walked(settings.num_cursors, settings.block_frames)
        if (held := sizes.held(frames)) <= arena:
            return frames
        least = self._frames_of_row
        room = max(0, arena - sizes.held(least))
        more = [count - few for count, few in zip(frames, least, strict=True)]
        held = max(1, sizes.held([max(0, one) for one in more]))
        return tuple(few + max(0, one) * room // held for few, one in zip(least, more, strict=True))

    def _notice(
        self, shares: ShareSettings, settings: PlanSettings, most: ShareSettings | None, room: int
    ) -> str | None:
        """The reason if batches have few of all episodes, or many frames are decoded twice; `most`
        are settings with enough memory, if these have more cursors than those for `room` bytes.
        """
        size, rows, count = settings.batch_size or 1, self.rows, self.request.num_shards
        if not len(rows):
            return None
        group = self.groups[(settings.num_shares or 1) - 1]
        key = EpochKey(settings.seed, 0)
        order = order_of_shard(rows, [group], shares, key, 0, count, size)
        whole = order.num_rows // size
        if not whole:
            return None
        begins = np.unique(np.linspace(0, whole - 1, _COUNTED_BATCHES).astype(np.int64)) * size
        numbers = [
            len(np.unique(rows.locate(order.rows(begin, begin + size))[0]))
            for begin in begins.tolist()
        ]
        number = float(np.mean(numbers))
        parts = np.bincount(rows.episode, rows.count) / len(rows)
        full = float((1 - (1 - parts) ** size).sum())
        if number >= _ENOUGH_EPISODES * full:
            if shares.reread <= _MUCH_REREAD:
                return None
            return (
                f"{shares.reread:.0%} of the frames are decoded twice, where clips of "
                f"{counted(count, 'shard')} begin: shorter groups of pictures (gop=), shorter "
                "clips or fewer shards decode less"
            )
        why = f"more cuts would decode over {MOST_REREAD:.0%} of the frames twice"
        remedy = "shorter clips or fewer shards mix better"
        begin, stop = group.units(rows.episode, group.first(rows.episode, rows.start))
        unit_frames = int((stop - begin).max())
        if most is not None:
            room = max(room, 1)
            while self._choice(room, stays=False).num_cursors < most.num_cursors:
                room *= 2
            nbytes = room + self.request.sizes.beside_arena(1, 1)
            why = f"memory_limit leaves no room for {most.num_cursors} places"
            remedy = f"about {format_size(nbytes)}, or shorter clips, mix better"
        elif unit_frames > max(1, group.span - rows.stride):
            remedy = f"shorter groups of pictures mix better (gop=), here of {unit_frames}"
        return (
            f"clips are mixed from {counted(shares.num_cursors, 'place')} at a time in each of "
            f"{counted(count, 'shard')}: {number:.1f} episodes in a batch of {size}, where a "
            f"shuffle of all has {full:.1f}; {why}: {remedy}"
        )


def _stay(settings: PlanSettings) -> bool:
    """Whether plans need frames that stay in memory."""
    return settings.resident or settings.run_frames is None


class SharesOrder(PlannedOrder):
    """`order="shares"`: equal shares of a shuffled sequence of episodes."""

    name = "shares"
    is_cursor_bound = True

    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:  # noqa: ARG002
        """See `PlannedOrder`."""
        return SharesPlan

    def fit(
        self,
        request: MemoryRequest,
        limit: int,
        saved: PlanSettings | None,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        *,
        are_small: bool,
    ) -> MemoryPlan:
        """See `PlannedOrder`."""
        choice = _Fit(request, table, episodes, windows)
        return choice.plan_memory(limit, saved, are_small=are_small)

    def shard_runs(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        settings: PlanSettings,
        num_shards: int,
        shards: IntArray | None,
    ) -> tuple[Runs, IntArray]:
        """See `PlannedOrder`."""
        key = EpochKey(settings.seed, 0)
        rows = _Rows(RowTable.of(table), frame_groups(episodes, windows), settings, key, None)
        pieces, owner = rows.pieces(num_shards)
        if shards is not None:
            is_chosen = np.isin(owner, shards)
            pieces = Pieces(pieces.first[is_chosen], pieces.count[is_chosen], owner[is_chosen])
            owner = np.searchsorted(shards, owner[is_chosen])
        runs = _runs_of(rows.table, pieces)
        return runs, owner[runs.run]

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
        """See `PlannedOrder`."""
        from seqrecord.loader.sampling.elastic import batches_of_shards  # ranks seldom change

        (epoch, number), count = place, segment.ranks * segment.workers
        plans = [
            SharesPlan(
                table,
                episodes,
                segment.settings,
                epoch=epoch,
                shard=Shard(index, count, segment.workers),
                segment=number,
                windows=windows,
                draws=draws,
                costs=costs,
            )
            for index in range(count)
        ]
        batches = batches_of_shards(segment, np.array([plan.num_batches for plan in plans]))
        rows = RowTable.of(table)
        is_left = np.zeros(len(rows), np.bool_)
        if any(n < plan.num_batches for n, plan in zip(batches.tolist(), plans, strict=True)):
            for plan, given in zip(plans, batches.tolist(), strict=True):
                for first, length in zip(*map(np.ndarray.tolist, plan.left(given)), strict=True):
                    is_left[first : first + length] = True
        of_rows = rows.episode, rows.start, rows.count, rows.owner, rows.sample
        return Runs(rows.stride, *of_rows, rows.sample_step), [np.flatnonzero(~is_left)]


SHARES = SharesOrder()
