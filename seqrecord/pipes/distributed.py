"""This process's shard of an epoch, among ranks and DataLoader workers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError, StateError
from seqrecord.processes.machine import usable_cores
from seqrecord.sampling import Shard

_logger = logging.getLogger("seqrecord")
_warned: dict[str, object] = {}  # by the notice, of the thread that says it


class Ranks:
    """This process's rank, given or found, and its shards of an epoch. Picklable.

    Args:
        rank, world_size: the rank, and how many there are. `world_size=1` gives the whole epoch to
            every process. Without both the rank is found anew each time: `torch.distributed`
            tells it where it is initialized, else the environment. Where Accelerate runs on several
            ranks they must be given: it may distribute to the ranks what each is given, and whether
            it does, a process cannot tell.

    A process started by this one, such as a DataLoader's worker, may have no process group, nor
    this process's environment: the rank found here goes with the pickled object, and holds there.
    """

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        self.given = None if world_size is None else Shard(rank or 0, world_size)
        self._sent: Shard | None = None  # found by the process that pickled this
        self._senders: frozenset[int] = frozenset()  # it, and its own sender

    def __getstate__(self) -> dict[str, Any]:
        found = None
        with suppress(ClipError):  # not now: who iterates there will find the same
            found = self._find()
        if self.given is None:
            _refuse_accelerate(found)
        senders = frozenset() if self._received() is None else self._senders
        return {**self.__dict__, "_sent": found, "_senders": senders | {os.getpid()}}

    def current(self) -> Shard:
        """This process's rank: the shard of an epoch that all of its workers have together.

        Raises `ClipError` if the environment makes no sense, and where Accelerate has several
        ranks and none was given.
        """
        if self.given is not None:
            return self.given
        found = self._find()
        _refuse_accelerate(found)
        return found or Shard()

    @property
    def in_process_group(self) -> bool:
        """Whether this process shares epochs with others of a `torch.distributed` process group."""
        return _of_process_group() is not None and self.current().count > 1

    def shard(self) -> Shard:
        """The shard of this rank and worker: shards are numbered rank by rank, worker by worker."""
        worker, workers = this_worker()
        return self.worker_shards(workers)[worker]

    def worker_shards(self, num_workers: int) -> list[Shard]:
        """The shards of this rank's workers, in a process that has so many of them."""
        rank = self.current()
        first, count = rank.index * num_workers, rank.count * num_workers
        return [Shard(first + i, count) for i in range(num_workers)]

    def shard_with_filter(self, num_instances: int) -> Shard:
        """The shard for a pipe before a filter that distributes to so many instances.

        A `.sharding_filter()` is told of its instances by a DataLoader: of workers, and of ranks
        where `torch.distributed` is initialized. It may not be told of any.

        Raises `ClipError` where the filter distributes to other ranks than the given ones.
        """
        rank, (_, workers) = self.current(), this_worker()
        if num_instances == 1:
            return self.shard()
        if num_instances == workers:
            return rank
        if self.given is not None and num_instances != self.given.count * workers:
            raise ClipError(
                "a .sharding_filter() distributes to the ranks of torch.distributed, not to those "
                "that were given",
                expected=f"{self.given.count} ranks; leave the filter out: without one, ranks and "
                "workers get shards of their own",
                got=f"{num_instances // workers} ranks",
            )
        return Shard()

    def _find(self) -> Shard | None:
        return _of_process_group() or self._received() or _of_environment(os.environ)

    def _received(self) -> Shard | None:
        """The rank that a process has sent which has started this one."""
        parent = multiprocessing.parent_process()
        return self._sent if parent is not None and parent.pid in self._senders else None


def items_with_filter(num_items: int) -> int | None:
    """How many of the whole epoch's items a `.sharding_filter()` leaves to this rank's workers.

    `None` where it distributes to workers only, for `torch.distributed` is not initialized. A
    DataLoader numbers the workers of all ranks so: the first one of each rank, then the second …
    So the workers of rank r of n have together every n-th item from r on.
    """
    rank = _of_process_group()
    return None if rank is None else len(range(rank.index, num_items, rank.count))


