"""Batches cut from orders, by size and by cost: properties in drawn configurations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from seqrecord.loader.sampling.cost_batches import BatchLimit, cut_in_order, cut_rows
from seqrecord.loader.sampling.cursor_shares import EpisodeSequence, share_out
from seqrecord.loader.sampling.order_batches import (
    CostBatches,
    LastBatch,
    OrderBatches,
    SizedBatches,
    counts_of_shards,
    num_in_order,
    steps_of_shards,
)
from seqrecord.loader.sampling.random_order import hash64
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    PermutedOrder,
    RowOrder,
    SequenceOrder,
    SharedOrder,
    order_of_shard,
)
from seqrecord.loader.sampling.share_settings import ShareSettings
from seqrecord.store.tables.grids import IntArray
from tests.loader.test_cursor_rounds import drawn_group, drawn_table

KINDS = ("lists", "few", "text", "large", "equal")


def drawn_costs(rng: Generator, kind: str, number: int) -> IntArray:
    if kind == "lists":
        return rng.integers(4, 40, number)
    if kind == "few":
        return rng.choice(rng.integers(5, 60, 3), number)
    if kind == "text":
        return np.clip(rng.lognormal(4, 1, number).astype(np.int64), 1, 3000)
    if kind == "large":  # some alone
        return np.where(rng.random(number) < 0.3, 100, rng.integers(1, 100, number))
    return np.full(number, int(rng.integers(1, 50)))


def drawn_limit(rng: Generator, cost: IntArray) -> BatchLimit:
    longest = int(cost.max())
    budget = int(longest * rng.choice([1, 1.5, 2, 4, 8, 20])) + int(rng.integers(0, 2))
    mean_rows = budget / float(cost.mean())
    max_rows = int(rng.choice([budget, max(1, round(4 * mean_rows)), max(1, round(mean_rows / 2))]))
    return BatchLimit(budget, max_rows, bool(rng.random() < 0.4), longest)


def costs_of(cost: IntArray, ends: IntArray, limit: BatchLimit) -> IntArray:
    """The costs of batches, int64[batches]."""
    begins = np.append(0, ends[:-1])
    if limit.pads:
        return np.maximum.reduceat(cost, begins) * np.diff(ends, prepend=0)
    return np.add.reduceat(cost, begins)


def check(cost: IntArray, ends: IntArray, limit: BatchLimit) -> None:
    """Batches are not empty, and within their limits."""
    rows = np.diff(ends, prepend=0)
    assert rows.min() > 0
    assert rows.max() <= limit.max_rows
    assert ends[-1] == len(cost)
    assert costs_of(cost, ends, limit).max() <= limit.budget


def sufficient(cost: IntArray, limit: BatchLimit) -> int:
    return limit.num_sufficient(np.bincount(limit.levels(cost), minlength=limit.num_levels))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", KINDS)
def test_a_sufficient_number_of_batches_has_each_row_once_in_any_order(
    kind: str, seed: int
) -> None:
    rng = default_rng(seed)
    cost = drawn_costs(rng, kind, int(rng.choice([1, 7, 100, 1500])))
    limit = drawn_limit(rng, cost)
    number = sufficient(cost, limit)
    assert number >= -(-cost.sum() // limit.budget)
    shuffled = rng.permutation(cost)
    for costs, more in ((cost, 0), (shuffled, 0), (shuffled, number // 50), (np.sort(cost), 1)):
        batches = min(number + more, len(cost))
        order, ends = cut_rows(costs, limit, batches, seed)
        assert len(ends) == batches
        assert np.array_equal(np.sort(order), np.arange(len(cost)))
        check(costs[order], ends, limit)
        for begin, end in pairwise([0, *ends.tolist()]):
            assert (np.diff(order[begin:end]) > 0).all()


@pytest.mark.parametrize("seed", range(40))
def test_few_more_batches_than_the_best_are_sufficient(seed: int) -> None:
    """Against exact solutions, of rows that make full batches, or of batches of one length."""
    rng = default_rng(seed)
    budget, number = int(rng.integers(40, 200)), int(rng.integers(3, 60))
    cuts = [np.sort(rng.choice(np.arange(1, budget), 5, replace=False)) for _ in range(number)]
    cost = rng.permutation(np.concatenate([np.diff(cut, prepend=0, append=budget) for cut in cuts]))
    limit = BatchLimit(budget, budget, False, int(cost.max()))
    assert number <= sufficient(cost, limit) <= number + 1 + number // 12
    # Padded: as many batches as rows of each length need.
    lengths = np.unique(rng.integers(1, budget + 1, 4))
    cost = np.concatenate([np.full(number * (budget // n), n) for n in lengths])
    limit = BatchLimit(budget, budget, True, int(cost.max()))
    assert sufficient(cost, limit) == number * len(lengths)


@pytest.mark.parametrize("seed", range(30))
def test_fewer_short_rows_than_fill_a_batch_are_bound_to_longer_ones(seed: int) -> None:
    """Items within the budget have at most `max_rows` rows, however they are combined."""
    rng = default_rng(seed)
    cost = drawn_costs(rng, "text", 500)
    budget = int(cost.max()) * 2
    limit = BatchLimit(budget, round(4 * budget / float(cost.mean())), False, int(cost.max()))
    units = -np.sort(-limit.rounded(limit.levels(cost)))
    items, counts, first, bound = limit.bundled(units, np.ones_like(units))
    rows = np.ones(len(items), np.int64)
    rows[first : first + bound] += 1
    assert rows.sum() == len(cost)
    assert (items >= rows * limit.budget).all()  # so a batch has budget * max_rows units
    assert items.max() <= limit.size
    together = np.maximum(units, limit.budget)[: len(items)]
    together[first : first + bound] += units[len(items) :]
    assert np.array_equal(items, together)
    assert (counts == 1).all()
    values, counts = np.unique(-units, return_counts=True)
    values, counts, *bounds = limit.bundled(-values, counts)
    assert np.array_equal(np.repeat(values, counts), items)
    assert bounds == [first, bound]
    assert sufficient(cost, limit) <= 1 + 1.03 * float(cost.sum()) / budget


def test_rows_of_one_order_stay_in_order() -> None:
    cost = np.array([3, 5, 4, 4, 2, 9, 1, 1, 1, 1])
    packed = BatchLimit(9, 3, False, 9)
    assert cut_in_order(cost, packed).tolist() == [2, 4, 5, 6, 9, 10]
    padded = BatchLimit(10, 3, True, 9)
    assert cut_in_order(cost, padded).tolist() == [2, 4, 5, 6, 9, 10]
    assert cut_in_order(cost[:0], packed).tolist() == []


def lists_of(rng: Generator, number: int) -> IntArray:
    """Lists of a length for each of `number` / 20 episodes, shuffled."""
    return rng.permutation(np.repeat(rng.integers(4, 40, number // 20), 20))


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize(("longest", "used"), [(4, 0.985), (8, 0.985), (20, 0.98), (32, 0.98)])
def test_budgets_are_used_near_the_place_of_rows_and_without_a_trend(
    longest: int, used: float, pads: bool
) -> None:
    cost = lists_of(default_rng(longest), 12000)
    limit = BatchLimit(39 * longest, 39 * longest, pads, 39)
    number = steps_of_shards(limit, np.bincount(limit.levels(cost))[None])
    order, ends = cut_rows(cost, limit, number, 1)
    check(cost[order], ends, limit)
    # Padded, a batch of rows of one length may not be full.
    parts = cost / (39 * longest) if not pads else 1 / (39 * longest // cost)
    assert parts.sum() / number >= used
    rows_of_batch = len(cost) / number
    window = limit.window_batches(number, len(cost))
    assert window <= (256 if pads else max(16, 256 / rows_of_batch))
    moved = np.abs(order - np.arange(len(cost))) / (rows_of_batch * window)
    assert (moved > (2 if pads else 3)).mean() < 1e-3
    assert moved.max() <= 17
    mean = np.add.reduceat(cost[order], np.append(0, ends[:-1])) / np.diff(ends, prepend=0)
    assert abs(np.corrcoef(mean, np.arange(number))[0, 1]) < 0.2
    if pads:
        padded = float(costs_of(cost[order], ends, limit).sum())
        assert 1 - cost.sum() / padded < 0.03


class Shards:
    """The orders and the batches of all shards of a drawn table, by cost."""

    def __init__(self, seed: int, kind: str, last_batch: LastBatch, spans: tuple[int, int]) -> None:
        rng = default_rng(seed)
        self.table = drawn_table(rng)
        number, key = len(self.table), EpochKey(seed, 1)
        self.cost = drawn_costs(rng, str(rng.choice(KINDS)), number)
        self.limit = replace(drawn_limit(rng, self.cost), span_rows=spans[0], span_batches=spans[1])
        count = int(rng.integers(1, 1 + min(6, number)))
        cursors = int(rng.integers(1, 1 + min(9, max(1, number // count))))
        settings = ShareSettings(cursors, 3, is_permuted=kind == "permuted")
        weight = np.append(0, np.cumsum(self.limit.parts(self.cost)))
        group = drawn_group(rng, self.table)
        self.orders: list[RowOrder] = [
            order_of_shard(
                *(self.table, [group], settings, key, shard, count, 4),
                shuffle=kind != "unshuffled",
                weight=weight,
            )
            for shard in range(count)
        ]
        self.rows = [order.rows(0, order.num_rows) for order in self.orders]
        self.num_rows = np.array([len(rows) for rows in self.rows])
        first = np.concatenate(self.rows)
        shard = np.repeat(np.arange(count), self.num_rows)
        self.counts = counts_of_shards(
            self.cost, self.limit, first, np.ones_like(first), shard, count
        )
        is_ordered = kind == "unshuffled"
        self.steps = [
            num_in_order(self.cost, self.limit, rows)
            if is_ordered
            else steps_of_shards(self.limit, counts)
            for rows, counts in (
                [([row], one[None]) for row, one in zip(self.rows, self.counts, strict=True)]
                if last_batch == "keep"
                else [(self.rows, self.counts)] * count
            )
        ]
        self.batches = [
            CostBatches(
                *(order, self.cost, self.limit, self.steps[shard], self.num_rows),
                None if is_ordered else key.of(shard),
                last_batch,
            )
            for shard, order in enumerate(self.orders)
        ]


@pytest.mark.parametrize("spans", [(1 << 16, 1 << 8), (16, 3)], ids=["one span", "many spans"])
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("last_batch", ["repeat", "drop", "keep"])
@pytest.mark.parametrize("kind", ["shares", "permuted", "unshuffled"])
def test_shards_have_equally_many_batches_within_the_budget(
    kind: str, last_batch: LastBatch, seed: int, spans: tuple[int, int]
) -> None:
    shards = Shards(seed, kind, last_batch, spans)
    if last_batch != "keep":
        assert len({batches.num_batches for batches in shards.batches}) == 1
    for batches, own, order in zip(shards.batches, shards.rows, shards.orders, strict=True):
        if not batches.num_batches:
            continue
        rows, ends = batches.rows(0, batches.num_batches)
        assert len(ends) == batches.num_batches
        assert len(rows) == ends[-1]
        check(shards.cost[rows], ends, shards.limit)
        if last_batch == "drop":
            assert max(Counter(rows.tolist()).values()) == 1
            assert np.isin(rows, own).all()
            assert len(own) - len(rows) == 0 or batches.num_batches == shards.num_rows.min()
        else:
            missing = max(0, batches.num_batches - len(own))
            assert batches.num_repeated == (missing if last_batch == "repeat" else 0)
            assert np.array_equal(np.sort(rows[: len(own)]), np.sort(own))
            assert len(rows) - len(own) == batches.num_repeated
        check_parts(batches, order, own, default_rng(seed))


def check_parts(batches: OrderBatches, order: RowOrder, own: IntArray, rng: Generator) -> None:
    """Batches found alone are those found together, and what is left is the others' rows."""
    rows, ends = batches.rows(0, batches.num_batches)
    edges = np.append(0, ends)
    for _ in range(4):
        first, last = sorted(rng.integers(0, batches.num_batches + 1, 2).tolist())
        part, part_ends = batches.rows(first, last)
        assert np.array_equal(part, rows[edges[first] : edges[last]])
        assert np.array_equal(part_ends, edges[first + 1 : last + 1] - edges[first])
        begin, count = batches.left(first)
        left = np.concatenate([np.zeros(0, np.int64), *map(np.arange, begin, begin + count)])
        assert np.array_equal(left, np.setdiff1d(own, rows[: edges[first]]))


