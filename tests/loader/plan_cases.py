"""Plans of epochs on small datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from seqrecord import ClipError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout
from seqrecord.loader.sampling.epoch_plans import Clips, EpochPlan
from seqrecord.loader.sampling.plan_settings import WHOLE, EpochSegment, PlanSettings
from seqrecord.loader.sampling.runs import Shard
from tests.loader.clip_cases import Case, cases

LAYOUTS: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.none() | st.integers(1, 7),
    "num_cursors": st.integers(1, 6),
    "block_rows": st.integers(1, 40),
    "aligned": st.sampled_from([0, WHOLE // 2, WHOLE]),
    "rotation": st.integers(0, 3),
    "is_resident": st.booleans(),
    "is_permuted": st.booleans(),
}
"""Settings that may change in the middle of an epoch."""

plan_settings = st.builds(
    PlanSettings,
    shuffle=st.sampled_from([True, True, False]),
    seed=st.integers(-3, 2**70),
    last_batch=st.sampled_from(["repeat", "drop", "keep"]),
    **LAYOUTS,
)


@dataclass(frozen=True)
class Request:
    """A plan's arguments, for all of `num_shards` shards."""

    case: Case
    settings: PlanSettings
    epoch: int
    num_shards: int

    def plans(self) -> list[EpochPlan]:
        """The plans of all shards; empty if "drop" leaves no batch."""
        case, settings = self.case, self.settings
        num_clips, size = case.table.num_clips, settings.batch_size or 1
        segment = EpochSegment(self.num_shards, 1, 0, 1, (settings,))
        if settings.drops and 0 < num_clips < self.num_shards * size:
            with pytest.raises(ClipError, match="leaves no batch at all"):
                plans_of(case.table, case.episodes, segment, epoch=self.epoch)
            return []
        return plans_of(case.table, case.episodes, segment, epoch=self.epoch)


def requests() -> st.SearchStrategy[Request]:
    return st.builds(Request, cases(), plan_settings, st.integers(0, 3), st.integers(1, 4))


def plans_of(
    table: ClipTable,
    episodes: EpisodeLayout,
    segment: EpochSegment,
    *,
    epoch: int,
    over: Sequence[EpochSegment] = (),
    **options: Any,
) -> list[EpochPlan]:
    """The plans of all shards of a segment, after those that are over, rank by rank."""
    count = segment.ranks * segment.workers
    given: Any = {"epoch": epoch, "segments": tuple(over), **options}
    [settings] = segment.settings
    return [
        EpochPlan(table, episodes, settings, shard=Shard(i, count, segment.workers), **given)
        for i in range(count)
    ]


def all_clips(plan: EpochPlan) -> Clips:
    """The clips of a plan, which are the same in any rounds, and between any two clips."""
    clips = plan.clips(0, plan.num_rounds)
    for parts in (
        [plan.clips(i, min(i + 2, plan.num_rounds)) for i in range(0, plan.num_rounds, 2)],
        [
            plan.clips_between(plan.first_clip(batch), plan.first_clip(batch + 1))
            for batch in range(plan.num_batches)
        ],
    ):
        assert _rows(*parts) == _rows(clips)
    assert len(clips) == plan.num_clips
    return clips


def _rows(*parts: Clips) -> list[tuple[int, ...]]:
    columns = [vars(part).values() for part in parts]
    return [
        row for part in columns for row in zip(*(column.tolist() for column in part), strict=True)
    ]


def names_of(clips: Clips) -> list[tuple[int, int]]:
    """Episode and start of each clip."""
    return [*zip(clips.episode.tolist(), clips.start.tolist(), strict=True)]


def batches_of(plan: EpochPlan) -> list[list[tuple[int, int]]]:
    """The names of the clips of each batch."""
    clips = all_clips(plan)
    names, ends = names_of(clips), [plan.first_clip(b) for b in range(plan.num_batches + 1)]
    batches = [names[begin:end] for begin, end in pairwise(ends)]
    places = [(number, slot) for number, batch in enumerate(batches) for slot in range(len(batch))]
    found = (column.tolist() for column in plan.batches.find(np.arange(len(clips))))
    assert [*zip(*found, strict=True)] == places
    assert ends[-1] == plan.num_clips
    return batches
