"""This process's shard of an epoch, among ranks and DataLoader workers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch.distributed
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.processes.machine import usable_cores

_logger = logging.getLogger("seqrecord")
_warned: dict[str, object] = {}  # by notice; the value identifies the thread that logs it


class Ranks:
    """This process's rank, explicit or detected, and its shards of an epoch. Picklable.

    Args:
        rank: the rank, and the number of ranks; `(0, 1)` gives the whole epoch to every process.
            By default the rank is detected at each use, from `torch.distributed` if initialized,
            else from the environment. With several ranks of Accelerate it is required: a process
            cannot detect whether Accelerate distributes the loader's batches among ranks. With
            several processes of JAX, too: some of them may need equal batches.

    A process started by this one, such as a DataLoader worker, may lack the process group and the
    environment: the pickled object carries the rank of the sender.
    """

    def __init__(self, rank: tuple[int, int] | None = None) -> None:
        self.given = None if rank is None else Shard(*rank)
        self._sent: Shard | None = None  # found by the process that pickled this
        self._senders: frozenset[int] = frozenset()  # it, and its own sender

    def __getstate__(self) -> dict[str, Any]:
        rank = None
        with suppress(ClipError):  # not now: who iterates there will find the same
            rank = self._find()
        if self.given is None:
            _check_launcher(rank)
        senders = frozenset() if self._received() is None else self._senders
        return {**self.__dict__, "_sent": rank, "_senders": senders | {os.getpid()}}

    def current(self) -> Shard:
        """This process's rank, as the shard that its workers share.

        Raises `ClipError` for inconsistent environment variables, and if Accelerate or JAX has
        several ranks and no rank was passed.
        """
        if self.given is not None:
            return self.given
        rank = self._find()
        _check_launcher(rank)
        return rank or Shard()

    def shard(self) -> Shard:
        """The shard of this rank and worker. Shards are numbered rank by rank, worker by worker."""
        worker, workers = this_worker()
        return self.current().divided(workers)[worker]

    def _find(self) -> Shard | None:
        return _of_process_group() or self._received() or _of_environment(os.environ)

    def _received(self) -> Shard | None:
        """The rank received from the process that started this one."""
        parent = multiprocessing.parent_process()
        return self._sent if parent is not None and parent.pid in self._senders else None


def worker_threads() -> int:
    """This process's share of the cores."""
    return max(1, usable_cores() // this_worker()[1])


def warn_once(notice: str) -> None:
    """Log a warning to `seqrecord` once per process, and only in the first rank and worker.

    All ranks and workers reach the same warning. The rank is the one detected so far.
    """
    rank = Shard()
    with suppress(ClipError):  # raised where the rank is needed
        rank = _of_process_group() or _of_environment(os.environ) or rank
    marker = object()
    if not rank.index and not this_worker()[0] and _warned.setdefault(notice, marker) is marker:
        _logger.warning("%s", notice)


def this_worker() -> tuple[int, int]:
    """Number of this DataLoader worker, and of workers; (0, 1) outside of workers."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _check_launcher(rank: Shard | None) -> None:
    """Raise `ClipError` if a launcher of several processes requires explicit ranks."""
    _refuse_accelerate(rank)
    _refuse_jax(rank)


def _refuse_jax(rank: Shard | None) -> None:
    """Raise `ClipError` if JAX has several processes, and another rank or none was found."""
    jax, index, count = sys.modules.get("jax"), 0, 1  # of its processes, without an import
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", bool)
    if jax is not None and is_initialized():  # `bool()` is false
        index, count = jax.process_index(), jax.process_count()
    if count > 1 and rank != Shard(index, count):
        got = "none" if rank is None else f"rank {rank.index} of {rank.count}"
        raise ClipError(
            "rank is required with several JAX processes",
            expected="rank=(jax.process_index(), jax.process_count()); processes that share one "
            "model pass the number of their data-parallel group",
            got=f"{got}, and JAX process {index} of {count}",
        )


def _refuse_accelerate(rank: Shard | None) -> None:
    """Raise `ClipError` if Accelerate may divide this rank's shard again. See `Ranks`."""
    accelerate = sys.modules.get("accelerate.state")
    if rank is None or rank.count == 1 or accelerate is None:
        return
    kind = accelerate.PartialState
    # To call it sets Accelerate up, if nothing has yet.
    if object.__new__(kind).initialized and kind().num_processes > 1:
        raise ClipError(
            "rank is required with Accelerate, which may divide the batches of a prepared loader "
            "among ranks",
            expected="rank=(0, 1) for a loader that accelerator.prepare gets; for any other "
            "rank=(accelerator.process_index, accelerator.num_processes)",
            got=f"none, and rank {rank.index} of {rank.count} was found",
        )


def _of_process_group() -> Shard | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return None


def _of_environment(environment: Mapping[str, str]) -> Shard | None:
    """The rank in `RANK` and `WORLD_SIZE`, as set by torchrun, or in Lightning's variables.

    Lightning sets `WORLD_SIZE`, `NODE_RANK` and, on each node, `LOCAL_RANK` (its class
    `LightningEnvironment`). The rank is NODE_RANK x processes per node + LOCAL_RANK, with the
    number of processes in `LOCAL_WORLD_SIZE`.
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
        rank, world, *node_values = [int(value or "") for value in values]
    except ValueError:
        rank, world, node_values = 0, 0, []
    if len(node_values) == 2:
        node, of_a_node = node_values
        rank = node * of_a_node + rank if node >= 0 and 0 <= rank < of_a_node else -1
    if not 0 <= rank < world:
        raise ClipError(
            f"{' and '.join(names)} in the environment make no sense",
            expected="0 <= rank < world size; or rank=(rank, world_size)",
            got=" ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)),
        )
    return Shard(rank, world)
