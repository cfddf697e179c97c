"""What the cursors of shards have: exact numbers of clips, and begins where chunks do."""

from __future__ import annotations

import numpy as np
import pytest

from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import IntArray
from seqrecord.sampling.runs import Cuts, Runs, shares_of

COUNTS = [700, 435, 801, 1022]  # clips of episodes


def shares(
    counts: list[int], num_shards: int, num_cursors: int, chunk: int, **more: object
) -> list[tuple[IntArray, IntArray]]:
    """Where the cursors of each shard begin and end."""
    number = np.arange(len(counts))
    runs = Runs(1, number, np.zeros_like(number), np.array(counts, np.int64), number)
    chunks = ChunkGrid(np.full(len(runs), chunk), np.zeros(len(runs), np.int64))
    found = []
    for i in range(num_shards - 3, num_shards):
        given: tuple[object, ...] = (runs, Cuts(chunks, runs.last_start, 0), np.array([i]))
        start, stop, _ = shares_of(*given, num_shards, num_cursors, **more)  # type: ignore[arg-type]
        found.append((start[stop > start], stop[stop > start]))
    return found


def test_cursors_begin_where_chunks_do_but_for_one_of_a_part() -> None:
    offsets = np.cumsum([0, *COUNTS])
    for start, stop in shares(COUNTS, 3, 5, 8, fill=False):
        run = np.searchsorted(offsets, start, side="right") - 1
        off_line = (start - offsets[run]) % 8 != 0
        assert off_line.sum() <= 1
        assert (np.diff(start) > 500).all()  # of 2958 clips: far apart
        assert (abs(stop - start - 2958 // 15) <= 16).all()


def test_cursors_of_a_share_begin_anywhere_in_it() -> None:
    shared = shares(COUNTS, 3, 10, 64, fill=False, num_shares=2)
    for (start, stop), alone in zip(shared, shares(COUNTS, 3, 2, 64, fill=False), strict=True):
        assert start[::5].tolist() == alone[0].tolist()
        assert stop[4::5].tolist() == alone[1].tolist()
        for share in (slice(5), slice(5, 10)):
            assert stop[share][:-1].tolist() == start[share][1:].tolist()
            assert np.ptp((stop - start)[share]) <= 1


@pytest.mark.parametrize(
    ("clips", "num_shards", "num_cursors", "fill", "expected"),
    [
        (8, 3, 1, False, [(0, 2), (2, 5), (5, 8)]),
        (8, 3, 1, True, [(0, 3), (2, 5), (5, 8)]),
        (100, 1 << 30, 4, True, [(99, 100)] * 3),  # which takes no more than for few
    ],
)
def test_by_hand(
    clips: int, num_shards: int, num_cursors: int, fill: bool, expected: list[tuple[int, int]]
) -> None:
    made = shares([clips], num_shards, num_cursors, 1, fill=fill)
    assert [(int(start[0]), int(stop[0])) for start, stop in made] == expected
