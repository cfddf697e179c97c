"""Phases of epochs: together they are every clip, and no epoch is left without one."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.clips.tables import enumerate_clips
from seqrecord.sampling import Phases
from tests.clip_cases import Case, cases, episode_table


def at_phase(case: Case, phase: int) -> Case:
    return replace(case, spec=replace(case.spec, phase=phase))


def phases_of(case: Case) -> Phases:
    every = replace(case, spec=replace(case.spec, stride=1, phase=0))
    return Phases.of(every.table, case.spec.stride)


@given(cases())
def test_counts_the_clips_of_every_phase(case: Case) -> None:
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
    if expected:
        assert phases.fewest_clips == min(expected.values())


@given(cases(), st.booleans(), st.integers(-3, 2**70), st.integers(0, 2**60))
def test_so_many_epochs_have_every_clip_once(
    case: Case, shuffle: bool, seed: int, group: int
) -> None:
    phases = phases_of(case)
    if not len(phases):
        return
    order = [
        phases.of_epoch(group * len(phases) + i, seed=seed, shuffle=shuffle)
        for i in range(len(phases))
    ]
    clips = Counter(clip for phase in order for clip in at_phase(case, phase).clips())
    assert set(clips.values()) == {1}
    assert set(clips) == set(replace(case, spec=replace(case.spec, stride=1, phase=0)).clips())
    if not shuffle:
        assert order == sorted(order)


@given(cases(), st.booleans(), st.integers(1, 4), st.one_of(st.just(0), st.integers(0, 2**60)))
def test_clips_of_epochs_are_known_without_counting(
    case: Case, shuffle: bool, num_shards: int, first: int
) -> None:
    phases = phases_of(case)
    if not len(phases):
        return
    before = phases.clips_before(first, num_shards, seed=7, shuffle=shuffle)
    assert first or before == 0
    for epoch in range(first, first + 2 * len(phases)):
        phase = phases.of_epoch(epoch, seed=7, shuffle=shuffle)
        before += -(-len(at_phase(case, phase).clips()) // num_shards)
        found = phases.clips_before(epoch + 1, num_shards, seed=7, shuffle=shuffle)
        assert found == before


def test_the_order_of_phases_is_drawn_anew() -> None:
    phases = Phases(np.array([0]), np.array([8]), np.array([3]))
    orders = {
        tuple(phases.of_epoch(8 * group + i, seed=seed, shuffle=True) for i in range(8))
        for group in range(5)
        for seed in range(5)
    }
    assert len(orders) == 25
    steps = Counter((order[i + 1] - order[i]) % 8 for order in orders for i in range(7))
    assert max(steps.values()) < 0.4 * steps.total()
    # That of version 1: a resumed run must go on with it.
    phases = Phases(np.array([0]), np.array([5]), np.array([1]))
    order = [phases.of_epoch(epoch, seed=7, shuffle=True) for epoch in range(10)]
    assert order == [1, 3, 4, 0, 2, 1, 4, 3, 2, 0]


@pytest.mark.parametrize("stride", [4, 1000, 999_983])
def test_phases_of_a_large_dataset_are_found_quickly(stride: int) -> None:
    lengths = [1015] * 10_000
    episodes = episode_table(lengths, [8] * len(lengths))
    every = enumerate_clips(ClipSpec(16), episodes, np.arange(len(lengths)))
    began = time.thread_time()  # however long it waits for a core
    phases = Phases.of(every, stride)
    phases.of_epoch(12345, seed=0, shuffle=True)
    assert time.thread_time() - began < 1
    assert len(phases) == min(stride, 1000)
