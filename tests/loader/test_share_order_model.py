"""Orders of drawn configurations, batch by batch, against a model in plain Python.

A configuration has a table, units, settings, shards and up to three parts of an epoch: after some
batches, what is left is shared among other shards. `--share-seed` draws 150 of the 2,000; all::

    pytest -m slow tests/loader/test_share_order_model.py
"""

from __future__ import annotations

import random
from itertools import accumulate
from random import Random

import numpy as np
import pytest

from seqrecord.loader.sampling.cursor_shares import EpisodeSequence
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    RowOrder,
    SequenceOrder,
    left_of,
    order_of_shard,
)
from seqrecord.loader.sampling.share_settings import ShareSettings
from seqrecord.store.tables.grids import ChunkGrid
from tests.loader.share_order_model import Epoch, Units, batches_of_shards, rows_left, rows_of

NUM_CONFIGURATIONS = 2000


def drawn_table(rng: Random) -> RowTable:
    """Episodes of equal or of other lengths, with gaps, copies and strides; often few or short."""
    num_owners, longest = rng.choice([1, 2, 5, 13, 30]), rng.choice([1, 2, 5, 12, 40])
    is_equal, has_gaps = rng.random() < 0.4, rng.random() < 0.3
    copied = rng.choice([0, 0, 0.5])
    stride, sample_step = rng.choice([1, 1, 2, 3]), rng.choice([1, 4])
    runs = list[tuple[int, int, int, int, int]]()
    episode, sample, episode_runs = -1, 0, list[tuple[int, int]]()
    for owner in range(num_owners):
        if episode < 0 or rng.random() >= copied:
            episode += rng.choice([1, 1, 2])
            rows, start = longest if is_equal else rng.randint(1, longest), rng.choice([0, 0, 7])
            episode_runs = []
            while rows:
                count = rng.randint(1, rows) if has_gaps else rows
                episode_runs.append((start, count))
                start += count * stride + rng.randint(1, 9)
                rows -= count
        for start, count in episode_runs:
            runs.append((episode, start, count, owner, sample))
            sample += count * sample_step
    episodes, starts, counts, owners, samples = np.array(runs, np.int64).T
    return RowTable(episodes, starts, counts, owners, stride, samples, sample_step)


