"""Runs the jobs of a conversion: here, on processes, on an executor, or on a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from typing import Protocol

from seqrecord.errors import DestinationError
from seqrecord.writing.convert_jobs import Job, Written, write_copy, write_job

__all__ = ["Meter", "Progress", "Workers", "given_workers", "run_jobs"]

_REPORT_SECONDS = 0.1


@dataclass(frozen=True)
class Progress:
    """How far a conversion is. `total_frames` is what the source lists, bad episodes included."""

    frames: int
    total_frames: int
    raw_bytes: int  # decoded bytes of the frames so far


@dataclass
class Meter:
    """Counts frames, and tells at most ten times a second."""

    total_frames: int
    frame_nbytes: int
    progress: Callable[[Progress], None] | None
    frames: int = 0
    _told: float = 0.0

    def add(self, frames: int) -> None:
        # A job that is done again, by another worker, tells its frames again.
        self.frames = min(self.frames + frames, self.total_frames)
        if self.progress is not None and time.monotonic() - self._told >= _REPORT_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Tell now."""
        if self.progress is not None:
            nbytes = self.frames * self.frame_nbytes
            self.progress(Progress(self.frames, self.total_frames, nbytes))
            self._told = time.monotonic()


class Workers(Protocol):
    """What runs jobs, several at a time."""

    broken: tuple[type[BaseException], ...]  # how a job fails whose worker has gone

    @property
    def count(self) -> int | None:
        """How many jobs run at a time; `None` where nobody tells."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun, as far as is known."""
        ...

    def submit(self, job: Job) -> Future[Written]:
        """Have a job done."""
        ...

    def take(self) -> int | None:
        """How many frames have been written since; `None` where nobody tells."""
        ...

    def stop(self) -> None:
        """Tell the jobs that run to stop soon, which fail then."""
        ...


class _Given:
    """An executor of the caller's, of which nothing else is known."""

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)
    count: int | None = None
    has_begun = True

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, job: Job) -> Future[Written]:
        return self._executor.submit(write_copy, job)

    def take(self) -> None:
        return None

    def stop(self) -> None:
        pass


@contextlib.contextmanager
def given_workers(executor: Executor | str | None) -> Iterator[Workers | None]:
    """Those of an executor, or of a cluster at this address, as long as the block runs."""
    if isinstance(executor, str):
        from seqrecord.writing.clusters import open_cluster  # only where one is used

        with open_cluster(executor) as cluster:
            yield cluster
    else:
        yield None if executor is None else _Given(executor)


def run_jobs(
    jobs: Sequence[Job], *, processes: int, workers: Workers | None, meter: Meter
) -> list[Written]:
    """Write all jobs, on `workers`, or else on so many processes, one being this process.

    Returns what came of each, in their order.
    """
    processes = min(processes, len(jobs))
    if workers is not None:
        written = _run_on(workers, jobs, meter)
    elif processes <= 1:
        written = [write_job(job, meter.add) for job in jobs]
    else:
        from seqrecord.writing.worker_processes import worker_processes

        with worker_processes(processes) as pool:
            written = _run_on(pool, jobs, meter)
    meter.tell()
    return written


def unguarded_script() -> DestinationError:
    """No worker process begins where each starts others, as a script does that has no guard."""
    return DestinationError(
        "no worker process could begin: each imports the script that calls convert, so what the "
        'script runs must stand below `if __name__ == "__main__":`; or stay in one process with '
        "workers=1",
    )


def _run_on(workers: Workers, jobs: Sequence[Job], meter: Meter) -> list[Written]:
    """Run the jobs, largest first so that none is left for the end."""
    futures: dict[Future[Written], int] = {}
    try:
        for number in sorted(range(len(jobs)), key=lambda n: jobs[n].num_frames, reverse=True):
            futures[workers.submit(jobs[number])] = number
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
            frames = workers.take()
            for future in done:
                done_frames = future.result().frames
                if frames is None:
                    meter.add(done_frames)
            if frames:
                meter.add(frames)
    except workers.broken as error:
        wait(futures)
        workers.take()
        if not workers.has_begun:
            raise unguarded_script() from error
        raise DestinationError(
            "a worker ended before its work did (killed, or out of memory?); episodes that had "
            "ended are kept: continue with resume (--resume), perhaps with fewer workers",
            file=jobs[0].storage.url,
        ) from error
    except BaseException:
        workers.stop()
        wait([future for future in futures if not future.cancel()])
        raise
    by_number = {number: future.result() for future, number in futures.items()}
    written = [by_number[number] for number in range(len(jobs))]
    meter.frames = max(meter.frames, sum(each.frames for each in written))
    return written
