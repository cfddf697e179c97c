"""Plans of several groups with chunks of any lengths match brute force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import ClipError, ClipSpec
from seqrecord.clips.tables import ClipTable, EpisodeLayout, MissingFrames, enumerate_clips
from seqrecord.sampling.bounds import ClipStats, EpochSegment, PlanSettings, resident_bounds
from seqrecord.sampling.elastic import find_remaining
from seqrecord.sampling.epoch import EpochPlan
from seqrecord.sampling.plan import Plan
from seqrecord.sampling.runs import Shard, Window
from tests.core.training.clip_cases import grid_of, specs
from tests.core.training.plan_cases import Chunks, Engine, plan_settings

WHOLE = Shard()
Lengths = tuple[tuple[int, ...], ...]  # chunk lengths by episode


@dataclass(frozen=True)
class Case:
    groups: tuple[Lengths, ...]
    windows: tuple[Window, ...]
    spec: ClipSpec
    selected: tuple[int, ...]
    leading: int
    missing: tuple[tuple[int, int, int], ...]  # episode, start, stop
    settings: PlanSettings
    shard: Shard = WHOLE
    epoch: int = 0

    @property
    def num_frames(self) -> list[int]:
        return [sum(lengths) for lengths in self.groups[0]]

    @property
    def episodes(self) -> EpisodeLayout:
        grids = tuple(grid_of(chunks, i) for i, chunks in enumerate(self.groups))
        table = EpisodeLayout(np.array(self.num_frames), grids)
        return table.with_leading(self.leading, np.array(self.selected))

    @property
    def table(self) -> ClipTable:
        missing = MissingFrames.of(*np.array(self.missing, np.int64).reshape(-1, 3).T)
        return enumerate_clips(self.spec, self.episodes, np.array(self.selected), missing)

    def plan(self) -> EpochPlan:
        return EpochPlan(
            self.table,
            self.episodes,
            self.settings,
            epoch=self.epoch,
            shard=self.shard,
            windows=self.windows,
        )

    def used(self, group: int, episode: int, start: int) -> list[int]:
        """Frames of a group used by a clip."""
        window, last = self.windows[group], self.num_frames[episode] - 1
        if window == Window.of(self.spec):
            return [start + i * self.spec.dilation for i in range(self.spec.length)]
        first = start + window.offset
        frames = range(first, first + window.span, window.frame_step)
        return [min(max(frame, 0), last) for frame in frames]

    def engine(self, plan: Plan) -> Engine:
        return Engine(plan, [self.chunks(i) for i in range(len(self.groups))], self.used)

    def chunks(self, group: int) -> Chunks:
        return [
            (episode, *edges)
            for episode, lengths in enumerate(self.groups[group])
            for edges in pairwise((0, *accumulate(lengths)))
        ]


@st.composite
def lengths_of_chunks(draw: st.DrawFn, num_frames: int) -> tuple[int, ...]:
    if draw(st.booleans()):
        size = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16, 40, 100]))
        return tuple(min(size, num_frames - begin) for begin in range(0, num_frames, size))
    edges = draw(st.sets(st.integers(1, max(1, num_frames - 1)), max_size=8))
    inner = sorted(edge for edge in edges if edge < num_frames)
    return tuple(b - a for a, b in pairwise([0, *inner, num_frames]))


@st.composite
def windows(draw: st.DrawFn, spec: ClipSpec) -> Window:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Window.of(spec)
    if kind == 1:  # part of the clip, with the same frame step
        length = draw(st.integers(1, spec.length))
        skipped = draw(st.integers(0, spec.length - length))
        span = (length - 1) * spec.dilation + 1
        step = spec.stride if length == 1 else spec.frame_step
        count = (span - 1) // step + 1
        return Window(skipped * spec.dilation, span, step, count)
    span = draw(st.integers(1, 12))
    return Window(draw(st.integers(-9, 9)), span, 1, span)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_frames = draw(st.lists(st.integers(1, 70), min_size=1, max_size=5))
    num_groups = draw(st.integers(1, 3))
    groups = tuple(
        tuple(draw(lengths_of_chunks(count)) for count in num_frames) for _ in range(num_groups)
    )
    spec = draw(specs())
    every = st.integers(0, len(num_frames) - 1)
    gaps = draw(st.lists(st.tuples(every, st.integers(0, 69), st.integers(1, 9)), max_size=4))
    count = draw(st.integers(1, 3))
    return Case(
        groups,
        tuple(draw(windows(spec)) for _ in groups),
        spec,
        tuple(sorted(draw(st.sets(every)) or range(len(num_frames)))),
        draw(st.integers(0, num_groups - 1)),
        tuple((e, s, min(s + n, num_frames[e])) for e, s, n in gaps if s < num_frames[e]),
        draw(plan_settings),
        Shard(draw(st.integers(0, count - 1)), count),
        draw(st.integers(0, 2)),
    )


def plan_of(case: Case) -> EpochPlan | None:
    try:
        return case.plan()
    except ClipError:
        assert case.settings.drops
        return None


def one_group(chunks: Lengths, spec: ClipSpec, settings: PlanSettings) -> Case:
    episodes = tuple(range(len(chunks)))
    return Case((chunks,), (Window.of(spec),), spec, episodes, 0, (), settings)


SMALL = PlanSettings(num_cursors=1, block_frames=1, run_frames=None)


@given(cases())
@example(one_group(((16, 1),), ClipSpec(2, stride=8, phase=7), SMALL))
@example(  # blocks of two lines, which start at any line of a chunk
    one_group(((4,) * 4,), ClipSpec(2, stride=3, dilation=3), replace(SMALL, first_block_frames=4))
)
def test_every_chunk_is_loaded_once_before_its_clips_and_freed(case: Case) -> None:
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


@given(cases())
def test_resident_frames_of_a_resumed_plan_match_the_run(case: Case) -> None:
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


@given(cases(), st.integers(0, 9))
@example(replace(RUNS, windows=(Window(1, 1, 1, 1),)), 2)  # windows decide where runs are cut
def test_remaining_clips_are_planned_with_the_same_windows(case: Case, batches: int) -> None:
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


@given(cases())
def test_the_order_depends_on_the_leading_group_only(case: Case) -> None:
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
    case = Case(
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
        assert grid.largest[episode] == max(lengths)
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
    num_frames = np.array([sum(chunks) for chunks in lengths])
    table = EpisodeLayout(num_frames, (grid_of(tuple(lengths)),)).with_leading(
        0, np.array(selected)
    )
    assert table.leading_grid.chunk_frames.tolist() == expected
