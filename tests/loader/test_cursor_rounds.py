"""Properties of orders by equal shares, in drawn configurations, against brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from seqrecord.loader.sampling.cursor_shares import EpisodeSequence, Pieces, share_out
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.frame_life import life_of_frames, peak_bytes
from seqrecord.loader.sampling.permutations import Permutation
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_rounds import CursorRounds
from seqrecord.store.tables.grids import ChunkGrid, IntArray, ragged_arange

CASES = range(60)


def drawn_table(rng: Generator) -> RowTable:
    """Episodes of equal or of other lengths, with gaps, copies and strides."""
    num_owners = int(rng.integers(1, 40))
    longest = int(rng.integers(1, 60))
    lengths = np.full(num_owners, longest)
    if rng.random() < 0.6:
        lengths = rng.integers(1, longest + 1, num_owners)
    runs = rng.integers(1, 4, num_owners) if rng.random() < 0.4 else np.ones(num_owners, np.int64)
    owner, place = ragged_arange(runs)
    stride = int(rng.integers(1, 4))
    count = np.maximum(1, lengths[owner] // runs[owner])
    start = place * (longest + 3) * stride
    episode = np.arange(num_owners) if rng.random() < 0.7 else np.arange(num_owners) // 2
    sample = np.cumsum(count) - count
    return RowTable(episode[owner], start, count, owner, stride, sample, 1)


def drawn_group(rng: Generator, table: RowTable) -> FrameGroup:
    """Windows with any offsets, of frames that decode alone, or in units."""
    last = table.start + (table.count - 1) * table.stride
    num_frames = np.zeros(int(table.episode.max()) + 1, np.int64)
    np.maximum.at(num_frames, table.episode, last + 1)
    offsets = np.unique(rng.integers(-4, 9, int(rng.integers(1, 8))))
    unit = int(rng.integers(1, 12))
    chunk = unit * int(rng.integers(1, 4))
    first = np.cumsum(-(-num_frames // chunk)) - -(-num_frames // chunk)
    grid = ChunkGrid(np.full(len(num_frames), chunk), first, unit_frames=unit)
    return FrameGroup(offsets, num_frames, int(rng.integers(1, 9)), grid, int(rng.integers(0, 9)))


def rounds_of_shards(rng: Generator, table: RowTable, group: FrameGroup) -> list[CursorRounds]:
    num_shards = int(rng.integers(1, 1 + min(6, len(table))))
    num_cursors = int(rng.integers(1, 1 + min(12, len(table) // num_shards)))
    aligned = float(rng.choice([0.0, 0.5, 1.0]))
    key = int(rng.integers(1 << 60))
    weight = None
    if rng.random() < 0.3:
        weight = np.append(0, np.cumsum(rng.integers(1, 9, len(table))))
    sequence = EpisodeSequence.shuffled(table, key, weight)
    shares = share_out(sequence, [group], num_shards, num_cursors, key, aligned)
    shards = [shares.of_shard(shard) for shard in range(num_shards)]
    counts = [int(shard.count.sum()) for shard in shards]
    if weight is None:
        assert max(counts) - min(counts) <= 1
    else:
        rows = [rows_of(shard) for shard in shards]
        costs = [int(np.diff(weight)[row].sum()) for row in rows]
        assert max(costs) - min(costs) <= 2 * 8
    first, longest = int(rng.integers(1, 9)), int(rng.integers(1, 50))
    return [CursorRounds(shard, first, longest, key + 1) for shard in shards if len(shard)]


def rows_of(pieces: Pieces) -> IntArray:
    piece, offset = ragged_arange(pieces.count)
    return pieces.first[piece] + offset


@pytest.mark.parametrize("case", CASES)
def test_each_row_comes_once_and_rounds_are_found_alone(case: int) -> None:
    rng = default_rng(case)
    table = drawn_table(rng)
    seen = []
    for rounds in rounds_of_shards(rng, table, drawn_group(rng, table)):
        rows = rounds.rows(0, rounds.num_rounds)
        seen.append(rows.row)
        assert len(rows) == rounds.num_rows
        assert rounds.before(0) == 0
        assert rounds.before(rounds.num_rounds) == rounds.num_rows
        # Any part is the same alone.
        for start, stop in pairwise(sorted({0, *rng.integers(0, rounds.num_rounds + 1, 3)})):
            part = rounds.rows(start, stop)
            low, high = rounds.before(start), rounds.before(stop)
            assert np.array_equal(part.row, rows.row[low:high])
            assert np.array_equal(part.round, rows.round[low:high])
        number = int(rng.integers(rounds.num_rows))
        index, skip = rounds.find(number)
        assert rows.round[number] == index
        assert rounds.before(index) + skip == number
        assert (np.diff(rows.round) >= 0).all()
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(table)))


def simulated(
    group: FrameGroup, run: IntArray, episode: IntArray, frames: IntArray, rounds: IntArray
) -> tuple[int, int]:
    """Frames decoded, and the most bytes in memory, round by round, in dicts."""
    unit = {}
    last = dict[tuple[int, int], int]()
    needs = dict[int, set[tuple[int, int]]]()
    begin = group.units(np.repeat(episode, frames.shape[1]), frames.ravel())[0]
    for (r, f, q), u in zip(
        ((r, f, q) for r, fs, q in zip(run, frames, rounds, strict=True) for f in fs),
        begin.tolist(),
        strict=True,
    ):
        unit[r, f] = u
        needs.setdefault(q, set()).add((r, f))
        last[r, f] = max(last.get((r, f), 0), q)
    have, reached, decoded, peak = set[tuple[int, int]](), dict[tuple[int, int], int](), 0, 0
    final = dict[tuple[int, int], int]()
    for (r, f), u in unit.items():
        final[r, u] = max(final.get((r, u), 0), f)
    for q in range(int(rounds.max()) + 1):
        open_before = {key for key, at in reached.items() if at <= final[key]}
        for r, f in sorted(needs.get(q, ())):
            if (r, f) in have:
                continue
            u = unit[r, f]
            for g in range(reached.get((r, u), u), f + 1):
                decoded += 1
                if (r, g) in last:
                    have.add((r, g))
            reached[r, u] = f + 1
            open_before.add((r, u))
        decoders = 0 if group.is_alone else len(open_before)
        peak = max(peak, len(have) * group.nbytes + decoders * group.decoder_bytes)
        have = {key for key in have if last[key] > q}
    return decoded, peak


def rounds_of_rows(rounds: CursorRounds) -> IntArray:
    """The round of each row of the pieces, front to back; int64[rows]."""
    rows, pieces = rounds.rows(0, rounds.num_rounds), rounds.pieces
    number = pieces.begins[rows.piece] + rows.row - pieces.first[rows.piece]
    at = np.empty_like(number)
    at[number] = rows.round
    return at


@pytest.mark.parametrize("case", CASES)
def test_life_is_that_of_a_simulation(case: int) -> None:
    rng = default_rng(case)
    table = drawn_table(rng)
    group = drawn_group(rng, table)
    for rounds in rounds_of_shards(rng, table, group):
        run, offset = ragged_arange(rounds.pieces.count)
        row = rounds.pieces.first[run] + offset
        episode, start = table.locate(row)
        frames = group.frames(episode, start)
        at = rounds_of_rows(rounds)
        life = life_of_frames(group, run, episode, frames, at)
        peak = peak_bytes([(group, life)], rounds.num_rounds, ahead=0)
        assert (life.num_decoded, peak) == simulated(group, run, episode, frames, at)
        assert life.num_decoded >= len(life)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 1000, 1023, 65537])
def test_permutations(length: int) -> None:
    places = np.arange(length)
    found = Permutation(length, key=3).at(places)
    assert np.array_equal(np.sort(found), places)
    assert length < 9 or not np.array_equal(found, places)
    assert np.array_equal(Permutation(length, key=3).at(places[::2]), found[::2])
