from __future__ import annotations

import json
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY
from seqrecord import ClipError, ClipSpec
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, resident_bounds
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.runs import Shard
from tests.loader.clip_cases import Case
from tests.loader.golden_epochs import GOLDEN as EPOCHS
from tests.loader.golden_epochs import batch_digests, write_records
from tests.loader.golden_plans import CASES, GOLDEN, plan_rounds
from tests.loader.plan_cases import Engine, Request, costs_of, requests, shards


@given(requests())
def test_shards_cover_the_epoch_in_equally_many_full_batches(request: Request) -> None:
    plans = shards(request)
    size, every = request.settings.batch_size or 1, request.case.clips()
    emitted = []
    for plan in plans:
        engine = request.run(plan)
        emitted.append(engine.clips)
        assert plan.num_clips == len(engine.clips) == len(set(engine.clips))
        places = engine.places
        sizes = Counter(batch for batch, _ in places)
        assert sorted(sizes) == list(range(plan.num_batches))
        assert places == [(b, slot) for b in sorted(sizes) for slot in range(sizes[b])]
        assert all(sizes[b] == size for b in range(plan.num_batches - 1))
        assert all(1 <= sizes[b] <= size for b in sizes)
        starts = [plan.first_clip(b) for b in range(plan.num_batches + 1)]
        assert np.diff(starts).tolist() == [sizes[b] for b in sorted(sizes)]
        if request.settings.drops:
            assert all(sizes[b] == size for b in sizes)
    if not plans:
        return
    together = Counter(clip for clips in emitted for clip in clips)
    repeated, chosen = sum(plan.num_repeated for plan in plans), request.settings
    assert together.total() + sum(plan.num_dropped for plan in plans) == len(every) + repeated
    assert set(together) <= set(every) if chosen.drops else set(together) == set(every)
    assert not chosen.drops or max(together.values(), default=0) <= 1
    if not chosen.is_even or chosen.drops:
        assert repeated == 0
    if not chosen.shuffle and not chosen.drops and not repeated:
        assert [clip for clips in emitted for clip in clips] == every
    counts, total = [plan.num_clips for plan in plans], len(every)
    low, high = total // request.num_shards, -(-total // request.num_shards)
    if request.settings.is_even:
        wanted = low // size * size if request.settings.drops else high
        assert counts == [wanted] * len(plans)
    elif not request.settings.drops:
        assert set(counts) <= {low, high}
        assert sum(counts) == total


@given(
    request=requests(),
    cost=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    window=st.integers(1, 9),
    pads=st.booleans(),
)
def test_windows_of_joined_rounds(
    request: Request, cost: list[int], window: int, pads: bool
) -> None:
    """Each clip once, in batches of a budget, from the frames that the plan's rounds have."""
    costs = costs_of(request.case.table, cost, window, pads=pads)
    settings = replace(request.settings, last_batch="keep", resident=False)
    request = replace(request, settings=settings, costs=costs)
    clips = Counter[tuple[int, int]]()
    for plan in map(request.plan, range(request.num_shards)):
        engine = request.run(plan)
        clips.update(engine.clips)
        batches = [batch for batch, _ in engine.places]
        assert batches == sorted(batches)
        for batch in {*batches}:
            chosen = costs.of(np.array(engine.samples)[np.array(batches) == batch])
            assert (chosen.max() * len(chosen) if pads else chosen.sum()) <= costs.budget
        bounds = resident_bounds(ClipStats.of(request.case.table, request.case.episodes), settings)
        assert (
            plan.groups[0].cursor_frames is None or plan.groups[0].cursor_frames.sum() <= bounds[0]
        )
        if plan.num_rounds > 2:  # a resume in the middle
            rest = Engine.of(plan, request.case.episodes, request.case.spec).finish(1)
            assert rest.clips == engine.clips[-len(rest.clips) :]
    assert clips == Counter(request.case.clips())


