"""Indices of the planned order, and the reader that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Protocol

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.pipes.distributed import this_worker, warn_once
from seqrecord.loader.pipes.growing_loader import Loader
from seqrecord.loader.pipes.options import ClipOptions, LoaderOptions
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.loader.pipes.view_order import plan_clips
from seqrecord.loader.sampling.built_ins import skip_last
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.sample_functions import SampleFunctions
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import shown_place


@dataclass(frozen=True)
class Order:
    """The inputs that determine the order of a dataset's clips, without the epoch.

    Batch i belongs to rank i mod `ranks`, and to its worker (i div `ranks`) mod `workers`.
    """

    seed: int
    shuffle: bool
    batch_size: int
    drop_last_frames: int
    memory_limit: int | str | None
    ranks: int
    workers: int
    functions: SampleFunctions = ()

    @property
    def shards(self) -> int:
        return self.ranks * self.workers

    def shard(self, share: int) -> Shard:
        """The shard of the batches i with `i % shards == share`."""
        worker, rank = divmod(share, self.ranks)
        return Shard(rank * self.workers + worker, self.shards, self.workers)


@dataclass(frozen=True)
class Share:
    """The batches of one rank and worker in one iteration over a sampler, the `turn`."""

    order: Order
    epoch: int
    number: int
    turn: int


class PlannedIndex(int):
    """An item's number with its place: clip `clip` of a share. Picklable."""

    share: Share
    clip: int

    @classmethod
    def of(cls, value: int, share: Share, clip: int) -> PlannedIndex:
        index = cls(value)
        index.share, index.clip = share, clip
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedIndex.of, (int(self), self.share, self.clip)


class ItemPlanner(Protocol):
    """Plans and reads the items of a dataset. Picklable.

    A loader of an order plans `order.shard(share)` for the batches of a share.
    """

    @property
    def name(self) -> str:
        """The dataset, for messages."""

    def loader(self, order: Order) -> Loader:
        """The loader that plans and reads the items."""

    def num_turns(self, loader: Any, order: Order, shares: Sequence[int], epoch: int) -> int:
        """The number of batches that these shares give in turn in an epoch."""

    def num_items(self, loader: Any, order: Order, epoch: int) -> int:
        """The number of items in an epoch for all shares, including those after the last turn."""

    def numbers(self, loader: Any, share: Share, begin: int) -> Iterator[int]:
        """The item numbers of a share from its clip `first` on."""

    def items(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Convert a batch of the loader to items."""


class ClipPlanner:
    """Plans and reads the items of one dataset.

    Args:
        dataset: the dataset.
        options: its items as clips.
        first_items: number of the first item of each episode, int64 [episodes].
        items: converts a batch to items.
    """

    def __init__(
        self,
        dataset: Dataset,
        options: ClipOptions,
        first_items: IntArray,
        items: Callable[[dict[str, Any]], list[dict[str, Any]]],
    ) -> None:
        self._dataset, self._options, self._first_items = dataset, options, first_items
        self.items = items

    @property
    def name(self) -> str:
        return shown_place(self._dataset.url)

    def loader(self, order: Order) -> ViewLoader:
        options = self._options.with_functions(skip_last(order.drop_last_frames), *order.functions)
        arguments = {field.name: getattr(options, field.name) for field in fields(ClipOptions)}
        arguments |= {
            n: getattr(order, n) for n in ("seed", "shuffle", "batch_size", "memory_limit")
        }
        options = LoaderOptions(**arguments, last_batch="keep", rank=(0, order.ranks))
        return ViewLoader(plan_clips(self._dataset, options))

    def num_turns(self, loader: ViewLoader, order: Order, shares: Sequence[int], epoch: int) -> int:
        """Shards differ by one clip at most."""
        num_clips = loader.order.clips(epoch).num_clips
        return num_clips // order.shards // order.batch_size * len(shares)

    def num_items(self, loader: ViewLoader, order: Order, epoch: int) -> int:  # noqa: ARG002
        return loader.order.clips(epoch).num_clips

    def numbers(self, loader: ViewLoader, share: Share, begin: int) -> Iterator[int]:
        plan = loader.plan(share.epoch, share.order.shard(share.number))
        return clip_numbers(plan, begin, self._first_items)


def clip_numbers(plan: EpochPlan, begin: int, first_items: IntArray) -> Iterator[int]:
    """The item numbers of a plan's clips from clip `first` on."""
    round_index, num_skipped = plan.locate_clip(begin)
    clips = (plan.clips(*span) for span in plan.spans(round_index))
    item_numbers = (
        item
        for round_clips in clips
        for item in (first_items[round_clips.episode] + round_clips.start).tolist()
    )
    return islice(item_numbers, num_skipped, None)


class PlannedReader:
    """Reads the items of a share ahead, in their order.

    Each process has one reader, which follows one share per turn. Items in another order are not
    read ahead.
    """

    def __init__(self, planner: ItemPlanner) -> None:
        self.stats = EngineStats()
        self._planner = planner
        self._loader: tuple[Order, Loader] | None = None
        self._share: Share | None = None
        self._batches: Iterator[dict[str, Any]] = iter(())
        self._batch, self._items = 0, list[dict[str, Any]]()  # that was read last

    def take(self, index: PlannedIndex) -> dict[str, Any] | None:
        """Return the item; `None` if it is neither in the current batch nor in the next one."""
        share = index.share
        batch, row = divmod(index.clip, share.order.batch_size)
        if share != self._share:
            if self._share is not None and self._share.turn == share.turn:
                return None  # a last batch, which has items of several shares
            self._begin(share, batch)
        if batch == self._batch + 1:
            if (clips := next(self._batches, None)) is None:
                return None  # after an error
            self._items, self._batch = self._planner.items(clips), batch
        if batch == self._batch:
            return self._items[row]
        if batch > self._batch:
            self._say("num_replicas is not how many processes share the batches")
        return None

    def _begin(self, share: Share, batch: int) -> None:
        if this_worker()[1] != share.order.workers:
            self._say(f"num_workers is not {this_worker()[1]}, as that of the DataLoader")
        self._batches = iter(())  # ends the engine that runs
        self._items.clear()
        if self._loader is None or self._loader[0] != share.order:
            self._loader = share.order, self._planner.loader(share.order)
        self._share, self._batch = share, batch - 1
        loader = self._loader[1]
        plan = loader.plan(share.epoch, share.order.shard(share.number))
        self._batches = iter(loader.run(plan, batch=batch, stats=self.stats))

    def _say(self, problem: str) -> None:
        name = self._planner.name
        warn_once(f"{name}: PlannedSampler's {problem}: items are read one by one, which is slow")
