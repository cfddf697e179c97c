"""What the cursors of shards have: exact numbers of clips, and begins where chunks do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import IntArray
from seqrecord.sampling.runs import Cuts, Runs, shares_of


def sequence(counts: list[int], stride: int = 1) -> Runs:
    number = np.arange(len(counts))
    return Runs(stride, number, np.zeros_like(number), np.array(counts, np.int64), number)


def cuts_of(runs: Runs, size: int, offset: int = 0) -> Cuts:
    chunks = ChunkGrid(np.full(len(runs), size), np.zeros(len(runs), np.int64))
    return Cuts(chunks, runs.last_start, offset)


def irregular(runs: Runs, lengths: list[int]) -> ChunkGrid:
    """Chunks of these lengths again and again, with which each row's episode begins elsewhere."""
    chunks = []
    for row, last in enumerate(runs.last_start.tolist()):
        found: list[int] = []
        left = last + 1
        while left:
            found.append(min(left, lengths[(row + len(found)) % len(lengths)]))
            left -= found[-1]
        chunks.append(found)
    first_chunk = np.cumsum([0, *map(len, chunks[:-1])])
    first_frame = np.concatenate([np.cumsum([0, *found[:-1]]) for found in chunks])
    return ChunkGrid.of(runs.last_start + 1, first_chunk, first_frame)


def shares(
    counts: list[int],
    num_shards: int,
    num_cursors: int,
    chunk: int | list[int],
    *,
    fill: bool,
    stride: int = 1,
    offset: int = 0,
    num_shares: int | None = None,
) -> list[tuple[IntArray, IntArray, int]]:
    """Of each shard: where its cursors begin and end, and how many clips another one has too."""
    runs = sequence(counts, stride)
    if isinstance(chunk, int):
        cuts = cuts_of(runs, chunk, offset)
    else:
        cuts = Cuts(irregular(runs, chunk), runs.last_start, offset)
    found = []
    for i in range(num_shards):
        start, stop, repeated = shares_of(
            runs,
            cuts,
            np.array([i]),
            num_shards,
            num_cursors,
            fill=fill,
            num_shares=num_shares and min(num_shares, num_cursors),
        )
        some = stop > start
        found.append((start[some], stop[some], int(repeated[0])))
    return found


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from([1, 3, 8, 64]) | st.lists(st.integers(1, 70), min_size=2, max_size=5),
    st.integers(1, 5),
    st.sampled_from([0, 0, -1, -30, 7]),
    st.booleans(),
    st.sampled_from([None, 1, 2, 5]),
)
def test_parts_have_their_exact_numbers_and_all_clips(
    counts: list[int],
    num_shards: int,
    num_cursors: int,
    chunk: int | list[int],
    stride: int,
    offset: int,
    fill: bool,
    num_shares: int | None,
) -> None:
    total = sum(counts)
    made = shares(
        counts,
        num_shards,
        num_cursors,
        chunk,
        fill=fill,
        stride=stride,
        offset=offset,
        num_shares=num_shares,
    )
    numbers = [int((stop - start).sum()) for start, stop, _ in made]
    ranges = sorted(
        (begin, end - repeated * (i + 1 == len(start)))
        for start, stop, repeated in made
        for i, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True))
    )
    # Without the clips that are given once more, the ranges follow each other.
    ranges = [one for one in ranges if one[0] < one[1]]
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == total
    assert all((stop > start).all() for start, stop, _ in made)
    assert all((stop <= total).all() for _, stop, _ in made)
    assert all((stop[:-1] <= start[1:]).all() for start, stop, _ in made)
    if fill:
        assert set(numbers) == {-(-total // num_shards)}
        assert all(repeated in (0, 1) for _, _, repeated in made)
    else:
        assert set(numbers) <= {total // num_shards, -(-total // num_shards)}
        assert not any(repeated for _, _, repeated in made)


def test_cursors_begin_where_chunks_do_but_for_one_of_a_part() -> None:
    counts = [700, 435, 801, 1022]
    offsets = np.cumsum([0, *counts])
    for start, stop, _ in shares(counts, 3, 5, 8, fill=False):
        run = np.searchsorted(offsets, start, side="right") - 1
        off_line = (start - offsets[run]) % 8 != 0
        assert off_line.sum() <= 1
        assert (np.diff(start) > 500).all()  # of 2958 clips: far apart
        assert (abs(stop - start - 2958 // 15) <= 16).all()


def test_cursors_of_a_share_begin_anywhere_in_it() -> None:
    for shared, alone in zip(
        shares([700, 435, 801, 1022], 3, 10, 64, fill=False, num_shares=2),
        shares([700, 435, 801, 1022], 3, 2, 64, fill=False),
        strict=True,
    ):
        start, stop, _ = shared
        assert start[::5].tolist() == alone[0].tolist()
        assert stop[4::5].tolist() == alone[1].tolist()
        for share in (slice(5), slice(5, 10)):
            assert stop[share][:-1].tolist() == start[share][1:].tolist()
            assert np.ptp((stop - start)[share]) <= 1


def test_needs_no_more_for_many_parts() -> None:
    runs = sequence([100])
    count = 1 << 30
    start, stop, _ = shares_of(runs, cuts_of(runs, 8), np.array([count - 1]), count, 4, fill=True)
    assert (start[stop > start].tolist(), stop[stop > start].tolist()) == ([99], [100])