CLIP = ClipSpec(16)
CHOSEN = PlanSettings(batch_size=32, num_cursors=38, block_frames=8, run_frames=2679)


def case_of(*lengths: int, spec: ClipSpec = CLIP) -> Case:
    count = len(lengths)
    return Case(lengths, (8,) * count, spec, tuple(range(count)), frozenset())


def abandonedfactory_request(spec: ClipSpec, chosen: PlanSettings) -> Request:
    return Request(case_of(*ABANDONEDFACTORY, spec=spec), chosen, 0, 1)


def test_order_differs_by_seed_and_epoch_also_in_one_episode() -> None:
    chosen = replace(CHOSEN, num_cursors=4, run_frames=None)
    orders, cuts = set(), set()
    for seed, epoch in product(range(4), range(4)):
        request = Request(case_of(600), replace(chosen, seed=seed), epoch, 1)
        rounds = list(request.plan().rounds())
        orders.add(tuple(clip for r in rounds for clip in r.clips.start.tolist()))
        cuts.add(tuple(sorted(rounds[0].groups[0].loads.first.tolist())))
    assert len(orders) == 16
    assert len(cuts) > 8


@pytest.mark.parametrize(
    ("spec", "chosen", "frames"),
    [
        (ClipSpec(16), CHOSEN, 24),  # a block of 8 starts, 15 frames after the last, 1 to fill up
        (ClipSpec(16), replace(CHOSEN, block_frames=16), 32),
        (ClipSpec(16), replace(CHOSEN, block_frames=1), 23),  # start 1: up to 16, so 1..23
        (ClipSpec(16, stride=16), CHOSEN, 16),
        (ClipSpec(16, stride=16, phase=1), CHOSEN, 23),
        (ClipSpec(16, stride=2, dilation=2), CHOSEN, 20),  # every second frame of 8 + 31, filled up
    ],
)
def test_the_bound_of_frames_is_tight(spec: ClipSpec, chosen: PlanSettings, frames: int) -> None:
    request = abandonedfactory_request(spec, chosen)
    plan = request.plan()
    assert plan.groups[0].max_resident_frames == frames * 38
    assert request.run(plan).groups[0].most_frames > 0.85 * frames * 38


def test_frames_that_no_clip_uses_are_not_loaded() -> None:
    def frames(spec: ClipSpec) -> set[tuple[int, int]]:
        request = Request(case_of(1000, spec=spec), PlanSettings(shuffle=False), 0, 1)
        return set(request.run(request.plan()).frames)

    expected = {(0, k * 100 + i) for k in range(10) for i in range(4)}
    assert frames(ClipSpec(4, stride=100)) == expected
    found = frames(ClipSpec(4, stride=3, dilation=3, phase=1))
    assert {frame % 3 for _, frame in found} == {1}


def test_cursors_finish_together() -> None:
    plan = abandonedfactory_request(ClipSpec(16), CHOSEN).plan()
    clips = [len(np.unique(work.clips.cursor)) for work in plan.rounds()]
    assert min(clips) >= 20  # of 38: some are between two runs
    assert np.mean(clips) > 35


def test_a_round_may_have_many_short_episodes() -> None:
    case = case_of(*[20] * 600)
    chosen = PlanSettings(batch_size=8, num_cursors=4, block_frames=2000, run_frames=None)
    request = Request(case, chosen, 0, 1)
    plan = request.plan()
    assert max(len(np.unique(work.clips.episode)) for work in plan.rounds()) > 100
    assert sorted(request.run(plan).clips) == case.clips()
    assert len(list(plan.rounds())) < 12


def test_fewer_clips_than_shards() -> None:
    case = case_of(17)
    plans = shards(Request(case, PlanSettings(), 0, 3))
    assert [(plan.num_clips, plan.num_repeated) for plan in plans] == [(1, 1), (1, 0), (1, 0)]
    exact = shards(Request(case, PlanSettings(last_batch="keep"), 0, 3))
    assert sorted(plan.num_clips for plan in exact) == [0, 1, 1]
    with pytest.raises(ClipError, match=r"no batch at all.*at least 3 clips.*got: 2 clips"):
        Request(case, PlanSettings(last_batch="drop"), 0, 3).plan(2)


