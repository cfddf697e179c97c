"""Remaining clips of an epoch after the number of shards changes, against executed plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import ClipSpec, StateError
from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.tables import ClipTable, EpisodeTable, enumerate_clips
from seqrecord.sampling import EpochPlan, PlanSettings, Shard
from seqrecord.sampling.elastic import EpochSegment, find_remaining
from tests.clip_cases import episode_table
from tests.plan_cases import LAYOUTS, Engine, Request, requests

Clips = Counter[tuple[int, int]]
SETTINGS = PlanSettings(num_cursors=3, block_frames=8, batch_size=4)


def plans_of(
    table: ClipTable, episodes: EpisodeTable, segment: EpochSegment, *, epoch: int, number: int
) -> list[EpochPlan]:
    """Plans of all shards of a segment."""
    given: Any = {"epoch": epoch, "segment": number}
    return [
        EpochPlan(table, episodes, segment.settings, shard=Shard(i, segment.num_shards), **given)
        for i in range(segment.num_shards)
    ]


def batches_of(plan: EpochPlan, segment: EpochSegment) -> int:
    """Number of a shard's delivered batches."""
    return min(segment.batches[plan.shard.index % len(segment.batches)], plan.num_batches)


def delivered_clips(
    plans: list[EpochPlan], segment: EpochSegment, episodes: EpisodeTable, spec: ClipSpec
) -> Clips:
    """Delivered clips of the shards; each plan is checked."""
    found: Clips = Counter()
    for plan in plans:
        engine = Engine.of(plan, episodes, spec).finish()
        assert len(engine.clips) == plan.num_clips
        found.update(engine.clips[: plan.first_clip(batches_of(plan, segment))])
    return found


def clips_of(table: ClipTable) -> Clips:
    columns = table.locate(np.arange(table.num_clips))
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


