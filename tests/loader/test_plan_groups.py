"""Plans of several groups with chunks of any lengths match brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.loader.sampling.bounds import ClipStats, EpochSegment, PlanSettings, resident_bounds
from seqrecord.loader.sampling.elastic import find_remaining
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.runs import Shard, Window
from tests.loader.clip_cases import grid_of
from tests.loader.plan_cases import (
    GroupCase,
    Lengths,
    costs_of,
    group_cases,
    lengths_of_chunks,
    one_group,
    plan_of,
)

SMALL = PlanSettings(num_cursors=1, block_frames=1, run_frames=None)


@given(group_cases())
@example(one_group(((16, 1),), ClipSpec(2, stride=8, phase=7), SMALL))
@example(  # blocks of two lines, which start at any line of a chunk
    one_group(((4,) * 4,), ClipSpec(2, stride=3, dilation=3), replace(SMALL, first_block_frames=4))
)
def test_every_chunk_is_loaded_once_before_its_clips_and_freed(case: GroupCase) -> None:
    plan = plan_of(case)
    if plan is None:
        return
    bounds = resident_bounds(ClipStats.of(case.table, case.episodes, case.windows), case.settings)
    for planned, bound in zip(plan.groups, bounds, strict=True):
        assert planned.max_resident_frames <= bound
    engine = case.engine(plan).finish()
    assert len(engine.clips) == plan.num_clips
    for i, group in enumerate(engine.groups):
        if not case.settings.drops:  # "drop" may shorten the last round
            spanned = {
                (episode, frame)
                for episode, start in engine.clips
                for used in [case.used(i, episode, start)]
                for frame in range(min(used), max(used) + 1)
            }
            needed = {
                row
                for row, (episode, begin, end) in enumerate(group.chunks)
                if any((episode, frame) in spanned for frame in range(begin, end))
            }
            assert {chunk for _, chunk in group.loaded} <= needed


@given(group_cases())
def test_resident_frames_of_a_resumed_plan_match_the_run(case: GroupCase) -> None:
    plan = plan_of(case)
    if plan is None:
        return
    engine = case.engine(plan)
    for work in plan.rounds():
        resumed = case.engine(plan)
        for group, loads in zip(resumed.groups, plan.resident(work.index), strict=True):
            group.load(loads)
        for group, other in zip(engine.groups, resumed.groups, strict=True):
            assert group.held == other.held
            assert {c: o for c, o in group.order.items() if o} == other.order
        engine.run(work)


RUNS = one_group(((1,), (1, 1, 2), (1,), (1,), (1,)), ClipSpec(2), replace(SMALL, run_frames=1))


@given(group_cases(), st.integers(0, 9))
@example(replace(RUNS, windows=(Window(1, 1, 1, 1),)), 2)  # windows decide where runs are cut
def test_remaining_clips_are_planned_with_the_same_windows(case: GroupCase, batches: int) -> None:
    shards = [replace(case, shard=Shard(i, case.shard.count)) for i in range(case.shard.count)]
    plans = [plan for plan in map(plan_of, shards) if plan is not None]
    if not plans:
        return
    most = max(plan.num_batches for plan in plans)
    segment = EpochSegment(len(shards), 1, min(batches, most), 1, case.settings)
    options: Any = {"epoch": case.epoch, "windows": case.windows}
    rest = find_remaining(case.table, case.episodes, [segment], **options)
    every, remaining = (
        {*zip(*map(np.ndarray.tolist, table.locate(np.arange(table.num_clips))[:2]), strict=True)}
        for table in (case.table, rest)
    )
    for plan in plans:
        clips = case.engine(plan).finish().clips
        every -= {*clips[: plan.first_clip(min(batches, plan.num_batches))]}
    assert batches >= most or remaining == every
    plan = EpochPlan(rest, case.episodes, case.settings, segment=1, **options)
    bounds = resident_bounds(ClipStats.of(rest, case.episodes, case.windows), case.settings)
    for planned, bound in zip(plan.groups, bounds, strict=True):
        assert planned.max_resident_frames <= bound
    assert len(case.engine(plan).finish().clips) == plan.num_clips
    assert plan.num_clips + plan.num_dropped == rest.num_clips


@given(
    case=group_cases(),
    cost=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    window=st.integers(1, 9),
    pads=st.booleans(),
)
def test_joined_rounds_fit_into_the_memory_of_each_group(
    case: GroupCase, cost: list[int], window: int, pads: bool
) -> None:
    settings = replace(case.settings, last_batch="keep", resident=False)
    costs = costs_of(case.table, cost, window, pads=pads)
    case = replace(case, settings=settings, costs=costs)
    plan = case.plan()
    engine = case.engine(plan).finish()  # checks the rows of each cursor
    assert len(engine.clips) == plan.num_clips
    bounds = resident_bounds(ClipStats.of(case.table, case.episodes, case.windows), settings)
    for planned, bound in zip(plan.groups, bounds, strict=True):
        assert planned.cursor_frames is None or planned.cursor_frames.sum() <= bound
    for first in range(1, plan.num_rounds):
        rest = case.engine(plan).finish(first)
        assert rest.clips == engine.clips[-len(rest.clips) :]


@given(group_cases())
def test_the_order_depends_on_the_leading_group_only(case: GroupCase) -> None:
    plan = plan_of(case)
    if plan is None:
        return
    i = case.leading
    alone = replace(case, groups=(case.groups[i],), windows=(case.windows[i],), leading=0)
    other = alone.plan()
    for work, same in zip(plan.rounds(), other.rounds(), strict=True):
        for name in ("cursor", "run", "episode", "start", "batch", "slot"):
            assert (getattr(work.clips, name) == getattr(same.clips, name)).all()
        assert (work.groups[i].loads.chunk == same.groups[0].loads.chunk).all()
        assert (work.groups[i].frees.first == same.groups[0].frees.first).all()


def test_long_chunks_of_small_features_keep_no_images() -> None:
    """Windows of sixteen actions keep no images, and actions are read once for all clips."""
    images, actions = ((32,) * 32,), ((1024,),)
    spec = ClipSpec(1)
    case = GroupCase(
        (images, actions),
        (Window(-1, 2, 1, 2), Window(0, 16, 1, 16)),
        spec,
        (0,),
        0,
        (),
        PlanSettings(shuffle=False, block_frames=64, first_block_frames=64),
    )
    plan = case.plan()
    engine = case.engine(plan).finish()
    assert engine.groups[0].loaded.total() == 32
    assert engine.groups[1].loaded.total() == 1
    assert plan.groups[0].max_resident_frames <= 64 + 32 + 32
    assert plan.groups[1].max_resident_frames <= 1024 + 64


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6).flatmap(
        lambda counts: st.tuples(*(lengths_of_chunks(count) for count in counts))
    )
)
@example(((3, 3, 2), (1,), (4, 4, 5), (2, 1, 2)))
def test_chunk_grids_match_the_chunk_lengths(chunks: Lengths) -> None:
    grid = grid_of(chunks)
    row = 0
    for episode, lengths in enumerate(chunks):
        regular = all(n == lengths[0] for n in lengths[:-1]) and lengths[-1] <= lengths[0]
        assert grid.chunk_frames[episode] == (lengths[0] if regular else 0)
        assert grid.max_chunk_frames[episode] == max(lengths)
        for place, (begin, end) in enumerate(pairwise((0, *accumulate(lengths)))):
            frames = np.arange(begin, end)
            owner = np.full(len(frames), episode)
            taken = grid.take(np.array([0, episode]))
            for of, e in ((grid, owner), (taken, np.ones_like(owner))):
                assert (of.place(e, frames) == place).all()
                assert (of.start(e, frames) == begin).all()
                stop = of.stop(e, frames)
                assert (np.minimum(stop, sum(lengths)) == end).all()
                assert (of.row(e, of.place(e, frames)) == row).all()
            row += 1


@pytest.mark.parametrize(
    ("lengths", "selected", "expected"),
    [
        ([(8, 8, 3), (5,), (2,)], [0, 1, 2], [8, 8, 8]),
        ([(8, 8, 3), (11,), (2,)], [0, 1, 2], [8, 11, 8]),
        ([(9,), (5,), (2,)], [0, 1, 2], [9, 9, 9]),
        ([(9,), (5,), (2,)], [1, 2], [9, 5, 5]),
        ([(4, 4), (16, 16, 1), (5,), (3, 5)], [0, 1, 2, 3], [4, 16, 16, 0]),
    ],
)
def test_short_episodes_use_the_chunk_length_of_longer_ones(
    lengths: list[tuple[int, ...]], selected: list[int], expected: list[int]
) -> None:
    case = GroupCase((tuple(lengths),), (), ClipSpec(1), tuple(selected), 0, (), PlanSettings())
    assert case.episodes.leading_grid.chunk_frames.tolist() == expected
