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

from seqrecord.errors import LocationError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import (
    MIN_CACHE_BYTES,
    Storage,
    StorageWrapper,
    check_buffers,
    has_fixed_files,
)
from seqrecord.store.storage.cache_folder import (
    CacheEntry,
    CacheFolder,
    check_folder,
)
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import local_path
from seqrecord.store.units import format_size, parse_size

# These files are immutable, since their names have a unique id. The manifest is not.
_CACHED = (".seqrec", ".arrow")
_AHEAD_BYTES = 8 << 20  # read-ahead in other files: their pages are small, in episode order
_MOST_BYTES = 32 << 20  # memory of a thread for slots of which only a part is wanted
_LOCKS = 64

_PATIENCE_SECONDS = 2.0  # maximum wait for the cache's lock, which is released quickly
_PAUSE_SECONDS = 10.0  # without the cache, after an error of its disk or a busy lock

_Wanted: TypeAlias = tuple[ByteRange, memoryview]
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
        least = max(MIN_CACHE_BYTES, 2 * self.entry_slots * self.slot_bytes)
        size = _checked_limit(limit, least)
        check_folder(folder)
        self._cache = CacheFolder(folder, size, patience=patience, pause=pause)
        self._ahead_locks = PerProcess(lambda: [threading.Lock() for _ in range(_LOCKS)])
        self._sizes: dict[str, int] = {}  # of files with absent slots

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), patience=self._cache.patience, pause=self._cache.pause)
        return make, (self.inner, str(self._cache.path), self.limit)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        wanted = [
            (item, buffer.cast("B"))
            for item, buffer in zip(ranges, buffers, strict=True)
            if buffer.nbytes
        ]
        is_fixed = has_fixed_files(self.inner)
        if not wanted or not (is_fixed or path.endswith(_CACHED)):
            self.inner.read_ranges(path, ranges, buffers)
            return
        absent = self._read_cached(path, wanted)
        for item, _ in wanted:
            lacking = sum(
                self._part(item, slot).length for slot in absent.intersection(self._slots(item))
            )
            counts = {"hits": not lacking, "misses": lacking > 0}
            self._cache.count(**counts, bytes=item.length - lacking)
        with contextlib.ExitStack() as stack:
            if absent and is_fixed and self._is_filling():
                ahead = _AHEAD_BYTES // self.slot_bytes
                numbers = {hash((path, slot // ahead)) % _LOCKS for slot in absent}
                for number in sorted(numbers):
                    stack.enter_context(self._ahead_locks.get()[number])
                absent = self._read_cached(path, wanted)  # another thread may have read them
                firsts = {slot - slot % ahead for slot in absent}
                absent = {slot for first in firsts for slot in range(first, first + ahead)}
            if absent:
                self._load(path, wanted, absent)

    def _read_cached(self, path: str, wanted: Sequence[_Wanted]) -> set[int]:
        """Fill buffers from the cache; returns the numbers of the absent slots of the file."""
        absent, length = set[int](), self.entry_slots * self.slot_bytes
        damaged = self._cache.counts["damaged"]
        for item, out in wanted:
            for number in range(item.start // length, -(-item.stop // length)):
                at = number * length
                part = ByteRange(max(at, item.start), min(at + length, item.stop))
                target, slots = _view(out, item, part), self._slots(part)
                found = self._cache.read(self._entry(path, number), part.start - at, target)
                if not found.all():
                    absent.update(np.array(slots)[~found].tolist())
        if self._cache.counts["damaged"] > damaged:
            _logger.warning("%s: damaged cache entry, reading again", self._cache.path)
        return absent

    def _load(self, path: str, wanted: Sequence[_Wanted], absent: set[int]) -> None:
        """Read and cache slots; slots beyond the end of the file are left out."""
        if path not in self._sizes:
            self._sizes[path] = self.inner.size(path)
        size = self._sizes[path]
        # A range beyond the end is requested too, so that it raises the error.
        whole = ByteRange(0, max(size, *(item.stop for item, _ in wanted)))
        parts = {slot: self._part(whole, slot) for slot in sorted(absent)}
        parts = {slot: part for slot, part in parts.items() if part.length > 0}
        views: dict[int, memoryview] = {}
        copies: dict[int, list[tuple[ByteRange, memoryview]]] = {}
        for item, out in wanted:
            for slot in absent.intersection(self._slots(item)):
                part = self._part(item, slot)
                target = _view(out, item, part)
                if part == parts[slot] and slot not in views:
                    views[slot] = target
                else:
                    copies.setdefault(slot, []).append((part, target))
        some: dict[int, ByteRange] = {}
        free = _MOST_BYTES
        for slot, part in parts.items():
            needed = 0 if slot in views else part.length
            if needed > free:
                self._load_slots(path, some, views, copies)
                some, free = {}, _MOST_BYTES
            some[slot] = part
            free -= needed
        self._load_slots(path, some, views, copies)

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
            number, at = divmod(slot, self.entry_slots)
            entries.setdefault(number, {})[at] = data
        size, length = self._sizes[path], self.entry_slots * self.slot_bytes
        for number, slots in entries.items():
            self._cache.add(self._entry(path, number), min(length, size - number * length), slots)

    def _is_filling(self) -> bool:
        """Whether to read ahead: not after evictions or errors, which would repeat the reading."""
        return not any(self._cache.counts[name] for name in ("evictions", "failures", "busy"))

    def _entry(self, path: str, number: int) -> CacheEntry:
        return CacheEntry(self.place, f"{path} {number}", self.slot_bytes)

    def _slots(self, item: ByteRange) -> range:
        """Numbers of the slots of a file that overlap a range."""
        return range(item.start // self.slot_bytes, -(-item.stop // self.slot_bytes))

    def _part(self, item: ByteRange, slot: int) -> ByteRange:
        """The part of a range in a slot."""
        start = slot * self.slot_bytes
        return ByteRange(max(start, item.start), min(start + self.slot_bytes, item.stop))

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Remove cached ranges of a file; whether there were any."""
        slots = {slot for item in ranges for slot in self._slots(item)}
        entries = [self._entry(path, slot // self.entry_slots) for slot in slots]
        return self._cache.forget(entries) > 0

    @property
    def limit(self) -> int:
        """Maximum size of the folder in bytes."""
        return self._cache.limit

    def counters(self) -> dict[str, int]:
        ours = {f"cache_{name}": self._cache.counts[name] for name in _COUNTERS}
        return {**self.inner.counters(), **ours}


def _view(data: memoryview, item: ByteRange, part: ByteRange) -> memoryview:
    """Bytes `part` of a file, in the bytes `item`."""
    return data[part.start - item.start : part.stop - item.start]


_COUNTERS = ("hits", "misses", "bytes", "evictions", "damaged", "failures", "busy")


def _checked_limit(limit: int | str, least: int) -> int:
    try:
        size = parse_size(limit)
    except ValueError as error:
        raise LocationError(f"cache_limit: {error}") from None
    if size < least:
        raise LocationError(
            "cache_limit is too small",
            expected=f"at least {format_size(least)}",
            got=limit,
        )
    return size
