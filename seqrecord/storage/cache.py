"""A storage with a cache on local disk."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from seqrecord.errors import LocationError
from seqrecord.processes.forks import PerProcess
from seqrecord.storage.base import (
    MIN_CACHE_BYTES,
    Storage,
    StorageWrapper,
    check_buffers,
    has_fixed_files,
)
from seqrecord.storage.cache_folder import (
    CacheBusyError,
    CacheFolder,
    CacheKey,
    CacheReadOnlyError,
    check_folder,
)
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.url import local_path
from seqrecord.units import format_size, parse_size

# These files are immutable, since their names have a unique id. The manifest is not.
_CACHED = (".seqrec", ".arrow")
_BLOCK_BYTES = 8 << 20  # read-ahead for other files: their pages are small, in episode order
_LOCKS = 64

_PATIENCE_SECONDS = 2.0  # maximum wait for the cache's lock, which is released quickly
_PAUSE_SECONDS = 10.0  # without the cache, after an error of its disk or a busy lock

_T = TypeVar("_T")
_logger = logging.getLogger("seqrecord")


class CachedStorage(StorageWrapper):
    """Caches ranges of record and index files in a folder on a local disk, up to a size limit.

    Ranges are cached as they are read. Any process that uses the folder later reads all parts of
    them from the cache; missing bytes are read and cached. Other files, notably the manifest, are
    not cached, unless the storage is a commit on the Hub, whose files never change. Then blocks of
    8 MiB are read and cached, each by one thread, until the first eviction.

    Cache errors never fail a read; they are counted. The cache never blocks a read: reading takes
    no lock. If another process, for example a stopped one, has the lock for adding for longer than
    `patience` seconds, nothing is added for `pause` seconds. A cache on a read-only disk is used
    for reading. Files are identified by their location, with account and endpoint; credentials are
    not stored.

    `counters` are the inner storage's and: `cache_hits`, ranges read from the cache only;
    `cache_misses`, other ranges; `cache_bytes` read from the cache; `cache_evictions`, entries
    removed to make room; `cache_damaged`, damaged entries, which are read again;
    `cache_failures`, disk errors; `cache_busy`, timeouts of the lock.

    Raises `LocationError` for a folder with other content, and for an invalid or too small limit.
    """

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
        self._limit, self._patience, self._pause = _checked_limit(limit), patience, pause
        check_folder(folder)
        self._cache = CacheFolder(folder, self._limit, patience=patience)
        self._lock = PerProcess(threading.Lock)
        self._block_locks = PerProcess(lambda: [threading.Lock() for _ in range(_LOCKS)])
        self._counts: Counter[str] = Counter()
        # Times of the monotonic clock, before which the cache is not read, or not added to.
        self._paused_until = self._adding_paused_until = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(CachedStorage, patience=self._patience, pause=self._pause)
        return make, (self.inner, str(self._cache.path), self._limit)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        wanted = [
            (item, buffer.cast("B"))
            for item, buffer in zip(ranges, buffers, strict=True)
            if buffer.nbytes
        ]
        has_blocks = has_fixed_files(self.inner)
        if not wanted or not (has_blocks or path.endswith(_CACHED)):
            self.inner.read_ranges(path, ranges, buffers)
            return
        key = CacheKey(self.place, path)
        missing: list[tuple[ByteRange, memoryview]] = []
        for item, out in wanted:
            gaps, damaged = self._read_cached(key, item, out)
            if gaps and has_blocks and self._is_filling():
                self._fill_blocks(key, item, out)
                self._count(cache_misses=1)
                continue
            missing += [(gap, out[gap.start - item.start :][: gap.length]) for gap in gaps]
            self._count(
                cache_hits=not gaps,
                cache_misses=bool(gaps),
                cache_bytes=item.length - sum(gap.length for gap in gaps),
                cache_damaged=damaged,
            )
        if missing:
            self.inner.read_ranges(path, [gap for gap, _ in missing], [out for _, out in missing])
            self._count(
                cache_evictions=self._try(partial(self._cache.add, key, missing), 0, is_adding=True)
            )

    def _read_cached(
        self, key: CacheKey, item: ByteRange, out: memoryview
    ) -> tuple[list[ByteRange], int]:
        """See `CacheFolder.fill`."""
        return self._try(partial(self._cache.fill, key, item, out), ([item], 0))

    def _is_filling(self) -> bool:
        """Whether to read ahead: not after evictions or errors, which would repeat the reading."""
        counts = self._counts
        return not (counts["cache_evictions"] or counts["cache_failures"] or counts["cache_busy"])

    def _fill_blocks(self, key: CacheKey, item: ByteRange, out: memoryview) -> None:
        """Read a range by whole blocks, and cache these."""
        size = self.inner.size(key.path)
        for at in range(item.start - item.start % _BLOCK_BYTES, item.stop, _BLOCK_BYTES):
            # A range beyond the end of the file is requested too, so that it raises the error.
            block = ByteRange(at, min(at + _BLOCK_BYTES, max(size, item.stop)))
            part = ByteRange(max(at, item.start), min(block.stop, item.stop))
            target = out[part.start - item.start :][: part.length]
            with self._block_locks.get()[hash((key, at)) % _LOCKS]:
                gaps, _ = self._read_cached(key, part, target)  # another thread may have read it
                if not gaps:
                    continue
                data = memoryview(bytearray(block.length))
                self.inner.read_ranges(key.path, [block], [data])
                target[:] = data[part.start - at :][: part.length]
                add = partial(self._cache.add, key, [(block, data)])
                self._count(cache_evictions=self._try(add, 0, is_adding=True))

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Remove cached ranges of a file; whether there were any."""
        key = CacheKey(self.place, path)
        dropped = self._try(partial(self._cache.forget, key, ranges), 0)
        self._count(cache_damaged=dropped)
        return dropped > 0

    @property
    def limit(self) -> int:
        """Maximum size of the folder in bytes."""
        return self._limit

    def counters(self) -> dict[str, int]:
        with self._lock.get():
            return {**self.inner.counters(), **{name: self._counts[name] for name in _COUNTERS}}

    def _try(self, function: Callable[[], _T], otherwise: _T, *, is_adding: bool = False) -> _T:
        """Result of `function`, or `otherwise` if the cache's disk fails or is paused.

        If only adding fails, reading from the cache continues.
        """
        if time.monotonic() < max(self._paused_until, is_adding and self._adding_paused_until):
            return otherwise
        try:
            return function()
        except (OSError, LocationError) as error:
            until = time.monotonic() + self._pause
            if is_adding:
                self._adding_paused_until = until
            else:
                self._paused_until = until
            if not isinstance(error, CacheReadOnlyError):
                is_busy = isinstance(error, CacheBusyError)
                name = "cache_busy" if is_busy else "cache_failures"
                self._count(**{name: 1})
                if self._counts[name] == 1:
                    what = "is locked by another process" if is_busy else "fails"
                    _logger.warning(
                        "%s: the cache %s, and is not used for a while: %s",
                        self._cache.path,
                        what,
                        error,
                    )
            return otherwise

    def _count(self, **numbers: int) -> None:
        with self._lock.get():
            self._counts.update(numbers)


_COUNTERS = (
    *("cache_hits", "cache_misses", "cache_bytes"),
    *("cache_evictions", "cache_damaged", "cache_failures", "cache_busy"),
)


def _checked_limit(limit: int | str) -> int:
    try:
        size = parse_size(limit)
    except ValueError as error:
        raise LocationError(f"cache_limit: {error}") from None
    if size < MIN_CACHE_BYTES:
        raise LocationError(
            "cache_limit is too small",
            expected=f"at least {format_size(MIN_CACHE_BYTES)}",
            got=limit,
        )
    return size