def test_one_cursor_with_clips_far_longer_than_its_blocks() -> None:
    """Each clip overlaps all others; the order does not depend on its length."""
    chosen = PlanSettings(batch_size=8, num_cursors=1, block_frames=100, run_frames=None)
    orders = []
    tracemalloc.start()
    try:
        for dilation in (1_000, 1_000_000):
            case = Case.of(ClipSpec(2, dilation=dilation), [dilation + 300], 65_536)
            plan = EpochPlan(case.table, case.episodes, chosen)
            orders.append([s for work in plan.rounds() for s in work.clips.start.tolist()])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(300))
    assert peak < 20e6


def test_invalid_batches_settings_and_shards() -> None:
    plan = Request(case_of(19), PlanSettings(batch_size=4), 0, 1).plan()
    for batch in (-1, 2):
        with pytest.raises(IndexError, match=r"not in \[0, 1\]"):
            plan.first_clip(batch)
    for name in ("batch_size", "num_cursors", "block_frames", "run_frames"):
        with pytest.raises(ClipError, match=f"{name} is too small"):
            PlanSettings(**{name: 0})  # type: ignore[arg-type]
    for index, count in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ClipError, match="not a shard"):
            Shard(index, count)
    with pytest.raises(ClipError, match="no such order"):
        PlanSettings(order="sequence")


@pytest.mark.parametrize("spec", [ClipSpec(16), ClipSpec(16, stride=16, phase=5)])
def test_a_million_clips_are_planned_in_little_time_and_memory(spec: ClipSpec) -> None:
    case = Case.of(spec, [15 + 1000 * spec.stride] * 1000, 8)
    tracemalloc.start()
    try:
        started = time.thread_time()  # without waiting for a core
        table = case.table
        plan = EpochPlan(table, case.episodes, CHOSEN)
        planned = time.thread_time()
        index, _ = plan.locate_clip(plan.first_clip(plan.num_batches // 2))
        plan.resident(index)
        next(plan.rounds(index))
        begun = time.thread_time()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.num_clips >= 990_000
    # Means at most 0.16 and 0.03 s, standard deviations at most 0.02 s.
    assert planned - started < 2
    assert begun - planned < 0.5
    assert peak < 100e6


def test_the_order_does_not_depend_on_episodes_that_are_not_selected() -> None:
    spec, settings = ClipSpec(3, 1, 1), PlanSettings(seed=4, num_cursors=3, block_frames=24)
    orders = []
    for others in ((), (17,), (17, 2, 90)):
        lengths, first = (*others, 40, 9, 23, *others), len(others)
        chunks = (*(64 for _ in others), 4, 4, 4, *(16 for _ in others))
        case = Case(lengths, chunks, spec, (first, first + 1, first + 2))
        rounds = list(EpochPlan(case.table, case.episodes, settings, epoch=1).rounds())
        orders.append([(r.clips.episode - first).tolist() for r in rounds])
        orders.append([r.clips.start.tolist() for r in rounds])
    assert orders[0:2] == orders[2:4] == orders[4:6]


def test_the_order_is_that_of_version_1() -> None:
    """See `tests.loader.golden_plans.py`."""
    golden = json.loads(GOLDEN.read_text())["plans"]
    assert len(golden) == len(CASES)
    for case in golden:
        assert plan_rounds(case) == case["rounds"]


def test_epochs_are_those_of_version_1(tmp_path: Path) -> None:
    """See `tests.loader.golden_epochs.py`."""
    epochs = batch_digests(write_records(tmp_path))
    golden = json.loads(EPOCHS.read_text())
    assert epochs.keys() == golden.keys()
    assert [name for name, digests in epochs.items() if digests != golden[name]] == []
