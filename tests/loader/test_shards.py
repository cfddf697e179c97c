"""Cursors of shards: they have exact numbers of clips and begin at starts of chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, resident_bounds
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.fixed_shards import ShuffledPlan, shard_runs, shuffled
from seqrecord.loader.sampling.interleaving import MOST_REREAD
from seqrecord.loader.sampling.memory import FrameSizes, MemoryRequest
from seqrecord.loader.sampling.plan import Plan, Round
from seqrecord.loader.sampling.used_frames import frames_of_shards

from benchmarks.tartanair.shuffle_quality import default_settings
from seqrecord import ClipError, ClipSpec
from seqrecord.loader.sampling.runs import Cuts, Runs, Shard, Window, cut_group, shares_of
from tests.loader import clip_cases
from tests.loader.clip_cases import Case, cases, episode_table, grid_of, layout_of

COUNTS = [700, 435, 801, 1022]  # clips of episodes


def shares(
    counts: list[int], num_shards: int, num_cursors: int, chunk: int, **more: Any
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Begins and ends of the cursors of the last three shards."""
    number = np.arange(len(counts))
    zero = np.zeros_like(number)
    runs = Runs(1, number, zero, np.array(counts, np.int64), number, zero)
    chunks = episode_table(counts, [chunk] * len(counts)).leading_grid
    found = []
    for i in range(num_shards - 3, num_shards):
        cuts = Cuts(chunks, runs.last_start, 0)
        start, stop, _ = shares_of(runs, cuts, np.array([i]), num_shards, num_cursors, **more)
        found.append((start[stop > start], stop[stop > start]))
    return found


def test_at_most_one_cursor_of_a_shard_begins_inside_a_chunk() -> None:
    offsets = np.cumsum([0, *COUNTS])
    for start, stop in shares(COUNTS, 3, 5, 8, fill=False):
        run = np.searchsorted(offsets, start, side="right") - 1
        off_line = (start - offsets[run]) % 8 != 0
        assert off_line.sum() <= 1
        assert (np.diff(start) > 500).all()  # of 2958 clips: far apart
        assert (abs(stop - start - 2958 // 15) <= 16).all()


def test_cursors_of_a_share_begin_anywhere_in_it() -> None:
    shared = shares(COUNTS, 3, 10, 64, fill=False, num_shares=2)
    for (start, stop), alone in zip(shared, shares(COUNTS, 3, 2, 64, fill=False), strict=True):
        assert start[::5].tolist() == alone[0].tolist()
        assert stop[4::5].tolist() == alone[1].tolist()
        for share in (slice(5), slice(5, 10)):
            assert stop[share][:-1].tolist() == start[share][1:].tolist()
            assert np.ptp((stop - start)[share]) <= 1


@pytest.mark.parametrize(
    ("clips", "num_shards", "num_cursors", "fill", "expected"),
    [
        (8, 3, 1, False, [(0, 2), (2, 5), (5, 8)]),
        (8, 3, 1, True, [(0, 3), (2, 5), (5, 8)]),
        (100, 1 << 30, 4, True, [(99, 100)] * 3),  # takes no longer than for few shards
    ],
)
def test_cursors_of_small_cases(
    clips: int, num_shards: int, num_cursors: int, fill: bool, expected: list[tuple[int, int]]
) -> None:
    made = shares([clips], num_shards, num_cursors, 1, fill=fill)
    assert [(int(start[0]), int(stop[0])) for start, stop in made] == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, [0, 0, 2, 2, 4, 4]), (-3, [0, 0, 0, 3, 4, 5]), (7, [0, 0, 0, 0, 4, 4])],
)
def test_clips_snap_to_the_first_of_their_chunk_and_run(offset: int, expected: list[int]) -> None:
    """Starts 1, 3, 5, 7 in chunks of 4 frames, and 8, 10 in chunks of 6; 12 frames each."""
    columns = np.array([(0, 1, 4, 0, 0), (1, 8, 2, 1, 4)]).T
    cuts = Cuts(grid_of([[4] * 3, [6] * 2]), np.array([11, 11]), offset)
    assert Runs(2, *columns).snap(np.arange(6), cuts).tolist() == expected


def test_the_limit_of_runs() -> None:
    zero, limit = np.zeros(1, np.int64), 1 << 31
    assert Runs(1, zero, zero, zero + 1, zero + limit - 1, zero).num_clips == 1
    with pytest.raises(ClipError, match="more runs") as caught:
        Runs(1, zero, zero, zero + 1, zero + limit, zero)
    assert (caught.value.expected, caught.value.got) == ("at most 2147483648", 2147483649)


