"""Plans of sequences against brute force: rows follow episodes, in any number of shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import ClipError, ClipSpec
from seqrecord.loader.sampling.elastic import find_remaining
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.plan_settings import EpochSegment, PlanSettings
from seqrecord.loader.sampling.sequences import count_unused_frames
from tests.loader.clip_cases import Case, cases
from tests.loader.plan_cases import Request, batches_of, plans_of, requests

Row = list[tuple[int, int]]
"""Episode and start of each clip in a row of batches."""

FEW = st.integers(1, 3)


def of_sequences(request: Request, **changes: Any) -> Request:
    settings = replace(request.settings, order="sequences", **changes)
    if "num_cursors" not in changes:  # as loaders choose them
        settings = replace(settings, num_cursors=settings.batch_size or 1, block_rows=1)
    settings = replace(settings, is_resident=False, is_permuted=False)
    return replace(request, settings=settings)


def sequences_of(case: Case) -> list[Row]:
    """The runs of consecutive clips."""
    found: list[Row] = []
    for episode, start in case.clips():
        if found and found[-1][-1] == (episode, start - case.spec.stride):
            found[-1].append((episode, start))
        else:
            found.append([(episode, start)])
    return found


def rows_of(plan: EpochPlan, stride: int) -> list[Row]:
    """The clips of each row, after a check of `is_first` and `is_last`, and of the counts.

    No batch has more rows than the one before it.
    """
    batches = batches_of(plan)
    assert all(len(after) <= len(before) for before, after in pairwise(batches))
    rows: list[Row] = [[] for _ in range(max(map(len, batches), default=0))]
    flags: list[list[tuple[bool, bool]]] = [[] for _ in rows]
    for number, batch in enumerate(batches):
        columns = plan.columns(number)
        assert [*columns] == ["is_first", "is_last"]
        of_clips = zip(*(columns[name].tolist() for name in columns), strict=True)
        for place, (clip, of_clip) in enumerate(zip(batch, of_clips, strict=True)):
            rows[place].append(clip)
            flags[place].append(of_clip)
    for row, found in zip(rows, flags, strict=True):
        continues = [after == (clip[0], clip[1] + stride) for clip, after in pairwise(row)]
        firsts, lasts = [True, *(not c for c in continues)], [*(not c for c in continues), True]
        assert found == [*zip(firsts, lasts, strict=True)]
    num_firsts = sum(first for found in flags for first, _ in found)
    if not plan.num_repeated:
        assert plan.counts["sequences"] == num_firsts
        assert plan.counts["num_interleaved"] == len(rows) or not rows
    return rows


def num_cut(rows: list[Row], case: Case) -> int:
    """The rows that begin inside a sequence."""
    firsts = {sequence[0] for sequence in sequences_of(case)}
    return sum(row[0] not in firsts for row in rows if row)


@given(requests())
@example(  # rows of 3, 2, 2 clips; the second shard has one clip less
    Request(
        Case((5, 8), (4, 4), ClipSpec(1), (0, 1), frozenset()),
        PlanSettings(batch_size=3, shuffle=False),
        epoch=0,
        num_shards=2,
    )
)
def test_even_shards_cover_the_epoch(request: Request) -> None:
    last_batch = "drop" if request.settings.drops else "repeat"
    request = of_sequences(request, last_batch=last_batch)
    case, size, count = request.case, request.settings.batch_size or 1, request.num_shards
    plans = request.plans()
    together: Counter[tuple[int, int]] = Counter()
    for plan in plans:
        rows = rows_of(plan, case.spec.stride)
        clips = [clip for row in rows for clip in row]
        assert len(clips) == plan.num_clips
        assert len(clips) - len(set(clips)) <= plan.num_repeated <= 1
        together.update(clips)
        lengths = [len(row) for row in rows]
        assert lengths == sorted(lengths, reverse=True)
        assert max(lengths, default=0) - min(lengths, default=0) <= 1
        if not plan.num_repeated:
            assert plan.counts["sequences_cut"] == num_cut(rows, case)
    if not plans:
        return
    every = case.clips()
    dropped, repeated = (
        sum(getattr(plan, name) for plan in plans) for name in ("num_dropped", "num_repeated")
    )
    assert together.total() + dropped == len(every) + repeated
    num_clips = -(-len(every) // count)
    if request.settings.drops:
        num_clips = len(every) // count // size * size
        assert max(together.values(), default=1) == 1
        assert not repeated
        assert set(together) <= set(every)
    else:
        assert set(together) == set(every)
        assert repeated < count
    assert {plan.num_clips for plan in plans} == {num_clips}
    assert {plan.num_batches for plan in plans} == {-(-num_clips // size)}


@given(requests())
def test_kept_sequences_are_not_cut_or_repeated(request: Request) -> None:
    request = of_sequences(request, last_batch="keep")
    size, sequences = request.settings.batch_size or 1, sequences_of(request.case)
    plans = request.plans()
    together: Counter[tuple[int, int]] = Counter()
    loads = []
    for plan in plans:
        rows = rows_of(plan, request.case.spec.stride)
        together.update(clip for row in rows for clip in row)
        assert plan.counts["sequences_cut"] == plan.num_repeated == plan.num_dropped == 0
        assert [len(row) for row in rows] == sorted(map(len, rows), reverse=True)
        loads += [len(row) for row in rows]
        for sequence in sequences:
            assert any(set(sequence) <= set(row) for row in rows) or not any(
                set(sequence) & set(row) for row in rows
            )
    assert max(plan.num_batches for plan in plans) == plans[-1].num_batches
    assert together == Counter(request.case.clips())
    by_episode = Counter(episode for s in sequences for episode, _ in s)
    longest, rows_of_all = max(by_episode.values(), default=0), request.num_shards * size
    assert max(loads, default=0) <= sum(loads) / rows_of_all + longest


@given(st.data(), requests())
def test_other_shards_follow_what_is_left(data: st.DataObject, request: Request) -> None:
    """Each clip comes once in all segments, whose rows follow what is left of sequences."""
    request = of_sequences(request)
    case, segments, earlier = request.case, list[EpochSegment](), Counter[tuple[int, int]]()
    repeated, table, every = 0, case.table, set(case.clips())
    for _ in range(3):
        settings = replace(request.settings, batch_size=data.draw(FEW))
        settings = replace(settings, num_cursors=settings.batch_size or 1)
        ranks, workers = data.draw(FEW), data.draw(FEW)
        segment = EpochSegment(ranks, workers, 0, 1, (settings,))
        try:
            plans = plans_of(table, case.episodes, segment, epoch=request.epoch, over=segments)
        except ClipError:
            assert settings.drops
            return
        of_ranks = [
            sum(plan.num_batches for plan in plans[i : i + workers])
            for i in range(0, len(plans), workers)
        ]
        batches = data.draw(st.integers(0, max(of_ranks)))
        segment = replace(segment, batch=batches)
        found = Counter[tuple[int, int]]()
        for plan in plans:
            rows_of(plan, case.spec.stride)
            repeated += plan.num_repeated
        for rank in range(ranks):
            workers_batches = [batches_of(plan) for plan in plans[rank * workers :][:workers]]
            turns = [
                batch
                for place in range(max(map(len, workers_batches)))
                for of_worker in workers_batches
                for batch in of_worker[place : place + 1]
            ]
            found.update(clip for batch in turns[:batches] for clip in batch)
        earlier += found
        segments.append(segment)
        table = find_remaining(case.table, case.episodes, segments, epoch=request.epoch)
        is_over = not table.num_clips
        left = Counter(
            zip(*(c.tolist() for c in table.locate(np.arange(table.num_clips))[:2]), strict=True)
        )
        assert set(left.values()) <= {1}
        assert (earlier - Counter(every)).total() <= repeated
        assert len(set(left) & set(earlier)) <= repeated
        assert is_over or set(left) | set(earlier) == every
        if is_over:
            assert settings.drops or set(earlier) == every
            return


@given(cases())
def test_unused_frames_are_counted(case: Case) -> None:
    spec = case.spec
    used = {(e, start): [(e, f) for f in case.frames(start)] for e, start in case.clips()}
    # Counted per sequence: see `count_unused_frames`.
    distinct = sum(len({f for clip in s for f in used[clip]}) for s in sequences_of(case))
    total = sum(case.num_frames[episode] for episode in case.selected)
    found = count_unused_frames(case.table, case.episodes.num_frames)
    assert found == total - distinct
    if spec.dilation == 1 or spec.stride >= spec.span:
        assert found == total - len({f for frames in used.values() for f in frames})


def test_order_depends_on_seed_and_epoch_or_follows_the_table_without_shuffle() -> None:
    case = Case.of(ClipSpec(4, 4), [40] * 12, 8)
    chosen = PlanSettings(batch_size=2, order="sequences", num_cursors=2, block_rows=1)

    def first_row(settings: PlanSettings, epoch: int = 0) -> list[int]:
        plan = EpochPlan(case.table, case.episodes, settings, epoch=epoch)
        row = [episode for episode, _ in rows_of(plan, 4)[0]]
        return [row[0], *(after for episode, after in pairwise(row) if episode != after)]

    assert first_row(replace(chosen, shuffle=False)) == [0, 1, 2, 3, 4, 5]
    orders = [first_row(chosen), first_row(chosen, 1), first_row(replace(chosen, seed=1))]
    assert first_row(chosen) == orders[0]
    assert len({tuple(order) for order in orders}) == 3
    assert all(len(set(order)) == 6 for order in orders)
