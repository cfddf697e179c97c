"""Bytes of remote record files in memory, for the loads of one loader.

A loader's `memory_limit` reserves memory for its plan; the rest holds bytes that were read. The
store is below the plan: it changes the requests to the storage, and nothing else.

A load asks for some frames of a chunk; other loads of the epoch ask for the others. So the store
reads *pieces*: all bytes of a chunk that the shard needs in the epoch, in one request::

    chunk       | f f f f f f f f f f f f |
    piece         [ . . . . . . . ]             frames of this shard
    loads         [ . . ] [ . ] [ . ]           the first one reads the piece, the others copy

The first batch waits for its own bytes only, so an epoch begins with reads of these; a later load
reads the rest of their pieces.
"""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.storage.base import Storage, StorageWrapper, check_buffers
from seqrecord.store.storage.ranges import ByteRange, check_wanted, is_unwanted

_SHORT_PIECE = 64 << 10  # read whole also for the first batch: a request costs more
PIECE_BYTES = 8 << 20  # longer pieces are split: a larger request is hardly faster
_ENTRY_BYTES = 1536  # memory of an entry beside its bytes: `tracemalloc` measures 1,482
_MIN_BYTES = 1 << 10  # shorter ranges outside pieces are not stored
_POLL_SECONDS = 0.2  # how soon a thread that waits for another one's request notices its end

Pieces: TypeAlias = Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
"""Needed bytes of each record file: starts and stops of disjoint ranges, ascending; int64[n]."""


@dataclass(eq=False, slots=True)
class _Entry:
    """Consecutive bytes of a file; `data` is complete once `done` is set without an `error`.

    An entry with `users` is in use by that many reads, and is kept in memory. `unread` counts bytes
    that the epoch still needs.
    """

    path: str
    start: int
    stop: int
    data: npt.NDArray[np.uint8]
    unread: int = 0
    users: int = 0
    is_listed: bool = True  # whether reads find it
    completion: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    was_cancelled: bool = False  # its request, by a reader that no longer needs it

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def cost(self) -> int:
        """Bytes of memory."""
        return self.nbytes + _ENTRY_BYTES


class _Copy(NamedTuple):
    """Bytes of an entry, `item` in the file, and their target."""

    entry: _Entry
    item: ByteRange
    target: memoryview


@dataclass(frozen=True, eq=False)
class _Claim:
    """How to fill the buffers of a read: by own requests, then by copies."""

    direct: list[tuple[ByteRange, memoryview]] = field(default_factory=list)  # into the buffers
    fetches: list[_Entry] = field(default_factory=list)  # new entries, read by this thread
    copies: list[_Copy] = field(default_factory=list)


