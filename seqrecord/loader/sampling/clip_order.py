"""The usual order: each clip by itself, shuffled or front to back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import EpochSegment, PlanSettings
from seqrecord.loader.sampling.budgets import ClipCosts
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.plan import Plan, PlannedOrder
from seqrecord.loader.sampling.runs import Runs, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws


class ClipOrder(PlannedOrder):
    """The order of `EpochPlan`, or of `ShuffledPlan` for later epochs of resident frames."""

    name = "clips"

    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:
        """See `PlannedOrder`."""
        if settings.resident and epoch and not segment:
            from seqrecord.loader.sampling.fixed_shards import ShuffledPlan  # not by epoch 0

            return ShuffledPlan
        return EpochPlan

    def shard_runs(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        settings: PlanSettings,
        num_shards: int,
        shards: IntArray | None,
    ) -> tuple[Runs, IntArray]:
        """See `PlannedOrder`."""
        from seqrecord.loader.sampling.fixed_shards import shard_runs

        return shard_runs(table, episodes, windows, settings, num_shards, shards)

    def returned(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        segment: EpochSegment,
        place: tuple[int, int],
        draws: BatchDraws | None,
        costs: ClipCosts | None,
    ) -> tuple[Runs, Iterable[slice | IntArray]]:
        """See `PlannedOrder`."""
        from seqrecord.loader.sampling.elastic import returned_of_cursors  # ranks seldom change

        return returned_of_cursors(table, episodes, windows, segment, place, draws, costs)


CLIPS = ClipOrder()
