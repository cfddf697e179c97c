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
from seqrecord.loader.sampling.random_order import EpochSizes, phase_of_epoch, times_in_epoch
from tests.loader.clip_cases import Case, cases, episode_table, listed_clips


def at_phase(case: Case, phase: int) -> Case:
    return replace(case, spec=replace(case.spec, phase=phase))


@given(
    cases(),
    st.integers(-3, 2**70),
    st.one_of(st.just(0), st.integers(0, 2**60)),
)
def test_epochs_have_each_phase_with_clips_once(case: Case, seed: int, group: int) -> None:
    every = replace(case, spec=replace(case.spec, stride=1, phase=0)).table
    runs, stride = (every.first_start, every.count), case.spec.stride
    phases = [phase for phase in range(stride) if at_phase(case, phase).clips()]
    if not phases:
        return
    first = group * len(phases)
    order = [
        phase_of_epoch(*runs, stride, epoch=epoch, seed=seed)
        for epoch in range(first, first + 2 * len(phases))
    ]
    assert sorted(order[: len(phases)]) == sorted(order[len(phases) :]) == phases


def order_of(runs: dict[int, int], stride: int, count: int, seed: int = 7) -> list[int]:
    """The phases of the first epochs, for runs by first start."""
    columns = np.array([*runs]), np.array([*runs.values()])
    return [phase_of_epoch(*columns, stride, epoch=epoch, seed=seed) for epoch in range(count)]


def test_the_order_of_phases_differs_by_epochs_and_seeds() -> None:
    orders = set[tuple[int, ...]]()
    for seed in range(5):
        phases = order_of({0: 24}, 8, 40, seed)
        orders |= {tuple(phases[i : i + 8]) for i in range(0, 40, 8)}
    assert len(orders) == 25
    steps = Counter((order[i + 1] - order[i]) % 8 for order in orders for i in range(7))
    assert max(steps.values()) < 0.4 * steps.total()
    # The order of version 1, which resumed runs need.
    assert order_of({0: 5}, 5, 10) == [2, 3, 0, 4, 1, 3, 4, 2, 1, 0]


def test_phases_without_clips_have_no_epoch() -> None:
    order = order_of({11: 2, 6: 2, 18: 2, 3: 0}, 6, 12)  # a run goes past the last phase
    assert [sorted(order[i : i + 3]) for i in range(0, 12, 3)] == [[0, 1, 5]] * 4


@pytest.mark.parametrize("stride", [4, 1000, 999_983])
def test_phases_of_a_large_dataset_are_fast(stride: int) -> None:
    lengths = [1015] * 10_000
    every = Case.of(ClipSpec(16), lengths, 8).table
    began = time.thread_time()  # without time spent waiting for a core
    phase = phase_of_epoch(every.first_start, every.count, stride, epoch=12345, seed=0)
    assert time.thread_time() - began < 1  # mean and standard deviation below 0.001 s
    assert phase < min(stride, 1000)


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
    first=st.one_of(st.just(0), st.integers(0, 1 << 62)),
    num_shards=st.integers(1, 9),
)
def test_sizes_of_weighted_epochs_match_counting(
    weights: list[float], seed: int, first: int, num_shards: int
) -> None:
    chosen, rows = np.array(weights), np.arange(len(weights))
    sizes = EpochSizes.of(chosen, seed)
    assert sizes.before(0, num_shards) == 0
    for epoch in range(first, first + 6):
        times = times_in_epoch(chosen, rows, seed=seed, epoch=epoch)
        assert (times >= np.floor(chosen)).all()
        assert (times <= np.ceil(chosen)).all()
        assert abs(int(times.sum()) - sum(map(Fraction, weights), Fraction(0))) < 1
        start, stop = (sizes.before(n, num_shards) for n in (epoch, epoch + 1))
        assert stop - start == -(-int(times.sum()) // num_shards)
        for clip in {start, stop - 1} if stop > start else ():
            assert sizes.epoch_of(clip, num_shards) == epoch


def test_sparse_clips_of_a_long_episode_read_few_chunks() -> None:
    episodes = episode_table([100_000], [16])
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
    episodes = episode_table([60 * count], [4], [100])
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
