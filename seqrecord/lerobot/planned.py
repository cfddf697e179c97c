"""Indices of the planned order, and the reader that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.distributed import this_worker, warn_once
from seqrecord.pipes.loaders import SeqRecordMapDataset
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.pipes.selecting import select
from seqrecord.sampling import Plan, Shard


@dataclass(frozen=True)
class Order:
    """The inputs of the order of a dataset's clips, without the epoch.

    Batch i belongs to rank i mod `ranks`, and to its worker (i div `ranks`) mod `workers`.
    """

    seed: int
    shuffle: bool
    batch_size: int
    drop_last_frames: int
    memory_limit: int | str | None
    ranks: int
    workers: int

    @property
    def shards(self) -> int:
        return self.ranks * self.workers

    def loader(self, clips: SeqRecordMapDataset) -> ClipLoader:
        """The loader that plans and reads these clips."""
        given = {item.name: getattr(clips.options, item.name) for item in fields(ClipOptions)}
        given |= {item.name: getattr(self, item.name) for item in fields(self)[:5]}
        options = LoaderOptions(**given, even_batches=False, rank=0, world_size=self.ranks)
        return ClipLoader(select(clips.dataset, options), options)

    def plan(self, loader: ClipLoader, epoch: int, share: int) -> Plan:
        """The plan of the batches i with `i % shards == share`."""
        worker, rank = divmod(share, self.ranks)
        return loader.plan(epoch, Shard(rank * self.workers + worker, self.shards))


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
        made = cls(value)
        made.share, made.clip = share, clip
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedIndex.of, (int(self), self.share, self.clip)


class PlannedReader:
    """Reads the items of a share ahead, in their order.

    Each process has one reader, which follows one share per turn. Items in another order are not
    read ahead.

    Args:
        clips: the dataset's items by number.
        items: converts a batch to items.
    """

    def __init__(
        self, clips: SeqRecordMapDataset, items: Callable[[dict[str, Any]], list[dict[str, Any]]]
    ) -> None:
        self.stats = EngineStats()
        self._clips, self._make = clips, items
        self._loader: tuple[Order, ClipLoader] | None = None
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
            if (made := next(self._batches, None)) is None:
                return None  # after an error
            self._items, self._batch = self._make(made), batch
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
            self._loader = share.order, share.order.loader(self._clips)
        self._share, self._batch = share, batch - 1
        self._batches = self._read(self._loader[1], share, batch)

    def _read(self, loader: ClipLoader, share: Share, batch: int) -> Iterator[dict[str, Any]]:
        plan = share.order.plan(loader, share.epoch, share.number)
        engine = loader.start(plan, batch=batch, stats=self.stats)
        try:
            for number, made in enumerate(engine, batch):
                [clips] = loader.to_clips(made, plan, number)
                del made
                yield clips
            engine.close()
        finally:
            engine.drop()

    def _say(self, problem: str) -> None:
        url = self._clips.dataset.url
        warn_once(f"{url}: PlannedSampler's {problem}: items are read one by one, which is slow")
