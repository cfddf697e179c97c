"""The threads that work for an engine: some load chunks, others help with copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from time import perf_counter
from typing import Any, TypeVar

from seqrecord.engine.channel import Channel
from seqrecord.engine.device_loading import DeviceLoader
from seqrecord.engine.filling import Batch
from seqrecord.engine.loading import ChunkLoader, Fetched, Load, Place
from seqrecord.engine.stats import EngineStats
from seqrecord.storage import unwanted_if
from seqrecord.threads import ThreadPool

__all__ = ["THREAD_NAME", "Crew"]

_Result = TypeVar("_Result")

THREAD_NAME = "seqrecord-engine"  # how the names of all these threads begin


class Crew:
    """Loads and copies for one iteration, counts the time, and waits for the consumer.

    Leaving the `with` block ends the threads, without the loads that have not begun or that wait to
    be tried again, and waits for the device's copies.
    """

    copiers: Executor

    def __init__(
        self,
        loader: ChunkLoader | DeviceLoader,
        *,
        num_loaders: int,
        num_ahead: int,
        num_copiers: int,
        channel: Channel[Batch],
        stats: EngineStats,
    ) -> None:
        self.num_copiers, self.num_ahead = num_copiers, num_ahead
        self.stats = stats
        self._loader = loader
        self._channel = channel
        self._left = False
        self._fetching: dict[Load, Future[Fetched]] = {}
        self._ahead = threading.BoundedSemaphore(num_ahead) if num_ahead else None
        stats.num_threads, stats.num_loaders = num_copiers, num_loaders
        self._loaders = ThreadPool(num_loaders, f"{THREAD_NAME}-load")
        self.copiers = ThreadPool(num_copiers, f"{THREAD_NAME}-copy")

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = True
        self._loaders.shutdown(cancel_futures=True)
        self.copiers.shutdown()
        if isinstance(self._loader, DeviceLoader):
            self._loader.note_copies(wait=True)

    def load(self, load: Load, places: Sequence[Place]) -> Future[None]:
        """Have a load done, after those that were asked for before."""
        self._channel.check_open()
        return self._loaders.submit(self._load, load, places, self._fetching.pop(load, None))

    def fetch(self, loads: Iterable[Load]) -> None:
        """Have chunks read whose frames have no room yet, `num_ahead` of them at most.

        They must be asked for by `load` later on.
        """
        self._channel.check_open()
        waiting = iter(loads)
        while self._ahead is not None and self._ahead.acquire(blocking=False):
            load = next((load for load in waiting if load not in self._fetching), None)
            if load is None:
                self._ahead.release()
                return
            self._fetching[load] = self._loaders.submit(self._run, self._loader.fetch, load)

    def _load(self, load: Load, places: Sequence[Place], fetching: Future[Fetched] | None) -> None:
        if fetching is None:
            self._run(self._loader, load, places)
            return
        assert self._ahead is not None
        try:
            # It was begun before this: loaders take what was asked for first.
            self._run(self._loader, load, places, fetching.result())
        finally:
            self._ahead.release()

    def _run(self, do: Callable[..., _Result], *arguments: Any) -> _Result:
        self._channel.check_open()
        with unwanted_if(lambda: self._left or self._channel.is_closed):
            return do(*arguments)

    def wait(self, loads: Iterable[Future[None]]) -> None:
        """Until these loads are done; raises the error of the first that failed."""
        begin = perf_counter()
        for load in loads:
            load.result()
        self._channel.check_open()
        end = perf_counter()
        self.stats.add(waiting_for_loads_seconds=end - begin)
        self.stats.trace.add("wait for loads", begin, end)

    def reserve(self, batch: int) -> None:
        """Wait until the consumer has taken enough batches for this one to be begun."""
        begin = perf_counter()
        self._channel.reserve()
        end = perf_counter()
        self.stats.add(waiting_for_consumer_seconds=end - begin)
        self.stats.trace.add("wait for consumer", begin, end, batch=batch)

    def try_reserve(self) -> bool:
        """Whether another batch can be begun at once; it is then."""
        return self._channel.try_reserve()

    def deliver(self, batch: Batch) -> None:
        """Hand a batch over to the consumer."""
        self._channel.put(batch)

    def hold(self, nbytes: int) -> None:
        """So many bytes of frames are held now."""
        self.stats.hold(nbytes)
        self.stats.trace.count("resident", bytes=nbytes)
