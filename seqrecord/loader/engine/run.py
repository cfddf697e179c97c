"""Run: the batches of a plan, filled in background threads, which end on every exit path.

A `Channel` is filled by an executor, in the thread of a `Scheduler`; a `Run` is its consumer. The
scheduler does not refer to the run. The channel's capacity limits how far it runs ahead.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seqrecord.loader.engine.batches import Batch, Channel, ClosedError
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.workers import THREAD_NAME
from seqrecord.store.processes.forks import at_fork
from seqrecord.store.processes.threads import error_of, start

_PATIENCE = 1.0  # seconds; see `Scheduler.close`


class Run:
    """One run of a plan: iterate over it once, for the items of users.

    Closing it, deleting its iterator, and interpreter exit end its threads. The iterator raises the
    first error of a thread, with its traceback, after the batches before it. In a forked process it
    raises `ClipError`.

    Args:
        channel: delivers the batches, from number `batch` on.
        fill: fills batches of the channel, in a thread of its own.
        stats: counts batches, clips and the consumer's waiting time.
        to_items: converts a batch, with the number of its first item, to items for users; single
            clips in reverse order.
        batch: number of the first item in the plan.
        counts: statistics of the plan.
    """

    def __init__(
        self,
        channel: Channel,
        fill: Callable[[], None],
        stats: EngineStats,
        to_items: Callable[[Batch, int], list[dict[str, Any]]],
        batch: int,
        counts: Mapping[str, int],
    ) -> None:
        self.delivered = batch  # items of the plan, with those before the first one
        self.is_complete = False  # … and complete
        self.is_open = True  # whether it may return items
        self._made = batch  # items of the plan, including waiting ones
        self._waiting: list[dict[str, Any]] = []  # the last one comes first
        self._channel, self._stats, self._counts = channel, stats, counts
        self._to_items = to_items
        self._process = os.getpid()
        self._scheduler: Scheduler | None = Scheduler(channel, fill)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        stats, trace = self._stats, self._stats.trace
        resumed = stats.begun  # all time inside `next` is waiting
        try:
            while (batch := self._channel.take(self._process)) is not None:
                batch.arrive()
                items = self._waiting = self._to_items(batch, self._made)
                num_clips = len(batch) // len(items)
                del batch  # the consumer's alone to keep
                self._made += len(items)
                while items:
                    self.delivered += 1
                    taken = time.perf_counter()
                    stats.add_waiting(resumed, taken)
                    stats.add_delivered(num_clips)
                    try:
                        yield items.pop()
                    finally:
                        resumed = time.perf_counter()
                        if trace.is_on:
                            trace.add("consumer", taken, resumed)
            self._close(None)
            stats.add_waiting(resumed, time.perf_counter())
            self.is_complete = True
        finally:
            # A finalizer, which may reach this, waits for a while only; `end` waits for the rest.
            self._close(_PATIENCE)
            self._free()

    def end(self) -> None:
        """End the threads, wait for them, and free the memory, before another run begins."""
        self._close(None)
        self._scheduler = None
        self._free()

    def report(self) -> dict[str, Any]:
        """Statistics of the run and its plan."""
        return {**self._stats.report(), **self._counts}

    def _free(self) -> None:
        self.is_open, self._to_items = False, _no_items  # which refers to the plan
        self._waiting.clear()
        self._stats.trace.close()

    def _close(self, patience: float | None) -> None:
        """End the thread, and wait for it, at most about `patience` seconds."""
        if self._scheduler is not None:
            self._scheduler.close(patience)


def _no_items(batch: Batch, number: int) -> list[dict[str, Any]]:
    raise ClosedError(batch, number)


class Scheduler:
    """A thread that calls `run` and reports its end, or its error, to the channel.

    Raises `ResourceError` if no thread can be started; the channel is then closed.
    """

    def __init__(self, channel: Channel, run: Callable[[], None]) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{THREAD_NAME}-scheduler"
        self._thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        try:
            start(self._thread)
        except BaseException:  # or Ctrl-C; the thread may be running
            channel.close()
            raise
        _running.add(self)

    def close(self, patience: float | None = None) -> None:
        """End the threads of the iteration, and wait `patience` seconds, or until they have ended.

        Finalizers need a limit: the garbage collector may call them in a thread that has a lock
        which the engine's threads wait for. In an engine thread, `close` does not wait.
        """
        if os.getpid() != self.process:
            return  # a fork has no threads, and the lock may never be released
        self._channel.close()
        if not threading.current_thread().name.startswith(THREAD_NAME):
            self._thread.join(patience)

    def _run(self, run: Callable[[], None]) -> None:
        error = error_of(run)
        del run
        if isinstance(error, ClosedError) or (error is not None and self._channel.is_closed):
            # Breaks a reference cycle: futures of loads refer to the error, its frames to them.
            error.__traceback__ = None
            error = None
        self._channel.end(error)
        del error  # its frames refer to this one


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
at_fork(after_in_child=_running.clear)  # a fork has no threads


@atexit.register
def _close_all() -> None:
    for scheduler in list(_running):
        scheduler.close()
