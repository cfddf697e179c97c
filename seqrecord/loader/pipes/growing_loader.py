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

from seqrecord.errors import StateError
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.source_states import check_source, saved_settings, source_state
from seqrecord.loader.pipes.states import Json, Segments, State, check_same
from seqrecord.loader.pipes.view_order import ViewOrder
from seqrecord.loader.sampling.plan_settings import EpochSegment, MixStart
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
    def orders(self) -> Sequence[ViewOrder]:
        """The order of each dataset."""

    @property
    def differs_by_epoch(self) -> bool:
        """Whether order, clips or draws depend on the epoch."""

    @property
    def has_own_epochs(self) -> bool:
        """Whether its epochs are those of its dataset."""

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        finished: EpochSegment | None = None,
    ) -> AnyPlan:
        """The plan of one shard in one epoch, or for the rest of it after `segments`; if that is a
        `finished` segment, with its settings.
        """

    def run(self, plan: Any, *, batch: int, stats: EngineStats) -> Run:
        """Run a plan from a batch on."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Extend the statistics of a run by clip counts."""

    # ---- states

    def shared_arguments(self, position: State) -> Mapping[str, Any]:
        """The arguments that determine the order from a position's `start` up to it, beside those
        of each dataset, as JSON.
        """

    def after_change(self, state: State) -> State:
        """The position of a state on other ranks, workers or batch sizes."""

    def start_of(self, position: State) -> MixStart | None:
        """Where the datasets of a mix continued last before a position's segments, if they did."""

    def places(self, position: State) -> Sequence[tuple[int, Segments]]:
        """The epoch of each dataset, and its finished segments, that a position is in; in a mix,
        epoch 0 for a dataset without segments.
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
class GrowingLoader:
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
        """The first epoch with the episodes and samples that an epoch's loader has."""
        return self.earlier_since if epoch < self.since and self.earlier else self.since

    def check_epoch(self, epoch: int) -> None:
        """Raise `StateError` for an epoch before the first one with the same episodes."""
        first = self.first_epoch(epoch)
        if epoch < first:
            raise StateError(
                f"epoch {epoch} had fewer episodes, or other samples",
                expected=f"epoch {first} or later; or a state that was saved before it",
                got=f"epoch {epoch}",
            )

    def note(self) -> None:
        """Log one warning if the data have grown since the loaded state."""
        if self.earlier is None:
            return
        for order, grown in zip(self.earlier.orders, self.latest.orders, strict=True):
            growth = [*map(_size, (order, grown))]
            if growth[0] != growth[1]:
                place = shown_place(grown.view.dataset.url)
                warn_once(
                    f"{place} has grown since the saved state, from {growth[0]} to {growth[1]}: "
                    f"epoch {self.since} is the first with all of them"
                )

    def of_state(self, state: State, *, is_inside: bool) -> GrowingLoader:
        """The loaders after a state, which is inside its epoch or at the start."""
        since = state.epoch + is_inside
        earlier = self.latest.of_state(state)
        if (latest := self.latest.grown_since(earlier, since)) is None:
            return GrowingLoader(earlier, state.since)
        return GrowingLoader(latest, since, earlier, state.since)

    def check(self, state: State) -> None:
        """Raise `StateError` for a state of another kind of loader, another mix, other clips or
        another order.
        """
        loader = self.of_saved
        arguments = {**state.shared_arguments, "sources": len(state.sources)}
        now = {**loader.shared_arguments(state), "sources": len(loader.orders)}
        problem = "the saved state is of another kind of loader, or of another mix"
        names = {**now, **arguments}
        names.pop("batch_size", None)  # the remaining clips are planned anew
        # Shares by size follow the episodes, whose error names the one that differs.
        by_size = names.keys() & {"shares"}
        check_same(problem, arguments, now, [name for name in names if name not in by_size])
        samples_of = state.epoch if loader.has_own_epochs else 0
        for number, order in enumerate(loader.orders):
            before = state.settings_before(number)
            check_source(order, state.sources[number], before, samples_of)
        check_same(problem, arguments, now, by_size)

    def keep_settings(self, state: State, num_shards: int) -> None:
        """Use the settings of a state in the epochs of its loader. If it has as many shards as
        there are now, raises `MemoryLimitError` with the smallest sufficient limit.
        """
        loader = self.of_saved
        if not has_batches_of(loader, state):
            return
        saved = [
            saved_settings(source, state.num_shards, *place)
            for source, place in zip(state.sources, loader.places(state), strict=True)
        ]
        pairs = [*zip(loader.orders, saved, strict=True)]
        if state.num_shards == num_shards:  # all fit, or none is kept
            for order, settings_by_place in pairs:
                for place, settings in settings_by_place.items():
                    order.memory_of(settings, *place)
        for order, settings_by_place in pairs:
            order.keep(settings_by_place)

    def to_json(self, position: State) -> dict[str, Any]:
        """A position with the inputs of the order."""
        loader, num_shards = self.at(position.epoch), position.num_shards
        position = replace(position, start=loader.start_of(position))
        samples_of = position.epoch if loader.has_own_epochs else 0
        sources = [
            source_state(order, num_shards, *place, samples_of)
            for order, place in zip(loader.orders, loader.places(position), strict=True)
        ]
        return replace(
            position,
            since=self.first_epoch(position.epoch),
            shared_arguments=loader.shared_arguments(position),
            sources=tuple(sources),
        ).to_json()

    def returned(self, position: State, rank: Shard) -> tuple[list[int], list[int]]:
        """The numbers of items that each worker of a rank has returned at a position, and has."""
        return _returned(self.at(position.epoch), position, rank)

    def is_at_end(self, state: State, shard: Shard) -> bool:
        """Whether all batches of its epoch were delivered at a saved position of these ranks."""
        is_same = (state.ranks, state.worker) == (shard.rank.count, None)
        if not is_same or not has_batches_of(self.of_saved, state):
            return False
        returned, most = _returned(self.of_saved, state, shard.rank)
        return returned == most

    def normalized_by(self, state: State) -> GrowingLoader:
        """The loaders with the normalizations after a state. Raises `StateError`."""
        saved = [source.normalization for source in state.sources]
        latest = self.latest.normalized_by(saved, self.latest.options.normalization)
        earlier = self.earlier
        if earlier is not None:  # one normalization in all epochs; a mix has other shares in each
            steps = [order.view.normalizations for order in latest.orders]
            earlier = earlier.normalized_by(steps, "state")
        return replace(self, latest=latest, earlier=earlier)


