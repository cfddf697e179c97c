from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.plan.blocks import Pieces, cut_pieces, slice_pieces


def pieces_of(stride: int, *rows: tuple[int, int, int, int]) -> Pieces:
    """From (episode, first start, count, run)."""
    return Pieces(stride, *np.array(rows, np.int64).T)


def starts_of(pieces: Pieces) -> list[tuple[int, int]]:
    return [
        (int(pieces.episode[i]), int(pieces.first_start[i]) + k * pieces.stride)
        for i in range(len(pieces))
        for k in range(int(pieces.count[i]))
    ]


@st.composite
def some_pieces(draw: st.DrawFn) -> Pieces:
    row = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 30))
    rows = draw(st.lists(row, min_size=1, max_size=5))
    numbered = [(*row, i) for i, row in enumerate(rows)]
    return pieces_of(draw(st.integers(1, 25)), *numbered)


@given(some_pieces(), st.sets(st.integers(-3, 160)))
@settings(deadline=None)
def test_cuts_keep_the_clips_and_begin_new_runs(pieces: Pieces, at: set[int]) -> None:
    made = cut_pieces(pieces, np.array(sorted(at), np.int64))
    assert starts_of(made) == starts_of(pieces)
    clips = pieces.num_clips
    run = np.repeat(made.run, made.count)
    old = np.repeat(pieces.run, pieces.count)
    begins = {i for i in range(1, clips) if run[i] != run[i - 1]}
    assert begins == {i for i in range(1, clips) if i in at or old[i] != old[i - 1]}


@given(some_pieces(), st.lists(st.tuples(st.integers(0, 150), st.integers(0, 60)), max_size=5))
@settings(deadline=None)
def test_slices_are_stretches_of_the_clips_in_runs_of_their_own(
    pieces: Pieces, stretches: list[tuple[int, int]]
) -> None:
    begins = [min(begin, pieces.num_clips - 1) for begin, _ in stretches]
    ends = [
        min(begin + length, pieces.num_clips)
        for begin, (_, length) in zip(begins, stretches, strict=True)
    ]
    made, stretch = slice_pieces(pieces, np.array(begins, np.int64), np.array(ends, np.int64))
    every, old = starts_of(pieces), np.repeat(pieces.run, pieces.count)
    assert starts_of(made) == [
        clip for begin, end in zip(begins, ends, strict=True) for clip in every[begin:end]
    ]
    owner = np.repeat(stretch, made.count).tolist()
    assert owner == [i for i, begin in enumerate(begins) for _ in range(begin, ends[i])]
    runs = [(i, int(old[clip])) for i, begin in enumerate(begins) for clip in range(begin, ends[i])]
    numbered = np.repeat(made.run, made.count).tolist()
    assert numbered == [len({*runs[: place + 1]}) - 1 for place in range(len(runs))]


@given(some_pieces(), st.data())
@settings(deadline=None)
def test_snapping_finds_the_first_clip_past_a_grid_line_of_its_piece(
    pieces: Pieces, data: st.DataObject
) -> None:
    grid = np.array(
        data.draw(st.lists(st.integers(1, 20), min_size=len(pieces), max_size=len(pieces)))
    )
    expected = []
    for i in range(len(pieces)):
        lines = [start // int(grid[i]) for _, start in starts_of(pieces.take(slice(i, i + 1)))]
        expected += [int(pieces.first_clip[i]) + lines.index(line) for line in lines]
    assert pieces.snap(np.arange(pieces.num_clips), grid).tolist() == expected
