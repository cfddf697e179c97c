"""A storage with a cache on local disk."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from seqrecord.cloud.cache_entries import CacheEntries, CacheEntry
from seqrecord.errors import LocationError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import (
    MIN_CACHE_BYTES,
    Storage,
    StorageWrapper,
    check_buffers,
    has_fixed_files,
)
from seqrecord.store.storage.cache_folder import check_folder
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import local_path
from seqrecord.store.units import format_size, parse_size

# These files are immutable, since their names have a unique id. The manifest is not.
_CACHED_SUFFIXES = (".seqrec", ".arrow")
_AHEAD_BYTES = 8 << 20  # read-ahead in other files: their pages are small, in episode order
# Small ranges far apart cover a slot each: without the limit all slots would be in memory at
# once. See tests/cloud/test_cache.py::test_memory_for_many_small_ranges_is_bounded.
_MOST_BYTES = 32 << 20  # memory of a thread for slots of which only a part is wanted
_LOCKS = 64

# A stopped process keeps the lock: reading must go on without the cache. See
# tests/cloud/test_cache_report.py::test_a_stopped_process_does_not_block_others.
_PATIENCE_SECONDS = 2.0  # maximum wait for the cache's lock, which is released quickly
_PAUSE_SECONDS = 10.0  # without the cache, after an error of its disk or a busy lock

_RangeBuffer: TypeAlias = tuple[ByteRange, memoryview]
_logger = logging.getLogger("seqrecord")


class CachedStorage(StorageWrapper):
    """Caches ranges of record and index files in a folder on a local disk, up to a size limit.

    Files are read and cached in slots of 32 KiB; an entry of the cache has 32. Other files,
    notably the manifest, are not cached, unless the storage is a commit on the Hub, whose files
    never change. Then 8 MiB are read and cached at once, by one thread, until the first eviction.

    Cache errors never fail a read; they are counted. The cache never blocks a read: reading takes
    no lock. If another process, for example a stopped one, has the lock for adding for longer than
    `patience` seconds, nothing is added for `pause` seconds. A cache on a read-only disk is used
    for reading. Files are identified by their location, with account and endpoint; credentials are
    not stored.

    `counters` are the inner storage's and: `cache_hits`, ranges read from the cache only;
    `cache_misses`, other ranges; `cache_bytes` read from the cache; `cache_evictions`, entries
    removed to make room; `cache_damaged`, damaged entries, which are read again;
    `cache_failures`, disk errors; `cache_busy`, timeouts of the lock.

    Memory: 32 MiB per thread that reads. Raises `LocationError` for a folder with other content,
    and for an invalid limit or one too small for an entry.
    """

    has_disk_cache = True
    slot_bytes = 32 << 10
    entry_slots = 32  # few files, but little space for parts of a file that are not read

    def __init__(
        self,
        inner: Storage,
        cache_dir: str | os.PathLike[str],
        limit: int | str,
        *,
        patience: float = _PATIENCE_SECONDS,
        pause: float = _PAUSE_SECONDS,
    ) -> None:
        super().__init__(inner)
        folder = local_path(cache_dir, "cache_dir").absolute()
        # An entry must fit beside the cache's own files.
        min_limit = max(MIN_CACHE_BYTES, 2 * self.entry_slots * self.slot_bytes)
        size = _checked_limit(limit, min_limit)
        check_folder(folder)
        self._cache = CacheEntries(folder, size, patience=patience, pause=pause)
        self._ahead_locks = PerProcess(lambda: [threading.Lock() for _ in range(_LOCKS)])
        self._sizes: dict[str, int] = {}  # of files with absent slots

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), patience=self._cache.patience, pause=self._cache.pause)
        return make, (self.inner, str(self._cache.path), self.limit)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        range_buffers = [
            (byte_range, buffer.cast("B"))
            for byte_range, buffer in zip(ranges, buffers, strict=True)
            if buffer.nbytes
        ]
        is_cached = has_fixed_files(self.inner) or path.endswith(_CACHED_SUFFIXES)
        if not (range_buffers and is_cached):
            self.inner.read_ranges(path, ranges, buffers)
            return
        absent_slots = self._read_cached(path, range_buffers)
        for byte_range, _ in range_buffers:
            absent_bytes = sum(
                self._part(byte_range, slot).length
                for slot in absent_slots.intersection(self._slots(byte_range))
            )
            counts = {"hits": not absent_bytes, "misses": absent_bytes > 0}
            self._cache.count(**counts, bytes=byte_range.length - absent_bytes)
        with contextlib.ExitStack() as stack:
            if absent_slots and self._reads_ahead():
                ahead_slots = _AHEAD_BYTES // self.slot_bytes
                lock_numbers = {hash((path, slot // ahead_slots)) % _LOCKS for slot in absent_slots}
                # In ascending order, so that threads with several locks in common cannot wait for
                # each other in a circle; tests/cloud/test_hub.py::test_one_thread_fills_the_cache.
                for number in sorted(lock_numbers):
                    stack.enter_context(self._ahead_locks.get()[number])
                # Another thread may have read them.
                absent_slots = self._read_cached(path, range_buffers)
                absent_slots = {
                    slot - slot % ahead_slots + offset
                    for slot in absent_slots
                    for offset in range(ahead_slots)
                }
            if absent_slots:
                self._load(path, range_buffers, absent_slots)

    def _read_cached(self, path: str, range_buffers: Sequence[_RangeBuffer]) -> set[int]:
        """Fill buffers from the cache; returns the numbers of the absent slots of the file."""
        absent_slots, length = set[int](), self.entry_slots * self.slot_bytes
        damaged = self._cache.counts["damaged"]
        for byte_range, out in range_buffers:
            for number in range(byte_range.start // length, -(-byte_range.stop // length)):
                offset = number * length
                part = ByteRange(
                    max(offset, byte_range.start), min(offset + length, byte_range.stop)
                )
                target, slots = _view(out, byte_range, part), self._slots(part)
                is_cached = self._cache.read(self._entry(path, number), part.start - offset, target)
                if not is_cached.all():
                    absent_slots.update(np.array(slots)[~is_cached].tolist())
        if self._cache.counts["damaged"] > damaged:
            _logger.warning("%s: damaged cache entry, reading again", self._cache.path)
        return absent_slots

    def _load(
        self, path: str, range_buffers: Sequence[_RangeBuffer], absent_slots: set[int]
    ) -> None:
        """Read and cache slots; slots beyond the end of the file are left out."""
        if path not in self._sizes:
            self._sizes[path] = self.inner.size(path)
        size = self._sizes[path]
        # A range beyond the end is requested too, so that it raises the error.
        file_range = ByteRange(0, max(size, *(byte_range.stop for byte_range, _ in range_buffers)))
        parts = {slot: self._part(file_range, slot) for slot in sorted(absent_slots)}
        parts = {slot: part for slot, part in parts.items() if part.length > 0}
        views: dict[int, memoryview] = {}
        copies: dict[int, list[tuple[ByteRange, memoryview]]] = {}
        for byte_range, out in range_buffers:
            for slot in absent_slots.intersection(self._slots(byte_range)):
                part = self._part(byte_range, slot)
                target = _view(out, byte_range, part)
                if part == parts[slot] and slot not in views:
                    views[slot] = target
                else:
                    copies.setdefault(slot, []).append((part, target))
        batch: dict[int, ByteRange] = {}
        free = _MOST_BYTES
        for slot, part in parts.items():
            needed = 0 if slot in views else part.length
            if needed > free:
                self._load_slots(path, batch, views, copies)
                batch, free = {}, _MOST_BYTES
            batch[slot] = part
            free -= needed
        self._load_slots(path, batch, views, copies)

    def _load_slots(
        self,
        path: str,
        parts: Mapping[int, ByteRange],
        targets: Mapping[int, memoryview],
        copies: Mapping[int, Sequence[tuple[ByteRange, memoryview]]],
    ) -> None:
        """Read slots of a file into their targets, or into new memory; copy parts; cache all."""
        views = {
            slot: targets[slot] if slot in targets else memoryview(bytearray(part.length))
            for slot, part in parts.items()
        }
        self.inner.read_ranges(path, [*parts.values()], [*views.values()])
        entries: dict[int, dict[int, memoryview]] = {}
        for slot, data in views.items():
            for part, target in copies.get(slot, ()):
                target[:] = _view(data, parts[slot], part)
            number, index = divmod(slot, self.entry_slots)
            entries.setdefault(number, {})[index] = data
        size, length = self._sizes[path], self.entry_slots * self.slot_bytes
        for number, slots in entries.items():
            self._cache.add(self._entry(path, number), min(length, size - number * length), slots)

    def _reads_ahead(self) -> bool:
        """Whether to read ahead: not after evictions or errors, which would repeat the reading."""
        failures = (self._cache.counts[name] for name in ("evictions", "failures", "busy"))
        return has_fixed_files(self.inner) and not any(failures)

    def _entry(self, path: str, number: int) -> CacheEntry:
        return CacheEntry(self.place, f"{path} {number}", self.slot_bytes)

    def _slots(self, byte_range: ByteRange) -> range:
        """Numbers of a file's slots that overlap a range."""
        return range(byte_range.start // self.slot_bytes, -(-byte_range.stop // self.slot_bytes))

    def _part(self, byte_range: ByteRange, slot: int) -> ByteRange:
        """The part of a range in a slot."""
        start = slot * self.slot_bytes
        return ByteRange(
            max(start, byte_range.start), min(start + self.slot_bytes, byte_range.stop)
        )

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Remove cached ranges of a file; whether there were any."""
        slots = {slot for byte_range in ranges for slot in self._slots(byte_range)}
        entries = [self._entry(path, slot // self.entry_slots) for slot in slots]
        return self._cache.forget(entries) > 0

    @property
    def limit(self) -> int:
        """Maximum size of the folder in bytes."""
        return self._cache.limit

    def counters(self) -> dict[str, int]:
        cache_counters = {f"cache_{name}": self._cache.counts[name] for name in _COUNTERS}
        return {**self.inner.counters(), **cache_counters}


def _view(data: memoryview, byte_range: ByteRange, part: ByteRange) -> memoryview:
    """Bytes `part` of a file, in the bytes `byte_range`."""
    return data[part.start - byte_range.start : part.stop - byte_range.start]


_COUNTERS = ("hits", "misses", "bytes", "evictions", "damaged", "failures", "busy")


def _checked_limit(limit: int | str, min_bytes: int) -> int:
    try:
        size = parse_size(limit)
    except ValueError as error:
        raise LocationError(f"cache_limit: {error}") from None
    if size < min_bytes:
        raise LocationError(
            "cache_limit is too small",
            expected=f"at least {format_size(min_bytes)}",
            got=limit,
        )
    return size