def batches_of_workers(most: Sequence[int], batches: int) -> list[int]:
    """How many batches each of a DataLoader's workers has given, of so many together.

    Worker i has at most `most[i]`. They take turns, but for those that have no more.

    Raises `StateError` for more batches than there are.
    """
    if batches > sum(most):
        raise StateError(
            "a position is beyond the end of its epoch",
            expected=f"at most {sum(most)} batches",
            got=f"batches={batches}",
        )
    rounds = range(max(most) + 1)
    whole = bisect_right(rounds, batches, key=lambda n: sum(min(n, m) for m in most)) - 1
    given = [min(whole, m) for m in most]
    for worker in [i for i, m in enumerate(most) if m > whole][: batches - sum(given)]:
        given[worker] += 1
    return given


def worker_threads() -> int:
    """This process's share of the cores."""
    return max(1, usable_cores() // this_worker()[1])


def warn_once(notice: str) -> None:
    """Log a warning to `seqrecord`, once in a process, and not from each rank and worker again.

    Every rank and worker comes to say the same. So the first one says it, as far as a process
    knows by now which it is.
    """
    rank = Shard()
    with suppress(ClipError):  # raised where the rank is needed
        rank = _of_process_group() or _of_environment(os.environ) or rank
    own = object()
    if not rank.index and not this_worker()[0] and _warned.setdefault(notice, own) is own:
        _logger.warning("%s", notice)


def this_worker() -> tuple[int, int]:
    """This DataLoader's worker, and how many there are; the only one outside of workers."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _refuse_accelerate(found: Shard | None) -> None:
    """An error where only a part of a shard could arrive. See `Ranks`."""
    accelerate = sys.modules.get("accelerate.state")
    if found is None or found.count == 1 or accelerate is None:
        return
    kind = accelerate.PartialState
    # To call it sets Accelerate up, if nothing has yet.
    if object.__new__(kind).initialized and kind().num_processes > 1:
        raise ClipError(
            "Accelerate runs, which distributes to its ranks what a prepared loader gives: this "
            "loader must be told which shard to give",
            expected="world_size=1 for a loader that accelerator.prepare gets; for any other "
            "rank=accelerator.process_index and world_size=accelerator.num_processes",
            got=f"neither, and rank {found.index} of {found.count} was found",
        )


def _of_process_group() -> Shard | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return None


def _of_environment(environment: Mapping[str, str]) -> Shard | None:
    """`RANK` of `WORLD_SIZE`, as torchrun sets them, or what Lightning sets for its processes.

    Lightning sets `WORLD_SIZE`, `NODE_RANK` and, on each node, `LOCAL_RANK` (its class
    `LightningEnvironment`); the rank is then NODE_RANK x processes of a node + LOCAL_RANK. How many
    a node has is in `LOCAL_WORLD_SIZE` if anywhere.
    """
    if "RANK" not in environment and environment.get("WORLD_SIZE") in (None, "1"):
        return None
    names = ["RANK", "WORLD_SIZE"]
    if "RANK" not in environment and "LOCAL_RANK" in environment:
        nodes = [name for name in ("NODE_RANK", "GROUP_RANK") if name in environment][:1]
        names = ["LOCAL_RANK", "WORLD_SIZE", *nodes]
        if nodes and environment[nodes[0]] != "0":
            names.append("LOCAL_WORLD_SIZE")
    values = [environment.get(name) for name in names]
    try:
        rank, world, *others = [int(value or "") for value in values]
    except ValueError:
        rank, world, others = 0, 0, []
    if len(others) == 2:
        node, of_a_node = others
        rank = node * of_a_node + rank if node >= 0 and 0 <= rank < of_a_node else -1
    if not 0 <= rank < world:
        raise ClipError(
            f"{' and '.join(names)} in the environment make no sense",
            expected="0 <= rank < world size; or give rank= and world_size=",
            got=" ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)),
        )
    return Shard(rank, world)
