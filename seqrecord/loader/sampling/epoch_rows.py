"""The rows of an epoch in all shards: their order, and their batches.

A part of an epoch that is left after a change of ranks or workers is divided like an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seqrecord.loader.clips.tables import EpisodeLayout, IntArray
from seqrecord.loader.sampling.clip_costs import ClipCosts
from seqrecord.loader.sampling.cost_batches import BatchLimit
from seqrecord.loader.sampling.cursor_shares import (
    EpisodeSequence,
    Pieces,
    even_shares,
    rows_of_shards,
    share_out,
)
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.order_batches import (
    CostBatches,
    OrderBatches,
    SizedBatches,
    counts_of_shards,
    num_in_order,
    steps_of_shards,
)
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.plan_settings import WHOLE, PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Runs, Window
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    RowOrder,
    SequenceOrder,
    order_of_shard,
    whole_sequences,
)
from seqrecord.loader.sampling.share_settings import ShareSettings
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ragged_arange

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class EpochRows:
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
    costs: ClipCosts | None = None

    @cached_property
    def cost(self) -> IntArray | None:
        """The cost of each row, int64[rows]; `None` without a budget."""
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
    def _size(self) -> int:
        return self.settings.batch_size or 1

    @property
    def _follows_episodes(self) -> bool:
        """Whether the rows of a batch follow episodes."""
        return find_order(self.settings.order).has_rows

    def order(self, shard: int, num_shards: int) -> RowOrder:
        """The order of a shard."""
        settings = self.settings
        if not len(self.table):
            return _NoRows()
        if self._follows_episodes:
            sequence = EpisodeSequence.in_order(self.table)
            if settings.shuffle:
                sequence = EpisodeSequence.shuffled(self.table, self.key.of())
            if settings.last_batch == "keep":
                return whole_sequences(sequence, num_shards, shard, self._size)
            return SequenceOrder.of(sequence, num_shards, shard, self._size)
        return order_of_shard(
            self.table,
            [self.groups[settings.group]],
            shares_of(settings),
            self.key,
            *(shard, num_shards, self._size),
            shuffle=settings.shuffle,
            weight=self.weight,
        )

    def num_rows(self, num_shards: int) -> IntArray:
        """The rows of each shard, int64[shards]."""
        settings = self.settings
        if self._follows_episodes and settings.last_batch == "keep":
            orders = (self.order(shard, num_shards) for shard in range(num_shards))
            return np.array([order.num_rows for order in orders], np.int64)
        if self.weight is None or not settings.shuffle or settings.is_permuted:
            return rows_of_shards(len(self.table), num_shards)
        pieces, shard = self.pieces(num_shards)
        return np.bincount(shard, pieces.count, num_shards).astype(np.int64)

    def pieces(self, num_shards: int) -> tuple[Pieces, IntArray]:
        """The pieces of all shards, and the shard of each, int64[pieces]."""
        settings, groups = self.settings, [self.groups[self.settings.group]]
        if not settings.shuffle:
            sequence = EpisodeSequence.in_order(self.table)
            pieces = even_shares(sequence, num_shards, 1).pieces
            return pieces, pieces.cursor
        shares = shares_of(settings)
        key = self.key._replace(epoch=0) if shares.is_resident else self.key
        sequence = EpisodeSequence.shuffled(self.table, key.of(), self.weight)
        place = num_shards, shares.num_cursors, key.of(), shares.aligned, shares.rotation
        pieces = share_out(sequence, groups, *place).pieces
        return pieces, pieces.cursor // shares.num_cursors

    def batches(
        self,
        order: RowOrder,
        shard: int,
        num_shards: int,
        sizes: Callable[[IntArray], IntArray] | None,
    ) -> OrderBatches:
        """The batches of a shard's order, with the drawn `sizes` of batches by their numbers, or of
        `batch_size` rows.
        """
        num_rows, last_batch = self.num_rows(num_shards), self.settings.last_batch
        if self.cost is None:
            size = sizes or self.widths(order) or self._size
            return SizedBatches(order, num_rows, size, last_batch)  # type: ignore[arg-type]
        steps = self._steps(shard, num_shards)
        key = self.key.of(shard) if self.settings.shuffle else None
        return CostBatches(order, self.cost, self.limit, steps, num_rows, key, last_batch)  # type: ignore[arg-type]

    def widths(self, order: RowOrder) -> Callable[[IntArray], IntArray] | None:
        """The rows of batches of a shard's order by their numbers; `None` for `batch_size`."""
        is_uneven = self._follows_episodes and self.settings.last_batch == "keep"
        return order.widths if is_uneven and isinstance(order, SequenceOrder) else None

    def _steps(self, shard: int, num_shards: int) -> int:
        """The batches of each shard; of this one alone with `last_batch="keep"`."""
        cost, limit = self.cost, self.limit
        assert cost is not None
        if not len(cost):
            return 0
        is_alone = self.settings.last_batch == "keep"
        shards = [shard] if is_alone else range(num_shards)
        if not self.settings.shuffle or self.settings.is_permuted:
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

    def runs(self, num_shards: int, shards: IntArray | None = None) -> tuple[Runs, IntArray]:
        """The runs of `shards`, int64, by default of all; and the place of each row's shard in
        them, int64[rows]. A shard without rows has those that it repeats.
        """
        pieces, owner = self.pieces(num_shards)
        counts = np.bincount(owner, pieces.count, num_shards).astype(np.int64)
        if self.settings.last_batch == "repeat" and (empty := np.flatnonzero(counts == 0)).size:
            first, owner = np.append(pieces.first, 0 * empty), np.append(owner, empty)
            count = np.append(pieces.count, np.full_like(empty, counts.max()))
            pieces = Pieces(first, count, owner)
        if shards is not None:
            is_chosen = np.isin(owner, shards)
            pieces = Pieces(pieces.first[is_chosen], pieces.count[is_chosen], owner[is_chosen])
            owner = shards.searchsorted(owner[is_chosen])
        runs = runs_of(self.table, pieces)
        return runs, owner[runs.run]


class _NoRows(RowOrder):
    """The order of no rows."""

    num_rows = 0

    def rows(self, first: int, last: int) -> IntArray:  # noqa: ARG002
        """See `RowOrder`."""
        return _NO_ROWS

    def left(self, number: int) -> tuple[IntArray, IntArray]:  # noqa: ARG002
        """See `RowOrder`."""
        return _NO_ROWS, _NO_ROWS


def shares_of(settings: PlanSettings) -> ShareSettings:
    """The settings of the cursors' shares."""
    return ShareSettings(
        settings.num_cursors,
        settings.block_rows,
        settings.aligned / WHOLE,
        settings.rotation,
        is_resident=settings.is_resident,
        is_permuted=settings.is_permuted,
    )


def runs_of(table: RowTable, pieces: Pieces) -> Runs:
    """The pieces of a shard as runs, a row for each run of the table in a piece."""
    ends = table.count.cumsum()
    stop = pieces.first + pieces.count
    low = ends.searchsorted(pieces.first, side="right")
    high = ends.searchsorted(stop - 1, side="right")
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
