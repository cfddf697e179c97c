"""`PlannedSampler`: numbers of a dataset's items, in the order in which an engine reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

import torch.distributed
from torch.utils.data import Sampler

from seqrecord.lerobot.dataset import LeRobotDataset
from seqrecord.lerobot.planned import Order, PlannedIndex, Share
from seqrecord.units import MAX_INT, check_integer, check_seed

_turns = count()


class PlannedSampler(Sampler[int]):
    """Gives each item's number once an epoch, in an order in which each frame is decoded once.

    If the decoded frames of a process fit into `memory_limit`, they stay in memory for all epochs,
    as those of `SeqRecordPipe`: each rank and worker then keeps its items.

    It takes the place of LeRobot's `EpisodeAwareSampler`. The order is that of `SeqRecordPipe`, a
    function of the dataset, these arguments and the epoch. An iteration is of the epoch after the
    one before, unless `set_epoch` or `load_state_dict` was called. The dataset knows from the
    numbers themselves which batch comes next, in worker processes too, and reads it ahead.

    The batches of an epoch are shared out as Accelerate and DataLoader do: batch i is for rank
    i mod `num_replicas`, and there for worker (i div `num_replicas`) mod `num_workers`. Each has a
    part of the epoch of its own. All give equally many batches, and what is left comes last.
    Where batches go elsewhere all items are right, but slow.

    Args:
        dataset: a `seqrecord.lerobot.LeRobotDataset`.
        batch_size: that of the DataLoader.
        num_workers: that of the DataLoader.
        num_replicas: how many processes share the batches; by default those of
            `torch.distributed`, or 1.
        rank: give the batches of this process alone, equally many in each, where nobody else shares
            them out, as for a `DistributedSampler`. The few items that are left are left out. By
            default all batches, for Accelerate.
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
        rank: int | None = None,
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
            check_integer("batch_size", batch_size, least=1, most=MAX_INT),
            drop_last_frames,
            memory_limit,
            check_integer("num_replicas", num_replicas, least=1, most=MAX_INT),
            max(1, check_integer("num_workers", num_workers, least=0, most=MAX_INT)),
        )
        parts, ranks = self._order.parts, self._order.ranks
        self._shares = range(parts)
        if rank is not None:
            rank = check_integer("rank", rank, least=0, most=ranks - 1)
            self._shares = range(rank, parts, ranks)
        self._first = dataset.first_items
        self._loader = self._order.loader(dataset.clips)
        self._num_clips = self._loader.clips(0).num_clips
        # Of the batches in which all shares take turns: parts differ by one clip at most.
        self._num_turns = self._num_clips // parts // self._order.batch_size * len(self._shares)
        self._is_rest_given = rank is None
        self._epoch, self._start = 0, 0

    def __len__(self) -> int:
        """Items of a whole epoch, also while one is resumed."""
        if self._is_rest_given:
            return self._num_clips
        return self._num_turns * self._order.batch_size

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        self._epoch = check_integer("epoch", epoch, least=0, most=MAX_INT)

    def state_dict(self) -> dict[str, int]:
        """Where the next iteration begins: `epoch`, and `start_index`, the items before it."""
        return {"epoch": self._epoch, "start_index": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration begins there, if it is of the same arguments and dataset."""
        start = check_integer("start_index", state["start_index"], least=0, most=MAX_INT)
        self.set_epoch(state["epoch"])
        self._start = start

    def __iter__(self) -> Iterator[int]:
        """One epoch; the next call is of the next one, whether this is finished or not."""
        epoch, start = self._epoch, self._start
        self._epoch, self._start = epoch + 1, 0
        return self._numbers(epoch, start)

    def _numbers(self, epoch: int, start: int) -> Iterator[int]:
        order, turn, size, count = (
            self._order,
            next(_turns),
            self._order.batch_size,
            self._num_turns,
        )
        begun = min(start // size, count)
        rests = [
            self._share(
                Share(order, epoch, share, turn), -(-(begun - i) // len(self._shares)) * size
            )
            for i, share in enumerate(self._shares)
        ]
        batches = (islice(rests[i % len(rests)], size) for i in range(begun, count))
        last = rests if self._is_rest_given else []
        every = chain(chain.from_iterable(batches), *last)
        return islice(every, start - begun * size, None)

    def _share(self, share: Share, first_clip: int) -> Iterator[int]:
        plan = self._order.plan(self._loader, share.epoch, share.number)
        round_index, before = plan.locate_clip(first_clip)
        clip = first_clip - before
        for begin, end in plan.spans(round_index):
            clips = plan.merged(begin, end, loads=False).clips
            for item in (self._first[clips.episode] + clips.start).tolist():
                if clip >= first_clip:
                    yield PlannedIndex.of(item, share, clip)
                clip += 1
