"""Cuts at keyframes: few frames of video are decoded twice, with the settings that are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tartanair.shuffle_quality import default_settings
from seqrecord import ClipSpec
from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import EpisodeTable, enumerate_clips
from seqrecord.sampling import ClipStats, EpochPlan, Plan, PlanSettings, Shard, Window
from seqrecord.sampling.bounds import resident_bounds
from seqrecord.sampling.runs import Cuts, cut_group
from tests.clip_cases import grid_of

PIECE = 32  # frames


def table_of(episodes: list[list[int]]) -> EpisodeTable:
    lengths = np.array([sum(gops) for gops in episodes])
    table = EpisodeTable(lengths, (grid_of(episodes).in_pieces(lengths, PIECE),))
    return table.led_by(0, np.arange(len(lengths)))


def gops(frames: int, length: int) -> list[int]:
    """GOPs of this length, the last of what is left."""
    return [min(length, frames - i) for i in range(0, frames, length)]


def num_decoded(plan: Plan, episodes: list[list[int]]) -> int:
    """Frames that a plan's cursors decode: of each chunk from its first frame on, unless the load
    before has left it open."""
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


IRREGULAR = [np.random.default_rng(i).integers(40, 256, 4 + i % 3).tolist() for i in range(20)]


@pytest.mark.parametrize("window", [Window(0, 16, 1, 16), Window(-1, 2, 1, 0)], ids=str)
@pytest.mark.parametrize(
    ("episodes", "num_shards"),
    [
        ([gops(1000, 250)] * 5, 1),
        ([gops(1000, 250)] * 5, 2),
        ([gops(1200, 100)] * 5, 4),
        ([gops(300, 250)] * 50, 4),
        ([gops(1000, 250)] * 50, 8),
        (IRREGULAR, 2),
        (IRREGULAR * 3, 4),
    ],
    ids=["5x4", "5x4 in 2", "5x12 in 4", "50x2 in 4", "50x4 in 8", "odd in 2", "odd in 4"],
)
def test_frames_are_decoded_once_but_for_few(
    episodes: list[list[int]], num_shards: int, window: Window
) -> None:
    table = table_of(episodes)
    spec = ClipSpec(16 if window.length else 1)
    clips = enumerate_clips(spec, table, np.arange(len(episodes)))
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
    # One cursor of each shard but the first begins behind a keyframe, anywhere: on the average.
    assert 1 <= decoded / (4 * table.num_frames.sum()) <= 1.05


def test_cuts_of_clips_that_are_apart_cost_nothing_whatever_parts_do() -> None:
    """Many shards of a short epoch begin behind keyframes; how many cursors walk them is free."""
    table = table_of([gops(1000, 250)] * 2)
    stats = ClipStats.of(enumerate_clips(ClipSpec(8, 8), table, np.arange(2)), table)
    assert stats.reread_by_one(8) == 0 < stats.reread_by_shards(8)
    settings = default_settings(
        stats, PlanSettings(batch_size=8), shuffle_buffer=16, max_held=4000, num_shards=2
    )
    assert settings.num_cursors >= 2


def test_the_longest_chunks_in_pieces_are_cut_at() -> None:
    lengths = np.array([400, 90])
    images = grid_of([gops(400, 32), gops(90, 32)], group=0)
    wrist, front = ([gops(400, n), gops(90, n)] for n in (60, 200))
    videos = [
        grid_of(g, group=i).in_pieces(lengths, PIECE) for i, g in enumerate((wrist, front), 1)
    ]
    windows = [Window(offset, 4, 1, 0) for offset in (0, -3, -2)]
    episodes = np.array([1, 0])
    table = EpisodeTable(lengths, (images, *videos))
    assert cut_group(table) == 2
    cuts = Cuts.of(episodes, table, windows)
    assert (cuts.offset, cuts.last.tolist()) == (-2, [89, 399])
    begin, end = cuts.chunks(np.array([1, 1, 0]), np.array([201, 202, 88]))
    assert (begin.tolist(), end.tolist()) == ([0, 202, 0], [202, 402, 92])
    # Without pieces it is the leading group.
    assert cut_group(EpisodeTable(lengths, (images, images), 1)) == 1
    assert cut_group(replace(table, groups=(images, videos[0]), leading=0)) == 1


@pytest.mark.parametrize("lengths", [(3717, 434, 927), (40, 2000)])
def test_raw_frames_of_long_chunks_are_cut_anywhere(lengths: tuple[int, ...]) -> None:
    """Of 1,024 frames a chunk, a cut costs the frames of a clip less one."""
    grid = ChunkGrid(np.full(len(lengths), 1024), np.arange(len(lengths)), by_frame=True)
    table = EpisodeTable(np.array(lengths), (grid,))
    clips = enumerate_clips(ClipSpec(16), table, np.arange(len(lengths)))
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
    grid = ChunkGrid(np.array([8, 16]), np.array([0, 20]), by_frame=True)
    table = EpisodeTable(np.array([100, 100]), (grid,))
    cuts = Cuts.of(np.array([0, 1]), table, [Window(0, 16, 1, 16)])
    first, stop = cuts.chunks(np.array([0, 1]), np.array([20, 20]))
    assert (first.tolist(), stop.tolist()) == ([16, 16], [24, 32])
