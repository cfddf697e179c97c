"""Jobs of a conversion on the ranks of torch.distributed, each with its own device.

The first rank plans, writes its share and commits; the others get jobs, in rounds of one per rank::

    rank 0    plan | job 0 | job 3 | commit
    rank 1         | job 1 | job 4 |
    rank 2         | job 2 |       |

Jobs travel without their source, which every rank has, with a function that need not be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from seqrecord.errors import ClipError
from seqrecord.formats.converting.convert_jobs import Job, JobResult, Meter, Workers, write_job
from seqrecord.loader.pipes.distributed import Ranks
from seqrecord.store.originals.protocol import Source
from seqrecord.tools.derive.function_errors import picklable_error

_PATIENCE = timedelta(days=30)  # of ranks that wait for the slowest one

_ADDRESS = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # variables of torchrun

_Result = TypeVar("_Result")


def rank_group() -> Any | None:
    """Return a group of all ranks that may take days, or `None` for a single process.

    Raises `ClipError` for several ranks without a process group.
    """
    if dist.is_available() and dist.is_initialized():
        return (
            dist.new_group(backend="gloo", timeout=_PATIENCE) if dist.get_world_size() > 1 else None
        )
    if (count := Ranks().current().count) > 1:
        raise ClipError(
            "derive divides its work through torch.distributed",
            expected="torch.distributed.init_process_group(…) before, or ranks=False",
            got=f"{count} ranks without a process group",
        )
    return None


@contextmanager
def launched_group() -> Iterator[bool]:
    """Make the process group of a launcher, such as torchrun, and destroy it at the end.

    Without several ranks in the environment, or with a group, nothing is done. Yields whether this
    is the first rank.
    """
    is_launched = os.environ.keys() >= _ADDRESS and os.environ["WORLD_SIZE"] != "1"
    if not is_launched or not dist.is_available() or dist.is_initialized():
        yield True
        return
    # Of the host: ranks exchange jobs and reports, no tensors.
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


class RankWorkers(Workers):
    """The ranks of a group as workers for source `number`, used by the first one; `meter` counts
    frames of all.
    """

    broken = ()
    min_job_bytes = 1  # encoders take longer than their results are large

    def __init__(self, group: Any, sources: Sequence[Source], number: int, meter: Meter) -> None:
        super().__init__()
        self.count: int = dist.get_world_size(group)
        self._group, self._sources, self._number, self._meter = group, sources, number, meter
        self._waiting: list[tuple[Job, Future[JobResult]]] = []

    def submit(self, job: Job) -> Future[JobResult]:
        """See `Workers`; the job begins with the next call of `take`."""
        future: Future[JobResult] = Future()
        self._waiting.append((job, future))
        return future

    def take(self) -> int | None:
        """Run a round of jobs."""
        jobs, self._waiting = self._waiting[: self.count], self._waiting[self.count :]
        if not jobs:
            return None
        messages = [replace(job, source=None) for job, _ in jobs]  # type: ignore[arg-type]
        _broadcast(self._group, ("jobs", (self._number, messages)))
        results = _work(
            *(self._group, self._sources[self._number], messages),
            lambda frames: self._meter.add(frames * self.count),
        )
        for (_, future), result in zip(jobs, results, strict=False):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        return None


def lead(group: Any, plan: Callable[[], _Result]) -> _Result:
    """Run `plan` in the first rank, and end the rounds of the others with its result or error."""
    try:
        result = plan()
    except BaseException as error:
        _broadcast(group, ("error", picklable_error(error)))
        raise
    _broadcast(group, ("end", result))
    return result


def follow(group: Any, sources: Sequence[Source]) -> Any:
    """Run jobs in another rank than the first; returns the first rank's result."""
    while True:
        kind, value = _broadcast(group, None)
        if kind == "end":
            return value
        if kind == "error":
            raise value
        number, jobs = value
        _work(group, sources[number], jobs, lambda _: None)


def _work(
    group: Any, source: Source, jobs: list[Job], advance: Callable[[int], None]
) -> list[JobResult | Exception]:
    """Run this rank's job of a round, if there is one; returns the results of all ranks."""
    rank, result = dist.get_rank(group), None
    if rank < len(jobs):
        job = replace(jobs[rank], source=source)
        try:
            result = write_job(job, advance)
        except Exception as error:
            result = picklable_error(error)
        finally:
            if rank:
                job.storage.close()
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, result, group)
    return results


def _broadcast(group: Any, message: Any) -> Any:
    messages = [message]
    dist.broadcast_object_list(messages, dist.get_global_rank(group, 0), group)
    return messages[0]
