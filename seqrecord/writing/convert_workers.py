"""Runs the jobs of a conversion: here, on a pool of processes, or on a given executor."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from typing import Any

from seqrecord.errors import DestinationError, SeqRecordError
from seqrecord.storage.spare_files import Hold
from seqrecord.writing.convert_jobs import Job, Written, write_copy, write_job

__all__ = ["Meter", "Progress", "run_jobs"]

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
        self.frames += frames
        if self.progress is not None and time.monotonic() - self._told >= _REPORT_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Tell now."""
        if self.progress is not None:
            nbytes = self.frames * self.frame_nbytes
            self.progress(Progress(self.frames, self.total_frames, nbytes))
            self._told = time.monotonic()


def run_jobs(
    jobs: Sequence[Job], *, workers: int, executor: Executor | None, meter: Meter
) -> list[Written]:
    """Write all jobs, on `executor`, or else on `workers` processes, one being this process.

    Returns what came of each, in their order.
    """
    count = min(workers, len(jobs))
    if executor is not None:
        written = _run_on(executor, jobs, meter, channel=None)
    elif count <= 1:
        written = [write_job(job, meter.add) for job in jobs]
    else:
        with _pool(count) as (pool, channel):
            written = _run_on(pool, jobs, meter, channel)
    meter.tell()
    return written


def _run_on(
    executor: Executor, jobs: Sequence[Job], meter: Meter, channel: _Channel | None
) -> list[Written]:
    """Run the jobs, largest first so that none is left for the end."""
    task = write_copy if channel is None else _write_in_pool
    futures: dict[Future[Written], int] = {}
    try:
        with contextlib.nullcontext() if channel is None else _interrupts_blocked():
            numbers = sorted(range(len(jobs)), key=lambda n: jobs[n].num_frames, reverse=True)
            for number in numbers:
                futures[executor.submit(task, jobs[number])] = number
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
            for future in done:
                future.result()
                if channel is None:
                    meter.add(jobs[futures[future]].num_frames)
            if channel is not None:
                meter.add(channel.take())
    except BrokenExecutor as error:
        wait(futures)
        raise DestinationError(
            "a worker ended before its work did (killed, or out of memory?); episodes that had "
            "ended are kept: continue with resume (--resume), perhaps with fewer workers",
            file=jobs[0].storage.url,
        ) from error
    except BaseException:
        if channel is not None:
            channel.stop.value = True
        wait([future for future in futures if not future.cancel()])
        raise
    by_number = {number: future.result() for future, number in futures.items()}
    return [by_number[number] for number in range(len(jobs))]


@dataclass
class _Channel:
    """How pool workers tell their progress and hear that they should stop.

    Neither has a lock, which a killed worker could hold for ever: a message this short is written
    to a pipe whole or not at all. Nor does a worker ever wait for a full pipe to be read.
    """

    frames: Any = field(repr=False)  # multiprocessing.Connection of frame counts, as text
    stop: Any = field(repr=False)  # a shared ctypes bool

    def take(self) -> int:
        total = 0
        while self.frames.poll():
            total += int(self.frames.recv_bytes())
        return total


class _StoppedError(SeqRecordError):
    """The parent asked the workers to stop."""


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, _Channel]]:
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", False)
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        pool = ProcessPoolExecutor(
            workers, context, initializer=_start_worker, initargs=(sender, stop)
        )
        try:
            yield pool, _Channel(receiver, stop)
        finally:
            stop.value = True
            pool.shutdown(cancel_futures=True)


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


@dataclass
class _Worker:
    """A pool worker's end of the channel."""

    frames: Any
    stop: Any
    hold: Hold = field(default_factory=Hold)  # jobs have storages of their own, one by one
    _untold: int = 0

    def advance(self, frames: int) -> None:
        if self.stop.value:
            raise _StoppedError("stopped")
        self._untold += frames
        with contextlib.suppress(BlockingIOError):
            self.frames.send_bytes(b"%d" % self._untold)
            self._untold = 0


_worker: _Worker | None = None


def _start_worker(frames: Any, stop: Any) -> None:
    global _worker
    os.set_blocking(frames.fileno(), False)
    _worker = _Worker(frames, stop)
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
