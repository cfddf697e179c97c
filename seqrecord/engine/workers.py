"""The threads that load chunks and copy batches for an executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Any, Literal, TypeVar

from seqrecord.engine.arena import Place
from seqrecord.engine.batches import Copy
from seqrecord.engine.channel import Channel
from seqrecord.engine.copying import CopyThreads
from seqrecord.engine.gathers import Gathers
from seqrecord.engine.gil import GilWatch
from seqrecord.engine.loading import ChunkLoader, Fetched
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.turns import Turns
from seqrecord.sampling.memory import Memory
from seqrecord.storage import unwanted_if
from seqrecord.threads import ThreadPool

__all__ = ["THREAD_NAME", "WorkerPool"]

_Result = TypeVar("_Result")

THREAD_NAME = "seqrecord-engine"  # how the names of all threads of the engine begin
_MORE_COPIERS = 1  # threads that copy beside `num_threads`, for some wait for the GIL
_MORE_BESIDE_PYTHON = 4  # … where each waits long,
_MORE_LOADERS = 2  # … as more that load


class WorkerPool:
    """The threads that work for an executor: some load chunks, others help with copies.

    Leaving the `with` block ends them, without the loads that have not begun or that wait to be
    tried again.

    Args:
        loader: does the loads.
        num_threads: for copying, and at most so many for loading from a local disk.
        memory: chunks to load at a time, and more to hold as they are stored, where the storage
            isn't a local disk.
        channel: when it is closed, what is asked for fails with `ClosedError`.
        stats: counts the time.
    """

    def __init__(
        self,
        loader: ChunkLoader,
        *,
        num_threads: int,
        memory: Memory,
        channel: Channel[Any],
        stats: EngineStats,
    ) -> None:
        self.num_threads, self.stats = num_threads, stats
        # Reading from a disk is work for a core. Other storage is mostly waited for: there, chunks
        # are read while there is no room for their frames. `max_ahead` of them have memory of their
        # own; so that they are half as many as the loads, others take that of loads.
        spared = max(0, memory.max_loads // 2 - memory.max_ahead)
        self.num_ahead, num_loaders = spared + memory.max_ahead, memory.max_loads - spared
        if loader.is_local:
            self.num_ahead, num_loaders = 0, min(num_threads, memory.max_loads)
        stats.num_threads, stats.num_loaders = num_threads, num_loaders
        self.num_loaders = num_loaders
        self._most_loaders = num_loaders
        if loader.is_local:
            self._most_loaders = min(memory.max_loads, num_loaders + _MORE_LOADERS)
        self._loader = loader
        self._channel = channel
        self._gil = GilWatch()
        self.is_beside_python = False  # as `notice_gil` found it
        self._left = False
        self._fetching: dict[Load, Future[Fetched]] = {}
        self._ahead = threading.BoundedSemaphore(self.num_ahead) if self.num_ahead else None
        self._loaders = ThreadPool(num_loaders, f"{THREAD_NAME}-load")
        self._turns = Turns(self._loaders)
        copiers = num_threads + _MORE_COPIERS
        self._copiers = CopyThreads(copiers, f"{THREAD_NAME}-copy", stats.trace)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = True
        self._turns.cancel()
        self._loaders.shutdown(cancel_futures=True)
        self._copiers.shutdown()

    def notice_gil(self) -> int:
        """For how many threads the copies of a batch should do from now on.

        Beside a thread that computes in Python, each waits for milliseconds after a copy. So there
        are as few as can be, and more threads make those of more batches; and more threads load.
        Large batches may be one more then.
        """
        self.is_beside_python = is_late = self._gil.is_late()
        self._copiers.allow(self.num_threads + (_MORE_BESIDE_PYTHON if is_late else _MORE_COPIERS))
        self._loaders.allow(self._most_loaders if is_late else self.num_loaders)
        self._channel.lend(is_late)
        return 1 if is_late else self.num_threads

    def load(self, load: Load, places: Sequence[Place]) -> Future[None]:
        """Have a load done, after those that were asked for before."""
        self._channel.check_open()
        fetching = self._fetching.pop(load, None)
        line = None
        if load.group in self._loader.in_pieces:  # a decoder goes on where the load before ended
            line = load.group, load.cursor
        return self._turns.submit(line, partial(self._load, load, places, fetching))

    def kind_of(self, load: Load) -> Literal["alone", "small", "quick"]:
        """Whether a load is done by itself, or with others: only from a disk, for elsewhere many
        that wait are faster than one."""
        if not self._loader.is_local or load.group in self._loader.in_pieces:
            return "alone"
        return "quick" if self._loader.is_quick(load) else "small"

    def load_together(self, loads: Sequence[Load], places: Sequence[Place]) -> Future[None]:
        """Have loads of one group done by one thread, one after the other."""
        self._channel.check_open()
        return self._loaders.submit(self._run, self._loader.load_together, loads, places)

    def fetch(self, loads: Iterable[Load]) -> None:
        """Have chunks read whose frames have no room yet, `num_ahead` of them at most.

        They must be asked for by `load` later on.
        """
        self._channel.check_open()
        waiting = iter(loads)
        while self._ahead is not None and self._ahead.acquire(blocking=False):
            load = next((load for load in waiting if self._can_fetch(load)), None)
            if load is None:
                self._ahead.release()
                return
            self._fetching[load] = self._loaders.submit(self._run, self._loader.fetch, load)

    def _can_fetch(self, load: Load) -> bool:
        return load not in self._fetching and self._loader.begins_chunk(load)

    def wait(self, loads: Iterable[Future[None]]) -> None:
        """Until these loads are done; raises the error of the first that failed."""
        begin = perf_counter()
        for load in loads:
            load.result()
        self._channel.check_open()
        end = perf_counter()
        self.stats.add(waiting_for_loads_seconds=end - begin)
        self.stats.trace.add("wait for loads", begin, end)

    def note_gather(self, begin: float, num_clips: int, device_bytes: int) -> None:
        """Count clips that have been gathered since `begin`."""
        end = perf_counter()
        self.stats.add(gather_seconds=end - begin, device_bytes=device_bytes)
        self.stats.trace.add("gather", begin, end, clips=num_clips)

    def gathers(self, failed: Callable[[], object]) -> Gathers:
        """Batches that are gathered by these threads; see there."""
        return Gathers(self._copiers, self.num_threads, failed)

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies; all are made when it returns."""
        gathers = self.gathers(lambda: None)
        try:
            gathers.begin().copy(copies)
            with self.stats.trace.span("wait for copies"):
                gathers.wait()
        finally:
            gathers.leave()

    def _load(
        self,
        load: Load,
        places: Sequence[Place],
        fetching: Future[Fetched] | None,
    ) -> None:
        if fetching is None:
            self._run(self._loader, load, places)
            return
        assert self._ahead is not None
        try:  # it does not wait for ever: what was asked for before this load has begun
            self._run(self._loader, load, places, fetching.result())
        finally:
            self._ahead.release()

    def _run(self, do: Callable[..., _Result], *arguments: Any) -> _Result:
        self._channel.check_open()
        with unwanted_if(lambda: self._left or self._channel.is_closed):
            return do(*arguments)
