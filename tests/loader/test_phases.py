"""An epoch's clips: its phase, and repetitions by weight."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.random_order import Phases, clips_before, times_in_epoch
from seqrecord.store.clips.grids import ChunkGrid
from seqrecord.store.clips.tables import EpisodeLayout, enumerate_clips
from tests.loader.clip_cases import Case, cases, episode_table, listed_clips


def at_phase(case: Case, phase: int) -> Case:
    return replace(case, spec=replace(case.spec, phase=phase))


def phases_of(case: Case) -> Phases:
    every = replace(case, spec=replace(case.spec, stride=1, phase=0))
    return Phases.of(every.table.first_start, every.table.count, case.spec.stride)


@given(cases())
def test_phases_count_their_clips(case: Case) -> None:
    expected = {
        phase: len(clips)
        for phase in range(case.spec.stride)
        if (clips := at_phase(case, phase).clips())
    }
    phases = phases_of(case)
    found = {
        phase: count
        for first, stop, count in zip(
            phases.first.tolist(), phases.stop.tolist(), phases.num_clips.tolist(), strict=True
        )
        for phase in range(first, stop)
    }
    assert found == expected
    assert len(phases) == len(expected)


@given(
    cases(),
    st.integers(-3, 2**70),
    st.integers(1, 4),
    st.one_of(st.just(0), st.integers(0, 2**60)),
)
def test_clips_before_an_epoch_match_counting(
    case: Case, seed: int, num_shards: int, first: int
) -> None:
    phases = phases_of(case)
    if not len(phases):
        return
    before = phases.clips_before(first, num_shards, seed=seed)
    assert first or before == 0
    for epoch in range(first, first + 2 * len(phases)):
        phase = phases.of_epoch(epoch, seed=seed)
        before += -(-len(at_phase(case, phase).clips()) // num_shards)
        found = phases.clips_before(epoch + 1, num_shards, seed=seed)
        assert found == before


def test_the_order_of_phases_differs_by_epochs_and_seeds() -> None:
    phases = Phases(np.array([0]), np.array([8]), np.array([3]))
    orders = {
        tuple(phases.of_epoch(8 * group + i, seed=seed) for i in range(8))
        for group in range(5)
        for seed in range(5)
    }
    assert len(orders) == 25
    steps = Counter((order[i + 1] - order[i]) % 8 for order in orders for i in range(7))
    assert max(steps.values()) < 0.4 * steps.total()
    # The order of version 1, which resumed runs need.
    phases = Phases(np.array([0]), np.array([5]), np.array([1]))
    order = [phases.of_epoch(epoch, seed=7) for epoch in range(10)]
    assert order == [2, 3, 0, 4, 1, 3, 4, 2, 1, 0]


def test_phases_without_clips_have_no_epoch() -> None:
    clips = {0: 3, 1: 3, 5: 1}
    phases = Phases(np.array([0, 5]), np.array([2, 6]), np.array([3, 1]))
    order = [phases.of_epoch(epoch, seed=7) for epoch in range(12)]
    assert [sorted(order[i : i + 3]) for i in range(0, 12, 3)] == [[0, 1, 5]] * 4
    before = [phases.clips_before(epoch, 2, seed=7) for epoch in range(13)]
    assert np.diff(before).tolist() == [-(-clips[phase] // 2) for phase in order]


@pytest.mark.parametrize("stride", [4, 1000, 999_983])
def test_phases_of_a_large_dataset_are_fast(stride: int) -> None:
    lengths = [1015] * 10_000
    episodes = episode_table(lengths, [8] * len(lengths))
    every = enumerate_clips(ClipSpec(16), episodes, np.arange(len(lengths)))
    began = time.thread_time()  # without time spent waiting for a core
    phases = Phases.of(every.first_start, every.count, stride)
    phases.of_epoch(12345, seed=0)
    assert time.thread_time() - began < 1
    assert len(phases) == min(stride, 1000)


def test_repetitions_are_the_weight_rounded_down_or_up() -> None:
    weight = np.array([0.0, 0.25, 1.0, 2.5, 7.0, 0.999])
    rows = np.arange(6)
    times = np.array([times_in_epoch(weight, rows, seed=3, epoch=epoch) for epoch in range(2000)])
    assert (times >= np.floor(weight)).all()
    assert (times <= np.ceil(weight)).all()
    assert np.abs(times.mean(axis=0) - weight).max() < 0.03
    assert (times == times_in_epoch(weight, rows, seed=4, epoch=0)).all(axis=1).mean() < 0.6
    # Clips of equal weight appear in all combinations.
    weight, rows = np.full(5, 0.4), np.arange(5)
    found = Counter(
        tuple(times_in_epoch(weight, rows, seed=0, epoch=epoch).tolist()) for epoch in range(2000)
    )
    assert len(found) == 10  # two of five
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
def test_weighted_clips_before_an_epoch_match_counting(
    weights: list[float], seed: int, num_shards: int, first: int
) -> None:
    chosen, rows = np.array(weights), np.arange(len(weights))
    before = clips_before(chosen, first, num_shards, seed=seed)
    assert first or before == 0
    for epoch in range(first, first + 6):
        times = times_in_epoch(chosen, rows, seed=seed, epoch=epoch)
        assert (times >= np.floor(chosen)).all()
        assert (times <= np.ceil(chosen)).all()
        assert abs(int(times.sum()) - sum(map(Fraction, weights), Fraction(0))) < 1
        before += -(-int(times.sum()) // num_shards)
        assert clips_before(chosen, epoch + 1, num_shards, seed=seed) == before


def test_sparse_clips_of_a_long_episode_read_few_chunks() -> None:
    episodes = EpisodeLayout(
        np.array([100_000]), (ChunkGrid(np.array([16]), np.zeros(1, np.int64)),)
    )
    spec = ClipSpec(4)
    none = np.zeros(100, np.int64)
    table = listed_clips(spec, 1, none, np.arange(100) * 1000, none + 1)
    plan = EpochPlan(table, episodes, PlanSettings(num_cursors=4, run_frames=None))
    loads = [work.groups[0].loads for work in plan.rounds()]
    assert sum(map(len, loads)) <= 105
    assert sum(int(load.count.sum()) for load in loads) <= 105 * 4


def test_peak_memory_counts_frames_between_distant_clips() -> None:
    """Clips 60 frames apart share chunks of 100 frames in the second group, kept in memory."""
    count = 200
    grids = (
        ChunkGrid(np.array([4]), np.zeros(1, np.int64)),
        ChunkGrid(np.array([100]), np.zeros(1, np.int64), 1),
    )
    episodes = EpisodeLayout(np.array([60 * count]), grids)
    none = np.zeros(count, np.int64)
    table = listed_clips(ClipSpec(1), 1, none, 60 * np.arange(count), none + 1)
    settings = PlanSettings(
        num_cursors=1, block_frames=480, first_block_frames=480, run_frames=None, shuffle=False
    )
    plan = EpochPlan(table, episodes, settings)
    resident, most = 0, 0
    for work in plan.rounds():
        resident += int(work.groups[1].loads.count.sum())
        most = max(most, resident)
        resident -= int(work.groups[1].frees.count.sum())
    assert 1500 < most <= plan.groups[1].max_resident_frames
