"""Run: the batches of a plan, filled in background threads, which end on every exit path.

A `Channel` is filled by one or more executors, each in the thread of a `Scheduler`; a `Run` is its
consumer. Schedulers do not refer to the run. The channel's capacity limits how far they run ahead.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seqrecord.loader.engine.batches import Batch, Channel, ClosedError, OpenBatch
from seqrecord.loader.engine.executor import Executor, joined_slots
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
        fills: functions that fill batches of the channel, each in its own thread.
        stats: counts batches, clips and the consumer's waiting time.
        to_items: converts a batch, with the number of its first item, to items for users; single
            clips in reverse order.
        batch: number of the first item in the plan.
        counts: statistics of the plan.
    """

    def __init__(
        self,
        channel: Channel,
        fills: Sequence[Callable[[], None]],
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
        self._schedulers: list[Scheduler] = []  # threads do not refer to the run
        try:
            self._schedulers.extend(Scheduler(channel, fill) for fill in fills)
        except BaseException:  # all threads, or none
            self._close(None)
            raise

    @classmethod
    def of_plan(
        cls,
        executor: Executor,
        stats: EngineStats,
        to_items: Callable[[Batch, int], list[dict[str, Any]]],
        describe: Callable[[Batch], Mapping[str, Any]],
        batch: int,
    ) -> Run:
        """Run one plan alone, from a batch on. `describe` makes columns; see `OpenBatch`."""
        plan, memory = executor.job.plan, executor.memory
        batch = min(batch, plan.num_batches)
        make = partial(OpenBatch, lock=threading.Lock(), describe=describe)
        number = batch if memory.together == 1 else 0
        begin = partial(executor.begin_batch, batch, make)
        channel = Channel(memory.prefetch, stats, begin, number)
        clips = plan.first_clip(batch), plan.num_clips
        slots = partial(joined_slots, batch, memory.together)
        fill = partial(executor.run, channel, clips, slots, channel.fill)
        return cls(channel, [fill], stats, to_items, batch, plan.counts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        stats, trace = self._stats, self._stats.trace
        resumed = stats.begun  # all time inside `next` is waiting
        try:
            while (batch := self._channel.take(self._process)) is not None:
                batch.arrive()
                items = self._waiting = self._to_items(batch, self._made)
                stats.add(batches=len(items), clips=len(batch))
                del batch  # the consumer's alone to keep
                self._made += len(items)
                while items:
                    self.delivered += 1
                    taken = time.perf_counter()
                    stats.add_waiting(resumed, taken)
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
        self._schedulers.clear()
        self._free()

    def report(self) -> dict[str, Any]:
        """Statistics, with the delivered clips and batches."""
        report, left = {**self._stats.report(), **self._counts}, self._made - self.delivered
        return {**report, "clips": report["clips"] - left, "batches": report["batches"] - left}

    def _free(self) -> None:
        self.is_open, self._to_items = False, _no_items  # which refers to the plan
        self._waiting.clear()
        self._stats.trace.close()

    def _close(self, patience: float | None) -> None:
        """End all threads, and wait for them, at most about `patience` seconds each."""
        if self._process == os.getpid():
            self._channel.close()  # for all, before the first wait
        for scheduler in self._schedulers:
            scheduler.close(patience)


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
