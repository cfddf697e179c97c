"""Lanes of splits: exact numbers of clips, and begins where chunks do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.plan import Split
from seqrecord.plan.blocks import Pieces
from seqrecord.plan.shares import Share, share_of


def sequence(counts: list[int], stride: int = 1) -> Pieces:
    number = np.arange(len(counts))
    return Pieces(stride, number, np.zeros_like(number), np.array(counts, np.int64), number)


def shares(
    counts: list[int], num_splits: int, num_lanes: int, chunk: int, *, fill: bool, stride: int = 1
) -> list[Share]:
    pieces, grid = sequence(counts, stride), np.full(len(counts), chunk)
    return [
        share_of(pieces, grid, Split(i, num_splits), num_lanes, fill=fill)
        for i in range(num_splits)
    ]


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from([1, 3, 8, 64]),
    st.integers(1, 5),
    st.booleans(),
)
@settings(deadline=None)
def test_splits_have_their_exact_numbers_and_all_clips(
    counts: list[int], num_splits: int, num_lanes: int, chunk: int, stride: int, fill: bool
) -> None:
    total = sum(counts)
    made = shares(counts, num_splits, num_lanes, chunk, fill=fill, stride=stride)
    numbers = [share.num_clips for share in made]
    lanes = sorted(
        (start, stop - share.num_repeated * (i + 1 == len(share.start)))
        for share in made
        for i, (start, stop) in enumerate(
            zip(share.start.tolist(), share.stop.tolist(), strict=True)
        )
    )
    # Without the clips that are given once more, the lanes follow each other.
    lanes = [lane for lane in lanes if lane[0] < lane[1]]
    assert [start for start, _ in lanes] == [0, *(stop for _, stop in lanes[:-1])]
    assert lanes[-1][1] == total
    assert all((share.stop > share.start).all() for share in made)
    assert all((share.stop <= total).all() for share in made)
    assert all((share.stop[:-1] <= share.start[1:]).all() for share in made)
    if fill:
        assert set(numbers) == {-(-total // num_splits)}
        assert all(share.num_repeated in (0, 1) for share in made)
    else:
        assert set(numbers) <= {total // num_splits, -(-total // num_splits)}
        assert not any(share.num_repeated for share in made)


def test_lanes_begin_where_chunks_do_but_for_one_of_a_split() -> None:
    counts = [700, 435, 801, 1022]
    made = shares(counts, 3, 5, 8, fill=False)
    offsets = np.cumsum([0, *counts])
    for share in made:
        piece = np.searchsorted(offsets, share.start, side="right") - 1
        off_line = (share.start - offsets[piece]) % 8 != 0
        assert off_line.sum() <= 1
        assert (np.diff(share.start) > 500).all()  # of 2958 clips: far apart
        assert (abs(share.stop - share.start - 2958 // 15) <= 16).all()


def test_needs_no_more_for_many_splits() -> None:
    share = share_of(sequence([100]), np.array([8]), Split((1 << 30) - 1, 1 << 30), 4, fill=True)
    assert (share.start.tolist(), share.stop.tolist()) == ([99], [100])


@pytest.mark.parametrize(
    ("fill", "expected"), [(False, [[0, 2], [2, 5], [5, 8]]), (True, [[0, 3], [2, 5], [5, 8]])]
)
def test_by_hand(fill: bool, expected: list[list[int]]) -> None:
    made = shares([8], 3, 1, 1, fill=fill)
    assert [[int(share.start[0]), int(share.stop[0])] for share in made] == expected
