"""Byte ranges of stored files, kept on disk within a limit: the least recently used go first."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from seqrecord.ranges import ByteRange
from seqrecord.storage.cache.entry import cut, entry_bytes, read_entry, write_entry
from seqrecord.storage.cache.folder import (
    BLOCK_BYTES,
    CacheFolder,
    CacheKey,
    Entry,
)
from seqrecord.storage.cache.lock import CacheBusyError, CacheReadOnlyError, Taken

__all__ = ["MIN_LIMIT", "CacheStore"]

MIN_LIMIT = 1 << 20
_SPARE_BYTES = 16 << 10  # for what of the cache's own is not there yet when it is first counted
_MIN_ENTRY_BYTES = 64 << 10
_TRIM_SECONDS = 10.0  # from one attempt to trim the cache to the next


class CacheStore:
    """The entries of the cache in `folder`, which may fill it up to `limit` bytes on disk.

    Others may use the folder with another limit: each keeps to its own, from its first look on.
    Where the folder is on a read-only disk, what it holds is found, and nothing changes.

    Safe to use from many threads, processes, and after a fork. Methods raise `OSError` when the
    disk fails, `CacheBusyError` where another process does not let go of the cache for `patience`
    seconds, and `CacheReadOnlyError`; then nothing has changed but what may be missing.
    """

    def __init__(self, folder: Path, limit: int, *, patience: float) -> None:
        self._limit = limit - _SPARE_BYTES
        self._folder = CacheFolder(folder, patience=patience)
        self._oldest: deque[Entry] = deque()  # as of the last scan
        self._now = 0
        self._trim_due = 0.0  # seconds of the monotonic clock
        self._ignored: set[str] = set()  # paths of entries to be dropped, which could not be
        # Smaller ones in a small cache, so that it is not one entry that goes or stays.
        self._entry_bytes = min(BLOCK_BYTES, max(_MIN_ENTRY_BYTES, limit // 8))

    def find(self, key: CacheKey, item: ByteRange) -> list[Entry]:
        """The entries that hold some of a range, in its order."""
        if time.monotonic() >= self._trim_due:
            self._trim()
        found = self._folder.overlapping(key, item)
        return [entry for entry in found if entry.path not in self._ignored]

    def read(self, key: CacheKey, entry: Entry, wanted: ByteRange, out: memoryview) -> bool:
        """Fill `out` with a part of an entry's range, which counts as a use; false if it has gone.

        Raises `DamagedError` for an entry that is not as it was written.
        """
        try:
            fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False  # another process needed the room
        try:
            read_entry(fd, key.label(entry.range), entry.range, wanted, out)
            with contextlib.suppress(OSError):  # of a read-only disk
                self._note_use(fd)
        finally:
            os.close(fd)
        return True

    def add(self, key: CacheKey, parts: Sequence[tuple[ByteRange, memoryview]]) -> int:
        """Keep ranges of a file, as far as they fit; how many entries had to make room.

        What is kept already is left as it is.
        """
        pieces = [
            (ByteRange(at, stop), cut(data, at - item.start, stop - item.start))
            for item, data in _joined(parts)
            for at, stop in _entries(item, self._entry_bytes)
        ]
        made: set[Path] = set()
        files: list[tuple[Path, int]] = []
        try:
            with self._folder.locked() as taken:
                pieces = [each for each in pieces if not self._folder.overlapping(key, each[0])]
                lengths = [entry_bytes(item.length) for item, _ in pieces]
                needed = [
                    self._folder.needed(key, item, length, made)
                    for (item, _), length in zip(pieces, lengths, strict=True)
                ]
                fitting, evicted = self._make_room(taken, needed)
                for (item, _), length in zip(pieces, lengths[:fitting], strict=False):
                    files.append(self._folder.create(key, item, length))
            for (item, data), (path, fd) in zip(pieces, files, strict=False):
                write_entry(fd, key.label(item), data)
                self._note_use(fd)
                self._folder.publish(path, key, item)
        except BaseException:
            for path, _ in files:  # those that have their name are not there any more
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        finally:
            for _, fd in files:
                os.close(fd)
        return evicted

    def drop(self, entries: Sequence[Entry]) -> None:
        """Remove entries. Those that cannot be removed are not found here any more."""
        for entry in entries:
            try:
                self._folder.remove(entry)
            except OSError:
                self._ignored.add(entry.path)

    def forget(self, key: CacheKey, ranges: Sequence[ByteRange]) -> int:
        """Drop what is held of ranges of a file; how many entries that were."""
        entries = sorted({entry for item in ranges for entry in self.find(key, item)})
        self.drop(entries)
        return len(entries)

    def forget_file(self, key: CacheKey) -> None:
        """Drop all that is held of a file."""
        self._folder.remove_file(key)

    def _trim(self) -> None:
        """Make the cache as small as its limit, which another one may not have kept to."""
        try:
            with self._folder.locked() as taken:
                self._make_room(taken, [])
            self._trim_due = math.inf
        except (CacheBusyError, CacheReadOnlyError):
            self._trim_due = time.monotonic() + _TRIM_SECONDS

    def _make_room(self, taken: Taken, needed: Sequence[int]) -> tuple[int, int]:
        """Of entries that need so much, how many may be added, and how many made room for them.

        From then on their space is taken.
        """
        fitting = len(needed)
        while sum(needed[:fitting]) > self._limit:
            fitting -= 1
        count, is_counted = taken.bytes, False
        if count is None:
            count, is_counted = self._count(), True
        elif count + sum(needed[:fitting]) > self._limit:
            count -= self._folder.remove_abandoned()
        evicted = 0
        while count + sum(needed[:fitting]) > self._limit:
            if self._oldest:
                given_back = self._folder.remove(self._oldest.popleft(), unless_used=True)
                count -= given_back
                evicted += given_back > 0
            elif not is_counted:
                count, is_counted = self._count(), True
            elif fitting:
                fitting -= 1
            else:
                break
        taken.write(count + sum(needed[:fitting]))
        return fitting, evicted

    def _count(self) -> int:
        """Bytes that are taken, counted anew."""
        self._folder.remove_abandoned()
        entries, count = self._folder.scan(tidy=True)
        self._oldest = deque(entries)
        return count

    def _note_use(self, fd: int) -> None:
        # Nanoseconds since 1970, each later than the one before.
        self._now = max(time.time_ns(), self._now + 1)
        os.utime(fd, ns=(self._now, self._now))


def _entries(item: ByteRange, longest: int) -> list[ByteRange]:
    """A range in entries: none is longer than that, and none reaches over the end of a block."""
    found, at = [], item.start
    while at < item.stop:
        stop = min(item.stop, at + longest, (at // BLOCK_BYTES + 1) * BLOCK_BYTES)
        found.append(ByteRange(at, stop))
        at = stop
    return found


def _joined(
    parts: Sequence[tuple[ByteRange, memoryview]],
) -> list[tuple[ByteRange, list[memoryview]]]:
    """The parts in order, those that follow each other as one, and nothing twice."""
    joined: list[tuple[ByteRange, list[memoryview]]] = []
    for item, data in sorted(parts, key=lambda part: part[0]):
        if joined and item.start <= joined[-1][0].stop:
            (start, stop), before = joined[-1]
            if item.stop > stop:
                joined[-1] = (ByteRange(start, item.stop), [*before, data[stop - item.start :]])
        else:
            joined.append((item, [data]))
    return joined
