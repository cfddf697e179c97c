"""The worker processes of a conversion on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from typing import Any

from seqrecord.storage.spare_files import Hold
from seqrecord.writing.convert_jobs import Job, StoppedError, Written, write_copy

__all__ = ["Processes", "worker_processes"]


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


class Processes:
    """Workers that are processes of this machine."""

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)

    def __init__(self, count: int, pool: ProcessPoolExecutor, channel: _Channel) -> None:
        self.count: int | None = count
        self._pool, self._channel = pool, channel

    def submit(self, job: Job) -> Future[Written]:
        with _interrupts_blocked():
            return self._pool.submit(_write_in_pool, job)

    def take(self) -> int:
        return self._channel.take()

    def stop(self) -> None:
        self._channel.stop.value = True


@contextlib.contextmanager
def worker_processes(count: int) -> Iterator[Processes]:
    """Start `count` processes, and end them when the block is left."""
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", False)
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        pool = ProcessPoolExecutor(
            count, context, initializer=_start_worker, initargs=(sender, stop)
        )
        try:
            yield Processes(count, pool, _Channel(receiver, stop))
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
            raise StoppedError("stopped")
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
