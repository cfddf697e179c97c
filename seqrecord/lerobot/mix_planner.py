"""`MixPlanner`: the order of a mix's items, and their conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seqrecord.clips.tables import IntArray
from seqrecord.lerobot.planned import Order, Share, clip_numbers
from seqrecord.pipes.mixing.loader import MixLoader
from seqrecord.pipes.mixing.sources import MixPlan, SourceLoader


class MixPlanner:
    """Plans and reads the items of a mix, in the order of `SeqRecordMix`.

    Args:
        name: the mix, for messages.
        loader: makes the loader of an order.
        first_items: for each source, the number of the first item of each episode, int64.
        items: converts a batch to items.
    """

    def __init__(
        self,
        name: str,
        loader: Callable[[Order], MixLoader],
        first_items: Mapping[str, IntArray],
        items: Callable[[dict[str, Any]], list[dict[str, Any]]],
    ) -> None:
        self.name, self.loader, self.items = name, loader, items
        self._first_items = first_items

    def num_turns(self, loader: MixLoader, order: Order, shares: Sequence[int]) -> int:
        return sum(loader.plan(0, order.shard(share)).num_batches for share in shares)

    def num_items(self, loader: MixLoader, order: Order) -> int:
        """All batches are full."""
        return self.num_turns(loader, order, range(order.shards)) * order.batch_size

    def numbers(self, loader: MixLoader, share: Share, first: int) -> Iterator[int]:
        plan = loader.plan(share.epoch, share.order.shard(share.number))
        begin, skipped = divmod(first, plan.batch_size)
        given = plan.given(begin).tolist()
        sources = enumerate(loader.loaders.values())
        streams = [self._stream(source, plan, given[number]) for number, source in sources]
        for batch in range(begin, plan.num_batches):
            rows = [next(streams[number]) for number in plan.sources(batch).tolist()]
            yield from rows[skipped:]
            skipped = 0

    def _stream(self, source: SourceLoader, plan: MixPlan, clip: int) -> Iterator[int]:
        """The item numbers of a source from its clip `clip` on, over all its epochs."""
        first_items = self._first_items[source.name]
        while True:
            epoch, before = source.locate(clip, plan.shard.count)
            of_epoch = source.planner.plan(epoch, plan.shard)
            yield from clip_numbers(of_epoch, clip - before, first_items)
            clip = before + of_epoch.num_clips
