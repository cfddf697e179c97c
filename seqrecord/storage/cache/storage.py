"""A storage that keeps on local disk what is read from another one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from seqrecord.errors import LocationError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import Storage, Upload, check_buffers
from seqrecord.storage.cache.entry import DamagedError
from seqrecord.storage.cache.folder import CacheKey, Entry
from seqrecord.storage.cache.lock import CacheBusyError, CacheReadOnlyError, check_folder
from seqrecord.storage.cache.store import MIN_LIMIT, CacheStore
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.url import local_path
from seqrecord.storage.wrappers import StorageWrapper
from seqrecord.units import format_size, parse_size

__all__ = ["CachedStorage", "forget_cached", "with_cache"]

# Files that never change under their name, since it holds a unique id. The manifest does.
_KEPT = (".seqrec", ".arrow")

_PATIENCE_SECONDS = 2.0  # for the lock of the cache; all hold it briefly
_PAUSE_SECONDS = 10.0  # without the cache after its disk has failed, or somebody else had it
_FAILURES = (OSError, LocationError)

_T = TypeVar("_T")
_logger = logging.getLogger("seqrecord")


class CachedStorage(StorageWrapper):
    """Keeps ranges of record and index files in a folder of a local disk, up to a limit.

    Ranges are kept as they are read, and any part of them is served from the cache later, by any
    process that uses the folder; what it lacks is read and kept too. Everything else, above all
    the manifest, passes. A cache that fails never fails the reading: it is passed by, and counted.
    Nor does it hold it up: reading asks for no lock, and where somebody has that of adding for
    longer than `patience` seconds, such as a process that is stopped, nothing is added for `pause`
    seconds. A cache on a read-only disk is read. The cache knows files by where they are, account
    and endpoint included, and holds no credential.

    `counters` has, beside the inner storage's: `cache_hits` and `cache_misses`, ranges that came
    from the cache alone and those that did not; `cache_bytes` that it has served, `cache_evictions`
    of entries that made room, `cache_damaged` entries found, which are read anew, `cache_failures`
    of its disk, and `cache_busy`, how often another had it for too long.

    Raises `LocationError` for a folder that holds something else, and for a limit that is none or
    too small.
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
        self._folder = local_path(cache_dir, "cache_dir").absolute()
        self._limit = _checked_limit(limit)
        self._patience, self._pause = patience, pause
        check_folder(self._folder)
        self._store = CacheStore(self._folder, self._limit, patience=patience)
        self._lock = PerProcess(threading.Lock)
        self._counts: Counter[str] = Counter()
        # On the monotonic clock: until when nothing is asked of the cache, and nothing is added.
        self._paused_until = self._adding_paused_until = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.inner, str(self._folder), self._limit, self._patience, self._pause)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        wanted = [
            (item, buffer.cast("B"))
            for item, buffer in zip(ranges, buffers, strict=True)
            if buffer.nbytes
        ]
        if not wanted or not _is_kept(path):
            self.inner.read_ranges(path, ranges, buffers)
            return
        key = self._key(path)
        missing = self._serve(key, wanted)
        if missing:
            self.inner.read_ranges(path, [gap for gap, _ in missing], [out for _, out in missing])
            self._add(key, missing)

    def create(self, path: str) -> Upload:
        self._forget(path)
        return super().create(path)

    def remove(self, path: str) -> None:
        self._forget(path)
        super().remove(path)

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Drop what is held of ranges of a file; whether there was any."""
        key = self._key(path)
        dropped = self._try(lambda: self._store.forget(key, ranges), 0)
        self._count(cache_damaged=dropped)
        return dropped > 0

    def counters(self) -> dict[str, int]:
        with self._lock.get():
            return {**self.inner.counters(), **{name: self._counts[name] for name in _COUNTERS}}

    def _key(self, path: str) -> CacheKey:
        return CacheKey(self.place, path)

    def _serve(
        self, key: CacheKey, wanted: Sequence[tuple[ByteRange, memoryview]]
    ) -> list[tuple[ByteRange, memoryview]]:
        """Fill buffers from the cache; what is missing then, as ranges with their memory."""
        missing: list[tuple[ByteRange, memoryview]] = []
        nothing: list[Entry] = []
        for item, out in wanted:
            at, gaps = item.start, []
            for entry in self._try(lambda item=item: self._store.find(key, item), nothing):  # type: ignore[misc]
                part = ByteRange(max(entry.range.start, at), min(entry.range.stop, item.stop))
                if part.start < part.stop and self._read(
                    key, entry, part, out[part.start - item.start :][: part.length]
                ):
                    gaps.append(ByteRange(at, part.start))
                    at = part.stop
            gaps.append(ByteRange(at, item.stop))
            gaps = [gap for gap in gaps if gap.length]
            missing += [(gap, out[gap.start - item.start :][: gap.length]) for gap in gaps]
            self._count(
                cache_hits=not gaps,
                cache_misses=bool(gaps),
                cache_bytes=item.length - sum(gap.length for gap in gaps),
            )
        return missing

    def _read(self, key: CacheKey, entry: Entry, part: ByteRange, out: memoryview) -> bool:
        """Fill `out` from an entry; false if it has gone, or is damaged and now gone."""
        try:
            return self._try(lambda: self._store.read(key, entry, part, out), False)
        except DamagedError as error:
            _logger.warning("%s: a damaged entry, read anew: %s", self._folder, error)
            self._store.drop([entry])
            self._count(cache_damaged=1)
            return False

    def _forget(self, path: str) -> None:
        if _is_kept(path) and self._folder.exists():
            self._try(lambda: self._store.forget_file(self._key(path)), None)

    def _add(self, key: CacheKey, parts: Sequence[tuple[ByteRange, memoryview]]) -> None:
        """Keep ranges. After a failure what is held is still read."""
        if time.monotonic() < max(self._paused_until, self._adding_paused_until):
            return
        try:
            self._count(cache_evictions=self._store.add(key, parts))
        except CacheReadOnlyError:
            self._adding_paused_until = time.monotonic() + self._pause
        except _FAILURES as error:
            self._adding_paused_until = time.monotonic() + self._pause
            self._note_failure(error)

    def _try(self, function: Callable[[], _T], otherwise: _T) -> _T:
        """The function's result, or what stands for it while the disk of the cache fails."""
        if time.monotonic() < self._paused_until:
            return otherwise
        try:
            return function()
        except _FAILURES as error:
            self._paused_until = time.monotonic() + self._pause
            self._note_failure(error)
            return otherwise

    def _note_failure(self, error: Exception) -> None:
        name = "cache_busy" if isinstance(error, CacheBusyError) else "cache_failures"
        self._count(**{name: 1})
        if self._counts[name] == 1:
            what = "is not free" if name == "cache_busy" else "fails"
            _logger.warning("%s: the cache %s and is passed by: %s", self._folder, what, error)

    def _count(self, **numbers: int) -> None:
        with self._lock.get():
            self._counts.update(numbers)


