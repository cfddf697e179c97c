"""The folder of a cache: its names are its index, so that nothing else has to be kept right.

::

    CACHEDIR.TAG                            tells backup programs what the folder is
    taken                                   bytes that it takes at most; locked by whoever adds
    new/<random>                            an entry that is being written, locked by its writer
    <digest>/where                          the place of a storage, of which that is the digest
    <digest>/<path>.<block>/<start>-<stop>  an entry: a byte range of a stored file

An entry is read without a lock, and its time of change is that of its last use. Who adds one takes
its space in `taken` before its file has a byte. While somebody adds, and so after a kill there,
`taken` holds no number; after a kill elsewhere it may be more than there is, never less. It is
counted anew then, where room seems to be lacking, and after the machine was started anew.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from seqrecord.storage.cache_files import (
    NEW,
    CacheBusyError,
    CacheReadOnlyError,
    DamagedError,
    Taken,
    entry_bytes,
    locked,
    read_entry,
    try_lock,
    write_entry,
)
from seqrecord.storage.ranges import ByteRange, coalesce

__all__ = ["MIN_LIMIT", "CacheFolder", "CacheKey", "Entry"]

MIN_LIMIT = 1 << 20

_BLOCK_BYTES = 8 << 20  # of a stored file, in one folder; no entry reaches over its end
_MIN_ENTRY_BYTES = 64 << 10
_FOLDER_BYTES = 4096
_NAME_BYTES = 128  # of a name in its folder, at most
_SPARE_BYTES = 4 * _FOLDER_BYTES  # for what of the cache's own is not there when first counted
_SETTLED_NS = 10**8  # the kernel's times are some milliseconds apart

_WHERE = "where"
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_logger = logging.getLogger("seqrecord")


class CacheKey(NamedTuple):
    """A stored file: the place of its storage, and its path in it."""

    place: str
    path: str


class Entry(NamedTuple):
    """An entry; its size on disk and its last use, in nanoseconds, as a scan has found them."""

    range: ByteRange
    path: str
    size: int = 0
    used: int = 0


class CacheFolder:
    """The cache in folder `path`, which is made when it is first used.

    What adds keeps it within `limit` bytes on disk: the least recently used entries go first.
    Others may use the folder with another limit: each keeps to its own, from its first look on.
    Where the folder is on a read-only disk, what it holds is found, and nothing changes.

    Safe to use from many threads and processes, and after a fork: nothing stays open. Methods raise
    `OSError` when the disk fails; those that add `CacheBusyError` where another process does not
    let go of the cache for `patience` seconds, and `CacheReadOnlyError`.
    """

    def __init__(self, path: Path, limit: int = MIN_LIMIT, *, patience: float = 0.0) -> None:
        self.path = path
        self._limit, self._patience = limit - _SPARE_BYTES, patience
        # Smaller ones in a small cache, so that it is not one entry that goes or stays.
        self._entry_bytes = min(_BLOCK_BYTES, max(_MIN_ENTRY_BYTES, limit // 8))
        self._oldest: deque[Entry] = deque()  # as of the last scan
        self._is_trimmed = False
        self._now = 0
        self._ignored: set[str] = set()  # paths of entries to be dropped, which could not be

    def fill(self, key: CacheKey, item: ByteRange, out: memoryview) -> tuple[list[ByteRange], int]:
        """Fill `out` with what is held of a range, which counts as a use.

        Returns what is missing, and how many entries were found damaged, and dropped.
        """
        if not self._is_trimmed:
            self._is_trimmed = True
            with contextlib.suppress(CacheBusyError, CacheReadOnlyError), self.locked() as taken:
                self._make_room(taken, 0)
        at, gaps, damaged = item.start, [], 0
        for entry in self._overlapping(key, item):
            part = ByteRange(max(entry.range.start, at), min(entry.range.stop, item.stop))
            if part.start >= part.stop:
                continue
            try:
                self._read(key, entry, part, out[part.start - item.start :][: part.length])
            except FileNotFoundError:
                continue  # another process needed the room
            except DamagedError as error:
                _logger.warning("%s: a damaged entry, read anew: %s", self.path, error)
                damaged += 1
                self._drop(entry)
                continue
            gaps.append(ByteRange(at, part.start))
            at = part.stop
        gaps.append(ByteRange(at, item.stop))
        return [gap for gap in gaps if gap.length], damaged

    def add(self, key: CacheKey, parts: Sequence[tuple[ByteRange, memoryview]]) -> int:
        """Keep ranges of a file, as far as they fit; how many entries had to make room.

        What is kept already is left as it is.
        """
        evicted = 0
        files: list[tuple[ByteRange, memoryview, Path, int]] = []
        try:
            with self.locked() as taken:
                found = _entries(parts, self._entry_bytes)
                new = [each for each in found if not self._overlapping(key, each[0])]
                while new:
                    fits, gone = self._make_room(taken, sum(_needed(item) for item, _ in new))
                    evicted += gone
                    if fits:
                        break
                    del new[-1]
                for item, data in new:
                    self._make_folders(taken, key, item)
                    path = self._new()
                    # Its lock tells others that it is being written.
                    fd = os.open(path, _CREATE, 0o600)
                    files.append((item, data, path, fd))
                    try_lock(fd)
                    os.ftruncate(fd, entry_bytes(item.length))  # so that a scan sees its size
                    taken.bytes += _on_disk(entry_bytes(item.length))
            for item, data, path, fd in files:
                write_entry(fd, _label(key, item), data)
                self._note_use(fd)
                # Not where the cache was cleared meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    path.replace(self._block(key, item.start) / _name(item))
        finally:
            for _, _, path, fd in files:
                with contextlib.suppress(OSError):
                    path.unlink()  # of those that have not got their name
                os.close(fd)
        return evicted

    def forget(self, key: CacheKey, ranges: Sequence[ByteRange]) -> int:
        """Drop what is held of ranges of a file; how many entries that were."""
        entries = {entry for item in ranges for entry in self._overlapping(key, item)}
        for entry in entries:
            self._drop(entry)
        return len(entries)

    def scan(self) -> tuple[list[Entry], int]:
        """All entries, those first whose use is longest ago, and bytes on disk of all there is."""
        entries: list[Entry] = []
        sizes: dict[int, int] = {}  # by inode
        for folder, folders, names in os.walk(self.path):
            folders.sort(key=NEW.__ne__)  # what is being written first: it may get its name
            with contextlib.suppress(FileNotFoundError):
                found = Path(folder).stat()
                # A folder that has held many names stays as large as it has become.
                sizes[found.st_ino] = max(_FOLDER_BYTES, found.st_blocks * 512)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = f"{folder}/{name}"
                    found = os.lstat(path)
                    sizes[found.st_ino] = size = _on_disk(found.st_size)
                    if (item := _range(name)) is not None:
                        entries.append(Entry(item, path, size, found.st_mtime_ns))
        return sorted(entries, key=lambda entry: (entry.used, entry.path)), sum(sizes.values())

    def places(self) -> dict[Path, str]:
        """The place of each storage of which something may be held, by its folder."""
        found = self.path.glob(f"*/{_WHERE}")
        return {where.parent: where.read_text("utf-8", "replace") for where in found}

    def clear(self, folders: Sequence[Path]) -> None:
        """Remove these folders of storages, and what is being written."""
        with self.locked() as taken:
            taken.is_known = False
            for folder in (*folders, self.path / NEW):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)

    def locked(self) -> contextlib.AbstractContextManager[Taken]:
        """Alone with the cache, but for readers; see `locked`."""
        return locked(self.path, self._patience)

    def _make_room(self, taken: Taken, needed: int) -> tuple[bool, int]:
        """Whether so much more may be taken now, and how many entries had to go."""
        evicted, is_counted = 0, False
        while not taken.is_known or taken.bytes + needed > self._limit:
            if needed > self._limit:
                return False, evicted
            if taken.is_known and self._oldest:
                given_back = self._remove(self._oldest.popleft(), unless_used=True)
                taken.bytes -= given_back
                evicted += given_back > 0
            elif not is_counted:
                self._remove_abandoned()
                entries, taken.bytes = self.scan()
                self._oldest, is_counted = deque(entries), True
                taken.is_known = True
            else:
                return False, evicted
        return True, evicted

    def _make_folders(self, taken: Taken, key: CacheKey, item: ByteRange) -> None:
        block, where = self._block(key, item.start), self._of(key.place) / _WHERE
        if not where.exists():
            where.parent.mkdir(mode=0o700, exist_ok=True)
            new = self._new()
            new.write_text(key.place, "utf-8")
            new.replace(where)
            taken.bytes += _FOLDER_BYTES + _on_disk(len(key.place))
        if not block.is_dir():
            block.mkdir(mode=0o700)
            taken.bytes += _FOLDER_BYTES

    def _new(self) -> Path:
        folder = self.path / NEW
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / secrets.token_hex(12)

    def _remove_abandoned(self) -> None:
        """Remove what kills have left half written."""
        with contextlib.suppress(FileNotFoundError):
            for path in list((self.path / NEW).iterdir()):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if try_lock(fd):
                        path.unlink()
                finally:
                    os.close(fd)

    def _drop(self, entry: Entry) -> None:
        """Remove an entry. If it cannot be removed, it is not found here any more."""
        try:
            self._remove(entry)
        except OSError:
            self._ignored.add(entry.path)

    def _remove(self, entry: Entry, *, unless_used: bool = False) -> int:
        """Remove an entry, and its folder after the last one; bytes on disk that this gives back.

        `unless_used`: but not one that was used since it was looked at.
        """
        path, given_back = Path(entry.path), 0
        with contextlib.suppress(FileNotFoundError):
            if unless_used and path.stat().st_mtime_ns != entry.used:
                return 0
            path.unlink()
            given_back = entry.size
            with contextlib.suppress(OSError):  # it holds others
                path.parent.rmdir()
                given_back += _FOLDER_BYTES
        return given_back

    def _read(self, key: CacheKey, entry: Entry, part: ByteRange, out: memoryview) -> None:
        fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            read_entry(fd, _label(key, entry.range), entry.range, part, out)
            with contextlib.suppress(OSError):  # of a read-only disk
                self._note_use(fd)
        finally:
            os.close(fd)

    def _note_use(self, fd: int) -> None:
        # Nanoseconds since 1970, each later than the one before.
        self._now = max(time.time_ns(), self._now + 1)
        os.utime(fd, ns=(self._now, self._now))

    def _overlapping(self, key: CacheKey, item: ByteRange) -> list[Entry]:
        """Entries that hold some of a range, in its order.

        Of entries that overlap, which several writers at once may make, some may be left out.
        """
        found = []
        for at in range(item.start - item.start % _BLOCK_BYTES, item.stop, _BLOCK_BYTES):
            folder = str(self._block(key, at))
            try:
                changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - for every read
                is_settled = time.time_ns() - changed > _SETTLED_NS
                names = (_names if is_settled else _names.__wrapped__)(folder, changed)
            except FileNotFoundError:
                continue
            # Of those that start before the range, the last may reach into it.
            first = bisect.bisect(names, f"{item.start:016}")
            for name in names[max(0, first - 1) : bisect.bisect_left(names, f"{item.stop:016}")]:
                each, path = _range(name), f"{folder}/{name}"
                if each is not None and item.start < each.stop and path not in self._ignored:
                    found.append(Entry(each, path))
        return found

    def _of(self, place: str) -> Path:
        return self.path / hashlib.sha256(place.encode()).hexdigest()[:40]

    def _block(self, key: CacheKey, at: int) -> Path:
        return self._of(key.place) / f"{quote(key.path, safe='')}.{at // _BLOCK_BYTES}"


def _entries(
    parts: Sequence[tuple[ByteRange, memoryview]], longest: int
) -> Iterator[tuple[ByteRange, memoryview]]:
    """The parts as entries: what touches is one, none is longer than that or leaves its block."""
    ranges = [item for item, _ in parts]
    for (start, stop), members in coalesce(ranges, max_gap=0, max_length=1 << 62):
        data = memoryview(parts[members[0]][1])
        if len(members) > 1:
            data = memoryview(bytearray(stop - start))
            for number in members:
                item, part = parts[number]
                data[item.start - start : item.stop - start] = part
        at = start
        while at < stop:
            end = min(stop, at + longest, (at // _BLOCK_BYTES + 1) * _BLOCK_BYTES)
            yield ByteRange(at, end), data[at - start : end - start]
            at = end


@functools.lru_cache(maxsize=256)
def _names(folder: str, changed: int) -> list[str]:  # noqa: ARG001 - what is kept is as of then
    """Names in a folder that was changed at that time, sorted."""
    return sorted(os.listdir(folder))  # noqa: PTH208 - there may be thousands


def _needed(item: ByteRange) -> int:
    """Bytes on disk for an entry at most, with folders that are not there yet."""
    return _on_disk(entry_bytes(item.length)) + 3 * _FOLDER_BYTES


def _on_disk(length: int) -> int:
    """Bytes that a file of `length` bytes takes, with its name."""
    return -(-length // 4096) * 4096 + _NAME_BYTES


def _label(key: CacheKey, item: ByteRange) -> bytes:
    return f"{key.place}\0{key.path}\0{item.start}-{item.stop}".encode()


def _name(item: ByteRange) -> str:
    return f"{item.start:016}-{item.stop}"  # in the order of numbers


def _range(name: str) -> ByteRange | None:
    """The range of an entry, which is its name."""
    start, _, stop = name.partition("-")
    return ByteRange(int(start), int(stop)) if start.isdecimal() and stop.isdecimal() else None
