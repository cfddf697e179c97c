"""Episodes that are cut and spread over shards: where cuts are, and the starts of shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tartanair import default_mixing
from seqrecord import ClipSpec
from seqrecord.loader.sampling.bounds import ClipStats
from seqrecord.loader.sampling.passes import copies, in_step, passes
from seqrecord.loader.sampling.runs import Cuts, Runs, Window
from seqrecord.loader.sampling.spreading import Spreading, spread_runs
from seqrecord.store.tables.grids import ragged_arange
from tests.loader.clip_cases import Case, cases, grid_of, layout_of, listed_clips
from tests.loader.plan_cases import rows


def rows_of(runs: Runs) -> list[tuple[int, ...]]:
    """Run, episode and start of each clip, in order."""
    return [
        (run, episode, first + i * runs.stride)
        for run, episode, first, count in rows(runs.run, runs.episode, runs.first_start, runs.count)
        for i in range(count)
    ]


@given(cases(), st.integers(0, 9), st.integers(1, 60), st.integers(0, 70), st.integers(0, 9))
def test_runs_begin_with_units(
    case: Case, unit: int, run_frames: int, uncut: int, key: int
) -> None:
    """A part begins with the first clip of its episode that uses no frame before a unit."""
    episodes = case.episodes
    (grid,) = episodes.groups
    episodes = replace(episodes, groups=(replace(grid, unit_frames=unit),))
    whole = Runs.of(case.table)
    if not len(whole):
        return
    places = Cuts.at_units(whole.episode, episodes, [Window.of(case.spec)], uncut)
    num_frames = sum(case.num_frames)
    parts = spread_runs(whole, run_frames, num_frames, places, key)
    found = rows_of(parts)
    assert sorted(clip[1:] for clip in found) == sorted(clip[1:] for clip in rows_of(whole))
    starts: dict[int, list[tuple[int, int]]] = {}
    for run, episode, start in found:
        starts.setdefault(run, []).append((episode, start))
    num_cuts = num_frames / run_frames  # for each clip the frames are rounded down
    assert len(starts) <= len(set(whole.run)) + 2 * num_cuts + 1
    for clips in starts.values():
        (episode,) = {episode for episode, _ in clips}
        assert clips == sorted(clips)
        own = [start for number, start in case.clips() if number == episode]
        before = [start for start in own if start < clips[0][1]]
        chunk = case.chunk_frames[episode]
        step = unit if unit and chunk > uncut else 0
        begins = {
            begin + i
            for begin in range(0, case.num_frames[episode], chunk)
            for i in range(0, chunk, step or chunk)
        }
        # Between the last clip before it and itself, a unit begins.
        assert not before or any(before[-1] < begin <= clips[0][1] for begin in begins)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_shares_begin_with_runs(counts: list[int], num_shards: int, num_shares: int) -> None:
    zero = np.zeros(len(counts), np.int64)
    runs = Runs(1, np.arange(len(counts)), zero, np.array(counts), np.arange(len(counts)), zero)
    bounds = np.arange(num_shards + 1) * runs.num_clips // num_shards
    first, last = bounds[:-1, None], bounds[1:, None]
    inner = runs.share_starts(first, last, num_shares)
    begins = runs.first_clip.tolist()
    for (begin,), (end,), starts in zip(first.tolist(), last.tolist(), inner.tolist(), strict=True):
        shares = np.diff([begin, *starts, end])
        assert (shares >= 0).all()
        inside = [clip for clip in begins if begin < clip < end]
        assert set(starts) <= {begin, *inside}
        # Empty shares are the first ones; there are none if each may have a run.
        number = int((shares > 0).sum())
        assert (shares[-number:] > 0).all()
        if end > begin:
            assert number == min(num_shares, len(inside) + 1)


@pytest.mark.parametrize("number", range(40))
def test_shards_of_copies_are_in_an_even_order(number: int) -> None:
    """The clips of the first shards differ from their share by at most a shard's difference."""
    rng = np.random.default_rng(number)
    count, sizes = int(rng.integers(2, 9)), rng.integers(1, 9, rng.integers(16, 30))
    episode, start = ragged_arange(sizes)
    times = rng.integers(1, 4, len(sizes))[episode]
    runs = passes(Runs.of(listed_clips(ClipSpec(1), len(sizes), episode, start, times)))
    lengths = np.bincount(runs.run, runs.count).astype(np.int64)
    ordered, begins = in_step(runs, copies(runs), lengths, number, count, 1)
    assert begins is not None
    differences = np.diff([*begins[:, 0], times.sum()]) - times.sum() / count
    excess = np.cumsum(differences)
    assert ordered.num_clips == times.sum()
    assert differences.min() - 1e-9 <= excess.min()
    assert excess.max() <= differences.max() + 1e-9


def test_uneven_episodes_count_by_their_frames() -> None:
    """A hundred tiny episodes beside ten long ones hardly add to the episodes of a batch."""
    lengths = [20] * 90 + [1000] * 10
    grid = replace(grid_of([[n] for n in lengths]), unit_frames=1)
    table = layout_of(lengths, grid)
    case = Case.of(ClipSpec(16), lengths, 1000)
    stats = ClipStats.of(case.table, table)
    assert 13 < stats.even_episodes < 14
    spreading = Spreading(stats, 4)
    cuts = spreading.max_cuts(0.1)
    assert (stats.unit_frames, stats.shared_frames) == (1, 15)
    assert cuts * 15 + 3 * 15 <= 0.1 * sum(lengths)
    assert spreading.cuts_for(100, 0.1) == cuts
    assert spreading.num_runs(cuts) == (stats.even_episodes + cuts) / 4
    assert spreading.reread(cuts) <= 0.1


@pytest.mark.parametrize(
    ("frames", "gop", "chunk", "batch", "shards", "least"),
    [
        (100, 2, 100, 8, 8, 0.85),
        (100, 1, 32, 8, 8, 0.85),
        (100, 2, 100, 16, 8, 0.7),  # all that a tenth of decodes allows
        (600, 50, 250, 16, 8, 0.85),
        (600, 250, 250, 16, 8, 0.65),
        (400, 2, 250, 16, 8, 0.85),
        (400, 2, 250, 32, 16, 0.45),  # likewise
        (100, 2, 100, 16, 2, 0.85),
    ],
)
@pytest.mark.parametrize("stays", [False, True])
def test_batches_of_ranks_have_many_episodes(
    frames: int, gop: int, chunk: int, batch: int, shards: int, least: float, stays: bool
) -> None:
    """Sixty episodes, clips of 16."""
    size = default_mixing.RGB if not stays else default_mixing.RGB // 60
    group = default_mixing.Group(size, chunk, gop)
    case = default_mixing.Case("", (frames,) * 60, (group,), fixed_shards=stays)
    planned = default_mixing.plan_epoch(case, default_mixing.Job(batch, shards))
    found = default_mixing.measured(case, planned)
    assert planned.is_resident == stays
    assert found.rank_episodes.ratio >= least
    assert found.decodes <= 1.1
