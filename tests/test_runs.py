from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.clips.grids import frame_keys
from seqrecord.clips.tables import ClipSpec, ClipTable
from seqrecord.sampling.runs import Cuts, Runs, concatenated_pieces
from tests.clip_cases import grid_of


def runs_of(stride: int, *rows: tuple[int, int, int, int]) -> Runs:
    """From (episode, first start, count, run)."""
    return Runs(stride, *np.array(rows, np.int64).T)


def starts_of(runs: Runs) -> list[tuple[int, int]]:
    return [
        (int(runs.episode[i]), int(runs.first_start[i]) + k * runs.stride)
        for i in range(len(runs))
        for k in range(int(runs.count[i]))
    ]


@st.composite
def some_runs(draw: st.DrawFn) -> Runs:
    row = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 30))
    rows = draw(st.lists(row, min_size=1, max_size=5))
    numbered = [(*row, i) for i, row in enumerate(rows)]
    return runs_of(draw(st.integers(1, 25)), *numbered)


@given(some_runs(), st.sets(st.integers(-3, 160)))
def test_cuts_keep_the_clips_and_begin_new_runs(runs: Runs, at: set[int]) -> None:
    made = runs.cut(np.array(sorted(at), np.int64))
    assert starts_of(made) == starts_of(runs)
    clips = runs.num_clips
    run = np.repeat(made.run, made.count)
    old = np.repeat(runs.run, runs.count)
    begins = {i for i in range(1, clips) if run[i] != run[i - 1]}
    assert begins == {i for i in range(1, clips) if i in at or old[i] != old[i - 1]}


@given(some_runs(), st.lists(st.tuples(st.integers(0, 150), st.integers(0, 60)), max_size=5))
def test_slices_hold_their_clips_in_runs_of_their_own(
    runs: Runs, slices: list[tuple[int, int]]
) -> None:
    begins = [min(begin, runs.num_clips - 1) for begin, _ in slices]
    ends = [
        min(begin + length, runs.num_clips)
        for begin, (_, length) in zip(begins, slices, strict=True)
    ]
    made, owner = runs.slices(np.array(begins, np.int64), np.array(ends, np.int64))
    every, old = starts_of(runs), np.repeat(runs.run, runs.count)
    assert starts_of(made) == [
        clip for begin, end in zip(begins, ends, strict=True) for clip in every[begin:end]
    ]
    assert np.repeat(owner, made.count).tolist() == [
        i for i, begin in enumerate(begins) for _ in range(begin, ends[i])
    ]
    expected = [
        (i, int(old[clip])) for i, begin in enumerate(begins) for clip in range(begin, ends[i])
    ]
    numbered = np.repeat(made.run, made.count).tolist()
    assert numbered == [len({*expected[: place + 1]}) - 1 for place in range(len(expected))]


@given(some_runs(), st.data())
def test_snapping_finds_the_first_clip_of_its_row_that_uses_nothing_before_its_chunk(
    runs: Runs, data: st.DataObject
) -> None:
    """Chunks of any lengths, and windows that begin before or behind a clip's start."""
    offset = data.draw(st.integers(-40, 40))
    chunks, expected = [], []
    for i in range(len(runs)):
        starts = int(runs.first_start[i]) + runs.stride * np.arange(int(runs.count[i]))
        lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=9))
        lengths.append(max(1, int(starts[-1]) + 1 - sum(lengths)))
        chunks.append(lengths)
        used = np.clip(starts + offset, 0, sum(lengths) - 1)
        place = np.repeat(np.arange(len(lengths)), lengths)[used].tolist()
        expected += [int(runs.first_clip[i]) + place.index(n) for n in place]
    cuts = Cuts(grid_of(chunks), np.array([sum(lengths) for lengths in chunks]) - 1, offset)
    assert runs.snap(np.arange(runs.num_clips), cuts).tolist() == expected


def test_pieces_of_two_episodes_stay_apart() -> None:
    """The first would go on where the second begins, as keys count."""
    zero = np.zeros(0, np.int64)
    table = ClipTable(ClipSpec(1, stride=1 << 30), zero, zero, zero, zero)
    first = frame_keys(np.array([0, 0, 1]), np.array([0, 1 << 31, 0]))
    found = concatenated_pieces(table, first, np.array([2, 2, 1]))
    columns = (found.episode, found.first_start, found.count)
    assert [column.tolist() for column in columns] == [[0, 1], [0, 0], [4, 1]]
