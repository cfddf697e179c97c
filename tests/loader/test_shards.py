"""Shards of frames that stay: their frames, and how many episodes their batches have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.loader.clips.tables import EpisodeLayout
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.epoch_rows import EpochRows, frame_groups
from seqrecord.loader.sampling.frame_sizes import FrameSizes
from seqrecord.loader.sampling.frame_uses import frames_of_shards
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Intervals, Shard, Window
from seqrecord.loader.sampling.settings_choice import SettingsRequest
from seqrecord.loader.sampling.share_orders import EpochKey
from tests.loader import clip_cases
from tests.loader.clip_cases import Case, cases, grid_of, layout_of

PIECE = 8


def table_of(episodes: list[list[int]]) -> EpisodeLayout:
    """Episodes of video with these groups of pictures, decoded in pieces."""
    lengths = np.array([sum(each) for each in episodes])
    grid = grid_of(episodes, group=0).in_pieces(lengths, PIECE)
    return layout_of(lengths, grid).with_leading(0, np.arange(len(lengths)))


def gops(frames: int, length: int) -> list[int]:
    """GOPs of this length; the last may be shorter."""
    return [min(length, frames - i) for i in range(0, frames, length)]


IRREGULAR = [np.random.default_rng(i).integers(40, 256, 4 + i % 3).tolist() for i in range(20)]

SETTINGS = st.builds(
    PlanSettings,
    seed=st.integers(0, 9),
    batch_size=st.none() | st.integers(1, 5),
    last_batch=st.sampled_from(["repeat", "keep"]),
    num_cursors=st.integers(1, 5),
    block_rows=st.integers(1, 20),
    is_resident=st.just(True),
)


def frames_in(intervals: Intervals) -> set[tuple[int, int]]:
    episode, frame = intervals.frames
    return set(zip(episode.tolist(), frame.tolist(), strict=True))


def clips_of(plan: EpochPlan) -> list[tuple[int, int]]:
    clips = plan.clips(0, plan.num_rounds)
    return list(zip(clips.episode.tolist(), clips.start.tolist(), strict=True))


@given(cases(), SETTINGS, st.integers(1, 4), st.data())
def test_a_shard_keeps_its_frames_in_all_epochs(
    case: Case, settings: PlanSettings, count: int, data: st.DataObject
) -> None:
    if not case.table.num_clips:
        return
    window, shard = Window.of(case.spec), Shard(data.draw(st.integers(0, count - 1)), count)
    groups = frame_groups(case.episodes, [window])
    rows = EpochRows(RowTable.of(case.table), groups, settings, EpochKey(settings.seed, 0))
    of_frames = case.episodes.num_frames, [window]
    [frames], most = frames_of_shards(*rows.runs(count, np.array([shard.index])), *of_frames)
    kept = frames_in(frames)
    assert (len(kept),) == (frames.num_frames,) == most
    assert most <= frames_of_shards(*rows.runs(count), *of_frames)[1]
    epoch = data.draw(st.integers(0, 3))
    plan = EpochPlan(case.table, case.episodes, settings, epoch=epoch, shard=shard)
    clips = clips_of(plan)
    assert {(e, frame) for e, start in clips for frame in case.frames(start)} <= kept
    assert frames_in(plan.used(0)) <= kept
    first = EpochPlan(case.table, case.episodes, settings, shard=shard)
    if settings.last_batch == "keep":
        assert sorted(clips) == sorted(clips_of(first))
    assert {*clips} == {*clips_of(first)}


def in_batch(counts: npt.NDArray[np.int64], size: int) -> float:
    """Expected number of episodes in a batch of a full shuffle, from the clips of each episode."""
    total = counts.sum() - np.arange(size)
    without = np.maximum(total - counts[:, None], 0) / total
    return float((1 - without.prod(axis=1)).sum())


@pytest.mark.parametrize(
    ("episodes", "num_shards", "size", "length"),
    [
        ([gops(400, 32)] * 50, 8, 8, 1),
        ([gops(400, 32)] * 50, 8, 32, 16),
        ([gops(60, 2)] * 200, 4, 8, 1),
        ([gops(600, 250)] * 30, 8, 16, 16),
        ([gops(100, 50)] * 60, 8, 8, 16),
        (IRREGULAR * 3, 4, 8, 16),
        ([gops(n, 2) for n in [20] * 90 + [1000] * 10], 4, 8, 16),
    ],
)
def test_shards_of_resident_frames_have_many_episodes(
    episodes: list[list[int]], num_shards: int, size: int, length: int
) -> None:
    """A batch has most of those in a shuffle of the dataset, or of evenly cut shards."""
    table, spec = table_of(episodes), ClipSpec(length)
    clips = clip_cases.clips_of(spec, table)
    num_frames = int(table.num_frames.sum())
    wanted = PlanSettings(batch_size=size, last_batch="keep")
    of_rows = RowTable.of(clips), table, [Window.of(spec)], None, wanted
    request = SettingsRequest(*of_rows, FrameSizes((1,), 1, size * length), num_shards)
    settings = request.choose(1 << 30, (num_frames,)).settings
    assert settings.is_resident
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
    assert decoded <= 1.12 * num_frames
    full = in_batch(np.bincount([episode for episode, _ in every]), size)
    most = min(len(episodes), sum(map(len, episodes)) // num_shards)
    even = most * (1 - (1 - 1 / most) ** size)
    assert np.mean(found) >= 0.6 * min(full, even)
