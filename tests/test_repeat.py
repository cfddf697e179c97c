"""Clips that are emitted several times while their frames are held."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.clips import ClipSpec
from seqrecord.errors import ClipError
from seqrecord.plan import EpochPlan, PlanSettings
from seqrecord.plan.steps import Clips, Round
from tests.clip_cases import Case
from tests.plan_cases import Request, requests, splits


@st.composite
def repeating(draw: st.DrawFn) -> Request:
    request = draw(requests())
    return replace(
        request, settings=replace(request.settings, repeat=draw(st.integers(2, 5)), drop_last=False)
    )


def once(request: Request) -> Request:
    return replace(request, settings=replace(request.settings, repeat=1))


def clips_of(clips: Clips) -> list[tuple[int, int]]:
    return list(zip(clips.episode.tolist(), clips.start.tolist(), strict=True))


def reading(work: Round) -> list[list[int]]:
    """All of a round but its clips."""
    return [
        column.tolist()
        for column in (
            work.loads.cursor,
            work.loads.chunk,
            work.loads.first,
            work.loads.count,
            work.frees.cursor,
            work.frees.first,
            work.frees.count,
        )
    ]


@given(repeating())
@settings(max_examples=200, deadline=None)
def test_every_round_is_dealt_so_many_times_and_read_once(request: Request) -> None:
    repeat = request.settings.repeat
    for plan, single in zip(splits(request), splits(once(request)), strict=True):
        assert plan.num_clips == repeat * single.num_clips
        assert plan.max_resident_frames == single.max_resident_frames
        for work, other in zip(plan.rounds(), single.rounds(), strict=True):
            assert reading(work) == reading(other)
            clips, expected = clips_of(work.clips), clips_of(other.clips)
            passes = [clips[i : i + len(expected)] for i in range(0, len(clips), len(expected))]
            assert len(passes) == repeat
            assert passes[0] == expected  # the copies change nothing that comes before them
            assert all(sorted(part) == sorted(expected) for part in passes)
            if not request.settings.shuffle:
                assert passes == [expected] * repeat


@given(repeating())
@settings(max_examples=200, deadline=None)
def test_no_batch_has_a_clip_twice_where_a_round_has_enough_others(request: Request) -> None:
    size = request.settings.batch_size or 1
    for plan in splits(request):
        batches: dict[int, list[tuple[int, int]]] = {}
        small: set[tuple[int, int]] = set()  # clips of rounds that have not enough
        for work in plan.rounds():
            clips = clips_of(work.clips)
            if len(set(clips)) < size:
                small.update(clips)
            for batch, clip in zip(work.clips.batch.tolist(), clips, strict=True):
                batches.setdefault(batch, []).append(clip)
        for batch in batches.values():
            assert {clip for clip, count in Counter(batch).items() if count > 1} <= small


@given(repeating(), st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_without_the_last_the_order_is_the_same(request: Request, batch: int) -> None:
    dropping = replace(request, settings=replace(request.settings, drop_last=True))
    for plan, whole in zip(splits(dropping), splits(request), strict=False):
        emitted, expected = dropping.run(plan).clips, request.run(whole).clips
        assert plan.num_clips + plan.num_dropped == whole.num_clips
        assert emitted == expected[: plan.num_clips]


LARGE = Case((600, 300, 450), (8,) * 3, ClipSpec(16), (0, 1, 2), frozenset())
CHOSEN = PlanSettings(batch_size=32, repeat=4, open_episodes=12, block_frames=8, run_frames=None)


def rounds(plan: EpochPlan) -> list[list[tuple[int, int]]]:
    return [clips_of(work.clips) for work in plan.rounds()]


def test_passes_have_orders_of_their_own_by_epoch_and_seed() -> None:
    seen = set()
    for epoch in range(2):
        for seed in range(2):
            plan = Request(LARGE, replace(CHOSEN, seed=seed), epoch, 1).plan()
            clips = rounds(plan)[3]
            size = len(clips) // 4
            seen |= {tuple(clips[i : i + size]) for i in range(0, 4 * size, size)}
    assert len(seen) == 16


def test_the_order_of_copies_is_that_of_version_1() -> None:
    # Written down once; resumed runs depend on it. The first pass is pinned by the golden plans.
    case = Case((14, 9), (4, 4), ClipSpec(3), (0, 1), frozenset())
    chosen = PlanSettings(
        seed=3, batch_size=4, repeat=2, open_episodes=3, block_frames=4, run_frames=None
    )
    first, second = rounds(Request(case, chosen, 1, 1).plan())
    assert [10 * start + episode for episode, start in first] == [
        *(1, 80, 50, 21, 100, 40, 11, 90, 60, 31, 110, 70),
        *(11, 90, 70, 31, 80, 50, 21, 100, 40, 1, 110, 60),
    ]
    assert [10 * start + episode for episode, start in second] == [
        *(30, 61, 10, 51, 0, 20, 41),
        *(51, 0, 20, 61, 30, 10, 41),
    ]


def test_copies_meet_other_clips() -> None:
    met: dict[tuple[int, int], list[set[tuple[int, int]]]] = {}
    plan = Request(LARGE, CHOSEN, 0, 1).plan()
    clips = [clip for part in rounds(plan) for clip in part]
    starts = [plan.first_clip(batch) for batch in range(plan.num_batches + 1)]
    for start, stop in pairwise(starts):
        for clip in clips[start:stop]:
            met.setdefault(clip, []).append({*clips[start:stop]} - {clip})
    shared = [len(a & b) / len(a) for batches in met.values() for a, b in pairwise(batches)]
    assert np.mean(shared) < 0.4  # of the 31 others, in the next copy's batch again


@pytest.mark.parametrize(
    ("repeat", "starts"),
    [
        (1, [[0, 4, 6, 8], [0, 4, 8, 9]]),
        # 24 and 27 copies: the first split's last two batches share what is left.
        (3, [[0, 4, 8, 12, 16, 20, 22, 24], [0, 4, 8, 12, 16, 20, 24, 27]]),
        # 48 and 54: 14 batches; the last three share 4.
        (6, [[*range(0, 45, 4), 46, 47, 48], [*range(0, 53, 4), 54]]),
    ],
)
def test_splits_keep_equally_many_batches(repeat: int, starts: list[list[int]]) -> None:
    case = Case((32,), (8,), ClipSpec(16), (0,), frozenset())
    request = Request(case, PlanSettings(batch_size=4, repeat=repeat), 0, 2)
    plans = splits(request)
    assert [[p.first_clip(b) for b in range(p.num_batches + 1)] for p in plans] == starts


def test_dropping_the_last_counts_copies() -> None:
    # 17 clips: 8 and 9, so 24 and 27 copies; the first has 4 full batches of 5 and 4 copies more.
    case = Case((32,), (8,), ClipSpec(16), (0,), frozenset())
    chosen = PlanSettings(batch_size=5, repeat=3, drop_last=True)
    plans = splits(Request(case, chosen, 0, 2))
    assert [(p.num_batches, p.num_clips, p.num_dropped) for p in plans] == [(4, 20, 4), (4, 20, 7)]


@pytest.mark.parametrize(("repeat", "message"), [(0, "too small"), (1001, "too large")])
def test_refuses_a_repeat_out_of_range(repeat: int, message: str) -> None:
    with pytest.raises(ClipError, match=f"repeat is {message}"):
        PlanSettings(repeat=repeat)
