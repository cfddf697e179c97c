"""The threads that load chunks and copy batches for an executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.engine.channel import Channel
from seqrecord.engine.copying import Copies, CopyThreads
from seqrecord.engine.loading import ChunkLoader, Fetched
from seqrecord.engine.loads import Load, Placed
from seqrecord.engine.stats import EngineStats
from seqrecord.sampling.memory import Memory
from seqrecord.storage import unwanted_if
from seqrecord.threads import ThreadPool

__all__ = ["THREAD_NAME", "Loading", "WorkerPool"]

_Result = TypeVar("_Result")

THREAD_NAME = "seqrecord-engine"  # how the names of all threads of the engine begin
_MORE_COPIERS = 1  # threads that copy beside `num_threads`, for some wait for the GIL
_MOST_TOGETHER = 1 << 20  # bytes of frames that loads of one task bring
_LEAST_TOGETHER = 128 << 10  # … however little there is for each thread


class Loading(NamedTuple):
    """A task under way: the number of the first clip of its round that needs one of its loads."""

    first_use: int
    done: Future[None]


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
        channel: Channel,
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
        self._num_loaders = num_loaders
        self._loader = loader
        self._channel = channel
        self._left = False
        self._fetching: dict[Load, Future[Fetched]] = {}
        self._ahead = threading.BoundedSemaphore(self.num_ahead) if self.num_ahead else None
        self._loaders = ThreadPool(num_loaders, f"{THREAD_NAME}-load")
        self._before: dict[tuple[int, int], Future[None]] = {}  # by group and cursor
        copiers = num_threads + _MORE_COPIERS
        self._copiers = CopyThreads(copiers, f"{THREAD_NAME}-copy", stats.trace)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = True
        self._loaders.shutdown(cancel_futures=True)
        self._copiers.shutdown()

    def start(self, placed: Sequence[Placed]) -> list[Loading]:
        """Have loads done, after those that were asked for before; the first needed come first.

        Small ones of a group that follow each other are done by one thread; but not elsewhere than
        on a disk, where many that wait are faster than one, nor where functions of users are
        called.
        """
        self._channel.check_open()
        sizes = [item.nbytes for item in placed]
        most = max(_LEAST_TOGETHER, min(sum(sizes) // self._num_loaders // 2, _MOST_TOGETHER))
        started: list[Loading] = []
        some: list[Placed] = []
        left = 0
        for item, size in zip(placed, sizes, strict=True):
            left -= size
            if some and (left < 0 or item.load.group != some[0].load.group):
                started.append(self._start(some))
                some = []
            if not some:
                left = (most if self._may_join(item.load) else 0) - size
            some.append(item)
        if some:
            started.append(self._start(some))
        return started

    def _may_join(self, load: Load) -> bool:
        return self._loader.joins and load.group not in self._loader.in_pieces

    def _start(self, some: Sequence[Placed]) -> Loading:
        """Have loads of one group done by one thread."""
        first = some[0]
        load, rows = first.load, np.concatenate([item.rows for item in some])
        fetching, before = self._fetching.pop(load, None), None
        if is_piece := load.group in self._loader.in_pieces:
            before = self._before.get((load.group, load.cursor))
        loads = [item.load for item in some]
        done = self._loaders.submit(self._load, loads, first.target, rows, fetching, before)
        if is_piece:  # a decoder goes on where the load before ended
            self._before[load.group, load.cursor] = done
        return Loading(first.first_use, done)

    def fetch(self, loads: Iterable[Load]) -> None:
        """Have chunks read whose frames have no room yet, `num_ahead` of them at most.

        They must be asked for by `start` later on.
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

    def copies(self) -> Copies:
        """Copies by these threads, for one executor; where one fails, no batch is opened."""
        return Copies(self._copiers, self.num_threads, self._channel.interrupt)

    def _load(
        self,
        loads: Sequence[Load],
        target: Any,
        rows: IntArray,
        fetching: Future[Fetched] | None,
        before: Future[None] | None,
    ) -> None:
        # It does not wait for ever: what was asked for before these loads has begun.
        if before is not None:
            wait([before])
        if fetching is None:
            self._run(self._loader, loads, target, rows)
            return
        assert self._ahead is not None
        try:
            self._run(self._loader, loads, target, rows, fetching.result())
        finally:
            self._ahead.release()

    def _run(self, do: Callable[..., _Result], *arguments: Any) -> _Result:
        self._channel.check_open()
        with unwanted_if(lambda: self._left or self._channel.is_closed):
            return do(*arguments)