def forget_cached(storage: Storage, path: str, ranges: Sequence[ByteRange]) -> bool:
    """Drop what a cache holds of ranges of a file; whether there is a cache.

    For bytes that do not match their checksum: a cache may have kept them as they were damaged on
    their way, and would serve them for as long as it exists. So they are worth one more read, even
    if another thread has dropped them already.
    """
    found = False
    while isinstance(storage, StorageWrapper):
        if isinstance(storage, CachedStorage):
            storage.forget(path, ranges)
            found = True
        storage = storage.inner
    return found


def with_cache(
    storage: Storage,
    cache_dir: str | os.PathLike[str] | None,
    cache_limit: int | str | None,
) -> Storage:
    """The storage with the cache that is asked for; without one, as it is.

    Raises `LocationError` for a local folder, and for one of the two without the other.
    """
    if cache_dir is None and cache_limit is None:
        return storage
    if cache_dir is None or cache_limit is None:
        raise LocationError(
            "cache_dir and cache_limit belong together",
            file=storage.url,
            expected="for example cache_dir='/scratch/cache', cache_limit='200GiB'",
        )
    if type(storage) is LocalStorage:  # a mount may have one
        raise LocationError("a local path needs no cache; leave out cache_dir", file=storage.url)
    return CachedStorage(storage, cache_dir, cache_limit)


_COUNTERS = (
    *("cache_hits", "cache_misses", "cache_bytes"),
    *("cache_evictions", "cache_damaged", "cache_failures", "cache_busy"),
)


def _rebuild(
    inner: Storage, folder: str, limit: int, patience: float, pause: float
) -> CachedStorage:
    return CachedStorage(inner, folder, limit, patience=patience, pause=pause)


def _is_kept(path: str) -> bool:
    return path.endswith(_KEPT)


def _checked_limit(limit: int | str) -> int:
    try:
        size = parse_size(limit)
    except ValueError as error:
        raise LocationError(f"cache_limit: {error}") from None
    if size < MIN_LIMIT:
        raise LocationError(
            "cache_limit is too small", expected=f"at least {format_size(MIN_LIMIT)}", got=limit
        )
    return size
