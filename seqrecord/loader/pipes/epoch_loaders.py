"""The loader of each epoch: of a dataset, or of the first episodes that a saved state has.

A dataset may grow between epochs::

    epochs      0   1   2   3   4   5   6
    episodes    ----- 10 ------ --- 15 ---
                        ^ a state of epoch 2, loaded after an append: epoch 2 ends with the first
                          10 episodes, and epoch 3 has all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.normalizations import saved_normalizations
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.planning import Planner
from seqrecord.loader.pipes.states import Json, Segments, State
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.text import counted, shown_place


class AnyPlan(Protocol):
    """One shard of one epoch, as integers."""

    @property
    def num_batches(self) -> int: ...


class Loader(Protocol):
    """Views, plans and runs of epochs. Picklable."""

    @property
    def options(self) -> LoaderOptions:
        """The arguments."""

    @property
    def batch_size(self) -> int | None:
        """The clips of the largest batch; `None` for single clips."""

    @property
    def planners(self) -> Sequence[Planner]:
        """The planner of each dataset."""

    @property
    def differs_by_epoch(self) -> bool:
        """Whether order, clips or draws depend on the epoch."""

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        *settings: PlanSettings | None,
    ) -> AnyPlan:
        """The plan of one shard of one epoch, or of the rest of it after `segments`; with the
        `settings` of each dataset, whatever memory they need.
        """

    def run(self, plan: Any, segments: Segments = (), *, batch: int, stats: EngineStats) -> Run:
        """Run a plan, of an epoch after these `segments`, from a batch on."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Extend the statistics of a run by clip counts."""

    # ---- states

    def shared_arguments(self, epoch: int) -> Mapping[str, Any]:
        """The arguments that determine the order up to an epoch, beside those of each dataset, as
        JSON.
        """

    def after_change(self, state: State) -> State:
        """The position of a state inside an epoch on other ranks, workers or batch sizes."""

    def in_excerpts_of(self, state: State) -> Loader:
        """The loader whose frame lists have the excerpts of a state; itself, if it has them.

        Raises `MemoryLimitError` if they do not fit.
        """

    def of_state(self, state: State) -> Loader:
        """The loader of the episodes and samples of a state: itself, or, if the data have grown
        since, a loader of the first ones.
        """

    def grown_since(self, earlier: Any, epoch: int) -> Loader | None:
        """The loader of the epochs from `epoch` on, if `earlier`, by `of_state`, has fewer episodes
        or samples.
        """

    def normalized_by(self, normalizations: Sequence[Json], choice: str | None) -> Loader:
        """The loader after a state with normalizations of its sources; see `steps_of_state`."""

    def forget_frames(self) -> None:
        """Free the memory that is kept between runs."""


@dataclass(frozen=True)
class EpochLoaders:
    """See the module. Picklable.

    Attributes:
        latest: the loader of epochs from `since` on.
        since: the first epoch with its episodes and samples.
        earlier: the loader of the epochs before, from `earlier_since` on, if a state has fewer
            episodes or samples.
    """

    latest: Loader
    since: int = 0
    earlier: Loader | None = None
    earlier_since: int = 0

    @property
    def of_saved(self) -> Loader:
        """The loader with the episodes of the loaded state."""
        return self.latest if self.earlier is None else self.earlier

    def at(self, epoch: int) -> Loader:
        """The loader of an epoch."""
        return self.of_saved if epoch < self.since else self.latest

    def first_epoch(self, epoch: int) -> int:
        """The first epoch with the episodes and samples of the loader of an epoch."""
        return self.earlier_since if epoch < self.since and self.earlier else self.since

    def note(self) -> None:
        """Log one warning if the data have grown since the loaded state."""
        if self.earlier is None:
            return
        for planner, grown in zip(self.earlier.planners, self.latest.planners, strict=True):
            growth = [*map(_size, (planner, grown))]
            if growth[0] != growth[1]:
                place = shown_place(grown.view.dataset.url)
                warn_once(
                    f"{place} has grown since the saved state, from {growth[0]} to {growth[1]}: "
                    f"epoch {self.since} is the first with all of them"
                )

    def of_state(self, state: State, *, is_inside: bool) -> EpochLoaders:
        """The loaders after a state, which is inside its epoch or at the start."""
        earlier, since = self.latest.of_state(state), state.epoch + is_inside
        if (latest := self.latest.grown_since(earlier, since)) is None:
            return EpochLoaders(earlier, state.since)
        return EpochLoaders(latest, since, earlier, state.since)

    def normalized_by(self, state: State) -> EpochLoaders:
        """The loaders with the normalizations after a state. Raises `StateError`."""
        saved = [source.normalization for source in state.sources]
        latest = self.latest.normalized_by(saved, self.latest.options.normalization)
        earlier = self.earlier
        if earlier is not None:  # one normalization in all epochs; a mix has other shares in each
            steps = [saved_normalizations(planner.view.vectors) for planner in latest.planners]
            earlier = earlier.normalized_by(steps, "state")
        return replace(self, latest=latest, earlier=earlier)


def _size(planner: Planner) -> str:
    """The number of episodes, or of rows of a table of samples."""
    view = planner.view
    if view.num_rows is not None:
        return f"{view.num_rows:,} rows of samples"
    return counted(len(view.episode_rows), "episode")
