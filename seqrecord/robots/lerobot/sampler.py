"""`PlannedSampler`: item numbers in the order of an engine's plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import chain, count, cycle, islice
from typing import Any

import torch.distributed
from torch.utils.data import Sampler

from seqrecord.errors import StateError
from seqrecord.loader.pipes.callers import find_batch_shard
from seqrecord.loader.pipes.epochs import differing_epochs
from seqrecord.loader.pipes.rank_check import compare_ranks
from seqrecord.loader.pipes.source_states import source_state
from seqrecord.loader.sampling.sample_functions import SampleFunctions
from seqrecord.robots.lerobot.items import PlannedDataset
from seqrecord.robots.lerobot.planned import Order, PlannedIndex, Share
from seqrecord.store.text import repr_of
from seqrecord.store.units import MAX_INT, check, check_integer, check_seed

_DATASETS = "a LeRobotDataset or LeRobotMixDataset of seqrecord.lerobot"
_FUNCTIONS = "a list of functions, such as [one_per_episode()]"
_turns = count()


class PlannedSampler(Sampler[int]):
    """Sampler of item numbers in an order that decodes each frame once per epoch.

    It replaces LeRobot's `EpisodeAwareSampler`. The order is that of `SeqRecordPipe`: a function of
    the dataset, these arguments and the epoch. Each iteration is the next epoch, unless `set_epoch`
    or `load_state_dict` was called. The numbers carry their places, so the dataset reads the next
    batch ahead, also in worker processes.

    If the decoded frames of a process fit into `memory_limit`, they are kept in memory for all
    epochs, and each rank and worker keeps its items.

    Accelerate and DataLoader distribute batches in turn: batch i goes to rank i mod `num_replicas`,
    and there to worker (i div `num_replicas`) mod `num_workers`. Each has its own shard of the
    epoch. All get the same number of batches; remaining items come last. Accelerate fills the last
    batches with the first items of the epoch, also of a resumed one. If batches go elsewhere, items
    are correct but slow.

    Args:
        dataset: a `LeRobotDataset` or `LeRobotMixDataset` of `seqrecord.lerobot`.
        batch_size: batch size of the DataLoader, at least 1.
        num_workers: number of the DataLoader's workers.
        num_replicas: number of processes that share the batches. Default: from `torch.distributed`,
            or 1.
        rank: return only this process's batches, the same number in every process, if nothing else
            distributes them, as with a `DistributedSampler`; the few remaining items are dropped.
            Default: all batches, for Accelerate.
        seed: seed of the order.
        shuffle: shuffled order (default); if false, each shard keeps the stored order.
        drop_last_frames: number of frames to skip at the end of each episode.
        memory_limit: memory of each reading process, as in `SeqRecordPipe`.
        samples: functions of `seqrecord.samples` that choose an epoch's items of a
            `LeRobotDataset`, such as `[one_per_episode()]`; items lack their columns.

    Raises `ClipError` for invalid arguments, and if no frame is left. The first iteration raises
    `StateError` if the ranks of `torch.distributed` share the order and differ in it.

    Usage::

        dataset = seqrecord.lerobot.LeRobotDataset("user/name", root="lerobot/")
        sampler = seqrecord.lerobot.PlannedSampler(dataset, batch_size=2)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    """

    def __init__(
        self,
        dataset: PlannedDataset,
        *,
        batch_size: int,
        num_workers: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last_frames: int = 0,
        memory_limit: int | str | None = None,
        samples: SampleFunctions = (),
    ) -> None:
        if num_replicas is None:
            num_replicas = _num_ranks()
        self._order = Order(
            check_seed(seed),
            shuffle,
            check_integer("batch_size", batch_size, least=1, most=MAX_INT),
            drop_last_frames,
            memory_limit,
            check_integer("num_replicas", num_replicas, least=1, most=MAX_INT),
            max(1, check_integer("num_workers", num_workers, least=0, most=MAX_INT)),
            tuple(check("samples", samples, isinstance(samples, Iterable), _FUNCTIONS)),
        )
        shards, ranks = self._order.shards, self._order.ranks
        self._shares = range(shards)
        if rank is not None:
            rank = check_integer("rank", rank, least=0, most=ranks - 1)
            self._shares = range(rank, shards, ranks)
        check("dataset", dataset, hasattr(dataset, "planner"), _DATASETS)
        self._planner = dataset.planner
        self._loader = self._planner.loader(self._order)
        self._is_rest_given = rank is None
        self._epoch, self._start = 0, 0
        self._set_epoch: int | None = None  # by `set_epoch`, until an iteration has begun
        self._is_compared = False  # with other ranks

    def __len__(self) -> int:
        """The number of items in a whole epoch, also while resuming one."""
        return self._num_given(self._epoch)

    def _num_given(self, epoch: int) -> int:
        if self._is_rest_given:
            return self._planner.num_items(self._loader, self._order, epoch)
        return self._num_turns(epoch) * self._order.batch_size

    def _num_turns(self, epoch: int) -> int:
        return self._planner.num_turns(self._loader, self._order, self._shares, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, from its first item; in the epoch of a loaded state,
        from the state's position.
        """
        epoch = check_integer("epoch", epoch, least=0, most=MAX_INT)
        if epoch != self._epoch:
            self._start = 0
        self._epoch = self._set_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the start of the next iteration: `epoch`, and `start_index`, the number of items
        before it; inside an epoch also `order`, a digest of the dataset and the arguments.
        """
        return self.position(self._epoch, self._start)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the start of the next iteration. Raises `StateError` for other values than states,
        and inside an epoch if dataset and arguments differ; states without `order`, such as
        LeRobot's own, are not compared. Beyond the end of its epoch, the iteration raises it.

        A loader that Accelerate has prepared sets the epoch of each iteration, from 0 in each
        process: then call its `set_epoch` with the epoch of the state.
        """
        epoch, start = _position_in(state)
        if (error := self.differing_order(state, start)) is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        self._epoch, self._start = epoch, start

    def position(self, epoch: int, start: int) -> dict[str, Any]:
        """The state of a position; see `state_dict`."""
        state: dict[str, Any] = {"epoch": epoch, "start_index": start}
        return {**state, "order": self._order_digest} if start else state

    def differing_order(self, state: dict[str, Any], start: int) -> StateError | None:
        """The error if a state is inside an epoch of another order."""
        saved_order = state.get("order") if start else None
        if saved_order in (None, self._order_digest):
            return None
        return StateError(
            "the state is inside an epoch of another order",
            file=self._planner.name,
            expected="the dataset, arguments and numbers of ranks and workers of the saved run; or "
            'the start of an epoch, {"epoch": E, "start_index": 0}, also after an append',
            got=f"a state with order {repr_of(saved_order)} instead of {self._order_digest}",
        )

    @cached_property
    def _order_digest(self) -> str:
        """A digest of the inputs that determine an epoch's order, 32 hexadecimal digits."""
        text = json.dumps(self._inputs(0, 0), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __iter__(self) -> PlannedIteration:
        """Iterate over one epoch; the next iteration begins the next one, even if this one is
        unfinished. An iteration begins with its first item: torch makes some that never begin.
        """
        return PlannedIteration(self)

    def begin(self, epoch: int, start: int) -> Iterator[int]:
        """Begin an iteration: the item numbers of an epoch after `start` ones."""
        if not self._is_compared and self._order.ranks == _num_ranks() > 1:
            compare_ranks(partial(self._inputs, epoch, start))
            self._is_compared = True
        if start > (num_items := self._num_given(epoch)):
            raise StateError(
                "a position is beyond the end of its epoch",
                file=self._planner.name,
                expected=f"at most {num_items} items of epoch {epoch}",
                got=f"start_index {start}",
            )
        self._epoch, self._start, self._set_epoch = epoch + 1, 0, None
        turn = next(_turns)
        numbers = self._numbers(epoch, start, turn)
        if not start or not self._is_rest_given:
            return numbers
        return chain(numbers, self._repeated(epoch, num_items - start, turn))

    def resume(self, epoch: int, start: int) -> StateError | None:
        """Set the iteration after one that a loader resumes, as it starts.

        Return the error if `set_epoch` has set another epoch, and `start` items are not all.
        """
        self._epoch, self._start = epoch + 1, 0
        if self._set_epoch in (None, epoch):
            return None
        self._epoch = self._set_epoch
        is_inside = start < self._num_given(epoch)
        return differing_epochs(epoch, self._set_epoch) if is_inside else None

    def _inputs(self, epoch: int, start: int) -> dict[str, Any]:
        """A position and the inputs of the order."""
        orders, shards = self._loader.orders, self._order.shards
        sources = [asdict(source_state(order, shards)) for order in orders]
        return {
            "epoch": epoch,
            "start_index": start,
            "order": asdict(replace(self._order, functions=())),
            "sources": sources,
        }

    def _repeated(self, epoch: int, num_items: int, turn: int) -> Iterator[int]:
        """The first items of an epoch that fill the last batches of `num_items` remaining ones.

        Accelerate fills them with the first items of an iteration, in each process. Those of a
        resumed one are others than the epoch's, which an uninterrupted one repeats.
        """
        shard = find_batch_shard()
        if shard is None or shard.drop_last or not shard.even_batches or shard.batch_size is None:
            return iter(())
        size = shard.batch_size * (1 if shard.split_batches else shard.num_processes)
        first_items = islice(self._numbers(epoch, 0, turn), size)
        return islice(cycle(first_items), -num_items % size)

    def _numbers(self, epoch: int, start: int, turn: int) -> Iterator[int]:
        order, count = self._order, self._num_turns(epoch)
        size = order.batch_size
        num_batches = min(start // size, count)  # before the start
        streams = []
        for i, number in enumerate(self._shares):
            clip = -(-(num_batches - i) // len(self._shares)) * size
            streams.append(self._share(Share(order, epoch, number, turn), clip))
        batches = (islice(streams[i % len(streams)], size) for i in range(num_batches, count))
        tails = streams if self._is_rest_given else []
        item_numbers = chain(chain.from_iterable(batches), *tails)
        return islice(item_numbers, start - num_batches * size, None)

    def _share(self, share: Share, begin: int) -> Iterator[int]:
        numbers = self._planner.numbers(self._loader, share, begin)
        for clip, number in enumerate(numbers, begin):
            yield PlannedIndex.of(number, share, clip)


class PlannedIteration(Iterator[int]):
    """The item numbers of an epoch, with the position that a StatefulDataLoader saves and loads."""

    def __init__(self, sampler: PlannedSampler) -> None:
        self._sampler = sampler
        self._position: tuple[int, int] | None = None  # the sampler's until the first item
        self._numbers: Iterator[int] | None = None
        self._error: StateError | None = None

    def __next__(self) -> int:
        if self._error:
            raise self._error
        epoch, start = self._place()
        if self._numbers is None:
            self._numbers = self._sampler.begin(epoch, start)
            self._position = epoch, start
        number = next(self._numbers)
        self._position = epoch, start + 1
        return number

    def _place(self) -> tuple[int, int]:
        return self._position or _position_in(self._sampler.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as `PlannedSampler.state_dict`."""
        return self._sampler.position(*self._place())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position. The first `next` raises `StateError` if the position is inside an
        epoch, and `set_epoch` of the sampler has set another one, or the order differs.
        """
        epoch, start = self._position = _position_in(state)
        error = self._sampler.resume(epoch, start)
        self._error, self._numbers = error or self._sampler.differing_order(state, start), None


def _position_in(state: Any) -> tuple[int, int]:
    """Epoch and number of items in a saved position. Raises `StateError` for other values."""
    if not isinstance(state, Mapping) or not state.keys() >= {"epoch", "start_index"}:
        raise StateError(
            "the value is not the state of a sampler",
            expected='a dict such as {"epoch": 3, "start_index": 0}',
            got=repr_of(state),
        )
    epoch, start = (
        check_integer(name, state[name], least=0, most=MAX_INT) for name in ("epoch", "start_index")
    )
    return epoch, start


def _num_ranks() -> int:
    """The world size of `torch.distributed`, or 1."""
    is_one = not torch.distributed.is_available() or not torch.distributed.is_initialized()
    return 1 if is_one else torch.distributed.get_world_size()
