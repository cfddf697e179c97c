"""Which part of an epoch is this process's, among ranks and DataLoader workers."""

from __future__ import annotations

import os

import torch.distributed
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.plan import Split

__all__ = [
    "current_split",
    "rank_and_worker",
    "split_beside",
    "splits_of_workers",
    "worker_threads",
]


def current_split() -> Split:
    """The part of this rank and worker: parts are numbered rank by rank, worker by worker.

    The rank is that of `torch.distributed` where it is initialized, else `RANK` of `WORLD_SIZE` in
    the environment, as torchrun sets them. Raises `ClipError` if these make no sense.
    """
    rank, world = _rank()
    worker, workers = _worker()
    return Split(rank * workers + worker, world * workers)


def splits_of_workers(num_workers: int) -> list[Split]:
    """The parts of this rank's workers, in a process that has so many of them."""
    rank, world = _rank()
    return [Split(rank * num_workers + i, world * num_workers) for i in range(num_workers)]


def split_beside(num_instances: int) -> Split:
    """What is left to split for one who feeds a filter that deals out to so many instances.

    A `.sharding_filter()` is told of its instances by a DataLoader: of workers, and of ranks where
    `torch.distributed` is initialized. It may not be told of any.
    """
    rank, world = _rank()
    worker, workers = _worker()
    if num_instances == 1:
        return Split(rank * workers + worker, world * workers)
    if num_instances == workers:
        return Split(rank, world)
    return Split()


def rank_and_worker() -> tuple[tuple[int, int], int | None]:
    """This rank and how many there are, and the number of this worker process if it is one."""
    info = get_worker_info()
    return _rank(), None if info is None else info.id


def worker_threads() -> int:
    """This process's share of the cores."""
    return max(1, len(os.sched_getaffinity(0)) // _worker()[1])


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _rank() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world in (None, "1"):
        return 0, 1
    try:
        numbers = int(rank or ""), int(world or "")
    except ValueError:
        numbers = (0, 0)
    if not 0 <= numbers[0] < numbers[1]:
        raise ClipError(
            "RANK and WORLD_SIZE in the environment make no sense",
            expected="0 <= RANK < WORLD_SIZE",
            got=f"RANK={rank} WORLD_SIZE={world}",
        )
    return numbers
