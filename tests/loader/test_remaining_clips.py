"""Remaining clips of an epoch after the number of shards changes, against plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import ClipError, ClipSpec, StateError
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.sampling.clip_costs import ClipCosts
from seqrecord.loader.sampling.elastic import find_remaining, items_of_workers
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.plan_settings import EpochSegment, PlanSettings
from tests.loader.clip_cases import Case, episode_table, listed_clips
from tests.loader.plan_cases import LAYOUTS, Request, all_clips, plans_of, requests

Clips = Counter[tuple[int, int, int]]
"""Episode, start and sample of each clip."""

SETTINGS = PlanSettings(num_cursors=3, block_rows=8, batch_size=4)


def turns(most: Sequence[int], batches: int, size: int) -> list[int]:
    """Items of workers that return batches in turn, each at most so many items."""
    items = [0] * len(most)
    for worker in cycle(range(len(most))):
        if not batches or items == [*most]:
            return items
        if items[worker] < most[worker]:
            items[worker], batches = min(items[worker] + size, most[worker]), batches - 1
    raise AssertionError


def delivered(plans: Sequence[EpochPlan], segment: EpochSegment) -> tuple[Clips, bool]:
    """Delivered clips of all shards, and whether they are all."""
    most, found = [plan.num_batches for plan in plans], Clips()
    ranks = [most[i : i + segment.workers] for i in range(0, len(most), segment.workers)]
    given = [n for rank in ranks for n in turns(rank, segment.batch, segment.batch_size)]
    for plan, batch in zip(plans, given, strict=True):
        clips = all_clips(plan)
        columns = clips.episode, clips.start, clips.sample
        every = zip(*(column.tolist() for column in columns), strict=True)
        found.update([*every][: plan.first_clip(batch)])
    return found, given == most


def rows_of(table: ClipTable) -> list[tuple[int, ...]]:
    """Episode, start and sample of each clip, in the order of the table."""
    columns = table.locate(np.arange(table.num_clips))[:3]
    return [*zip(*(column.tolist() for column in columns), strict=True)]


def clips_of(table: ClipTable) -> Clips:
    return Counter(rows_of(table))  # type: ignore[arg-type]


def drawn_costs(data: st.DataObject, table: ClipTable) -> ClipCosts | None:
    """A budget of 30, or none."""
    if data.draw(st.booleans()):
        return None
    cost = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    values = np.resize(cost, table.num_clips + 1)
    return ClipCosts(30, data.draw(st.booleans()), 1 << 30, values, values, "stacked", 3, 30, 30)


@given(st.data(), requests(), st.sampled_from(["clips", "sequences"]))
def test_no_clip_is_lost_or_repeated(data: st.DataObject, request: Request, order: str) -> None:
    """Later segments may have other settings."""
    case, epoch, every = request.case, request.epoch, set(clips_of(request.case.table))
    assert [clip[:2] for clip in clips_of(case.table)] == case.clips()
    costs = drawn_costs(data, case.table) if order == "clips" else None
    table, earlier, repeated, over = case.table, Clips(), 0, list[EpochSegment]()
    for number in range(data.draw(st.integers(1, 3))):
        layout = data.draw(st.fixed_dictionaries(LAYOUTS)) if number else {}
        settings = replace(request.settings, order=order, **layout)
        few = st.integers(1, 3)
        ranks, workers, size = (data.draw(few) for _ in range(3))
        segment = EpochSegment(ranks, workers, data.draw(st.integers(0, 12)), size, (settings,))
        try:
            plans = plans_of(table, case.episodes, segment, epoch=epoch, over=over, costs=costs)
        except ClipError:
            assert settings.drops
            return
        most = [-(-plan.num_batches // segment.batch_size) for plan in plans]
        of_ranks = np.reshape(most, (segment.ranks, -1)).sum(axis=1)
        segment = replace(segment, batch=min(segment.batch, int(of_ranks.max())))
        found, is_over = delivered(plans, segment)
        repeats = sum(plan.num_repeated for plan in plans)
        assert found.total() - len(found) <= repeats
        # A shard without clips repeats one of another shard, which may come later.
        repeated += sum(p.num_repeated for p in plans if p.num_repeated == p.num_clips)
        over.append(segment)
        table = find_remaining(case.table, case.episodes, over, epoch=epoch, costs=costs)
        remaining = clips_of(table)
        assert list(remaining) == sorted(remaining), "not in canonical order"
        assert len(set(earlier) & set(found)) <= repeated, "repeated in a later segment"
        earlier += found
        assert len(set(remaining) & set(earlier)) <= repeated, "remaining, and delivered"
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
    segment = EpochSegment(ranks, workers, batches, 1, (settings,))
    plans = plans_of(table, episodes, segment, epoch=0)
    segment = replace(segment, batch=min(batches, sum(p.num_batches for p in plans[:workers])))
    found, _ = delivered(plans, segment)
    rest = find_remaining(table, episodes, [segment], epoch=0)
    remaining, every = clips_of(rest), clips_of(table)
    assert rows_of(rest) == sorted(remaining.elements())
    assert not rest.num_clips or not every - (found + remaining), "lost"
    assert (found + remaining - every).total() <= sum(plan.num_repeated for plan in plans)
    clips = all_clips(EpochPlan(rest, episodes, settings, segments=(segment,)))
    columns = zip(*(c.tolist() for c in (clips.episode, clips.start, clips.sample)), strict=True)
    assert Counter(columns) == remaining


def test_remaining_clips_are_few_runs() -> None:
    """What is left of each cursor's share, and of its round; not a run of each clip."""
    case = Case.of(ClipSpec(16), [20_000] * 8, 8)
    table, episodes = case.table, case.episodes
    settings = replace(SETTINGS, num_cursors=8, block_rows=16)
    rest = find_remaining(table, episodes, [EpochSegment(4, 1, 1000, 1, (settings,))], epoch=0)
    assert rest.num_clips == table.num_clips - 4 * 1000 * 4
    shares = rest.count > 100
    assert shares.sum() <= 4 * 8 + 8  # one per cursor, which may have several episodes
    assert rest.count[~shares].sum() <= 4 * 8 * 2 * 16


