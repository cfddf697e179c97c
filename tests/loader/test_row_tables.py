"""Rows of tables: episodes, copies, lookups, and tables that have grown."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from seqrecord.loader.clips.frames import MOST_COPIES
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import IntArray


def drawn_clips(rng: Generator, stride: int) -> tuple[ClipTable, list[tuple[int, int, int]]]:
    """A table of runs, with gaps and copies, and its clips: episode, start and sample."""
    runs = list[tuple[int, int, int]]()
    for episode in range(int(rng.integers(1, 12))):
        start = int(rng.integers(0, 3)) * stride
        for _ in range(int(rng.integers(0, 4))):
            count = int(rng.integers(1, 6))
            runs.append((episode, start, count))
            start += (count + int(rng.choice([0, 2, 9]))) * stride
    clips = sorted(
        (episode, start + step * stride, copy)
        for episode, start, count in runs
        for step in range(count)
        for copy in range(int(rng.choice([1, 1, 2, 4])) if rng.random() < 0.3 else 1)
    )
    rows = sorted({clip[:2] for clip in clips})
    samples = [MOST_COPIES * rows.index(clip[:2]) + clip[2] for clip in clips]
    episode, start, _ = np.array(clips, np.int64).reshape(-1, 3).T
    spec = ClipSpec(4, stride=stride)
    table = ClipTable(spec, np.arange(12), *np.zeros((3, 0), np.int64))
    table = table.with_runs(episode, start, np.ones_like(episode), np.array(samples, np.int64))
    return table, [(*clip[:2], sample) for clip, sample in zip(clips, samples, strict=True)]


def listed(table: RowTable, rows: IntArray) -> list[tuple[int, int, int]]:
    columns = (*table.locate(rows), table.samples(rows))
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_the_clips_of_a_table(seed: int) -> None:
    rng = default_rng(seed)
    clips, expected = drawn_clips(rng, int(rng.integers(1, 4)))
    table = RowTable.of(clips)
    rows = listed(table, np.arange(len(table)))
    assert sorted(rows) == expected
    starts = list[list[tuple[int, int]]]()
    for first, stop in zip(table.bounds[:-1].tolist(), table.bounds[1:].tolist(), strict=True):
        starts.append([row[:2] for row in rows[first:stop]])
        assert len({episode for episode, _ in starts[-1]}) == 1
        assert starts[-1] == sorted(set(starts[-1]))  # no copy beside its clip
    # The copies of an episode are as many as those of its clip with most.
    most = {
        e: max(expected_of.count(c) for c in expected_of) for e, expected_of in _by_episode(rows)
    }
    assert [part[0][0] for part in starts] == [e for e in sorted(most) for _ in range(most[e])]
    for owner, part in enumerate(starts):
        wanted = int(rng.integers(-1, 40))
        row = table.rows_from(np.array([owner]), np.array([wanted]))[0] - table.bounds[owner]
        assert row == sum(start < wanted for _, start in part)


def _by_episode(rows: list[tuple[int, int, int]]) -> list[tuple[int, list[tuple[int, int]]]]:
    episodes = sorted({row[0] for row in rows})
    return [(e, [row[:2] for row in rows if row[0] == e]) for e in episodes]


@pytest.mark.parametrize("seed", range(10))
def test_a_table_that_has_grown_begins_with_the_rows_it_had(seed: int) -> None:
    """A state names how many rows it knew: other episodes are appended behind them."""
    clips, _ = drawn_clips(default_rng(seed), 1)
    columns = clips.episode, clips.first_start, clips.count, clips.first_sample
    known = clips.episode < int(default_rng(seed).integers(1, 12))
    before = RowTable.of(clips.with_runs(*(column[known] for column in columns)))
    grown = RowTable.of(clips)
    again = grown.only(np.zeros(1, np.int64), np.array([len(before)]))
    rows = np.arange(len(before))
    assert listed(again, rows) == listed(grown, rows) == listed(before, rows)
    assert np.array_equal(again.bounds, before.bounds)
