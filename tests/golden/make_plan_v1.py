"""How the golden order of version 1 was made: `python -m tests.golden.make_plan_v1`.

No test runs this. After the first release it must not be run again: it would write another order,
and runs that are resumed across versions depend on this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.clips.tables import ClipSpec, enumerate_clips
from seqrecord.sampling import EpochPlan, PlanSettings, Shard
from tests.clip_cases import episode_table

__all__ = ["CASES", "GOLDEN", "plan_rounds"]

GOLDEN = Path(__file__).parent / "plan_v1.json"

_ABOUT = (
    "Rounds of epoch plans as version 1 made them. loads: cursor, run, chunk, first, count; "
    "clips: cursor, run, episode, start; frees: cursor, run, first, count."
)


def _case(
    num_frames: list[int],
    chunk_frames: list[int],
    spec: dict[str, int],
    settings: dict[str, Any],
    epoch: int = 0,
    split: tuple[int, int] = (0, 1),
    **others: bool,
) -> dict[str, Any]:
    usual = {
        "shuffle": True,
        "seed": 0,
        "batch_size": 8,
        "drop_last": False,
        "even_batches": True,
        "rotate_phase": False,
        "open_episodes": 3,
        "block_frames": 4,
        "run_frames": 24,
        "first_block_frames": 4,
    }
    return {
        "num_frames": num_frames,
        "chunk_frames": chunk_frames,
        "spec": {"length": 4, "stride": 1, "dilation": 1, "phase": 0, **spec},
        "settings": {**usual, **settings},
        "epoch": epoch,
        "split": list(split),
        **others,
    }


_FOUR, _CHUNKS = [40, 9, 23, 57], [4, 4, 4, 4]

CASES = [
    _case(_FOUR, _CHUNKS, {}, {}),
    _case(_FOUR, _CHUNKS, {}, {}, epoch=1, split=(1, 2)),
    _case(_FOUR, _CHUNKS, {}, {"block_frames": 24, "run_frames": None, "batch_size": 16}),
    _case(_FOUR, _CHUNKS, {}, {"open_episodes": 2, "even_batches": False}, split=(2, 4)),
    _case(
        [100, 61, 3, 80],
        [8, 16, 8, 5],
        {"length": 3, "stride": 2, "dilation": 2, "phase": 1},
        {"seed": -1, "batch_size": None, "block_frames": 8, "run_frames": None},
        epoch=7,
    ),
    _case(
        [200, 150],
        [64, 7],
        {"stride": 9},
        {"seed": 2**64 + 5, "drop_last": True, "open_episodes": 4},
    ),
    _case([20, 5, 12], [8, 8, 8], {}, {"shuffle": False}),
    _case(
        [30, 9, 23],
        [8, 8, 8],
        {},
        {"open_episodes": 1, "block_frames": 80, "first_block_frames": 80, "run_frames": None},
    ),
    _case([100, 61, 150], [64, 64, 3], {}, {"block_frames": 8}, split=(1, 2), by_frame=True),
]


def plan_rounds(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rounds of a case's plan, as JSON."""
    episodes = episode_table(case["num_frames"], case["chunk_frames"])
    grid = replace(episodes.lead, by_frame=case.get("by_frame", False))
    episodes = replace(episodes, groups=(grid,))
    table = enumerate_clips(ClipSpec(**case["spec"]), episodes, np.arange(len(episodes)))
    settings = dict(case["settings"])
    settings["num_cursors"] = settings.pop("open_episodes")  # the file keeps the old name
    plan = EpochPlan(
        table,
        episodes,
        PlanSettings(**settings),
        epoch=case["epoch"],
        shard=Shard(*case["split"]),
    )
    kept = {
        "loads": ("cursor", "run", "chunk", "first", "count"),
        "clips": ("cursor", "run", "episode", "start"),
        "frees": ("cursor", "run", "first", "count"),
    }
    return [
        {
            what: [getattr(parts[what], column).tolist() for column in columns]
            for what, columns in kept.items()
        }
        for work in plan.rounds()
        for parts in [vars(work.groups[0]) | {"clips": work.clips}]
    ]


def main() -> None:
    plans = [{**case, "rounds": plan_rounds(case)} for case in CASES]
    GOLDEN.write_text(json.dumps({"about": _ABOUT, "plans": plans}) + "\n")


if __name__ == "__main__":
    main()