def test_slices_have_separate_runs() -> None:
    # Clips 0 to 3 and 4 to 5 of a run, and 6 to 8 of another.
    runs = Runs(2, *np.array([(0, 1, 4, 0, 0), (0, 11, 2, 0, 9), (1, 0, 3, 1, 20)]).T)
    made, owner = runs.slices(np.array([1, 3, 3, 8]), np.array([3, 3, 7, 9]))
    rows = zip(owner, made.run, made.episode, made.first_start, made.count, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [
        (0, 0, 0, 3, 2),
        (2, 1, 0, 7, 1),
        (2, 1, 0, 11, 2),
        (2, 2, 1, 0, 1),
        (3, 3, 1, 4, 1),
    ]


PIECE = 32  # frames


def table_of(episodes: list[list[int]]) -> Any:
    lengths = np.array([sum(gops) for gops in episodes])
    table = layout_of(lengths, grid_of(episodes).in_pieces(lengths, PIECE))
    return table.with_leading(0, np.arange(len(lengths)))


def gops(frames: int, length: int) -> list[int]:
    """GOPs of this length; the last may be shorter."""
    return [min(length, frames - i) for i in range(0, frames, length)]


def num_decoded(plan: Plan, episodes: list[list[int]]) -> int:
    """Frames that a plan's cursors decode: each chunk from its first frame, unless the previous
    load has left it open."""
    begins = [np.repeat(np.cumsum([0, *gops[:-1]]), gops) for gops in episodes]
    total, at = 0, dict[int, tuple[tuple[int, int], int]]()
    for work in plan.rounds():
        loads = work.groups[0].loads
        columns = (loads.cursor, loads.run, loads.episode, loads.first, loads.count)
        for cursor, run, episode, first, count in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            begin = int(begins[episode][first])
            place, position = at.get(cursor, ((-1, -1), 0))
            if place != (run, begin):
                position = begin
            total += first + count - position
            at[cursor] = (run, begin), first + count
    return total


WHOLE, AHEAD = Window(0, 16, 1, 16), Window(-1, 2, 1, 0)
IRREGULAR = [np.random.default_rng(i).integers(40, 256, 4 + i % 3).tolist() for i in range(20)]


@pytest.mark.parametrize(
    ("episodes", "num_shards", "window"),
    [
        ([gops(1000, 250)] * 5, 1, WHOLE),
        ([gops(1000, 250)] * 5, 2, AHEAD),
        ([gops(1200, 100)] * 5, 4, WHOLE),
        ([gops(300, 250)] * 50, 4, AHEAD),
        pytest.param([gops(1000, 250)] * 50, 8, WHOLE, marks=pytest.mark.slow),
        (IRREGULAR, 2, WHOLE),
        (IRREGULAR * 3, 4, AHEAD),
    ],
    ids=["5x4", "5x4 in 2", "5x12 in 4", "50x2 in 4", "50x4 in 8", "odd in 2", "odd in 4"],
)
def test_few_frames_are_decoded_twice(
    episodes: list[list[int]], num_shards: int, window: Window
) -> None:
    table = table_of(episodes)
    spec = ClipSpec(16 if window.length else 1)
    clips = clip_cases.clips_of(spec, table)
    decoded = 0
    for seed in range(4):
        settings = default_settings(
            ClipStats.of(clips, table, [window]),
            PlanSettings(batch_size=8, seed=seed),
            shuffle_buffer=None,
            max_held=2000,
            num_shards=num_shards,
        )
        assert settings.num_cursors >= 2
        for index in range(num_shards):
            shard = Shard(index, num_shards)
            plan = EpochPlan(clips, table, settings, shard=shard, windows=[window])
            decoded += num_decoded(plan, episodes)
    # By cursors; and one cursor of each shard except the first begins between keyframes.
    most = 1.05 if num_shards == 1 or len(episodes) > 5 else 1 + MOST_REREAD + 0.015
    assert 1 <= decoded / (4 * table.num_frames.sum()) <= most


def test_cuts_between_distant_clips_cost_nothing_with_any_shards() -> None:
    """Many shards of a short epoch begin between keyframes; any number of cursors is free."""
    table = table_of([gops(1000, 250)] * 2)
    stats = ClipStats.of(clip_cases.clips_of(ClipSpec(8, 8), table), table)
    assert stats.reread(8)[0] == 0 < stats.reread(8)[1]
    settings = default_settings(
        stats, PlanSettings(batch_size=8), shuffle_buffer=16, max_held=4000, num_shards=2
    )
    assert settings.num_cursors >= 2


def test_runs_are_cut_at_the_longest_chunks_in_pieces() -> None:
    lengths = np.array([400, 90])
    images = grid_of([gops(400, 32), gops(90, 32)], group=0)
    wrist, front = ([gops(400, n), gops(90, n)] for n in (60, 200))
    videos = [
        grid_of(g, group=i).in_pieces(lengths, PIECE) for i, g in enumerate((wrist, front), 1)
    ]
    windows = [Window(offset, 4, 1, 0) for offset in (0, -3, -2)]
    episodes = np.array([1, 0])
    table = layout_of(lengths, images, *videos)
    assert cut_group(table) == 2
    cuts = Cuts.of(episodes, table, windows)
    assert (cuts.offset, cuts.last.tolist()) == (-2, [89, 399])
    begin, end = cuts.chunks(np.array([1, 1, 0]), np.array([201, 202, 88]))
    assert (begin.tolist(), end.tolist()) == ([0, 202, 0], [202, 402, 92])
    # Without pieces it is the leading group.
    assert cut_group(layout_of(lengths, images, images, leading=1)) == 1
    assert cut_group(replace(table, groups=(images, videos[0]), leading=0)) == 1


@pytest.mark.parametrize("lengths", [(3717, 434, 927), (40, 2000)])
def test_raw_frames_of_long_chunks_are_cut_anywhere(lengths: tuple[int, ...]) -> None:
    """With 1,024 frames per chunk, a cut costs one frame less than a clip."""
    grid = episode_table(lengths, [1024] * len(lengths)).leading_grid
    table = layout_of(lengths, replace(grid, by_frame=True))
    clips = clip_cases.clips_of(ClipSpec(16), table)
    stats = ClipStats.of(clips, table)
    assert stats.cut_frames == 15
    settings = PlanSettings(num_cursors=8, block_frames=64, first_block_frames=16)
    for index in range(3):
        plan = EpochPlan(clips, table, settings, shard=Shard(index, 3))
        rounds = list(plan.rounds())
        read = sum(int(work.groups[0].loads.count.sum()) for work in rounds)
        runs = len(np.unique(np.concatenate([work.clips.run for work in rounds])))
        assert read == plan.num_clips + 15 * runs
        assert resident_bounds(stats, settings)[0] >= plan.groups[0].max_resident_frames


def test_chunks_no_longer_than_clips_are_not_cut() -> None:
    grid = episode_table([100, 100], [8, 16]).leading_grid
    table = layout_of([100, 100], replace(grid, by_frame=True))
    cuts = Cuts.of(np.array([0, 1]), table, [Window(0, 16, 1, 16)])
    first, stop = cuts.chunks(np.array([0, 1]), np.array([20, 20]))
    assert (first.tolist(), stop.tolist()) == ([16, 16], [24, 32])


SETTINGS = st.builds(
    PlanSettings,
    seed=st.integers(0, 9),
    batch_size=st.none() | st.integers(1, 5),
    last_batch=st.sampled_from(["repeat", "keep"]),
    num_cursors=st.integers(1, 5),
    block_frames=st.integers(1, 20),
    run_frames=st.none() | st.integers(4, 30),
    first_block_frames=st.integers(1, 8),
    num_shares=st.none() | st.integers(1, 3),
    resident=st.just(True),
)


def plan_of(case: Case, settings: PlanSettings, epoch: int, shard: Shard) -> Plan:
    kind = ShuffledPlan if epoch else EpochPlan
    return kind(case.table, case.episodes, settings, epoch=epoch, shard=shard)


def each_clip(one: Round) -> list[tuple[int, int]]:
    return list(zip(one.clips.episode.tolist(), one.clips.start.tolist(), strict=True))


def clips_of(plan: Plan, index: int = 0) -> list[tuple[int, int]]:
    """Clips from a round on."""
    return [clip for one in plan.rounds(index) for clip in each_clip(one)]


@given(cases(), SETTINGS, st.integers(1, 4), st.data())
def test_loads_contain_the_frames_of_the_shard(
    case: Case, settings: PlanSettings, count: int, data: st.DataObject
) -> None:
    """From any round and any clip on, as needed by a resume."""
    if not case.table.num_clips:
        return
    window = Window.of(case.spec)
    shard = Shard(data.draw(st.integers(0, count - 1)), count)
    shards = np.array([shard.index])
    place = case.table, case.episodes, [window], settings, count
    of_frames = case.episodes.num_frames, [window]
    [frames], most = frames_of_shards(*shard_runs(*place, shards), *of_frames)
    rows = {
        (episode, frame)
        for episode, begin, stop in zip(*(column.tolist() for column in frames[:3]), strict=True)
        for frame in range(begin, stop, frames.step)
    }
    assert (len(rows),) == (frames.num_frames,) == most
    assert most <= frames_of_shards(*shard_runs(*place), *of_frames)[1]
    plan = plan_of(case, settings, data.draw(st.integers(1, 3)), shard)
    clips = clips_of(plan)
    number = data.draw(st.integers(0, len(clips)))
    index, skip = plan.locate_clip(number)
    loaded: set[tuple[int, int]] = set()
    for each in plan.rounds(index):
        loads = each.groups[0].loads
        for episode, first, frames in zip(
            loads.episode.tolist(), loads.first.tolist(), loads.count.tolist(), strict=True
        ):
            loaded |= {(episode, first + i * window.frame_step) for i in range(frames)}
        for clip in each_clip(each):
            assert {(clip[0], frame) for frame in case.frames(clip[1])} <= loaded & rows
    assert clips_of(plan, index)[skip:] == clips[number:]


def test_the_order_of_a_shuffle_is_that_of_version_1() -> None:
    order = shuffled(PlanSettings(seed=7), 2, Shard(0, 1), np.array([6]))
    assert order.tolist() == [5, 4, 0, 3, 1, 2]
    order = shuffled(PlanSettings(seed=7), 2, Shard(1, 3), np.array([2, 6, 1]))
    assert order.tolist() == [6, 0, 3, 2, 4, 8, 1, 5, 7]


def test_each_batch_of_a_later_epoch_has_clips_of_all_runs() -> None:
    run_clips = np.array([40, 80, 20, 60])
    run = np.repeat(np.arange(4), run_clips)
    for seed, size in ((0, 10), (1, 20)):
        order = shuffled(PlanSettings(seed=seed), 1, Shard(0, 2), run_clips)
        assert sorted(order.tolist()) == list(range(200))
        assert (np.diff(order[run[order] == 1]) < 0).sum() > 20  # random inside a run
        counts = np.array([np.bincount(some, minlength=4) for some in np.split(run[order], size)])
        assert (abs(counts - run_clips / size) < 2).all()
        assert (counts[:, :2] > 0).all()


def in_batch(counts: npt.NDArray[np.int64], size: int) -> float:
    """Expected number of episodes in a batch of a full shuffle, from the clips of each episode."""
    total = counts.sum() - np.arange(size)
    without = np.maximum(total - counts[:, None], 0) / total
    return float((1 - without.prod(axis=1)).sum())


@pytest.mark.parametrize(
    ("episodes", "num_shards", "size", "length", "least"),
    [
        ([gops(400, 32)] * 50, 8, 8, 1, 1.0),
        ([gops(400, 32)] * 50, 8, 8, 16, 1.0),
        ([gops(400, 32)] * 50, 8, 32, 16, 0.8),  # more cuts would decode over a tenth twice
        ([gops(60, 2)] * 200, 4, 8, 1, 1.0),
        ([gops(400, 40)] * 50, 8, 8, 16, 1.0),
        ([gops(600, 250)] * 30, 8, 16, 16, 0.95),
        ([gops(100, 50)] * 60, 8, 8, 16, 0.9),
        (IRREGULAR * 3, 4, 8, 16, 1.0),
        ([gops(n, 2) for n in (20, 30, 900, 50, 40, 400, 1100, 25)] * 3, 4, 8, 4, 1.0),
        ([gops(n, 2) for n in [20] * 90 + [1000] * 10], 4, 8, 16, 1.0),
    ],
)
def test_shards_of_resident_frames_have_many_episodes(
    episodes: list[list[int]], num_shards: int, size: int, length: int, least: float
) -> None:
    """A batch has nearly as many as in a shuffle of the dataset, or of evenly cut shards."""
    table, spec = table_of(episodes), ClipSpec(length)
    clips = clip_cases.clips_of(spec, table)
    num_frames = int(table.num_frames.sum())
    request = MemoryRequest(
        ClipStats.of(clips, table),
        PlanSettings(batch_size=size, last_batch="keep"),
        FrameSizes((1,), 1, size * length),
        num_shards,
        frames_in_memory=(num_frames,),
    )
    settings = request.plan_memory(1 << 30).settings
    begins = [np.repeat(np.cumsum([0, *each[:-1]]), each) for each in episodes]
    found, decoded, every = [], 0, list[tuple[int, int]]()
    for index in range(num_shards):
        mine = clips_of(EpochPlan(clips, table, settings, shard=Shard(index, num_shards)))
        every += mine
        found.append(in_batch(np.bincount([episode for episode, _ in mine]), size))
        last = {  # frame of each group of pictures, which is decoded up to it
            (episode, int(begins[episode][frame])): frame
            for episode, start in sorted(mine)
            for frame in range(start, start + length)
        }
        decoded += sum(frame + 1 - begin for (_, begin), frame in last.items())
    keys = clips.locate(np.arange(clips.num_clips))
    assert sorted(every) == list(zip(keys.episode.tolist(), keys.start.tolist(), strict=True))
    assert decoded <= 1.1 * num_frames
    full = in_batch(np.bincount([episode for episode, _ in every]), size)
    most = min(len(episodes), sum(map(len, episodes)) // num_shards)
    even = most * (1 - (1 - 1 / most) ** size)
    assert np.mean(found) >= least * min(0.85 * full, 0.95 * even)
