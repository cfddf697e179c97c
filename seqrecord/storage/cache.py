"""A storage that keeps on local disk what is read from another one, within a limit.

For people: what a cache holds, and emptying it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from seqrecord.errors import LocationError, NotFoundError, StorageError
from seqrecord.processes.forks import PerProcess
from seqrecord.storage.base import Storage, StorageWrapper, check_buffers, has_fixed_files
from seqrecord.storage.cache_folder import (
    MIN_LIMIT,
    CacheBusyError,
    CacheFolder,
    CacheKey,
    CacheReadOnlyError,
    check_folder,
)
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.url import is_place_of, local_path, shown_place
from seqrecord.units import format_size, parse_size

# Files that never change under their name, since it holds a unique id. The manifest does.
_CACHED = (".seqrec", ".arrow")
_BLOCK_BYTES = 8 << 20  # of other files: their pages are small, and lie in the order of episodes
_LOCKS = 64

_PATIENCE_SECONDS = 2.0  # for the lock of the cache; all hold it briefly
_PAUSE_SECONDS = 10.0  # without the cache after its disk has failed, or somebody else had it

_T = TypeVar("_T")
_logger = logging.getLogger("seqrecord")


class CachedStorage(StorageWrapper):
    """Keeps ranges of record and index files in a folder of a local disk, up to a limit.

    Ranges are kept as they are read. Later, any process that uses the folder gets any part of them
    from the cache; missing bytes are read and kept too. All other files, above all the manifest,
    are not kept, unless no file of the storage is ever replaced, as on the Hub at a commit: there
    blocks of 8 MiB are read and kept, each by one thread, until entries must make room. Cache
    errors never fail a read: they are counted. The cache never blocks a read: reading takes no
    lock, and if another process has the lock for adding for longer than `patience` seconds (a
    stopped process, for example), nothing is added for `pause` seconds. A cache on a read-only disk
    is read. The cache identifies files by where they are, account and endpoint included, and holds
    no credential.

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
        folder = local_path(cache_dir, "cache_dir").absolute()
        self._limit, self._patience, self._pause = _checked_limit(limit), patience, pause
        check_folder(folder)
        self._cache = CacheFolder(folder, self._limit, patience=patience)
        self._lock = PerProcess(threading.Lock)
        self._block_locks = PerProcess(lambda: [threading.Lock() for _ in range(_LOCKS)])
        self._counts: Counter[str] = Counter()
        # On the monotonic clock: until when nothing is asked of the cache, and nothing is added.
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
            gaps, damaged = self._held_of(key, item, out)
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

    def _held_of(
        self, key: CacheKey, item: ByteRange, out: memoryview
    ) -> tuple[list[ByteRange], int]:
        """See `CacheFolder.fill`."""
        return self._try(partial(self._cache.fill, key, item, out), ([item], 0))

    def _is_filling(self) -> bool:
        """Whether what is kept stays: else more than is asked for would be read again and again."""
        held = self._counts
        return not (held["cache_evictions"] or held["cache_failures"] or held["cache_busy"])

    def _fill_blocks(self, key: CacheKey, item: ByteRange, out: memoryview) -> None:
        """Read a range by the blocks in which it lies, and keep these."""
        size = self.inner.size(key.path)
        for at in range(item.start - item.start % _BLOCK_BYTES, item.stop, _BLOCK_BYTES):
            # What lies behind the end is asked for too: then that is the error.
            block = ByteRange(at, min(at + _BLOCK_BYTES, max(size, item.stop)))
            part = ByteRange(max(at, item.start), min(block.stop, item.stop))
            target = out[part.start - item.start :][: part.length]
            with self._block_locks.get()[hash((key, at)) % _LOCKS]:
                gaps, _ = self._held_of(key, part, target)  # another thread may have read it
                if not gaps:
                    continue
                data = memoryview(bytearray(block.length))
                self.inner.read_ranges(key.path, [block], [data])
                target[:] = data[part.start - at :][: part.length]
                add = partial(self._cache.add, key, [(block, data)])
                self._count(cache_evictions=self._try(add, 0, is_adding=True))

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:
        """Drop what is held of ranges of a file; whether there was any."""
        key = CacheKey(self.place, path)
        dropped = self._try(partial(self._cache.forget, key, ranges), 0)
        self._count(cache_damaged=dropped)
        return dropped > 0

    @property
    def limit(self) -> int:
        """The most bytes that the folder may take."""
        return self._limit

    def counters(self) -> dict[str, int]:
        with self._lock.get():
            return {**self.inner.counters(), **{name: self._counts[name] for name in _COUNTERS}}

    def _try(self, function: Callable[[], _T], otherwise: _T, *, is_adding: bool = False) -> _T:
        """The function's result, or what stands for it while the disk of the cache fails.

        While only adding fails, what is held is still read.
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


def worth_rereading(storage: Storage, path: str, ranges: Sequence[ByteRange]) -> bool:
    """Whether bytes that do not match their checksum may be right if they are read once more.

    They may have been damaged on their way from anywhere but a local disk. A cache may have kept
    them as they came, and drops them here.
    """
    if storage.local_path(path) is not None:
        return False
    _logger.warning("%s/%s: not as it was written; it is read once more", storage.url, path)
    while isinstance(storage, StorageWrapper):
        if isinstance(storage, CachedStorage):
            storage.forget(path, ranges)
        storage = storage.inner
    return True


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


_REPORT_PATIENCE_SECONDS = 10.0  # a person would rather wait than start again


@dataclass(frozen=True, order=True)
class Held:
    """What is held of one storage: entries, and bytes on disk."""

    url: str
    entries: int
    size: int


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds.

    `size` is what it takes on disk, in bytes, its index included; `datasets` are those of which
    something is held. The times of the use that is longest ago, and of the latest, are UTC.
    """

    path: str
    size: int
    entries: int
    oldest_use: datetime | None
    latest_use: datetime | None
    datasets: tuple[Held, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; times as ISO 8601."""
        return {
            **asdict(self),
            "oldest_use": self.oldest_use and self.oldest_use.isoformat(timespec="seconds"),
            "latest_use": self.latest_use and self.latest_use.isoformat(timespec="seconds"),
        }

    def __str__(self) -> str:
        lines = [f"{self.path}: {format_size(self.size)} in {_entries(self.entries)}"]
        if self.oldest_use is not None and self.latest_use is not None:
            lines.append(f"used from {_minute(self.oldest_use)} to {_minute(self.latest_use)} UTC")
        lines += [
            f"  {held.url}: {format_size(held.size)} in {_entries(held.entries)}"
            for held in self.datasets
        ]
        return "\n".join(lines)


def cache_info(cache_dir: str | os.PathLike[str]) -> CacheInfo:
    """What the cache in a folder holds, while others may use it.

    Raises `NotFoundError` where there is no cache.
    """
    with _opened(cache_dir) as folder:
        entries, size = folder.scan()
        held = _held(folder)
        return CacheInfo(
            path=str(folder.path),
            size=size,
            entries=len(entries),
            oldest_use=_time(entries[0].used) if entries else None,
            latest_use=_time(entries[-1].used) if entries else None,
            datasets=tuple(sorted(each for each in held.values() if each.entries)),
        )


def clear_cache(
    cache_dir: str | os.PathLike[str], location: str | os.PathLike[str] | None = None
) -> int:
    """Empty a cache, or remove what it holds of the dataset at `location`; the bytes freed.

    A location without account and endpoint means the datasets of that name in all of them; one of
    them is meant by what `cache_info` calls it.
    Processes that use the cache meanwhile continue, and read again. Raises `NotFoundError` where
    there is no cache, or where it holds nothing of that dataset.
    """
    with _opened(cache_dir) as folder:
        held = _held(folder)
        if location is not None:
            found = {at: each for at, each in held.items() if is_place_of(location, each.url)}
            if not any(each.entries for each in found.values()):
                raise NotFoundError(
                    "the cache holds nothing of this dataset",
                    file=str(folder.path),
                    expected=", ".join(each.url for each in held.values() if each.entries)[:500]
                    or "it is empty",
                    got=shown_place(location),
                )
            held = found
        folder.clear(list(held))
        return sum(each.size for each in held.values())


def _held(folder: CacheFolder) -> dict[Path, Held]:
    """What is held of each storage, by its folder."""
    found = {}
    for path, url in folder.places().items():
        entries, _ = CacheFolder(path).scan()
        found[path] = Held(url, len(entries), sum(entry.size for entry in entries))
    return found


@contextlib.contextmanager
def _opened(cache_dir: str | os.PathLike[str]) -> Iterator[CacheFolder]:
    path = local_path(cache_dir, "the cache's folder").absolute()
    if not check_folder(path):
        raise NotFoundError("no cache here", file=str(path))
    try:
        yield CacheFolder(path, patience=_REPORT_PATIENCE_SECONDS)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"the cache cannot be used: {error}", file=str(path)) from error


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc)


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
