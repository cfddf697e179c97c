"""`MixPlanner`: the order of a mix's items."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.mixing.loader import MixLoader
from seqrecord.loader.mixing.mix import SeqRecordMix, mix_loader
from seqrecord.loader.mixing.order import MixPlan, StoppingStrategy
from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset
from seqrecord.loader.pipes.option_values import Vector
from seqrecord.loader.sampling.built_ins import skip_last
from seqrecord.robots.lerobot.mix_sources import MixEpisodes, MixSource
from seqrecord.robots.lerobot.planned import Order, Share, clip_numbers
from seqrecord.store.units import raise_if


class MixPlanner:
    """Plans and reads the items of a mix, in the order of `SeqRecordMix`.

    Args:
        sources: the sources, with the windows of a policy.
        numbers: the episodes with items.
        loader: the mix as given.
        stop: end of an epoch. Default: that of the mix.
        items: converts a batch to items.
    """

    def __init__(
        self,
        sources: Sequence[MixSource],
        numbers: MixEpisodes,
        loader: MixLoader,
        stop: StoppingStrategy | None,
        items: Callable[[dict[str, Any]], list[dict[str, Any]]],
    ) -> None:
        self.name, self.items = f"mix of {', '.join(loader.loaders)}", items
        self._first_items = numbers.of_sources
        self._rows = {source.name: numbers.chosen_rows(source).tolist() for source in sources}
        self._sources = [*sources]
        problem, expected = "weights change by epoch", "constant weights in LeRobot's training"
        raise_if(not loader.order.schedule.is_constant, problem, expected, "weights by epoch")
        self._counts = dict(zip(loader.loaders, loader.order.schedule.counts_in(0), strict=True))
        self.has_camera_masks = loader.form.camera_padding_masks
        self._options, self._join, self._form = loader.options, loader.join, loader.form
        self._epoch_clips = loader.order.epoch_clips if stop is None else None
        if self._epoch_clips is not None:  # of the selected episodes
            num_frames = sum(int(source.lengths.sum()) for source in sources)
            self._epoch_clips = self._epoch_clips * numbers.num_items // num_frames
        self._stop = loader.order.stop if stop is None else stop

    def shown(self) -> str:
        """The sources with their shares."""
        total = sum(self._counts.values())
        shares = (f"{name} {count / total:.3g}" for name, count in self._counts.items())
        return ", ".join(shares)

    def identity(self) -> str:
        """A digest of the sources, their episodes and features, and the shares."""
        facts = [
            [
                source.name,
                source.dataset.contents.identity(np.array(rows)),
                self._counts[source.name],
            ]
            for source in self._sources
            if (rows := self._rows[source.name])
        ]
        text = json.dumps([facts, self._join], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def loader(self, order: Order) -> MixLoader:
        """The mix with the windows of a policy."""
        if order.functions:
            expected = "samples of each source of the mix"
            raise ClipError("a sampler of a mix takes no samples", expected=expected)
        datasets = {}
        for source in self._sources:
            rows = np.array(self._rows[source.name], np.int64)
            options = replace(
                source.options.with_functions(skip_last(order.drop_last_frames)),
                episodes=source.dataset.contents.numbers_of(rows).tolist(),
                split=None,
                shuffle=source.options.shuffle and order.shuffle,
            )
            if not self._rows[source.name]:
                raise ClipError(
                    f"no episode of source {source.name!r} is selected",
                    expected="an episode of each source",
                )
            datasets[source.name] = SeqRecordIterableDataset.from_options(source.dataset, options)
        stop = self._stop
        if self._epoch_clips is not None:  # of `repeat` and `choose`
            stop = max(1, self._epoch_clips // (order.ranks * order.batch_size))
        mix = SeqRecordMix(
            datasets,
            weights=self._counts,
            stopping_strategy=stop,
            batch_size=order.batch_size,
            features=self._join,
            vectors=Vector(normalize="mean_std") if self._form.own_units is None else None,
            camera_padding_masks=self._form.camera_padding_masks,
            single_source_batches=False,
            seed=order.seed,
            memory_limit=order.memory_limit or self._options.memory_limit,
            rank=(0, order.ranks),
            engine=self._options.engine,
        )
        return mix_loader(mix)

    def num_turns(self, loader: MixLoader, order: Order, shares: Sequence[int], epoch: int) -> int:
        return sum(loader.plan(epoch, order.shard(share)).num_batches for share in shares)

    def num_items(self, loader: MixLoader, order: Order, epoch: int) -> int:
        """All batches are full."""
        return self.num_turns(loader, order, range(order.shards), epoch) * order.batch_size

    def numbers(self, loader: MixLoader, share: Share, begin: int) -> Iterator[int]:
        plan = loader.plan(share.epoch, share.order.shard(share.number))
        first_batch, skipped = divmod(begin, plan.batches.size)
        starts = plan.given(first_batch).tolist()
        streams = [
            self._stream(loader, plan, number, starts[number])
            for number in range(len(loader.loaders))
        ]
        for batch in range(first_batch, plan.num_batches):
            rows = [next(streams[number]) for number in plan.datasets(batch, batch + 1).tolist()]
            yield from rows[skipped:]
            skipped = 0

    def _stream(self, loader: MixLoader, plan: MixPlan, number: int, clip: int) -> Iterator[int]:
        """The item numbers of a dataset from its clip `clip` on, over all its passes."""
        first_items = self._first_items[[*loader.loaders][number]]
        for epoch_plan, first in loader.order.plans(plan, number, clip):
            yield from clip_numbers(epoch_plan, max(0, clip - first), first_items)
