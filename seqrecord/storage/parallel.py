"""Plans the requests of a call and makes several at once, at most so many of a storage."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from seqrecord.processes.forks import PerProcess
from seqrecord.processes.threads import ThreadPool
from seqrecord.storage.base import Storage, StorageWrapper, check_buffers
from seqrecord.storage.ranges import (
    MAX_GAP,
    MAX_REQUEST_BYTES,
    ByteRange,
    ReadRequest,
    check_wanted,
    plan,
    unwanted_if,
)

MAX_REQUESTS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ParallelStorage(StorageWrapper):
    """Makes the requests of a call with one call of the inner storage each; see `plan`.

    All reading calls together have at most `max_requests` requests under way; one that is tried
    again below keeps its place meanwhile. A call with one request stays in its thread, any other
    has threads until it returns, and none outlives it: after an error nothing is written into its
    buffers any more. The requests that have not begun then, or that wait to be tried again, are
    given up.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        max_requests: int = MAX_REQUESTS,
        max_gap: int = MAX_GAP,
        max_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        super().__init__(inner)
        if max_requests < 1:
            raise ValueError(f"at most {max_requests} requests")
        self._max_requests, self.max_gap, self.max_bytes = max_requests, max_gap, max_bytes
        self._slots = PerProcess(partial(threading.BoundedSemaphore, max_requests))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        if not ranges:
            return
        slots, file = self._slots.get(), f"{self.url}/{path}"

        def read(part: ReadRequest) -> None:
            with slots:
                check_wanted(file)
                self.inner.read_ranges(path, *part)

        parts = self.requests(ranges, buffers)
        if len(parts) < 2:
            read(parts[0])
            return
        with request_threads(min(len(parts), self._max_requests), "read") as threads:
            futures = [threads.submit(read, part) for part in parts]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()

    def requests(
        self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> list[ReadRequest]:
        """The requests of a call, at least one."""
        parts = plan(ranges, buffers, max_gap=self.max_gap, max_bytes=self.max_bytes)
        # That of empty ranges says whether the file is there.
        return parts or [(list(ranges), list(buffers))]


def layers(storage: Storage) -> Iterator[Storage]:
    """A storage, and those that it wraps."""
    yield storage
    if isinstance(storage, StorageWrapper):
        yield from layers(storage.inner)


def parallel_of(storage: Storage) -> ParallelStorage | None:
    """The layer that plans requests; `None` of disks and mounts, which need none."""
    return next((each for each in layers(storage) if isinstance(each, ParallelStorage)), None)


def requests_by_file(storage: Storage) -> int:
    """Requests for a file beside those of its ranges: on the Hub one, for its address."""
    *_, served = layers(storage)
    return getattr(served, "requests_by_file", 0)


class RequestThreads:
    """Threads for requests; see `request_threads`."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    def submit(self, function: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
        """Have `function(item)` called."""
        return self._pool.submit(copy_context().run, function, item)

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
    ) -> Iterator[_Result]:
        """`function(item)` of each item, in order; at most `ahead` of them are under way, and items
        are taken as they are needed."""
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(self.submit(function, item))
            if len(pending) == ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def request_threads(count: int, name: str) -> Iterator[RequestThreads]:
    """At most `count` threads. None outlives the block, however it ends.

    Requests that have not begun then are dropped, and those that wait to be tried again give up.
    """
    over = threading.Event()
    with unwanted_if(over.is_set), ThreadPool(count, f"seqrecord-{name}") as pool:
        try:
            yield RequestThreads(pool)
        finally:
            over.set()


def map_files(
    storage: Storage, function: Callable[[str], _Result], paths: Iterable[str]
) -> dict[str, _Result]:
    """`function(path)` for each path, in order; of a remote storage up to 16 at the same time.

    Raises the error of the first path, in order, that fails; calls that have not begun are dropped.
    """
    paths = list(paths)
    if len(paths) < 2 or storage.local_path(paths[0]) is not None:
        return {path: function(path) for path in paths}
    with request_threads(min(len(paths), MAX_REQUESTS), "files") as threads:
        futures = [threads.submit(function, path) for path in paths]
        return {path: future.result() for path, future in zip(paths, futures, strict=True)}
