"""Fixed shards against brute force: clips, frames and loads of each shard, and what is left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.sampling import (
    EpochPlan,
    Plan,
    PlanSettings,
    Round,
    Shard,
    ShuffledPlan,
    Window,
    shard_frames,
)
from tests.clip_cases import Case, cases

SETTINGS = st.builds(
    PlanSettings,
    seed=st.integers(0, 9),
    batch_size=st.none() | st.integers(1, 5),
    even_batches=st.booleans(),
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
    """From a round on."""
    return [clip for one in plan.rounds(index) for clip in each_clip(one)]


@given(cases(), SETTINGS, st.integers(1, 4), st.data())
def test_loads_bring_the_frames_of_the_shard(
    case: Case, settings: PlanSettings, count: int, data: st.DataObject
) -> None:
    """From any round on, as a resume there needs them, and from any clip."""
    if not case.table.num_clips:
        return
    window = Window.of(case.spec)
    shard = Shard(data.draw(st.integers(0, count - 1)), count)
    shards = np.array([shard.index])
    [frames], most = shard_frames(case.table, case.episodes, [window], settings, count, shards)
    rows = {
        (episode, frame)
        for episode, begin, stop in zip(*(column.tolist() for column in frames), strict=True)
        for frame in range(begin, stop)
    }
    assert len(rows) == frames.num_frames == most
    assert most <= shard_frames(case.table, case.episodes, [window], settings, count)[1]
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
