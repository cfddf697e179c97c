"""`PlannedSampler`: numbers of a dataset's items, in the order in which an engine reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

import torch.distributed
from torch.utils.data import Sampler

from seqrecord.lerobot.dataset import LeRobotDataset
from seqrecord.lerobot.planned import Order, PlannedIndex, Share
from seqrecord.sampling import Plan
from seqrecord.units import MOST, check_integer, check_seed

__all__ = ["PlannedSampler"]

_turns = count()


class PlannedSampler(Sampler[int]):
    """Gives each item's number once an epoch, in an order in which each frame is decoded once.

    It takes the place of LeRobot's `EpisodeAwareSampler`. The order is that of `SeqRecordPipe`, a
    function of the dataset, these arguments and the epoch. An iteration is of the epoch after the
    one before, unless `set_epoch` or `load_state_dict` was called. The dataset knows from the
    numbers themselves which batch comes next, in worker processes too, and reads it ahead.

    The batches of an epoch are shared out as Accelerate and DataLoader do: batch i is for rank
    i mod `num_replicas`, and there for worker (i div `num_replicas`) mod `num_workers`. Each has a
    part of the epoch of its own. All give equally many batches, and what is left comes last.
    With a DataLoader that shares them out otherwise all is right, but slow.

    Args:
        dataset: a `seqrecord.lerobot.LeRobotDataset`.
        batch_size: that of the DataLoader.
        num_workers: that of the DataLoader.
        num_replicas: how many processes Accelerate shares the batches out to; by default that of
            `torch.distributed`, or 1. Each process has the same sampler.
        seed: the order is a function of it.
        shuffle: if false, each part has its frames in stored order.
        drop_last_frames: leave out so many last frames of each episode.
        memory_limit: of each process that reads, as for `SeqRecordPipe`.

    Raises `ClipError` for arguments that make no sense, and where no frame is left.
    """

    def __init__(
        self,
        dataset: LeRobotDataset,
        *,
        batch_size: int,
        num_workers: int = 0,
        num_replicas: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last_frames: int = 0,
        memory_limit: int | str | None = None,
    ) -> None:
        if num_replicas is None:
            is_one = not torch.distributed.is_available() or not torch.distributed.is_initialized()
            num_replicas = 1 if is_one else torch.distributed.get_world_size()
        self._order = Order(
            check_seed(seed),
            shuffle,
            check_integer("batch_size", batch_size, least=1, most=MOST),
            drop_last_frames,
            memory_limit,
            check_integer("num_replicas", num_replicas, least=1, most=MOST),
            max(1, check_integer("num_workers", num_workers, least=0, most=MOST)),
        )
        self._first = dataset.first_items
        self._loader = self._order.loader(dataset.clips)
        self._num_clips = self._loader.clips(0).num_clips
        self._epoch, self._start = 0, 0

    def __len__(self) -> int:
        """Items of a whole epoch, also while one is resumed."""
        return self._num_clips

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        self._epoch = check_integer("epoch", epoch, least=0, most=MOST)

    def state_dict(self) -> dict[str, int]:
        """Where the next iteration begins: `epoch`, and `start_index`, the items before it."""
        return {"epoch": self._epoch, "start_index": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration begins there, if it is of the same arguments and dataset."""
        start = check_integer("start_index", state["start_index"], least=0, most=MOST)
        self.set_epoch(state["epoch"])
        self._start = start

    def __iter__(self) -> Iterator[int]:
        """One epoch; the next call is of the next one, whether this is finished or not."""
        epoch, start = self._epoch, self._start
        self._epoch, self._start = epoch + 1, 0
        return self._numbers(epoch, start)

    def _numbers(self, epoch: int, start: int) -> Iterator[int]:
        order, turn = self._order, next(_turns)
        size, parts = order.batch_size, order.parts
        plans = [order.plan(self._loader, epoch, number) for number in range(parts)]
        whole = min(plan.num_clips for plan in plans) // size * parts
        begun = min(start // size, whole)  # of the batches in which all take turns
        rests = [
            self._share(plan, Share(order, epoch, i, turn), -(-(begun - i) // parts) * size)
            for i, plan in enumerate(plans)
        ]
        batches = (islice(rests[i % parts], size) for i in range(begun, whole))
        every = chain(chain.from_iterable(batches), *rests)
        return islice(every, start - begun * size, None)

    def _share(self, plan: Plan, share: Share, first_clip: int) -> Iterator[int]:
        round_index, before = plan.locate_clip(first_clip)
        clip = first_clip - before
        for begin, end in plan.spans(round_index):
            clips = plan.merged(begin, end, loads=False).clips
            for item in (self._first[clips.episode] + clips.start).tolist():
                if clip >= first_clip:
                    yield PlannedIndex.of(item, share, clip)
                clip += 1
