"""Jobs of threads that load: small loads are done several by one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from seqrecord.engine.arena import Place
from seqrecord.engine.loads import Load
from seqrecord.engine.workers import WorkerPool

__all__ = ["Loading", "by_use", "start_jobs"]

_MOST_TOGETHER = 1 << 20  # bytes of frames that loads of one job bring
_QUICK_TOGETHER = 512 << 10  # … whatever other threads do, where loads are quick
_MOST_QUICK = 4 << 20  # … and the most of these

_Placed = tuple[int, Load, Place]


class Loading(NamedTuple):
    """A job under way: the number of the first clip of its round that needs one of its loads."""

    first_use: int
    done: Future[None]


def start_jobs(
    workers: WorkerPool, placed: list[_Placed], nbytes_of: Callable[[Load], int]
) -> list[Loading]:
    """Start loads, each with the first clip that needs it and its rows; the first needed first.

    `nbytes_of` says how many bytes of frames a load brings.
    """
    placed.sort(key=by_use)
    jobs = _jobs(workers, placed, nbytes_of)
    return [Loading(job[0][0], _start(workers, [item[1:] for item in job])) for job in jobs]


def by_use(item: tuple[int, Any] | tuple[int, Any, Any]) -> int:
    """What to sort by."""
    return item[0]


def _start(workers: WorkerPool, job: Sequence[tuple[Load, Place]]) -> Future[None]:
    if workers.kind_of(job[0][0]) == "alone":
        return workers.load(job[0][0], [job[0][1]])
    return workers.load_together(*map(list, zip(*job, strict=True)))


def _jobs(
    workers: WorkerPool, placed: Sequence[_Placed], nbytes_of: Callable[[Load], int]
) -> Iterable[list[_Placed]]:
    """The loads in their order, those together that one thread should do: small ones.

    Of each kind there are jobs for all threads, but for loads so quick that two threads would
    take longer.
    """
    sizes = [nbytes_of(load) for _, load, _ in placed]
    share = sum(sizes) // workers.num_loaders
    most = {
        "quick": max(_QUICK_TOGETHER, min(share, _MOST_QUICK)),
        "small": min(share, _MOST_TOGETHER) // 2,
        "alone": 0,
    }
    jobs: list[list[_Placed]] = []
    left, group = 0, -1
    for item, size in zip(placed, sizes, strict=True):
        left -= size
        if left >= 0 and item[1].group == group:
            jobs[-1].append(item)
            continue
        jobs.append([item])
        group = item[1].group
        left = most[workers.kind_of(item[1])] - size
    return jobs
