"""Clips that a list names: which are whole, how often each comes, and their plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import ClipTable, EpisodeTable, MissingFrames, enumerate_clips
from seqrecord.sampling import ClipStats, EpochPlan, PlanSettings, Shard, Window, resident_bounds
from seqrecord.sampling.random_order import clips_before, times_in_epoch
from tests.test_plan_groups import Case, cases, plan_of


@dataclass(frozen=True)
class ChosenCase(Case):
    """A list of (episode, start), in any order, and how often each comes."""

    listed: tuple[tuple[int, int], ...] = ()
    times: tuple[int, ...] = ()

    @cached_property
    def chosen(self) -> ChosenClips:
        return ChosenClips.of(*np.array(self.listed, np.int64).reshape(-1, 2).T)

    @property
    def missing_frames(self) -> MissingFrames:
        return MissingFrames.of(*np.array(self.missing, np.int64).reshape(-1, 3).T)

    @property
    def table(self) -> ClipTable:
        rows = np.arange(len(self.episodes))
        every = enumerate_clips(self.spec, self.episodes, rows, self.missing_frames)
        chosen = self.chosen.taken(every.has(self.chosen.episode, self.chosen.start))
        times = np.array(self.times, np.int64)[chosen.row]
        return chosen.table(self.spec, np.array(self.selected), times)

    def whole(self) -> list[tuple[int, int]]:
        """The clips of the list that are whole, each as often as it comes."""
        lacking = {(e, f) for e, start, stop in self.missing for f in range(start, stop)}
        return [
            (e, s)
            for (e, s), times in zip(self.listed, self.times, strict=True)
            if s + self.spec.span <= self.num_frames[e]
            if not any((e, s + i * self.spec.dilation) in lacking for i in range(self.spec.length))
            for _ in range(times)
        ]


@st.composite
def chosen_cases(draw: st.DrawFn) -> ChosenCase:
    case = draw(cases())
    spec = ClipSpec(case.spec.length, 1, case.spec.dilation)
    starts = st.integers(0, 69)
    listed = draw(st.lists(st.tuples(st.sampled_from(case.selected), starts), max_size=25))
    listed = [(e, s) for e, s in listed if s < case.num_frames[e]]
    windows = tuple(
        window if window.frame_step == 1 else Window.of(spec) for window in case.windows
    )
    return ChosenCase(
        **{**vars(case), "spec": spec, "windows": windows},
        listed=tuple(listed),
        times=tuple(draw(st.sampled_from([0, 1, 1, 1, 2, 5])) for _ in listed),
    )


@given(chosen_cases())
def test_a_table_has_the_listed_clips_that_are_whole(case: ChosenCase) -> None:
    table = case.table
    episode, start = table.locate(np.arange(table.num_clips))
    assert list(zip(episode.tolist(), start.tolist(), strict=True)) == sorted(case.whole())
    assert (table.count > 0).all()


@given(chosen_cases())
def test_plans_give_them_and_read_only_chunks_that_hold_one(case: ChosenCase) -> None:
    # All shards together, for each of which the engine checks every step.
    given_clips: Counter[tuple[int, int]] = Counter()
    repeated = 0
    for index in range(case.shard.count):
        plan = plan_of(replace(case, shard=Shard(index, case.shard.count)))
        if plan is None:
            return
        stats = ClipStats.of(case.table, case.episodes, case.windows)
        for group, bound in zip(plan.groups, resident_bounds(stats, case.settings), strict=True):
            assert group.max_resident_frames <= bound
        engine = case.engine(plan).finish()
        given_clips.update(engine.clips)
        repeated += plan.num_repeated - plan.num_dropped
        for i, of_group in enumerate(engine.groups):
            if case.settings.drop_last:
                continue
            spanned = {
                (e, f)
                for e, s in engine.clips
                for used in [case.used(i, e, s)]
                for f in range(min(used), max(used) + 1)
            }
            for _, row in of_group.loaded:
                e, begin, end = of_group.chunks[row]
                assert any((e, f) in spanned for f in range(begin, end))
    wanted = Counter(case.whole())
    assert given_clips.total() == wanted.total() + repeated
    if not case.settings.drop_last:
        assert set(given_clips) == set(wanted)
        assert given_clips >= wanted


def test_times_are_the_weight_rounded_down_or_up() -> None:
    weight = np.array([0.0, 0.25, 1.0, 2.5, 7.0, 0.999])
    chosen = ChosenClips.of(np.zeros(6, np.int64), np.arange(6), weight)
    times = np.array([times_in_epoch(chosen, seed=3, epoch=epoch) for epoch in range(4000)])
    assert (times >= np.floor(weight)).all()
    assert (times <= np.ceil(weight)).all()
    assert np.abs(times.mean(axis=0) - weight).max() < 0.03
    assert (times == times_in_epoch(chosen, seed=4, epoch=0)).all(axis=1).mean() < 0.6
    assert chosen.differs_by_epoch
    assert not chosen.taken(np.array([True, False, True, False, True, False])).differs_by_epoch


@given(
    weights=st.lists(
        st.one_of(st.floats(0, 3), st.sampled_from([0.0, 0.5, 1 / 3, 2.0, 1e-30, 1e6])), min_size=1
    ),
    seed=st.integers(0, 1 << 64),
    num_shards=st.integers(1, 5),
    first=st.one_of(st.just(0), st.integers(0, 1 << 62)),
)
def test_clips_of_epochs_are_known_without_counting(
    weights: list[float], seed: int, num_shards: int, first: int
) -> None:
    count = len(weights)
    chosen = ChosenClips.of(np.zeros(count, np.int64), np.arange(count), np.array(weights))
    before = clips_before(chosen, first, num_shards, seed=seed)
    assert first or before == 0
    for epoch in range(first, first + 6):
        times = times_in_epoch(chosen, seed=seed, epoch=epoch)
        assert (times >= chosen.least).all()
        assert (times <= chosen.most).all()
        assert abs(int(times.sum()) - sum(map(Fraction, weights), Fraction(0))) < 1
        before += -(-int(times.sum()) // num_shards)
        assert clips_before(chosen, epoch + 1, num_shards, seed=seed) == before


def test_clips_of_one_weight_come_in_all_combinations() -> None:
    chosen = ChosenClips.of(np.zeros(5, np.int64), np.arange(5), np.full(5, 0.4))
    found = Counter(
        tuple(times_in_epoch(chosen, seed=0, epoch=epoch).tolist()) for epoch in range(2000)
    )
    assert len(found) == 10  # of two of five
    assert min(found.values()) > 130
    assert max(found.values()) < 270


def test_a_sparse_list_of_a_long_episode_reads_little() -> None:
    episodes = EpisodeTable(
        np.array([100_000]), (ChunkGrid(np.array([16]), np.zeros(1, np.int64)),)
    )
    spec = ClipSpec(4)
    chosen = ChosenClips.of(np.zeros(100, np.int64), np.arange(100) * 1000)
    table = chosen.table(spec, np.arange(1), chosen.most)
    plan = EpochPlan(table, episodes, PlanSettings(num_cursors=4, run_frames=None))
    loads = [work.groups[0].loads for work in plan.rounds()]
    assert sum(map(len, loads)) <= 105
    assert sum(int(load.count.sum()) for load in loads) <= 105 * 4


def test_frames_between_far_clips_of_one_long_chunk_count() -> None:
    """Clips 60 frames apart share chunks of 100 frames of the second group, which are held."""
    count = 200
    grids = (
        ChunkGrid(np.array([4]), np.zeros(1, np.int64)),
        ChunkGrid(np.array([100]), np.zeros(1, np.int64), 1),
    )
    episodes = EpisodeTable(np.array([60 * count]), grids)
    chosen = ChosenClips.of(np.zeros(count, np.int64), 60 * np.arange(count))
    table = chosen.table(ClipSpec(1), np.arange(1), chosen.most)
    settings = PlanSettings(
        num_cursors=1, block_frames=480, first_block_frames=480, run_frames=None, shuffle=False
    )
    plan = EpochPlan(table, episodes, settings)
    held, most = 0, 0
    for work in plan.rounds():
        held += int(work.groups[1].loads.count.sum())
        most = max(most, held)
        held -= int(work.groups[1].frees.count.sum())
    assert 1500 < most <= plan.groups[1].max_resident_frames
