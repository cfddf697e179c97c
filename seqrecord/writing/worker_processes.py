"""The worker processes of a conversion on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from typing import Any

from seqrecord.errors import ResourceError
from seqrecord.storage.spare_files import Hold
from seqrecord.threads import check_room
from seqrecord.writing.convert_jobs import Job, StoppedError, Written, write_copy
from seqrecord.writing.convert_workers import unguarded_script

__all__ = ["Processes", "WorkerEnd", "worker_processes"]

_POOL_THREADS = (
    2  # that a pool of processes needs: one that starts no longer makes it wait for ever
)


class Processes:
    """Workers that are processes of this machine; each has a `WorkerEnd`.

    They tell how many frames they have written by `frames`, the receiving end of a pipe, and hear
    by `stopped`, a shared ctypes bool, that they should stop. Neither has a lock, which a killed
    worker could hold for ever: a message this short is written to a pipe whole or not at all. Nor
    does a worker ever wait for a full pipe to be read.
    """

    broken: tuple[type[BaseException], ...] = (BrokenExecutor,)

    def __init__(self, count: int, pool: ProcessPoolExecutor, frames: Any, stopped: Any) -> None:
        self.count: int | None = count
        self.has_begun = False  # whether any worker has told anything
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
def worker_processes(count: int) -> Iterator[Processes]:
    """Start `count` processes, and end them when the block is left.

    Raises `ResourceError` where the system lets no process or no thread start, and
    `DestinationError` in a process that was itself started, and imports a script yet.
    """
    if _is_importing_script():
        raise unguarded_script()
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
class WorkerEnd:
    """A worker's end of the pipe, and of what stops it; see `Processes`."""

    frames: Any
    stop: Any
    hold: Hold = field(default_factory=Hold)  # jobs have storages of their own, one by one
    _untold: int = 0

    def advance(self, frames: int) -> None:
        if self.stop.value:
            raise StoppedError("stopped")
        self.tell(frames)

    def tell(self, frames: int) -> None:
        self._untold += frames
        with contextlib.suppress(BlockingIOError):
            self.frames.send_bytes(b"%d" % self._untold)
            self._untold = 0


_worker: WorkerEnd | None = None


def _start_worker(frames: Any, stop: Any) -> None:
    global _worker
    os.set_blocking(frames.fileno(), False)
    _worker = WorkerEnd(frames, stop)
    _worker.tell(0)  # that it has begun
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
