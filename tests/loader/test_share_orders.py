"""Orders of shards: parts, what is left, and other numbers of shards."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

from seqrecord.loader.sampling.cursor_shares import EpisodeSequence
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    RowOrder,
    SequenceOrder,
    left_of,
    order_of_shard,
)
from seqrecord.loader.sampling.share_settings import ShareSettings
from tests.loader.test_cursor_rounds import drawn_group, drawn_table

KINDS = ("shares", "permuted", "resident", "unshuffled", "sequences")


def orders_of(
    kind: str, table: RowTable, seed: int, segment: int = 0
) -> tuple[list[RowOrder], int]:
    rng = default_rng(seed + 1000 * segment)
    group = drawn_group(rng, table)
    num_shards, size = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    most = max(1, len(table) // num_shards)
    flags = kind == "resident", kind == "permuted"
    settings = ShareSettings(
        int(rng.integers(1, 1 + min(most, 9))), 3, 0.5, int(rng.integers(5)), 0.0, *flags
    )
    if kind == "sequences":
        sequence = EpisodeSequence.shuffled(table, seed)
        return [SequenceOrder.of(sequence, num_shards, s, size) for s in range(num_shards)], size
    epoch = EpochKey(seed, 2, segment)
    shuffle = kind != "unshuffled"
    return [
        order_of_shard(table, [group], settings, epoch, shard, num_shards, size, shuffle=shuffle)
        for shard in range(num_shards)
    ], size


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", KINDS)
def test_orders_have_each_row_once_and_parts_are_found_alone(kind: str, seed: int) -> None:
    rng = default_rng(seed)
    table = drawn_table(rng)
    orders, _ = orders_of(kind, table, seed)
    whole = [order.rows(0, order.num_rows) for order in orders]
    assert np.array_equal(np.sort(np.concatenate(whole)), np.arange(len(table)))
    for order, rows in zip(orders, whole, strict=True):
        first, last = sorted(rng.integers(0, order.num_rows + 1, 2).tolist())
        assert np.array_equal(order.rows(first, last), rows[first:last])
        begin, count = order.left(first)
        left = np.concatenate([np.zeros(0, np.int64), *map(np.arange, begin, begin + count)])
        assert np.array_equal(left, np.sort(rows[first:]))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_an_epoch_comes_once_on_other_shards(kind: str, seed: int) -> None:
    """Three parts of an epoch, each on other ranks: together, they have each row once."""
    rng = default_rng(seed)
    table = drawn_table(rng)
    numbers = np.arange(len(table))  # of the first table
    seen = list[int]()
    for segment in range(3):
        orders, size = orders_of(kind, table, seed, segment)
        most = max(order.num_rows for order in orders)
        batches = int(rng.integers(0, most // size + 1)) if segment < 2 else -(-most // size)
        emitted = [min(batches * size, order.num_rows) for order in orders]
        for order, number in zip(orders, emitted, strict=True):
            seen += numbers[order.rows(0, number)].tolist()
        left = np.setdiff1d(numbers, seen)
        rest = left_of(table, [o.left(n) for o, n in zip(orders, emitted, strict=True)])
        assert len(rest) == len(left)
        if not len(left):
            break
        places = np.searchsorted(numbers, left)
        for mine, other in zip(
            rest.locate(np.arange(len(rest))), table.locate(places), strict=True
        ):
            assert np.array_equal(mine, other)
        assert np.array_equal(rest.samples(np.arange(len(rest))), table.samples(places))
        table, numbers = rest, left
    assert sorted(seen) == np.arange(len(seen)).tolist()
