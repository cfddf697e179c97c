"""Clips that a list names: which are whole, how often each comes, and their plans."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import EpisodeTable
from seqrecord.sampling import EpochPlan, PlanSettings
from seqrecord.sampling.random_order import clips_before, times_in_epoch


def test_times_are_the_weight_rounded_down_or_up() -> None:
    weight = np.array([0.0, 0.25, 1.0, 2.5, 7.0, 0.999])
    chosen = ChosenClips.of(np.zeros(6, np.int64), np.arange(6), weight)
    times = np.array([times_in_epoch(chosen, seed=3, epoch=epoch) for epoch in range(2000)])
    assert (times >= np.floor(weight)).all()
    assert (times <= np.ceil(weight)).all()
    assert np.abs(times.mean(axis=0) - weight).max() < 0.03
    assert (times == times_in_epoch(chosen, seed=4, epoch=0)).all(axis=1).mean() < 0.6
    assert chosen.differs_by_epoch
    assert not chosen.subset(np.array([True, False, True, False, True, False])).differs_by_epoch
    # Clips of one weight come in all combinations.
    chosen = ChosenClips.of(np.zeros(5, np.int64), np.arange(5), np.full(5, 0.4))
    found = Counter(
        tuple(times_in_epoch(chosen, seed=0, epoch=epoch).tolist()) for epoch in range(2000)
    )
    assert len(found) == 10  # of two of five
    assert min(found.values()) > 130
    assert max(found.values()) < 270


@given(
    weights=st.lists(
        st.one_of(st.floats(0, 3), st.sampled_from([0.0, 0.5, 1 / 3, 2.0, 1e-30, 1e6])), min_size=1
    ),
    seed=st.integers(0, 1 << 64),
    num_shards=st.integers(1, 5),
    first=st.one_of(st.just(0), st.integers(0, 1 << 62)),
)
def test_clips_of_epochs_are_known_without_counting(
    weights: list[float], seed: int, num_shards: int, first: int
) -> None:
    count = len(weights)
    chosen = ChosenClips.of(np.zeros(count, np.int64), np.arange(count), np.array(weights))
    before = clips_before(chosen, first, num_shards, seed=seed)
    assert first or before == 0
    for epoch in range(first, first + 6):
        times = times_in_epoch(chosen, seed=seed, epoch=epoch)
        assert (times >= chosen.least).all()
        assert (times <= chosen.most).all()
        assert abs(int(times.sum()) - sum(map(Fraction, weights), Fraction(0))) < 1
        before += -(-int(times.sum()) // num_shards)
        assert clips_before(chosen, epoch + 1, num_shards, seed=seed) == before


def test_a_sparse_list_of_a_long_episode_reads_little() -> None:
    episodes = EpisodeTable(
        np.array([100_000]), (ChunkGrid(np.array([16]), np.zeros(1, np.int64)),)
    )
    spec = ClipSpec(4)
    chosen = ChosenClips.of(np.zeros(100, np.int64), np.arange(100) * 1000)
    table = chosen.table(spec, np.arange(1), chosen.most)
    plan = EpochPlan(table, episodes, PlanSettings(num_cursors=4, run_frames=None))
    loads = [work.groups[0].loads for work in plan.rounds()]
    assert sum(map(len, loads)) <= 105
    assert sum(int(load.count.sum()) for load in loads) <= 105 * 4


def test_frames_between_far_clips_of_one_long_chunk_count() -> None:
    """Clips 60 frames apart share chunks of 100 frames of the second group, which are held."""
    count = 200
    grids = (
        ChunkGrid(np.array([4]), np.zeros(1, np.int64)),
        ChunkGrid(np.array([100]), np.zeros(1, np.int64), 1),
    )
    episodes = EpisodeTable(np.array([60 * count]), grids)
    chosen = ChosenClips.of(np.zeros(count, np.int64), 60 * np.arange(count))
    table = chosen.table(ClipSpec(1), np.arange(1), chosen.most)
    settings = PlanSettings(
        num_cursors=1, block_frames=480, first_block_frames=480, run_frames=None, shuffle=False
    )
    plan = EpochPlan(table, episodes, settings)
    held, most = 0, 0
    for work in plan.rounds():
        held += int(work.groups[1].loads.count.sum())
        most = max(most, held)
        held -= int(work.groups[1].frees.count.sum())
    assert 1500 < most <= plan.groups[1].max_resident_frames