def continued(loader: Loader, position: State, ranks: int, workers: int) -> State:
    """A position on these ranks and workers; see `Loader.after_change`."""
    is_same = (position.ranks, position.workers) == (ranks, workers)
    if position.is_saved and not (is_same and has_batches_of(loader, position)):
        if position.batch or position.segments:
            position.check_of_rank()
        position = loader.after_change(position)
    return replace(position, ranks=ranks, workers=workers)


def has_batches_of(loader: Loader, state: State) -> bool:
    """Whether a state counts batches of the loader's size."""
    if state.clips is not None:
        return state.clips == loader.batch_size
    sizes = [order.settings.batch_size for order in loader.orders]
    return sizes == [source.settings.batch_size for source in state.sources]


def _returned(loader: Loader, position: State, rank: Shard) -> tuple[list[int], list[int]]:
    """See `GrowingLoader.returned`."""
    from seqrecord.loader.sampling.elastic import items_of_workers

    shards = rank.divided(position.workers)
    plans = [loader.plan(position.epoch, one, position.segments) for one in shards]
    most = [plan.num_batches for plan in plans]
    others = rank.count > 1 and loader.options.last_batch == "keep"
    return items_of_workers(most, position.batch, position.batch_size, others=others), most


def _size(order: ViewOrder) -> str:
    """The number of episodes, or of rows in a table of samples."""
    view = order.view
    if view.num_rows is not None:
        return f"{view.num_rows:,} rows of samples"
    return counted(len(view.episode_rows), "episode")