class _Contents:
    """The entries of one process. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.capacity = 0
        self.used = self.peak = 0  # bytes
        self.from_memory = self.surplus = 0  # bytes; see `ChunkStore`
        self.reads_pieces = True
        self._pieces: Pieces = {}
        # Start and stop of what was read of each piece without an entry; int64[2, pieces].
        self._direct: dict[str, npt.NDArray[np.int64]] = {}
        self._starts: dict[str, list[int]] = {}  # of listed entries, ascending
        self._entries: dict[str, list[_Entry]] = {}  # the same order
        self._spent: list[_Entry] = []  # listed, not needed any more; the latest is last

    def begin(self, capacity: int, pieces: Pieces) -> None:
        """Set the size, and the bytes that an epoch needs."""
        with self.lock:
            self.reads_pieces = False
            self.capacity, self._pieces, self._direct = capacity, pieces, {}
            entries = [entry for file_entries in self._entries.values() for entry in file_entries]
            for entry in entries:
                entry.unread = self._needed(entry.path, entry.start, entry.stop)
            self._spent = [entry for entry in entries if not entry.unread]
            for entry in (*self._spent[::-1], *entries):
                if self.used <= capacity:
                    break
                if entry.is_listed and not entry.users:
                    self._drop(entry)
            self.peak = self.used

    def _needed(self, path: str, start: int, stop: int) -> int:
        """Number of needed bytes in a range."""
        starts, stops = self._pieces.get(path, (_NOTHING, _NOTHING))
        a, b = int(stops.searchsorted(start, "right")), int(starts.searchsorted(stop))
        overlaps = np.minimum(stops[a:b], stop) - np.maximum(starts[a:b], start)
        return int(overlaps.sum())

    def claim(self, path: str, requests: Sequence[tuple[ByteRange, memoryview]]) -> _Claim:
        """Find entries for ranges of a file, and list new ones, which the caller must fill."""
        claim = _Claim()
        with self.lock:
            for item, view in requests:
                offset = item.start
                while offset < item.stop:
                    entry, stop = self._entry(claim, path, offset, item)
                    part = ByteRange(offset, min(stop, item.stop))
                    target = view[part.start - item.start : part.stop - item.start]
                    if entry is None:
                        claim.direct.append((part, target))
                    else:
                        entry.users += 1
                        claim.copies.append(_Copy(entry, part, target))
                    offset = part.stop
            num_read = sum(part.length for part, _ in claim.direct)
            num_read += sum(entry.nbytes for entry in claim.fetches)
            num_requested = sum(item.length for item, _ in requests)
            fetched_ids = {id(entry): entry for entry in claim.fetches}
            self.from_memory += sum(
                part.length for entry, part, _ in claim.copies if id(entry) not in fetched_ids
            )
            self.surplus += num_read - num_requested
        return claim

    def claim_ahead(self, path: str, ranges: Sequence[ByteRange]) -> _Claim:
        """List new entries for absent bytes, as far as there is room; the caller must fill them."""
        claim = _Claim()
        with self.lock:
            for item in ranges:
                offset = item.start
                while offset < item.stop:
                    num_fetches = len(claim.fetches)
                    offset = self._entry(claim, path, offset, item, is_ahead=True)[1]
                    # In use at once: the next entry of this claim may replace unused ones.
                    for entry in claim.fetches[num_fetches:]:
                        entry.users += 1
                        no_bytes = ByteRange(entry.start, entry.start)
                        claim.copies.append(_Copy(entry, no_bytes, _NO_BYTES))
                        self.surplus += entry.nbytes
        return claim

    def _entry(
        self, claim: _Claim, path: str, offset: int, item: ByteRange, *, is_ahead: bool = False
    ) -> tuple[_Entry | None, int]:
        """The entry with byte `at` of a file, a new one if there is room; and where it ends.

        Without an entry, the end of the bytes to read directly.
        """
        starts = self._starts.setdefault(path, [])
        entries = self._entries.setdefault(path, [])
        number = bisect_right(starts, offset)
        if number and entries[number - 1].stop > offset:
            return entries[number - 1], entries[number - 1].stop
        low = entries[number - 1].stop if number else 0
        high = entries[number].start if number < len(entries) else _FAR
        start, stop, piece = self._span(path, offset, item, low, high)
        unread = 0 if piece is None else stop - start
        data = self._memory_of(item, start, stop, unread, is_ahead)
        if data is None:
            if piece is not None and not is_ahead:
                direct = self._direct[path]
                direct[0, piece] = min(int(direct[0, piece]), offset)
                direct[1, piece] = max(int(direct[1, piece]), min(stop, item.stop))
            return None, stop
        entry = _Entry(path, start, stop, data, unread)
        number = bisect_left(starts, start)  # dropped entries may have been before it
        starts.insert(number, start)
        entries.insert(number, entry)
        if not unread:
            self._spent.append(entry)
        self.used += entry.cost
        self.peak = max(self.peak, self.used)
        claim.fetches.append(entry)
        return entry, stop

    def _span(
        self, path: str, offset: int, item: ByteRange, low: int, high: int
    ) -> tuple[int, int, int | None]:
        """Bounds of a new entry with byte `at`, inside `low` and `high`, and its piece.

        Outside of all pieces, the entry has bytes of `item` only.
        """
        begins, ends = self._pieces.get(path, (_NOTHING, _NOTHING))
        piece = int(ends.searchsorted(offset, "right"))
        if piece == len(ends) or begins[piece] > offset:
            next_start = int(begins[piece]) if piece < len(begins) else _FAR
            return offset, min(high, next_start, item.stop), None
        direct = self._direct.setdefault(path, np.stack((ends, begins)))
        # Not again what was read for want of room
        # (tests/loader/test_chunk_store.py::test_bytes_read_for_want_of_room_are_not_read_again).
        direct_start, direct_stop = direct[:, piece].tolist()
        start, stop = max(low, int(begins[piece])), min(high, int(ends[piece]))
        if not self.reads_pieces and stop - start > _SHORT_PIECE:
            return offset, min(stop, item.stop), piece
        if offset >= direct_stop:
            return max(start, direct_stop), stop, piece
        if offset < direct_start:
            return start, min(stop, direct_start), piece
        return offset, min(stop, item.stop), piece

    def _memory_of(
        self, item: ByteRange, start: int, stop: int, unread: int, is_ahead: bool
    ) -> npt.NDArray[np.uint8] | None:
        """Memory for a new entry, or `None` if there is no room for it."""
        # An entry that this read completes, or that no piece covers, replaces no other one.
        is_completed = item.start <= start and stop <= item.stop and not is_ahead
        is_short = not unread and stop - start < _MIN_BYTES
        may_replace = unread > 0 and not is_completed
        if is_short or not self._make_room(stop - start + _ENTRY_BYTES, may_replace):
            return None
        # The system may have less than the limit; nobody may wait for an entry without memory
        # (tests/loader/test_chunk_store.py::test_no_memory_for_an_entry).
        with suppress(MemoryError):
            return np.empty(stop - start, np.uint8)
        return None

    def _make_room(self, nbytes: int, may_replace: bool) -> bool:
        """Whether `nbytes` more fit, after dropping spent entries if `may_replace`.

        The latest go first: the others serve the next epoch, whatever its order.
        """
        room = self.capacity - self.used
        if room >= nbytes or not may_replace:
            return room >= nbytes
        dropped: list[_Entry] = []
        for entry in reversed(self._spent):
            if room >= nbytes:
                break
            if entry.is_listed and not entry.users:
                dropped.append(entry)
                room += entry.cost
        if room < nbytes:
            return False
        for entry in dropped:
            self._drop(entry)
        self._spent = [entry for entry in self._spent if entry.is_listed]
        return True

    def _drop(self, entry: _Entry) -> None:
        """Make an entry invisible to reads; its memory is free when its last user ends."""
        if not entry.is_listed:
            return
        entry.is_listed = False
        starts = self._starts[entry.path]
        number = bisect_left(starts, entry.start)
        del starts[number], self._entries[entry.path][number]
        if not entry.users:
            self._free(entry)

    def _free(self, entry: _Entry) -> None:
        """Free the memory of a dropped entry without users; `_spent` may still have the entry."""
        self.used -= entry.cost
        entry.data = _NO_DATA

    def end(self, claim: _Claim, *, is_read: bool) -> None:
        """End a read, which has copied the bytes of its claim if `is_read`."""
        with self.lock:
            for entry, part, _ in claim.copies:
                entry.users -= 1
                was_unread = entry.unread
                entry.unread = max(0, entry.unread - part.length * is_read)
                if was_unread and not entry.unread:
                    self._spent.append(entry)
                if not entry.users and not entry.is_listed:
                    self._free(entry)

    def fail(self, entries: Sequence[_Entry], error: BaseException, was_cancelled: bool) -> None:
        """Remove entries whose request failed, and wake their readers."""
        with self.lock:
            # Without its traceback, whose frames would keep the entries.
            for entry in entries:
                entry.was_cancelled = was_cancelled
                if not was_cancelled:
                    entry.error = copy.copy(error)
                    entry.error.__cause__ = error.__cause__
                self._drop(entry)
                entry.completion.set()

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Remove the entries that overlap with ranges of a file; whether there were any."""
        with self.lock:
            entries = [
                entry
                for entry in self._entries.get(path, ())
                if any(entry.start < item.stop and item.start < entry.stop for item in ranges)
            ]
            for entry in entries:
                self._drop(entry)
        return bool(entries)


