"""Runs the jobs of a conversion: here, on processes, on an executor, or on a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from typing import Any

from seqrecord.errors import DestinationError, ResourceError
from seqrecord.processes.threads import check_room
from seqrecord.writing.convert_jobs import Job, StoppedError, Written, write_copy, write_job

__all__ = ["Meter", "Processes", "Progress", "WorkerEnd", "Workers", "given_workers", "run_jobs"]

_REPORT_SECONDS = 0.1
_POOL_THREADS = (
    2  # that a pool of processes needs: one that starts no longer makes it wait for ever
)


@dataclass(frozen=True)
class Progress:
    """How far a conversion is. `total_frames` is what the source lists, bad episodes included."""

    frames: int
    total_frames: int
    raw_bytes: int  # decoded bytes of the frames so far


@dataclass
class Meter:
    """Counts frames, and reports at most ten times a second."""

    total_frames: int
    frame_nbytes: int
    progress: Callable[[Progress], None] | None
    frames: int = 0
    _reported: float = 0.0

    def add(self, frames: int) -> None:
        # A job that is done again, by another worker, tells its frames again.
        self.frames = min(self.frames + frames, self.total_frames)
        if time.monotonic() - self._reported >= _REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Report now."""
        if self.progress is not None:
            nbytes = self.frames * self.frame_nbytes
            self.progress(Progress(self.frames, self.total_frames, nbytes))
        self._reported = time.monotonic()


class Workers:
    """What runs jobs, several at a time."""

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)
    """How a job fails whose worker has gone."""
    count: int | None = None
    """How many jobs run at a time; `None` where nobody tells."""
    has_begun = True
    """Whether any worker has begun, as far as is known."""

    def submit(self, job: Job) -> Future[Written]:
        """Have a job done."""
        raise NotImplementedError

    def take(self) -> int | None:
        """How many frames have been written since; `None` where nobody tells."""
        return None

    def stop(self) -> None:
        """Tell the jobs that run to stop soon, which fail then."""


class _Given(Workers):
    """An executor of the caller's, of which nothing else is known."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, job: Job) -> Future[Written]:
        return self._executor.submit(write_copy, job)


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
        with _worker_processes(processes) as pool:
            written = _run_on(pool, jobs, meter)
    meter.report()
    return written


def _run_on(workers: Workers, jobs: Sequence[Job], meter: Meter) -> list[Written]:
    """Run the jobs, largest first so that none is left for the end."""
    futures: dict[int, Future[Written]] = {}
    try:
        for number in sorted(range(len(jobs)), key=lambda n: jobs[n].num_frames, reverse=True):
            futures[number] = workers.submit(jobs[number])
        pending = set(futures.values())
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
            frames = workers.take()
            ended = sum(future.result().frames for future in done)
            if new := ended if frames is None else frames:
                meter.add(new)
    except workers.broken as error:
        wait(futures.values())
        workers.take()
        if not workers.has_begun:
            raise _unguarded_script() from error
        raise DestinationError(
            "a worker ended before its work did (killed, or out of memory?); episodes that had "
            "ended are kept: continue with resume (--resume), perhaps with fewer workers",
            file=jobs[0].storage.url,
        ) from error
    except BaseException:
        workers.stop()
        wait([future for future in futures.values() if not future.cancel()])
        raise
    written = [futures[number].result() for number in range(len(jobs))]
    meter.frames = max(meter.frames, sum(each.frames for each in written))
    return written


class Processes(Workers):
    """Workers that are processes of this machine; each has a `WorkerEnd`.

    They tell how many frames they have written by `frames`, the receiving end of a pipe, and hear
    by `stopped`, a shared ctypes bool, that they should stop. Neither has a lock, which a killed
    worker could hold for ever: a message this short is written to a pipe whole or not at all. Nor
    does a worker ever wait for a full pipe to be read.
    """

    def __init__(self, count: int, pool: ProcessPoolExecutor, frames: Any, stopped: Any) -> None:
        self.count, self.has_begun = count, False
        self._pool, self._frames, self._stopped = pool, frames, stopped

    def submit(self, job: Job) -> Future[Written]:
        try:
            with _interrupts_blocked():
                return self._pool.submit(_write_in_pool, job)
        except OSError as error:
            raise ResourceError(
                f"no worker process can be started: {error}",
                expected="a limit of processes and threads that leaves room for some more, or "
                "fewer workers",
            ) from error

    def take(self) -> int:
        total = 0
        while self._frames.poll():
            total += int(self._frames.recv_bytes())
            self.has_begun = True
        return total

    def stop(self) -> None:
        self._stopped.value = True


@contextlib.contextmanager
def _worker_processes(count: int) -> Iterator[Processes]:
    """Start `count` processes, and end them when the block is left.

    Raises `ResourceError` where the system lets no process or no thread start, and
    `DestinationError` in a process that was itself started, and imports a script yet.
    """
    if _is_importing_script():
        raise _unguarded_script()
    check_room(_POOL_THREADS)
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", False)
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        pool = ProcessPoolExecutor(
            count, context, initializer=_start_worker, initargs=(sender, stop)
        )
        try:
            yield Processes(count, pool, receiver, stop)
        finally:
            stop.value = True
            pool.shutdown(cancel_futures=True)


def _is_importing_script() -> bool:
    """Whether this process was started by multiprocessing, and imports the script of the other yet.

    It does so under another name than `__main__`, which the script gets when it is imported.
    """
    script = sys.modules.get("__mp_main__")
    return script is not None and script is not sys.modules.get("__main__")


def _unguarded_script() -> DestinationError:
    """No worker process begins where each starts others, as a script does that has no guard."""
    return DestinationError(
        "no worker process could begin. Each imports the script that calls convert, so what the "
        'script runs must stand below `if __name__ == "__main__":`. Where it does, see what the '
        "processes said; fewer workers take less memory, and workers=1 stays in this process",
    )


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which reaches the whole process group.

    The parent sees it when the block ends, and it alone decides.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker process


@dataclass
class WorkerEnd:
    """A worker's end of the pipe, and of what stops it; see `Processes`."""

    frames: Any
    stop: Any
    _unreported: int = 0

    def advance(self, frames: int) -> None:
        if self.stop.value:
            raise StoppedError("stopped")
        self.report(frames)

    def report(self, frames: int) -> None:
        self._unreported += frames
        with contextlib.suppress(BlockingIOError):
            self.frames.send_bytes(b"%d" % self._unreported)
            self._unreported = 0


_worker: WorkerEnd | None = None


def _start_worker(frames: Any, stop: Any) -> None:
    global _worker
    os.set_blocking(frames.fileno(), False)
    _worker = WorkerEnd(frames, stop)
    _worker.report(0)  # that it has begun
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed parent must not leave workers that continue to write."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _write_in_pool(job: Job) -> Written:
    assert _worker is not None
    return write_copy(job, _worker.advance)
