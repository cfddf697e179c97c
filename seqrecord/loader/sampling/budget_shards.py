"""The shards of an epoch with a budget: their clips by cost, and equally many batches.

Each process arranges the clips of all shards, because the shard with most batches determines their
number: about .9 CPU s for 10^6 clips, or twice as much where shares differ in their batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import TypeAlias

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import COPIES
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.budgets import (
    Arrangement,
    BudgetUse,
    ClipCosts,
    Stream,
    arrange,
    costs_of_batches,
)
from seqrecord.loader.sampling.random_order import Purpose, key_of
from seqrecord.loader.sampling.runs import CursorShares, Runs

_UNEVEN = 0.01  # of the mean number of batches: fewer are not worth another division
_WEIGHT = 1 << 8  # of a cost of 1

StreamOf: TypeAlias = Callable[[Runs, IntArray, IntArray, int], Stream]
"""The stream with the clips `[start, stop)` of a sequence, int64[cursors] each, in a shard."""


@dataclass(eq=False)
class BudgetShards:
    """The batches of all shards in an epoch, or in the rest of one.

    Attributes:
        sequence: all clips.
        shares: the cursors' shares in all shards.
        streams: the clips of each shard before they are arranged.
        natural: the batches of each shard, before all have the same number.
        num_batches: of each shard.
    """

    table: ClipTable  # lives as long as its results are cached
    settings: PlanSettings
    costs: ClipCosts
    sequence: Runs
    shares: CursorShares
    streams: list[Stream] = field(repr=False)
    natural: list[Arrangement] = field(repr=False)
    num_batches: list[int] = field(init=False)
    _samples: IntArray = field(init=False, repr=False)

    @classmethod
    def of(
        cls,
        table: ClipTable,
        settings: PlanSettings,
        costs: ClipCosts,
        sequence: Runs,
        shares: CursorShares,
        stream_of: StreamOf,
        key: int,
    ) -> BudgetShards:
        """Arrange the clips of all shards; `key` is of all random numbers of the epoch.

        With `last_batch="repeat"`, a shard with fewer clips than batches repeats clips of the next
        one, or of the one before.
        """
        cost = costs.of(sequence.all_samples)
        start, stop, repeated = (column.copy() for column in shares)
        streams, natural = list[Stream](), list[Arrangement]()

        def arranged(index: int) -> tuple[Stream, Arrangement]:
            stream = stream_of(sequence, start[index], stop[index], index)
            key_of_shard = None
            if settings.shuffle:
                key_of_shard = key_of(Purpose.BATCH_ORDER, key, index, len(start))
            return stream, arrange(stream, cost[stream.clip], costs, key_of_shard)

        for index in range(len(start)):
            stream, arrangement = arranged(index)
            streams.append(stream)
            natural.append(arrangement)
        if settings.last_batch == "repeat":
            most = max(len(arrangement.ends) for arrangement in natural)
            for index, arrangement in enumerate(natural):
                if (lacking := most - len(arrangement.order)) > 0:
                    behind = min(lacking, sequence.num_clips - int(stop[index, -1]))
                    stop[index, -1] += behind
                    start[index, 0] -= lacking - behind
                    repeated[index] = lacking
                    streams[index], natural[index] = arranged(index)
        shares = CursorShares(start, stop, repeated)
        return cls(table, settings, costs, sequence, shares, streams, natural)

    def __post_init__(self) -> None:
        counts = [len(arrangement.ends) for arrangement in self.natural]
        if self.settings.is_even:
            counts = [min(counts) if self.settings.drops else max(counts)] * len(counts)
        self.num_batches, self._samples = counts, self.sequence.all_samples

    @property
    def most_batches(self) -> int:
        """The batches of the shard with most of them."""
        return max(len(arrangement.ends) for arrangement in self.natural)

    def weights(self) -> IntArray | None:
        """The parts of batches that samples take where they are, int64[rows] of the table, if other
        shares may have fewer batches.

        In a shard of few lengths, clips may not fill a budget. And shards of equal costs may differ
        by a batch, which is nearly empty: shares of equal numbers of batches, in which this one
        counts as far as it is filled, may all do without it.
        """
        start, stop, repeated = self.shares
        needed = np.array([*map(self._needed, range(len(start)))])
        gain = self.most_batches - ceil(needed.mean())
        if repeated.any() or gain < max(1, _UNEVEN * needed.mean()):
            return None
        cost = self.costs.shared(self._samples)
        paid = np.append(0, np.cumsum(cost))
        sums = paid[stop[:, -1]] - paid[start[:, 0]]
        parts = needed / np.maximum(sums, 1) * (paid[-1] / needed.sum())
        of_clips = np.repeat(parts, stop[:, -1] - start[:, 0])
        weights = np.ones_like(self.costs.cost)
        weights[self._samples // COPIES] = np.maximum(np.rint(cost * of_clips * _WEIGHT), 1)
        return weights

    def _needed(self, shard: int) -> float:
        """The batches of a shard, where the emptiest one counts as far as it is filled."""
        order, ends = self.natural[shard]
        if not len(ends):
            return 0.0
        cost = self.costs.of(self._samples[self.streams[shard].clip[order]])
        least = int(costs_of_batches(cost, ends, self.costs).min())
        return len(ends) - 1 + least / self.costs.budget

    def arrangement(self, shard: int) -> Arrangement:
        """The batches of a shard."""
        count = self.num_batches[shard]
        return self.natural[shard].divided(count).limited(count)

    def clips(self, shard: int) -> IntArray:
        """The clips of a shard as places in the sequence, in the order of its batches; int64[n]."""
        order: IntArray = self.streams[shard].clip[self.arrangement(shard).order]
        return order

    def lengths(self, shard: int) -> IntArray:
        """The frame counts of a shard's clips, in the order of its batches; int64[n]."""
        return self.costs.lengths(self._samples[self.clips(shard)])

    def use(self, shard: int) -> BudgetUse | None:
        """The use of the budget by the batches of a shard; `None` without any."""
        ends = self.arrangement(shard).ends
        if not len(ends):
            return None
        cost = self.costs.of(self._samples[self.clips(shard)])
        return BudgetUse.of(cost, ends, self.costs)

    def check_drop_last(self, total: int) -> None:
        """Raise `ClipError` if `last_batch="drop"` leaves no batch of `total` clips."""
        if self.settings.drops and total and not max(self.num_batches):
            raise ClipError(
                'last_batch="drop" leaves no batch at all',
                expected=f"at least a clip in each of {len(self.natural)} shards",
                got=f"{total} clips; fewer workers, or no last_batch",
            )