@st.composite
def chains(draw: st.DrawFn, first: PlanSettings) -> list[EpochSegment]:
    """Segments after the first may have other settings."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        settings = first
        if number:
            settings = replace(first, **draw(st.fixed_dictionaries(LAYOUTS)))
        batches = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
        found.append(EpochSegment(draw(st.integers(1, 3)), tuple(batches), settings))
    return found


@given(st.data(), requests())
def test_no_clip_is_lost_or_repeated(data: st.DataObject, request: Request) -> None:
    case, epoch = request.case, request.epoch
    table, episodes, every = case.table, case.episodes, set(case.clips())
    earlier: Clips = Counter()
    over = list[EpochSegment]()
    for number, segment in enumerate(data.draw(chains(request.settings))):
        size, most = segment.settings.batch_size or 1, table.num_clips // segment.num_shards
        if not number and segment.settings.drop_last and most < size:
            return  # refused
        plans = plans_of(table, episodes, segment, epoch=epoch, number=number)
        workers = len(segment.batches)
        has = [max(plan.num_batches for plan in plans[i::workers]) for i in range(workers)]
        segment = replace(segment, batches=tuple(map(min, segment.batches, has)))
        found = delivered_clips(plans, segment, episodes, case.spec)
        repeated = sum(plan.num_repeated for plan in plans)
        assert found.total() - len(found) <= repeated < max(segment.num_shards, 1)
        over.append(segment)
        table = find_remaining(case.table, episodes, over, epoch=epoch)
        remaining = clips_of(table)
        assert list(remaining) == sorted(remaining), "not in canonical order"
        assert not set(earlier) & set(found), "repeated in a later segment"
        assert not set(remaining) & (set(found) | set(earlier)), "remaining, and delivered"
        assert set(remaining.values()) <= {1}
        earlier += found
        if all(batches_of(plan, segment) == plan.num_batches for plan in plans):
            assert not remaining
            assert segment.settings.drop_last or set(earlier) == every
            break
        assert set(remaining) | set(earlier) == every


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=30
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 9),
    st.booleans(),
)
@example([(0, 0, 3), (0, 1, 2)], 1, 1, 0, True)
@example([(0, 0, 1), (0, 5, 2)], 1, 2, 0, False)
def test_clips_listed_several_times(
    chosen: list[tuple[int, int, int]], ranks: int, workers: int, batches: int, shuffle: bool
) -> None:
    episodes, spec = episode_table([60, 54, 70], [8, 5, 64]), ClipSpec(3)
    episode, start, times = np.array(chosen, np.int64).T
    listed = ChosenClips.of(episode, start, times.astype(np.float64))
    table = listed.table(spec, np.arange(3), listed.most)
    settings = replace(SETTINGS, shuffle=shuffle, batch_size=2)
    segment = EpochSegment(ranks, (0,) * workers, settings)
    plans = plans_of(table, episodes, segment, epoch=0, number=0)
    most = min(batches, plans[-1].num_batches)
    segment = replace(segment, batches=(most, *[max(0, most - 1)] * (workers - 1)))
    given = delivered_clips(plans, segment, episodes, spec)
    rest = find_remaining(table, episodes, [segment], epoch=0)
    remaining, every = clips_of(rest), clips_of(table)
    in_order = zip(*map(np.ndarray.tolist, rest.locate(np.arange(rest.num_clips))), strict=True)
    assert [*in_order] == sorted(remaining.elements())
    assert not rest.num_clips or not every - (given + remaining), "lost"
    assert (given + remaining - every).total() <= sum(plan.num_repeated for plan in plans)
    # Its plan reads no frame that was freed.
    plan = EpochPlan(rest, episodes, settings, segment=1)
    assert Counter(Engine.of(plan, episodes, spec).finish().clips) == remaining


def test_many_shards_are_processed_in_groups() -> None:
    episodes = episode_table([97, 300, 41, 222] * 5, [8, 16, 8, 4] * 5)
    table = enumerate_clips(ClipSpec(5), episodes, np.arange(20))
    segment = EpochSegment(7, (9, 8), SETTINGS)
    whole = find_remaining(table, episodes, [segment], epoch=3)
    parted = find_remaining(table, episodes, [segment], epoch=3, at_once=100)
    assert whole.num_clips == table.num_clips - 7 * (9 + 8) * 4
    for name in ("episode", "first_start", "count"):
        assert (getattr(whole, name) == getattr(parted, name)).all()


def test_remaining_clips_are_pieces_and_a_round_of_single_clips() -> None:
    episodes = episode_table([20_000] * 8, [8] * 8)
    table = enumerate_clips(ClipSpec(16), episodes, np.arange(8))
    settings = replace(SETTINGS, num_cursors=8, run_frames=None)
    segment = EpochSegment(4, (1000,), settings)
    rest = find_remaining(table, episodes, [segment], epoch=0)
    assert rest.num_clips == table.num_clips - 4 * 1000 * 4
    pieces = rest.count > 8
    assert pieces.sum() <= 4 * 8 + 8  # one per cursor, which may have several episodes
    assert rest.count[~pieces].sum() <= 4 * 8 * 16  # at most a round of each shard


def test_impossible_segments_are_refused() -> None:
    episodes = episode_table([100], [8])
    table = enumerate_clips(ClipSpec(3), episodes, np.arange(1))
    # A finished epoch has no remaining clips, not even those dropped by `drop_last`.
    over = EpochSegment(2, (12,), replace(SETTINGS, drop_last=True))
    assert find_remaining(table, episodes, [over], epoch=0).num_clips == 0
    many = replace(SETTINGS, num_cursors=1 << 30)
    for segment, message in (
        (EpochSegment(2, (11, 3), SETTINGS), "beyond the epoch's end"),
        (EpochSegment(2, (1 << 62,), SETTINGS), "beyond the epoch's end"),
        (EpochSegment(1 << 30, (1,), SETTINGS), "more cursors than can be planned"),
        (EpochSegment(1 << 20, (1,), many), "more cursors than can be"),
    ):
        with pytest.raises(StateError, match=message):
            find_remaining(table, episodes, [segment], epoch=0)
