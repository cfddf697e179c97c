"""Parallel requests: splits a read into requests and limits the concurrent ones of a storage."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from seqrecord.errors import LocationError, NotFoundError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.processes.threads import ThreadPool
from seqrecord.store.storage.base import (
    Entry,
    Storage,
    StorageWrapper,
    check_buffers,
    entries_of,
    identity_of,
)
from seqrecord.store.storage.ranges import (
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
    """Splits each read into requests, see `plan`, and makes them in parallel.

    Each request is one call of the inner storage. All reads together have at most `max_requests`
    requests in flight; a request that is being retried counts. A read of a single request runs in
    the calling thread. Other reads start threads, which end before the read returns, so that
    nothing is written to the buffers after an error. Requests that have not begun, or wait for a
    retry, are then cancelled.
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

        parts = plan(ranges, buffers, max_gap=self.max_gap, max_bytes=self.max_bytes)
        if not parts:  # empty ranges: one request checks that the file exists
            parts = [(list(ranges), list(buffers))]
        if len(parts) < 2:
            read(parts[0])
            return
        # Threads of this read, not of a pool: they have ended when it returns, so that no late
        # answer overwrites a buffer that is used again
        # (tests/store/test_parallel.py::test_no_piece_is_written_after_an_error).
        with request_threads(min(len(parts), self._max_requests), "read") as threads:
            futures = [threads.submit(read, part) for part in parts]
            finished = wait(futures, return_when=FIRST_EXCEPTION).done
            futures.clear()  # an error refers to this frame, which must not refer to its future
            while finished:
                finished.pop().result()


class RequestThreads:
    """Threads for requests; see `request_threads`."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    def submit(self, function: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
        """Schedule `function(item)`."""
        return self._pool.submit(copy_context().run, function, item)

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item], max_pending: int
    ) -> Iterator[_Result]:
        """Yield `function(item)` for each item, in order.

        At most `max_pending` calls are scheduled; items are consumed on demand.
        """
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(self.submit(function, item))
            if len(pending) == max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def request_threads(count: int, name: str) -> Iterator[RequestThreads]:
    """At most `count` threads, which end before the context exits.

    Requests that have not begun then are dropped, and those waiting for a retry are cancelled.
    """
    finish = threading.Event()
    with unwanted_if(finish.is_set), ThreadPool(count, f"seqrecord-{name}") as pool:
        try:
            yield RequestThreads(pool)
        finally:
            finish.set()


def map_files(
    storage: Storage, function: Callable[[str], _Result], paths: Iterable[str]
) -> dict[str, _Result]:
    """Call `function(path)` for each path; up to 16 at a time for a remote storage.

    Returns results in the order of `paths`. Raises the error of the first failing path in that
    order; calls that have not begun are dropped.
    """
    paths = list(paths)
    if len(paths) < 2 or storage.local_path(paths[0]) is not None:
        return {path: function(path) for path in paths}
    with request_threads(min(len(paths), MAX_REQUESTS), "files") as threads:
        results = threads.map(function, paths, len(paths))
        return dict(zip(paths, results, strict=True))


def identities_of(
    storage: Storage,
    paths: Iterable[str],
    listing: Callable[[str], Iterable[Entry]] | None = None,
) -> dict[str, tuple[int, str | None]]:
    """Return size and identity of files that exist, see `identity_of`.

    Lists each folder once (with `listing`, by default `entries_of`) if the storage's listings have
    identities; else one request per file.
    """
    names, identities = dict.fromkeys(paths), dict[str, tuple[int, str | None]]()
    with suppress(LocationError):  # listing is not supported
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in names):
            prefix = f"{folder}/" if folder else ""
            for entry in listing(folder) if listing else entries_of(storage, folder):
                if entry.identity is not None and (path := prefix + entry.name) in names:
                    identities[path] = entry.size, entry.identity

    def look(path: str) -> tuple[int, str | None] | None:
        with suppress(NotFoundError, LocationError):  # the last: a folder or a pipe
            return identity_of(storage, path)
        return None

    looks = map_files(storage, look, [path for path in names if path not in identities])
    return identities | {path: identity for path, identity in looks.items() if identity is not None}
