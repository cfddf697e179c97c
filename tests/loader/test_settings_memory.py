"""Settings of orders by shares: the walked memory of all cursors is within the room."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.random import default_rng

from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.frame_life import life_of_frames, peak_bytes
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import EpochKey, SharedOrder, order_of_shard
from seqrecord.loader.sampling.share_settings import ShareRequest
from seqrecord.store.tables.grids import ChunkGrid, IntArray, ragged_arange
from tests.loader.test_cursor_rounds import rounds_of_rows


def table_of(counts: IntArray) -> RowTable:
    places = np.arange(len(counts))
    return RowTable(places, np.zeros_like(counts), counts, places, 1, np.cumsum(counts), 1)


def group_of(table: RowTable, offsets: IntArray, unit: int, decoder_bytes: int) -> FrameGroup:
    num_frames = table.count + int(offsets[-1])
    grid = ChunkGrid(np.full(len(num_frames), unit), num_frames, unit_frames=unit)
    return FrameGroup(offsets, num_frames, 1000, grid, decoder_bytes)


def walked(table: RowTable, groups: list[FrameGroup], order: SharedOrder) -> int:
    pieces = order.rounds.pieces
    run, offset = ragged_arange(pieces.count)
    episode, start = table.locate(pieces.first[run] + offset)
    at = rounds_of_rows(order.rounds)
    lives = [(g, life_of_frames(g, run, episode, g.frames(episode, start), at)) for g in groups]
    return peak_bytes(lives, order.rounds.num_rounds)


# Blocks that divide episodes; one long episode with windows that others do not have; many cursors.
@pytest.mark.parametrize("unit", [1, 8, 50])
@pytest.mark.parametrize(
    ("counts", "offsets"),
    [
        (np.full(100, 64), np.arange(4)),
        (np.full(100, 40), np.arange(5) * 55),
        (np.append(np.full(130, 12), 900), np.arange(5) * 126),
        (default_rng(0).integers(1, 90, 150), np.arange(40) - 20),
    ],
)
def test_walked_memory_is_within_the_room(counts: IntArray, offsets: IntArray, unit: int) -> None:
    table = table_of(counts)
    groups = [group_of(table, offsets, unit, 20_000)]
    for room in (1_000_000, 4_000_000, 20_000_000):
        settings = ShareRequest(table, groups, 16, num_ranks=2).choose(room)
        for epoch in range(3):
            order = order_of_shard(table, groups, settings, EpochKey(1, epoch), 0, 2, 16)
            assert isinstance(order, SharedOrder)
            assert walked(table, groups, order) <= room


@pytest.mark.parametrize("most", [1, 31, 64, 100, 1000])
def test_rounds_have_at_most_the_given_rows(most: int) -> None:
    table = table_of(np.full(20, 100))
    settings = ShareRequest(table, [group_of(table, np.arange(16), 1, 0)], 32).choose()
    assert settings.round_rows > 1000
    request = ShareRequest(table, [group_of(table, np.arange(16), 1, 0)], 32, max_round_rows=most)
    settings = request.choose()
    assert settings.round_rows <= most
    assert (settings.num_cursors > 1) == (most >= 64)


def test_many_shards_of_many_rows_cost_little() -> None:
    """Cuts of 8,192 shards with thousands of cursors are not all measured."""
    table = table_of(np.full(100_000, 100))
    group = group_of(table, np.arange(16), 50, 0)
    tracemalloc.start()
    settings = ShareRequest(table, [group], 32, num_ranks=512, num_workers=16).choose()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert settings.num_cursors > 1
    assert peak < 64 << 20
