"""Batches cut from a shard's order: by size, by a drawn size, or by cost.

The batches of all shards are numbered alike, and unless `last_batch` is "keep", all shards have
equally many. The rows of batches are found without the batches before them, and from the shard's
own order alone::

    order          r0 r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 ...
    by size        -------- -------- -------- ------          3 rows each
    by drawn size  ----- ----------- -- -------- ---          sizes follow from numbers of batches
    by cost        ======================= =========          spans of rows; in a span, see
                   r1 r4 | r0 r2 r7 | r3 ...                  `cost_batches`, rows change places

By cost, the order is divided into *spans* of at least `span_rows` rows and `span_batches` batches,
and a span's rows are in its batches. So a batch is found from the costs of its span. How many
batches all shards have follows from the histograms of their costs, `steps_of_shards`: the greatest
number that suffices for one, and one more of each `SPARE_STEPS`, so that rows seldom leave their
windows. If the spans of a shard need more batches than that, it has half as many spans.

`last_batch`: with "repeat", a shard repeats rows from its first one on if it has fewer rows than
others (by size) or than batches (by cost); one without rows has the first rows of the table. With
"drop", all shards have the full batches of the one with fewest rows (by cost: of all batches, as
many as each shard has rows for). With "keep", each row comes once, and shards may have other
numbers of batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from seqrecord.loader.sampling.cost_batches import BatchLimit, cut_in_order, cut_rows, halved
from seqrecord.loader.sampling.random_order import Purpose, key_of
from seqrecord.loader.sampling.share_orders import RowOrder
from seqrecord.loader.sampling.share_rounds import intervals
from seqrecord.store.tables.grids import IntArray

SPARE_STEPS = 1 << 7

_CHUNK_ROWS = 1 << 20

LastBatch = Literal["repeat", "drop", "keep"]


class OrderBatches(ABC):
    """The batches of one shard.

    Attributes:
        num_batches: the number of batches.
        num_repeated: rows that come a second time.
    """

    num_batches: int
    num_repeated: int
    _order: RowOrder
    _total: int  # rows of all shards

    @abstractmethod
    def rows(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """The rows of batches `[first, last)`, int64[n], and the end of each batch among them,
        int64[last - first].
        """

    @abstractmethod
    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """The rows that come after so many batches, as intervals: first rows and numbers of rows,
        ascending, int64[n] each. Repeated rows come before.
        """

    @property
    def repeated(self) -> IntArray:
        """The rows that come a second time, int64[num_repeated]."""
        return self._repeated(0, self.num_repeated)

    def _repeated(self, begin: int, end: int) -> IntArray:
        """The repeated rows `[begin, end)`: the order's first ones again. A shard without rows has
        the first of the table.
        """
        num_rows = self._order.num_rows
        places = np.arange(begin, end) % (num_rows or self._total)
        if not num_rows or not len(places):
            return places
        low, high = int(places.min()), int(places.max()) + 1
        repeated: IntArray = self._order.rows(low, high)[places - low]
        return repeated


class SizedBatches(OrderBatches):
    """Batches of the next rows of an order.

    Args:
        order: of the shard.
        num_rows: rows of each shard, int64[shards].
        size: rows of a batch, or a function that draws those of batches, at least 1, from their
            numbers, int64[n] each.
        last_batch: see the module.
        block: batches of drawn sizes whose rows are counted together.
    """

    def __init__(
        self,
        order: RowOrder,
        num_rows: IntArray,
        size: int | Callable[[IntArray], IntArray],
        last_batch: LastBatch = "repeat",
        block: int = 1 << 12,
    ) -> None:
        self._order, self._size, self._before, self._block = order, size, [0], block
        self._stop, self._total = order.num_rows, int(num_rows.sum())
        if last_batch != "keep":
            self._stop = int(num_rows.max() if last_batch == "repeat" else num_rows.min())
        self.num_batches = self._num_before(self._stop)
        if last_batch == "drop":
            self._stop = self._rows_before(self.num_batches)
        else:
            self.num_batches += self._rows_before(self.num_batches) < self._stop
        self.num_repeated = max(0, self._stop - order.num_rows)

    def _rows_before(self, batch: int) -> int:
        if isinstance(self._size, int):
            return batch * self._size
        block, rest = divmod(batch, self._block)
        while len(self._before) <= block:
            self._grow()
        return self._before[block] + int(self._sizes(block)[:rest].sum())

    def _num_before(self, row: int) -> int:
        """The number of batches that end at or before a row."""
        if isinstance(self._size, int):
            return row // self._size
        while self._before[-1] <= row:
            self._grow()
        block = bisect_right(self._before, row) - 1
        ends = self._before[block] + np.cumsum(self._sizes(block))
        return block * self._block + int(ends.searchsorted(row, side="right"))

    def _grow(self) -> None:
        block = len(self._before) - 1
        self._before.append(self._before[block] + int(self._sizes(block).sum()))

    def _sizes(self, block: int) -> IntArray:
        assert not isinstance(self._size, int)
        return self._size(np.arange(block * self._block, (block + 1) * self._block))

    def rows(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """See `OrderBatches`."""
        if isinstance(self._size, int):
            edges = np.arange(first, last + 1) * self._size
        else:
            sizes = self._size(np.arange(first, last))
            edges = self._rows_before(first) + np.append(0, sizes.cumsum())
        edges = np.minimum(edges, self._stop)
        begin, end = int(edges[0]), int(edges[-1])
        num_rows = self._order.num_rows
        stop = max(begin, min(end, num_rows))
        rows = self._order.rows(begin, stop)
        again = self._repeated(stop - num_rows, end - num_rows)
        return np.concatenate((rows, again)), edges[1:] - begin

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """See `OrderBatches`."""
        return self._order.left(min(self._rows_before(number), self._order.num_rows))


def counts_of_shards(
    cost: IntArray,
    limit: BatchLimit,
    first: IntArray,
    count: IntArray,
    shard: IntArray,
    num_shards: int,
) -> IntArray:
    """The number of rows of each level of cost in each shard, int64[shards, levels].

    Args:
        cost: of each row of the table, int64[rows].
        limit: of a batch.
        first: first row of each of the intervals that shards consist of, int64[n]; together they
            have each row of the table once.
        count: rows of each interval, int64[n].
        shard: the shard of each interval, int64[n].
        num_shards: number of shards.
    """
    order = first.argsort(kind="stable")
    ends = count[order].cumsum()
    counts = np.zeros((num_shards, limit.num_levels), np.int64)
    for begin in range(0, len(cost), _CHUNK_ROWS):
        end = min(begin + _CHUNK_ROWS, len(cost))
        low, high = ends.searchsorted([begin, end - 1], side="right").tolist()
        edges = np.minimum(np.append(begin, ends[low : high + 1]), end)
        line = np.repeat(shard[order[low : high + 1]] * limit.num_levels, np.diff(edges))
        line += limit.levels(cost[begin:end])
        counts += np.bincount(line, minlength=counts.size).reshape(counts.shape)
    return counts


def steps_of_shards(limit: BatchLimit, counts: IntArray) -> int:
    """The number of batches of each shard, from `counts_of_shards`."""
    number = max(map(limit.num_sufficient, counts))
    spare = min(number // SPARE_STEPS, int(counts.sum(axis=1).min()) - number)
    return number + max(0, spare)


class CostBatches(OrderBatches):
    """Batches whose rows cost at most a budget together.

    Args:
        order: of the shard.
        cost: of each row of the table, int64[rows], from 1 to `limit.longest`.
        limit: of a batch.
        steps: of all shards, `steps_of_shards`; of this shard alone, with "keep".
        num_rows: rows of each shard, int64[shards].
        key: of random numbers of this shard; `None`: rows keep their order. Then `steps` is the
            greatest `num_in_order` of all shards.
        last_batch: see the module.
    """

    def __init__(
        self,
        order: RowOrder,
        cost: IntArray,
        limit: BatchLimit,
        steps: int,
        num_rows: IntArray,
        key: int | None,
        last_batch: LastBatch = "repeat",
    ) -> None:
        self._order, self._cost, self._limit, self._key = order, cost, limit, key
        self._total = int(num_rows.sum())
        self._latest: tuple[int, IntArray, IntArray] | None = None
        self._edges, needed = self._divided(steps)
        self.num_batches = steps
        if last_batch == "drop":
            self.num_batches = min(steps, int(num_rows.min()))
        # Spare batches are for the spans that have rows for them.
        spare_rows = np.append(0, np.cumsum(np.diff(self._edges) - needed))
        spare = min(max(0, self.num_batches - int(needed.sum())), int(spare_rows[-1]))
        before = np.append(0, needed.cumsum())
        self._firsts = before + spare * spare_rows // max(1, int(spare_rows[-1]))
        self.num_repeated = max(0, self.num_batches - int(self._firsts[-1]))

    def _divided(self, steps: int) -> tuple[IntArray, IntArray]:
        """The edges of spans, and the batches that suffice for each."""
        rows = self._order.num_rows
        number = max(1, rows // self._limit.span_rows)
        if self._key is not None:
            number = max(1, min(number, steps // self._limit.span_batches))
        while number > 1:
            edges = np.arange(number + 1) * rows // number
            needed = [self._needed(begin, end) for begin, end in pairwise(edges.tolist())]
            if sum(needed) <= steps:
                return edges, np.array(needed, np.int64)
            number //= 2
        return np.array([0, rows]), np.array([min(steps, rows)])

    def _needed(self, begin: int, end: int) -> int:
        cost = self._cost[self._order.rows(begin, end)]
        if self._key is None:
            return len(cut_in_order(cost, self._limit))
        return self._limit.num_sufficient(np.bincount(self._limit.levels(cost)))

    def _span(self, span: int) -> tuple[IntArray, IntArray]:
        """The rows of a span, batch by batch, and the ends of its batches."""
        if self._latest is None or self._latest[0] != span:
            rows = self._order.rows(int(self._edges[span]), int(self._edges[span + 1]))
            cost = self._cost[rows]
            number = int(self._firsts[span + 1] - self._firsts[span])
            if self._key is None:
                ends = halved(cut_in_order(cost, self._limit), number)
            else:
                key = key_of(Purpose.SPAN_ORDER, self._key, span)
                order, ends = cut_rows(cost, self._limit, number, key)
                rows = rows[order]
            self._latest = span, rows, ends
        return self._latest[1:]

    def rows(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """See `OrderBatches`."""
        planned = int(self._firsts[-1])
        parts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        batch, stop = first, min(last, planned)
        while batch < stop:
            span = int(self._firsts.searchsorted(batch, side="right")) - 1
            rows, ends = self._span(span)
            edges = np.append(0, ends)
            begin = batch - int(self._firsts[span])
            end = min(stop, int(self._firsts[span + 1])) - int(self._firsts[span])
            parts.append(rows[edges[begin] : edges[end]])
            sizes.append(np.diff(edges[begin : end + 1]))
            batch += end - begin
        if batch < last:  # batches of one repeated row
            parts.append(self._repeated(batch - planned, last - planned))
            sizes.append(np.ones(last - batch, np.int64))
        return np.concatenate(parts), np.cumsum(np.concatenate(sizes))

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """See `OrderBatches`."""
        if number >= self._firsts[-1]:
            return self._order.left(self._order.num_rows)
        span = int(self._firsts.searchsorted(number, side="right")) - 1
        rows, ends = self._span(span)
        begin = np.append(0, ends)[number - int(self._firsts[span])]
        first, count = self._order.left(int(self._edges[span + 1]))
        return intervals(rows[begin:], first, count)


def num_in_order(cost: IntArray, limit: BatchLimit, rows: Sequence[IntArray]) -> int:
    """The most batches of a shard whose rows keep their order; int64[n] for each shard."""

    def batches(shard: IntArray) -> int:
        number = max(1, len(shard) // limit.span_rows)
        edges = np.arange(number + 1) * len(shard) // number
        spans = pairwise(edges.tolist())
        return sum(len(cut_in_order(cost[shard[begin:end]], limit)) for begin, end in spans)

    return max(map(batches, rows), default=0)
