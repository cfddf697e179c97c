"""The golden order: `tests/golden/plan_v1.json` has arguments and rounds of plans of version 1.

After a release, never make it again: another order for the same arguments breaks every run resumed
by a later version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan

from seqrecord import ClipSpec
from seqrecord.loader.sampling.runs import Shard
from tests.loader.clip_cases import clips_of, episode_table

GOLDEN = Path(__file__).parents[1] / "golden" / "plan_v1.json"
CASES = range(9)  # plans in it: with and without shuffle, of one and several shards, by frame, …


def plan_rounds(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rounds of a case's plan, as JSON."""
    episodes = episode_table(case["num_frames"], case["chunk_frames"])
    grid = replace(episodes.leading_grid, by_frame=case.get("by_frame", False))
    episodes = replace(episodes, groups=(grid,))
    table = clips_of(ClipSpec(**case["spec"]), episodes)
    settings = dict(case["settings"])
    settings["num_cursors"] = settings.pop("open_episodes")  # the file keeps the old name
    kinds = {(False, True): "repeat", (True, True): "drop", (False, False): "keep"}
    settings["last_batch"] = kinds[settings.pop("drop_last"), settings.pop("even_batches")]
    assert not settings.pop("rotate_phase")  # `samples.every(n, rotate=True)` since then
    made, shard = PlanSettings(**settings), Shard(*case["split"])
    plan = EpochPlan(table, episodes, made, epoch=case["epoch"], shard=shard)
    kept = {
        "loads": ("cursor", "run", "chunk", "first", "count"),
        "clips": ("cursor", "run", "episode", "start"),
        "frees": ("cursor", "run", "first", "count"),
    }
    return [
        {
            part: [getattr(parts[part], column).tolist() for column in columns]
            for part, columns in kept.items()
        }
        for work in plan.rounds()
        for parts in [vars(work.groups[0]) | {"clips": work.clips}]
    ]
