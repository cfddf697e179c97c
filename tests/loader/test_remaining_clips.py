"""Remaining clips of an epoch after the number of shards changes, against plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from seqrecord.loader.sampling.bounds import EpochSegment, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.fixed_shards import ShuffledPlan
from seqrecord.loader.sampling.plan import Plan

from seqrecord import ClipError, ClipSpec, StateError
from seqrecord.loader.sampling.elastic import find_remaining, items_of_workers
from seqrecord.loader.sampling.runs import Runs, Shard, remaining_table
from seqrecord.loader.sampling.sequences import SequencePlan
from tests.loader.clip_cases import Case, episode_table, listed_clips
from tests.loader.plan_cases import LAYOUTS, Engine, Request, requests, sequence_settings

Clips = Counter[tuple[int, int, int]]
"""Episode, start and sample of each clip."""

SETTINGS = PlanSettings(num_cursors=3, block_frames=8, batch_size=4)


def plans_of(
    table: Any, episodes: Any, segment: EpochSegment, *, epoch: int, number: int = 0
) -> list[Plan]:
    """Plans of all shards of a segment, rank by rank."""
    kind: Any = SequencePlan if segment.settings.order == "sequences" else EpochPlan
    if segment.settings.resident and epoch and not number:
        kind = ShuffledPlan
    ranks = [Shard(i, segment.ranks) for i in range(segment.ranks)]
    shards = [shard for rank in ranks for shard in rank.divided(segment.workers)]
    given: Any = {"epoch": epoch, "segment": number}
    return [kind(table, episodes, segment.settings, shard=shard, **given) for shard in shards]


def turns(most: Sequence[int], batches: int, size: int) -> list[int]:
    """Items of workers that return batches in turn, each at most so many items."""
    items = [0] * len(most)
    for worker in cycle(range(len(most))):
        if not batches or items == [*most]:
            return items
        if items[worker] < most[worker]:
            items[worker], batches = min(items[worker] + size, most[worker]), batches - 1
    raise AssertionError


def delivered(plans: Sequence[Plan], segment: EpochSegment) -> tuple[Clips, bool]:
    """Delivered clips of all shards, and whether they are all."""
    most, found = [plan.num_batches for plan in plans], Clips()
    ranks = [most[i : i + segment.workers] for i in range(0, len(most), segment.workers)]
    given = [n for rank in ranks for n in turns(rank, segment.batch, segment.batch_size)]
    for plan, batch in zip(plans, given, strict=True):
        clips = plan.merged(0, plan.num_rounds, loads=False).clips
        columns = clips.episode, clips.start, clips.sample
        every = zip(*(column.tolist() for column in columns), strict=True)
        found.update([*every][: plan.first_clip(batch)])
    return found, given == most


def clips_of(table: Any) -> Clips:
    columns = table.locate(np.arange(table.num_clips))[:3]
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


@given(st.data(), requests(), st.sampled_from(["clips", "sequences", "resident"]))
def test_no_clip_is_lost_or_repeated(data: st.DataObject, request: Request, kind: str) -> None:
    """Later segments may have other settings."""
    case, epoch, every = request.case, request.epoch, set(clips_of(request.case.table))
    assert [clip[:2] for clip in clips_of(case.table)] == case.clips()
    table, earlier, repeated, over = case.table, Clips(), 0, list[EpochSegment]()
    for number in range(data.draw(st.integers(1, 3))):
        layout = data.draw(st.fixed_dictionaries(LAYOUTS)) if number else {}
        settings = replace(request.settings, resident=kind == "resident", **layout)
        if kind == "sequences":
            settings = sequence_settings(replace(settings, order=kind), case.spec.stride)
        few = st.integers(1, 3)
        ranks, workers, size = (data.draw(few) for _ in range(3))
        segment = EpochSegment(ranks, workers, data.draw(st.integers(0, 12)), size, settings)
        try:
            plans = plans_of(table, case.episodes, segment, epoch=epoch, number=number)
        except ClipError:
            assert settings.drops
            return
        most = [-(-plan.num_batches // segment.batch_size) for plan in plans]
        of_ranks = np.reshape(most, (segment.ranks, -1)).sum(axis=1)
        segment = replace(segment, batch=min(segment.batch, int(of_ranks.max())))
        found, is_over = delivered(plans, segment)
        # Of sequences, a duplicate that evens out batches counts for its own shard only.
        repeated += sum(plan.num_repeated for plan in plans)
        allowed = repeated if kind == "sequences" else 0
        assert found.total() - len(found) <= repeated
        over.append(segment)
        table = find_remaining(case.table, case.episodes, over, epoch=epoch)
        remaining = clips_of(table)
        assert list(remaining) == sorted(remaining), "not in canonical order"
        assert len(set(earlier) & set(found)) <= allowed, "repeated in a later segment"
        earlier += found
        assert len(set(remaining) & set(earlier)) <= allowed, "remaining, and delivered"
        assert set(remaining.values()) <= {1}
        assert is_over or set(remaining) | set(earlier) == every
        if is_over:
            assert not remaining
            assert settings.drops or set(earlier) == every
            return


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
    table = listed_clips(spec, 3, episode, start, times)
    settings = replace(SETTINGS, shuffle=shuffle, batch_size=2)
    segment = EpochSegment(ranks, workers, batches, 1, settings)
    plans = plans_of(table, episodes, segment, epoch=0)
    segment = replace(segment, batch=min(batches, sum(p.num_batches for p in plans[:workers])))
    found, _ = delivered(plans, segment)
    rest = find_remaining(table, episodes, [segment], epoch=0)
    remaining, every = clips_of(rest), clips_of(table)
    located = rest.locate(np.arange(rest.num_clips))[:3]
    in_order = zip(*map(np.ndarray.tolist, located), strict=True)
    assert [*in_order] == sorted(remaining.elements())
    assert not rest.num_clips or not every - (found + remaining), "lost"
    assert (found + remaining - every).total() <= sum(plan.num_repeated for plan in plans)
    # Its plan reads no frame that was freed.
    plan = EpochPlan(rest, episodes, settings, segment=1)
    engine = Engine.of(plan, episodes, spec).finish()
    pairs = zip(engine.clips, engine.samples, strict=True)
    assert Counter((*clip, sample) for clip, sample in pairs) == remaining


def test_remaining_clips_are_pieces_and_a_round_of_single_clips() -> None:
    case = Case.of(ClipSpec(16), [20_000] * 8, 8)
    table, episodes = case.table, case.episodes
    settings = replace(SETTINGS, num_cursors=8, run_frames=None)
    rest = find_remaining(table, episodes, [EpochSegment(4, 1, 1000, 1, settings)], epoch=0)
    assert rest.num_clips == table.num_clips - 4 * 1000 * 4
    pieces = rest.count > 8
    assert pieces.sum() <= 4 * 8 + 8  # one per cursor, which may have several episodes
    assert rest.count[~pieces].sum() <= 4 * 8 * 16  # at most a round of each shard


def test_impossible_segments_are_refused() -> None:
    case = Case.of(ClipSpec(3), [100], 8)
    table, episodes = case.table, case.episodes
    # A finished epoch has no remaining clips, not even those dropped by `last_batch="drop"`.
    over = EpochSegment(2, 1, 12, 1, replace(SETTINGS, last_batch="drop"))
    assert find_remaining(table, episodes, [over], epoch=0).num_clips == 0
    many = replace(SETTINGS, num_cursors=1 << 30, batch_size=1 << 30)
    for place, settings, message in (
        ((2, 2, 15), SETTINGS, "beyond the end of its epoch"),
        ((2, 1, 1 << 62), SETTINGS, "beyond the end of its epoch"),
        ((1 << 30, 1, 1), SETTINGS, "shards or cursors than can be planned"),
        ((1 << 20, 1, 1), many, "shards or cursors than can be planned"),
        ((1, 1, 1), replace(many, order="sequences"), "shards or cursors than can be planned"),
    ):
        with pytest.raises(StateError, match=message):
            find_remaining(table, episodes, [EpochSegment(*place, 1, settings)], epoch=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 4))
def test_workers_take_turns(most: list[int], batches: int, size: int) -> None:
    total = sum(-(-items // size) for items in most)
    assert items_of_workers(most, batches, size, others=True) == turns(most, batches, size)
    if batches > total:
        with pytest.raises(StateError, match=f"at most {total} batches"):
            items_of_workers(most, batches, size)
    else:
        assert items_of_workers(most, batches, size) == turns(most, batches, size)


def test_pieces_of_two_episodes_are_not_joined() -> None:
    """Nor pieces between which a sample is left out."""
    table = Case.of(ClipSpec(1, stride=1 << 30), [], 8).table
    pieces = [(1, 4 << 30, 1, 0, 4), (0, 2 << 30, 2, 0, 2), (0, 0, 2, 0, 0), (1, 5 << 30, 1, 0, 6)]
    given = np.array(pieces, np.int64).T * np.array([[1], [1], [1], [1], [table.sample_step]])
    left = Runs(1 << 30, *given)
    found = remaining_table(table, left)
    columns = (
        found.episode,
        found.first_start,
        found.count,
        found.first_sample // table.sample_step,
    )
    starts = [0, 4 << 30, 5 << 30]
    assert [column.tolist() for column in columns] == [[0, 1, 1], starts, [4, 1, 1], [0, 4, 6]]