def drawn_units(rng: Random, table: RowTable) -> tuple[Units, FrameGroup]:
    """Frames that decode alone, groups of pictures in chunks, or chunks of any lengths, also longer
    than episodes. Windows may begin before an episode, or end after it.
    """
    lengths = np.full(int(table.episode.max()) + 1, 1 + rng.choice([0, 0, 5]))
    np.maximum.at(lengths, table.episode, table.start + (table.count - 1) * table.stride + 1)
    num_frames: list[int] = lengths.tolist()
    offset, nbytes = rng.choice([0, 0, 0, -3, 2]), rng.randint(1, 9)
    offsets = np.array([offset, offset + 2][: rng.randint(1, 2)])
    kind = rng.choice(["alone", "pictures", "equal", "irregular", "irregular"])
    if kind == "alone":
        group = FrameGroup(offsets, lengths, nbytes)
        return Units(num_frames, offset, nbytes, [], 1), group
    longest, chunk = rng.choice([2, 3, 5, 8, 12, 70]), rng.randint(8, 30)
    begins = list[list[int]]()
    for frames in num_frames:
        if kind == "pictures":
            begins.append([i for i in range(frames) if i % chunk % longest == 0])
            continue
        steps = (longest if kind == "equal" else rng.randint(1, longest) for _ in range(frames))
        begins.append([frame for frame in accumulate(steps, initial=0) if frame < frames])
    if kind == "pictures":
        num_chunks = -(-lengths // chunk)
        first_chunk = np.cumsum(num_chunks) - num_chunks
        grid = ChunkGrid(np.full(len(lengths), chunk), first_chunk, unit_frames=longest)
    else:
        first_chunk = np.cumsum([0, *map(len, begins)])[:-1]
        grid = ChunkGrid.of(lengths, first_chunk, np.concatenate([np.array(b) for b in begins]))
    unit_frames = longest if kind == "pictures" else 0
    units = Units(num_frames, offset, nbytes, begins, unit_frames)
    return units, FrameGroup(offsets, lengths, nbytes, grid)


def orders_of(table: RowTable, groups: list[FrameGroup], epoch: Epoch) -> list[RowOrder]:
    weight = None
    if set(epoch.costs) != {1}:
        weight = np.append(0, np.cumsum(epoch.costs))
    shards = range(epoch.num_shards)
    if epoch.kind == "sequences":
        sequence = EpisodeSequence.shuffled(table, epoch.key.of())
        return [SequenceOrder.of(sequence, len(shards), s, epoch.size) for s in shards]
    inputs = table, groups, epoch.settings, epoch.key
    sizes, shuffle = (len(shards), epoch.size), epoch.kind == "shuffled"
    return [
        order_of_shard(*inputs, shard, *sizes, shuffle=shuffle, weight=weight) for shard in shards
    ]


def batches_of(order: RowOrder, size: int) -> list[list[int]]:
    edges = range(0, order.num_rows, size)
    return [order.rows(edge, min(edge + size, order.num_rows)).tolist() for edge in edges]


def check(number: int) -> None:
    """Compare all parts of an epoch of a configuration."""
    rng = random.Random(number)
    table = drawn_table(rng)
    rows = rows_of(table)
    pairs = [drawn_units(rng, table) for _ in range(rng.choice([1, 1, 2, 3]))]
    units, groups = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    is_resident, is_permuted = rng.random() < 0.2, rng.random() < 0.1
    kind = rng.choice([*["shuffled"] * 8, "unshuffled", "sequences"])
    has_costs = rng.random() < 0.3
    seed, epoch_number = rng.getrandbits(63), rng.choice([0, 0, 1, 5])
    for segment in range(rng.choice([1, 1, 3])):
        num_shards, num_cursors = rng.randint(1, 9), rng.randint(1, rng.choice([4, 20]))
        aligned = rng.choice([0.0, 1.0, 1.0, rng.random()])
        settings = ShareSettings(
            num_cursors,
            block_rows=rng.choice([1, 2, 3, 8, 20]),
            aligned=aligned,
            rotation=rng.choice([0, rng.randint(0, num_shards)]),
            is_resident=is_resident,
            is_permuted=is_permuted,
        )
        epoch = Epoch(
            rows,
            [rng.randint(1, 9) if has_costs else 1 for _ in rows],
            units,
            settings,
            EpochKey(seed, epoch_number, segment),
            num_shards,
            rng.randint(1, 9),
            kind,
        )
        expected = batches_of_shards(epoch)
        orders = orders_of(table, groups, epoch)
        about = (
            f"configuration {number}, part {segment}: {epoch._replace(rows=[], costs=[], units=[])}"
        )
        for order, batches in zip(orders, expected, strict=True):
            assert batches_of(order, epoch.size) == batches, about
        num_batches = rng.randint(0, max(map(len, expected)) - 1)
        emitted = {row for shard in expected for batch in shard[:num_batches] for row in batch}
        num_emitted = [min(num_batches * epoch.size, order.num_rows) for order in orders]
        table, rows = (
            left_of(table, [o.left(n) for o, n in zip(orders, num_emitted, strict=True)]),
            rows_left(rows, emitted),
        )
        assert rows_of(table) == rows, about


@pytest.mark.parametrize("part", range(10))
def test_orders_are_those_of_the_model(
    part: int, thorough: bool, pytestconfig: pytest.Config
) -> None:
    numbers = list(range(part, NUM_CONFIGURATIONS, 10))
    if not thorough:
        rng = random.Random(f"{pytestconfig.getoption('--share-seed')} {part}")
        numbers = rng.sample(numbers, 15)
    for number in numbers:
        check(number)
