"""Plans of sequences against brute force: rows follow episodes, in any number of shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, resident_bounds

from seqrecord import ClipError, ClipSpec
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.sequences import SequencePlan, count_unused_frames
from tests.loader.clip_cases import Case, cases
from tests.loader.plan_cases import Engine, Request, requests, sequence_settings

Rows = list[list[tuple[int, int]]]  # (episode, start) of each row, batch by batch


def settings_of(request: Request) -> PlanSettings:
    chosen = replace(request.settings, order="sequences")
    return sequence_settings(chosen, request.case.spec.stride)


def plans_of(request: Request) -> list[SequencePlan]:
    """The plans of all shards; empty if "drop" leaves no batch."""
    case, chosen = request.case, settings_of(request)
    rows = request.num_shards * (chosen.batch_size or 1)
    clips = len(case.clips())
    too_few = chosen.is_even and clips < rows
    plans = []
    for index in range(request.num_shards):
        given: Any = {"epoch": request.epoch, "shard": Shard(index, request.num_shards)}
        if chosen.drops and clips and too_few:
            with pytest.raises(ClipError, match="leaves no batch at all"):
                SequencePlan(case.table, case.episodes, chosen, **given)
        else:
            plans.append(SequencePlan(case.table, case.episodes, chosen, **given))
    return plans


def sequences_of(case: Case) -> list[list[tuple[int, int]]]:
    """The runs of consecutive clips."""
    found: list[list[tuple[int, int]]] = []
    for episode, start in case.clips():
        if found and found[-1][-1] == (episode, start - case.spec.stride):
            found[-1].append((episode, start))
        else:
            found.append([(episode, start)])
    return found


def run(request: Request, plan: SequencePlan) -> tuple[Engine, Rows]:
    engine = Engine.of(plan, request.case.episodes, request.case.spec).finish()
    rows: Rows = [[] for _ in range(plan.num_cursors)]
    expected = []
    for batch in range(plan.num_batches):
        size = plan.first_clip(batch + 1) - plan.first_clip(batch)
        expected += [(batch, slot) for slot in range(size)]
    assert engine.places == expected
    for (_, slot), clip in zip(engine.places, engine.clips, strict=True):
        rows[slot].append(clip)
    return engine, rows


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
    request = replace(request, settings=replace(request.settings, last_batch=last_batch))
    case, size, count = request.case, request.settings.batch_size or 1, request.num_shards
    plans = plans_of(request)
    together: Counter[tuple[int, int]] = Counter()
    for plan in plans:
        engine, rows = run(request, plan)
        assert len(engine.clips) == len(set(engine.clips)) == plan.num_clips
        together.update(engine.clips)
        lengths = [len(row) for row in rows]
        assert lengths == sorted(lengths, reverse=True)
        assert max(lengths, default=0) - min(lengths, default=0) <= 1
    if not plans:
        return
    every = case.clips()
    dropped, repeated = (
        sum(getattr(plan, name) for plan in plans) for name in ("num_dropped", "num_repeated")
    )
    assert together.total() + dropped == len(every) + repeated
    clips = -(-len(every) // count)
    if request.settings.drops:
        clips = len(every) // count // size * size
        assert max(together.values(), default=1) == 1
        assert not repeated
        assert set(together) <= set(every)
    else:
        assert set(together) == set(every)
        assert repeated < count
    assert {plan.num_clips for plan in plans} == {clips}
    assert {plan.num_batches for plan in plans} == {-(-clips // size)}


@given(requests())
def test_kept_sequences_are_not_cut_or_repeated(request: Request) -> None:
    request = replace(request, settings=replace(request.settings, last_batch="keep"))
    size, sequences = request.settings.batch_size or 1, sequences_of(request.case)
    plans = plans_of(request)
    together: Counter[tuple[int, int]] = Counter()
    loads = []
    for plan in plans:
        engine, rows = run(request, plan)
        together.update(engine.clips)
        assert plan.num_cut == plan.num_repeated == 0
        assert [len(row) for row in rows] == sorted(map(len, rows), reverse=True)
        loads += [len(row) for row in rows]
        for sequence in sequences:
            assert any(set(sequence) <= set(row) for row in rows) or not any(
                set(sequence) & set(row) for row in rows
            )
    if not plans:
        return
    dropped = sum(plan.num_dropped for plan in plans)
    assert max(plan.num_batches for plan in plans) == plans[-1].num_batches
    assert together.total() + dropped == sum(map(len, sequences))
    assert max(together.values(), default=1) == 1
    assert dropped == 0
    by_episode = Counter(episode for s in sequences for episode, _ in s)
    longest, rows_of_all = max(by_episode.values(), default=0), request.num_shards * size
    assert max(loads, default=0) <= sum(loads) / rows_of_all + longest


@given(requests())
def test_at_most_a_clip_and_a_chunk_per_row_are_resident(request: Request) -> None:
    case, chosen = request.case, settings_of(request)
    bound = resident_bounds(ClipStats.of(case.table, case.episodes), chosen)[0]
    chunk = max(case.chunk_frames[episode] for episode in case.selected)
    rows = chosen.batch_size or 1
    assert bound <= rows * (case.spec.span + chunk - 1)
    any_clips = ClipStats.of(case.table, case.episodes, any_clips=True, repeats=True)
    assert bound <= resident_bounds(any_clips, chosen)[0]
    for plan in plans_of(request):
        run(request, plan)
        assert plan.groups[0].max_resident_frames <= bound


def test_clips_of_whole_chunks_keep_only_their_frames() -> None:
    chosen = sequence_settings(PlanSettings(batch_size=4, order="sequences"), 16)
    for length in (16, 12):
        case = Case.of(ClipSpec(length, length), [640] * 9, 8)
        assert (
            SequencePlan(case.table, case.episodes, chosen).groups[0].max_resident_frames == 4 * 16
        )


@given(requests())
@example(  # two sequences in one chunk, each in a shard
    Request(Case((12,), (16,), ClipSpec(4), (0,), frozenset({(0, 4)})), PlanSettings(), 0, 2)
)
def test_chunks_are_read_twice_only_where_a_sequence_ends(request: Request) -> None:
    spec = request.case.spec
    if spec.stride < spec.span:
        spec = replace(spec, stride=spec.span, phase=0)
        request = replace(request, case=replace(request.case, spec=spec))
    chunks: Counter[int] = Counter()
    plans = plans_of(request)
    for plan in plans:
        chunks.update(run(request, plan)[0].chunks)
    if not sum(plan.num_repeated for plan in plans):
        ends = len(request.case.missing) + sum(plan.num_cut for plan in plans)
        assert chunks.total() - len(chunks) <= ends


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
    chosen = sequence_settings(PlanSettings(batch_size=2, order="sequences"), 4)

    def first_row(settings: PlanSettings, epoch: int = 0) -> list[int]:
        plan = SequencePlan(case.table, case.episodes, settings, epoch=epoch)
        clips = [work.clips for work in plan.rounds()]
        row = [int(c.episode[0]) for c in clips]
        return [row[0], *(b for a, b in pairwise(row) if a != b)]

    assert first_row(replace(chosen, shuffle=False)) == [0, 1, 2, 3, 4, 5]
    orders = [first_row(chosen), first_row(chosen, 1), first_row(replace(chosen, seed=1))]
    assert first_row(chosen) == orders[0]
    assert len({tuple(order) for order in orders}) == 3
    assert all(len(set(order)) == 6 for order in orders)