def test_spans_are_found_alone_and_need_their_shard_alone() -> None:
    """Rows stay in spans; a batch in the middle reads the order of its span alone."""
    rng = default_rng(3)
    cost = np.repeat(rng.integers(4, 40, 90), 100)
    limit = BatchLimit(39 * 8, 400, False, 39, 1000, 20)
    table = RowTable(
        np.arange(90), np.zeros(90, np.int64), np.full(90, 100), np.arange(90), 1,
        np.arange(90) * 100, 1,
    )  # fmt: skip
    sequence = EpisodeSequence.shuffled(table, 5, np.append(0, np.cumsum(limit.parts(cost))))
    group = drawn_group(rng, table)
    shares = share_out(sequence, [group], 2, 10, 5)
    pieces = shares.pieces
    shard = pieces.cursor // 10
    counts = counts_of_shards(cost, limit, pieces.first, pieces.count, shard, 2)
    assert counts.sum() == len(cost)
    settings = ShareSettings(10, 4)
    orders = [SharedOrder(shares.of_shard(n), settings, 8, n) for n in range(2)]
    for order, histogram in zip(orders, counts, strict=True):
        own = np.bincount(limit.levels(cost[order.rows(0, order.num_rows)]))
        assert np.array_equal(histogram[: len(own)], own)
    num_rows = counts.sum(axis=1)
    asked = list[tuple[int, int]]()
    order = orders[1]
    whole = order.rows(0, order.num_rows)

    class Watched(RowOrder):
        num_rows = order.num_rows

        def rows(self, first: int, last: int) -> IntArray:
            asked.append((first, last))
            return order.rows(first, last)

        def left(self, number: int) -> tuple[IntArray, IntArray]:
            return order.left(number)

    steps = steps_of_shards(limit, counts)
    batches = CostBatches(Watched(), cost, limit, steps, num_rows, 9)
    edges = [first for first, _ in asked] + [order.num_rows]
    assert len(edges) == 5
    place = np.empty(len(cost), np.int64)
    place[whole] = np.arange(len(whole))
    asked.clear()
    for batch in (0, steps // 2, steps - 1):
        rows, _ = batches.rows(batch, batch + 1)
        (begin, end), *others = asked
        assert not others
        assert end - begin == order.num_rows // 4 or end - begin == order.num_rows // 4 + 1
        assert ((begin <= place[rows]) & (place[rows] < end)).all()
        asked.clear()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("last_batch", ["repeat", "drop", "keep"])
def test_batches_of_a_size_and_of_drawn_sizes(last_batch: LastBatch, seed: int) -> None:
    rng = default_rng(seed)
    table = drawn_table(rng)
    count = int(rng.integers(1, 1 + min(4, len(table))))
    size = int(rng.integers(1, 7))
    orders: list[RowOrder] = [PermutedOrder(len(table), 3, n, count) for n in range(count)]
    if rng.random() < 0.4:
        sequence = EpisodeSequence.shuffled(table, seed)
        orders = [SequenceOrder.of(sequence, count, n, size) for n in range(count)]
    is_drawn = rng.random() < 0.5

    def sizes(batch: IntArray) -> IntArray:
        drawn: IntArray = (hash64(seed, batch) % np.uint64(9)).astype(np.int64) + 1
        return drawn if is_drawn else np.full_like(batch, size)

    num_rows = np.array([order.num_rows for order in orders])
    batches = [
        SizedBatches(order, num_rows, sizes if is_drawn else size, last_batch, block=8)
        for order in orders
    ]
    numbers = [one.num_batches for one in batches]
    for one, order in zip(batches, orders, strict=True):
        own = order.rows(0, order.num_rows)
        rows, ends = one.rows(0, one.num_batches)
        counts = np.diff(ends, prepend=0)
        full = sizes(np.arange(len(ends)))
        assert np.array_equal(counts[:-1], full[:-1])
        assert (counts[-1:] <= full[-1:]).all()
        assert (counts > 0).all()
        if last_batch == "keep":
            assert np.array_equal(rows, own)
        else:
            assert numbers == numbers[:1] * count
            stop = num_rows.max() if last_batch == "repeat" else ends[-1] if len(ends) else 0
            assert np.array_equal(rows, np.resize(own, stop))
            assert one.num_repeated == max(0, stop - len(own))
        if last_batch == "drop":
            assert np.array_equal(counts, full)
            following = sizes(np.array([len(ends)]))[0]
            assert num_rows.min() - len(rows) < following
        if len(ends):
            check_parts(one, order, own, rng)
