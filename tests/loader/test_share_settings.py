"""Settings of orders by shares: memory, reading, and what is refused."""

from __future__ import annotations

import numpy as np

from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_settings import ShareRequest

SPAN = 8


def request_of(lengths: list[int], batch_size: int = 4, offset: int = 0) -> ShareRequest:
    frames = np.array(lengths)
    count = frames - SPAN - offset + 1
    number = np.arange(len(frames))
    table = RowTable(number, 0 * number, count, number, 1, np.cumsum(count) - count, 1)
    offsets = np.union1d(np.arange(SPAN), np.arange(SPAN) + offset)
    return ShareRequest(table, [FrameGroup(offsets, frames, 1000)], batch_size)


def test_memory_lowers_blocks_and_then_cursors() -> None:
    request = request_of([200] * 40)
    frames = 1 << 62
    seen = list[tuple[int, int]]()
    for room in (10**7, 10**6, 3 * 10**5, 10**5, 3 * 10**4, 10**4):
        settings = request.choose(room)
        seen.append((settings.num_cursors, settings.block_rows))
        used = settings.num_cursors * (SPAN - 1 + 2 * settings.block_rows) * 1000
        assert used <= room
        assert used <= frames
        frames = used
    cursors = [count for count, _ in seen]
    assert cursors == sorted(cursors, reverse=True)
    assert cursors[0] > 10
    assert seen[-1] == (1, 1)


def test_one_row_is_a_block_where_one_cursor_does_not_fit() -> None:
    """Windows reach 100 frames ahead, whose 101 frames of a clip do not fit."""
    request = request_of([300] * 5, offset=100)
    assert request.choose(10**6).block_rows > 1
    few = request.choose(30_000)
    assert few.num_cursors == few.block_rows == 1
