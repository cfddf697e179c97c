"""A store of chunks on a slow storage, and threads that read from it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from seqrecord.storage import ByteRange, Storage, StorageWrapper, unwanted_if
from seqrecord.store.storage.chunk_store import ChunkStore

FILE_BYTES = 1 << 16


class SlowStorage(StorageWrapper):
    """Requests wait for `may_go`; those after `fail` is set then fail."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.may_go, self.started = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.count = 0

    def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
        self.count += 1
        self.started.set()
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        super().read_ranges(path, ranges, buffers)


def started_store(storage: Storage, capacity: int = 1 << 20) -> ChunkStore:
    store = ChunkStore(storage)
    store.begin(capacity, {"a.seqrec": (np.array([0]), np.array([FILE_BYTES]))})
    return store


def read_range(store: Storage, start: int, stop: int) -> bytes:
    buffer = bytearray(stop - start)
    store.read_ranges("a.seqrec", [ByteRange(start, stop)], [memoryview(buffer)])
    return bytes(buffer)


class Readers:
    """Threads that read ranges of a store; `results` are bytes or errors, by number."""

    def __init__(self, store: ChunkStore, ranges: list[tuple[int, int]]) -> None:
        self.results: dict[int, Any] = {}
        self.is_unwanted = threading.Event()
        self._polls = [threading.Event() for _ in ranges]
        self._threads = [
            threading.Thread(target=self._read, args=(store, number, *item))
            for number, item in enumerate(ranges)
        ]
        self._waiting = iter(self._threads)

    def start(self, count: int) -> None:
        for _ in range(count):
            next(self._waiting).start()

    def _read(self, store: ChunkStore, number: int, start: int, stop: int) -> None:
        def condition() -> bool:
            self._polls[number].set()
            return number == 0 and self.is_unwanted.is_set()

        try:
            with unwanted_if(condition):
                self.results[number] = read_range(store, start, stop)
        except Exception as error:
            self.results[number] = error

    def wait_for_waiting(self) -> None:
        """Wait until all readers but the first wait for its request."""
        assert all(poll.wait(30) for poll in self._polls[1:])

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(30)
        return [self.results[number] for number in sorted(self.results)]


def read_ahead(store: ChunkStore, start: int, stop: int) -> None:
    store.prefetch("a.seqrec", [ByteRange(start, stop)])


def forget_range(store: ChunkStore, start: int, stop: int) -> None:
    store.forget("a.seqrec", [ByteRange(start, stop)])