class ChunkStore(StorageWrapper):
    """Keeps bytes of files in the memory of this process, up to a size.

    It reads pieces, see `begin`, with one request at a time for each, whose error reaches all
    threads that wait for it; the next read tries again. Bytes for which there is no room are read
    as requested. Copies in other processes, also forked ones, start empty.

    `surplus` is the number of bytes read from the storage minus those requested from the store.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._contents = PerProcess(_Contents)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.inner,)

    def begin(self, capacity: int, pieces: Pieces) -> None:
        """Set the size in bytes, and the bytes that an epoch needs, at its beginning.

        Bytes in memory are kept, as far as they fit. Until `read_pieces`, reads fetch no others
        than they ask for.
        """
        self._contents.get().begin(capacity, pieces)

    def read_pieces(self) -> None:
        """Read whole pieces from now on: the first batch is there."""
        self._contents.get().reads_pieces = True

    def take_over(self, other: ChunkStore) -> None:
        """Share the memory of another store for the same storage."""
        self._contents = other._contents

    @property
    def capacity(self) -> int:
        """The size in bytes."""
        return self._contents.get().capacity

    @property
    def used_bytes(self) -> int:
        """Number of bytes in memory, including those of requests in progress."""
        return self._contents.get().used

    @property
    def peak_bytes(self) -> int:
        """The greatest number of bytes in memory since the last `begin`."""
        return self._contents.get().peak

    @property
    def bytes_from_memory(self) -> int:
        """Number of bytes that reads got from memory, in all epochs."""
        return self._contents.get().from_memory

    @property
    def surplus(self) -> int:
        """See `ChunkStore`."""
        return self._contents.get().surplus

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        contents = self._contents.get()
        if self.local_path(path) is not None:  # of a joined dataset
            self.inner.read_ranges(path, ranges, buffers)
            return
        requests = [
            (item, buffer.cast("B"))
            for item, buffer in zip(ranges, buffers, strict=True)
            if buffer.nbytes
        ]
        if not contents.capacity:
            self.inner.read_ranges(path, ranges, buffers)
            return
        while requests:
            claim = contents.claim(path, requests)
            is_read = False
            try:
                self._fetch(contents, path, claim)
                requests = self._copy(claim)
                is_read = True
            finally:
                contents.end(claim, is_read=is_read)

    def prefetch(self, path: str, ranges: Sequence[ByteRange]) -> None:
        """Read absent bytes of ranges into memory, as far as there is room.

        Bytes that another thread reads count as present.
        """
        contents = self._contents.get()
        if self.local_path(path) is not None:
            return
        claim = contents.claim_ahead(path, ranges)
        try:
            self._fetch(contents, path, claim)
        finally:
            contents.end(claim, is_read=False)

    def _fetch(self, contents: _Contents, path: str, claim: _Claim) -> None:
        """Make the requests of a claim, before it waits for any other thread."""
        entries = claim.fetches
        views = [view for _, view in claim.direct] + [entry.data.data for entry in entries]
        items = [item for item, _ in claim.direct]
        items += [ByteRange(entry.start, entry.stop) for entry in entries]
        if not items:
            return
        try:
            self.inner.read_ranges(path, items, views)
        except BaseException as error:
            # An error of this thread alone, such as Ctrl-C, is none of the request: waiting threads
            # make it again.
            is_own = is_unwanted() or not isinstance(error, SeqRecordError)
            contents.fail(entries, error, is_own)
            raise
        for entry in entries:
            entry.completion.set()

    def _copy(self, claim: _Claim) -> list[tuple[ByteRange, memoryview]]:
        """Copy bytes from entries. Returns the ranges whose request another thread cancelled."""
        cancelled = []
        for entry, part, target in claim.copies:
            while not entry.completion.wait(_POLL_SECONDS):
                check_wanted(f"{self.url}/{entry.path}")
            if entry.was_cancelled:
                cancelled.append((part, target))
            elif entry.error is not None:
                # A copy: each thread adds its own context and traceback.
                raise copy.copy(entry.error) from entry.error.__cause__
            else:
                source = entry.data[part.start - entry.start : part.stop - entry.start]
                np.copyto(np.frombuffer(target, np.uint8), source)
        return cancelled

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        return self._contents.get().forget(path, ranges)


_NOTHING = np.zeros(0, np.int64)
_NO_BYTES = memoryview(b"")
_NO_DATA = np.zeros(0, np.uint8)
_FAR = 1 << 62


def with_chunk_store(dataset: Dataset) -> Dataset:
    """Return the dataset with its own store of remote chunks, for a loader."""
    storage = dataset.contents.storage
    if isinstance(storage, ChunkStore):
        storage = storage.inner
    return Dataset(replace(dataset.contents, storage=ChunkStore(storage)))
