from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.plan.blocks import Pieces, cut_pieces, resident_window, window_frames


def pieces_of(stride: int, *rows: tuple[int, int, int, int, int]) -> Pieces:
    """From (episode, first start, count, run, window)."""
    return Pieces(stride, *np.array(rows, np.int64).T)


def starts_of(pieces: Pieces) -> list[tuple[int, int]]:
    return [
        (int(pieces.episode[i]), int(pieces.first_start[i]) + k * pieces.stride)
        for i in range(len(pieces))
        for k in range(int(pieces.count[i]))
    ]


@st.composite
def some_pieces(draw: st.DrawFn) -> Pieces:
    row = st.tuples(
        st.integers(0, 3), st.integers(0, 50), st.integers(1, 30), st.just(0), st.integers(1, 20)
    )
    rows = draw(st.lists(row, min_size=1, max_size=5))
    numbered = [(e, start, count, i, window) for i, (e, start, count, _, window) in enumerate(rows)]
    return pieces_of(draw(st.integers(1, 25)), *numbered)


@given(some_pieces())
@settings(deadline=None)
def test_blocks_are_the_clips_of_one_window(pieces: Pieces) -> None:
    piece, first, stop = pieces.find_blocks(np.arange(pieces.num_blocks))
    found = [
        [(i, int(pieces.first_start[i]) + k * pieces.stride) for k in range(a, b)]
        for i, a, b in zip(piece.tolist(), first.tolist(), stop.tolist(), strict=True)
    ]
    expected: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i in range(len(pieces)):
        for k in range(int(pieces.count[i])):
            start = int(pieces.first_start[i]) + k * pieces.stride
            expected.setdefault((i, start // int(pieces.window[i])), []).append((i, start))
    assert found == list(expected.values())


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


@pytest.mark.parametrize(
    ("block", "chunk", "window"),
    [(8, 8, 8), (20, 8, 16), (8, 64, 8), (5, 64, 8), (9, 10, 10), (4, 31, 31), (1, 5, 1)],
)
def test_windows_nest_with_chunks(block: int, chunk: int, window: int) -> None:
    assert window_frames(block, np.array([chunk]), stride=1, span=4).tolist() == [window]


def test_windows_hold_a_single_clip_where_frames_lie_unused() -> None:
    assert window_frames(64, np.array([8]), stride=5, span=4).tolist() == [1]


def test_a_short_episode_needs_no_more_than_its_frames() -> None:
    window, chunk, frames = np.array([8, 8]), np.array([8, 8]), np.array([10, 12])
    assert resident_window(window, chunk, frames, stride=1, phase=0, span=6, frame_step=1) == (
        12,
        2,
    )


def test_frames_before_the_phase_still_count_as_part_of_their_chunk() -> None:
    # Clips of frames 7, 8 and 15, 16: the second lies in two chunks, though only 10 frames follow
    # the phase.
    assert resident_window(
        np.array([1]), np.array([16]), np.array([17]), stride=8, phase=7, span=2, frame_step=1
    ) == (10, 2)


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
