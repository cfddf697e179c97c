"""The items of a channel: batches, or several small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from seqrecord.loader.engine.batches import OpenBatch
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers
from seqrecord.loader.engine.clip_gatherer import Job
from seqrecord.loader.engine.executor import BatchSlots
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.frame_sizes import CONSUMER, Memory


@dataclass(frozen=True)
class ItemNumbers:
    """The items of a channel: batches of an epoch, `together` of which are one item, except the
    first one, because the consumer waits for it.

    Attributes:
        first: the first batch.
        last: the batch behind the last one.
        together: batches of an item.
    """

    first: int
    last: int
    together: int = 1

    @property
    def numbers(self) -> tuple[int, int]:
        """The first item, and the one behind the last."""
        if self.together == 1:
            return self.first, self.last
        left = self.last - self.first
        return 0, min(left, 1) + max(0, -(-(left - 1) // self.together))

    def batches(self, number: int) -> tuple[int, int]:
        """The batches `[first, last)` of an item."""
        if self.together == 1:
            return number, number + 1
        if not number:
            return self.first, self.first + 1
        begin = self.first + 1 + (number - 1) * self.together
        return begin, min(begin + self.together, self.last)


@dataclass(eq=False)
class PlanItems:
    """The items of a channel that delivers the batches of one plan.

    Attributes:
        job: the plan.
        items: single clips may be joined.
    """

    job: Job
    items: ItemNumbers
    _latest: tuple[int, int] = (-1, 0)  # item, and its clips

    def _num_clips(self, number: int) -> int:
        """The clips of an item."""
        if self._latest[0] != number:
            first, last = self.items.batches(number)
            plan = self.job.plan
            self._latest = number, plan.first_clip(last) - plan.first_clip(first)
        return self._latest[1]

    def slots(self, number: int) -> Sequence[BatchSlots]:
        """All slots of an item, which has clips of one dataset."""
        return [BatchSlots(0, np.arange(self._num_clips(number)))]

    def begin(
        self, buffers: Buffers[Any], make: Callable[..., OpenBatch], number: int
    ) -> OpenBatch:
        """Make an item by its number."""
        plan, size = self.job.plan, self._num_clips(number)
        form, num_rows, ends = self.job.form(number), size, None
        frames = None if form is None else form.frames
        if plan.is_packed:
            ends, frames = np.cumsum(plan.batches.lengths(number)), None
            num_rows = int(ends[-1])
        return make(size, partial(buffers.begin_batch, num_rows, form), frames=frames, ends=ends)

    def needs(self, memory: Memory, device: torch.device | None, *, shared: bool) -> BufferNeeds:
        """The needs of batches, without arenas."""
        plan = self.job.plan
        return BufferNeeds(
            (),
            self.job.made,
            self.job.lengths,
            _most_clips(plan) * self.items.together,
            memory.prefetch + CONSUMER,  # in the channel, and the consumer's last two
            device,
            shared,
            _most_frames(plan),
            memory.max_loads + memory.max_read_ahead,
        )


def _most_clips(plan: EpochPlan) -> int:
    """The clips of a plan's largest batch."""
    if plan.costs is not None:
        sizes = (plan.first_clip(i + 1) - plan.first_clip(i) for i in range(plan.num_batches))
        return max(plan.costs.most_rows, max(sizes, default=1))
    if plan.batches.draws is not None:
        return plan.batches.size  # in every epoch, so that buffers are kept
    return plan.first_clip(1) if plan.num_batches else 1


def _most_frames(plan: EpochPlan) -> int | None:
    """The frames of a plan's largest batch, padding included, if frames vary between batches."""
    costs, batches = plan.costs, plan.batches
    if costs is None:
        return batches.most_frames
    if costs.form == "stacked":
        return None
    return max(costs.most_frames, batches.most_listed(pads=costs.form == "padded"))