def test_impossible_segments_are_refused() -> None:
    case = Case.of(ClipSpec(3), [100], 8)
    table, episodes = case.table, case.episodes
    # A finished epoch has no remaining clips, not even those dropped by `last_batch="drop"`.
    over = EpochSegment(2, 1, 12, 1, (replace(SETTINGS, last_batch="drop"),))
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
            find_remaining(table, episodes, [EpochSegment(*place, 1, (settings,))], epoch=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 4))
def test_workers_take_turns(most: list[int], batches: int, size: int) -> None:
    total = sum(-(-items // size) for items in most)
    assert items_of_workers(most, batches, size, others=True) == turns(most, batches, size)
    if batches > total:
        with pytest.raises(StateError, match=f"at most {total} batches"):
            items_of_workers(most, batches, size)
    else:
        assert items_of_workers(most, batches, size) == turns(most, batches, size)


@given(requests(), st.integers(0, 9))
def test_adjacent_clips_are_one_run(request: Request, batches: int) -> None:
    """Nor are clips of two episodes joined, or clips between which one is left out."""
    case, plans = request.case, request.plans()
    most = max((plan.num_batches for plan in plans), default=0)
    segment = EpochSegment(request.num_shards, 1, min(batches, most), 1, (request.settings,))
    if not plans:
        return
    rest = find_remaining(case.table, case.episodes, [segment], epoch=request.epoch)
    ends, stride = set(np.cumsum(rest.count).tolist()), case.spec.stride
    for number, (before, after) in enumerate(pairwise(rows_of(rest)), start=1):
        is_next = after[:2] == (before[0], before[1] + stride)
        assert is_next == (number not in ends)
