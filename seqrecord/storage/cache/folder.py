"""The folder of a cache: its names are its index, so that nothing else has to be kept right.

::

    CACHEDIR.TAG                             tells backup programs what the folder is
    taken                                    bytes that it takes at most; locked by whoever adds
    new/<random>                             an entry that is being written, locked by its writer
    <digest>/where                           the place of a storage, of which that is the digest
    <digest>/<path>/<block>/<start>-<stop>   an entry: a byte range of a stored file

An entry is read without a lock, and its time of change is that of its last use. Who adds one takes
its space in `taken` before the file is there. After a kill `taken` may be more than there is, never
less; it is counted anew where room seems to be lacking, and after the machine was started anew.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from seqrecord.ranges import ByteRange
from seqrecord.storage.cache.lock import NEW, Taken, locked, try_flock

__all__ = ["BLOCK_BYTES", "CacheFolder", "CacheKey", "Entry"]

BLOCK_BYTES = 8 << 20  # of a stored file, in one folder; no entry reaches over its end
FOLDER_BYTES = 4096

_WHERE = "where"
_DIGITS = 40
_NAME_BYTES = 128  # of a name in its folder, at most
_SETTLED_NS = 10**8  # the kernel's times are some milliseconds apart
_MAX_KNOWN = 256


class CacheKey(NamedTuple):
    """A stored file: the place of its storage, and its path in it."""

    place: str
    path: str

    def label(self, item: ByteRange) -> bytes:
        """What an entry is."""
        return f"{self.place}\0{self.path}\0{item.start}-{item.stop}".encode()


class Entry(NamedTuple):
    """An entry; its size on disk and its last use, in nanoseconds, as a scan has found them."""

    range: ByteRange
    path: str
    size: int = 0
    used: int = 0


class CacheFolder:
    """The cache in folder `path`, which is made when it is first used.

    Its lock is waited for at most `patience` seconds. Methods raise `OSError` when the disk fails.
    Safe to use from many threads and processes, and after a fork: nothing stays open.
    """

    def __init__(self, path: Path, *, patience: float = 0.0) -> None:
        self.path = path
        self._patience = patience
        self._known: dict[str, tuple[int, list[str]]] = {}  # names in folders, and their times

    def overlapping(self, key: CacheKey, item: ByteRange) -> list[Entry]:
        """Entries that hold some of a range, in its order.

        Of entries that overlap, which several writers at once may make, some may be left out.
        """
        found = []
        for at in range(item.start - item.start % BLOCK_BYTES, item.stop, BLOCK_BYTES):
            folder = str(self._block(key, at))
            try:
                names = self._names(folder)
            except FileNotFoundError:
                continue
            # Of those that start before the range, the last may reach into it.
            first = bisect.bisect(names, _name(item.start))
            for name in names[max(0, first - 1) : bisect.bisect_left(names, _name(item.stop))]:
                each = _range(name)
                if each is not None and item.start < each.stop:
                    found.append(Entry(each, f"{folder}/{name}"))
        return found

    def locked(self) -> contextlib.AbstractContextManager[Taken]:
        """Alone with the cache, but for readers; see `locked`."""
        return locked(self.path, self._patience)

    def needed(self, key: CacheKey, item: ByteRange, length: int, made: set[Path]) -> int:
        """Bytes on disk for an entry's file, and for folders that are neither there nor `made`.

        They are `made` then.
        """
        size, folder, top = size_on_disk(length), self._block(key, item.start), self._of(key.place)
        while folder not in made and not folder.is_dir():
            made.add(folder)
            size += FOLDER_BYTES + (size_on_disk(len(key.place)) if folder == top else 0)
            folder = folder.parent
        return size

    def create(self, key: CacheKey, item: ByteRange, length: int) -> tuple[Path, int]:
        """A new file for an entry: its path, and a descriptor. Under the lock.

        The descriptor's lock tells others that it is being written.
        """
        where = self._of(key.place) / _WHERE
        if not where.exists():
            where.parent.mkdir(mode=0o700, exist_ok=True)
            path, fd = self._new()
            os.write(fd, key.place.encode())
            os.close(fd)
            path.replace(where)
        self._block(key, item.start).mkdir(mode=0o700, parents=True, exist_ok=True)
        path, fd = self._new()
        os.ftruncate(fd, length)  # so that a scan sees what it will take
        return path, fd

    def publish(self, path: Path, key: CacheKey, item: ByteRange) -> None:
        """Give a written entry its name; not where the cache was cleared meanwhile."""
        try:
            path.replace(self._block(key, item.start) / f"{_name(item.start)}-{item.stop}")
        except FileNotFoundError:
            path.unlink(missing_ok=True)

    def remove(self, entry: Entry, *, unless_used: bool = False) -> int:
        """Remove an entry; bytes on disk that this gives back.

        `unless_used`: but not one that was used since it was looked at.
        """
        path = Path(entry.path)
        try:
            if unless_used and path.stat().st_mtime_ns != entry.used:
                return 0
            path.unlink()
        except FileNotFoundError:
            return 0
        return entry.size

    def remove_file(self, key: CacheKey) -> None:
        """Remove all entries of a stored file."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._of(key.place) / key.path)

    def remove_abandoned(self) -> int:
        """Remove what kills have left half written; bytes that this gives back. Under the lock."""
        given_back = 0
        for each in _walk(self.path / NEW):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(each.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if try_flock(fd):
                        Path(each.path).unlink()
                        given_back += size_on_disk(os.fstat(fd).st_size)
                finally:
                    os.close(fd)
        return given_back

    def scan(self, *, tidy: bool = False) -> tuple[list[Entry], int]:
        """All entries, those first whose use is longest ago, and bytes on disk of all there is.

        `tidy`: folders that are empty are removed. Under the lock.
        """
        entries = []
        # What is being written is looked at first: it may get its name meanwhile.
        sizes = {each.inode(): _size(each) for each in _walk(self.path / NEW)}
        taken = sum(sizes.values())
        for each in _walk(self.path):
            with contextlib.suppress(FileNotFoundError):
                found = each.stat(follow_symlinks=False)
                if each.is_dir(follow_symlinks=False):
                    if not (tidy and each.name != NEW and _try_rmdir(each.path)):
                        # A folder that has held many names stays as large as it has become.
                        taken += max(FOLDER_BYTES, found.st_blocks * 512)
                    continue
                size = size_on_disk(found.st_size) - _NAME_BYTES
                taken += 0 if each.inode() in sizes else size
                if (item := _range(each.name)) is not None:
                    entries.append(Entry(item, each.path, size, found.st_mtime_ns))
        return sorted(entries, key=lambda entry: (entry.used, entry.path)), taken

    def storages(self) -> dict[Path, str]:
        """The place of each storage of which something may be held, by its folder."""
        found = {}
        with os.scandir(self.path) as names:
            for each in names:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    where = Path(each.path) / _WHERE
                    found[where.parent] = where.read_text("utf-8", "replace")
        return found

    def clear(self, folders: Sequence[Path]) -> None:
        """Remove these folders of storages, and what is being written."""
        with self.locked() as taken:
            taken.write(None)
            for folder in (*folders, self.path / NEW):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)

    def _names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; as they were the last time, if it has not changed since."""
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - for every read
        known = self._known.get(folder)
        if known is not None and known[0] == changed:
            return known[1]
        names = sorted(os.listdir(folder))  # noqa: PTH208 - there may be thousands
        if time.time_ns() - changed > _SETTLED_NS:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[folder] = changed, names
        return names

    def _new(self) -> tuple[Path, int]:
        path = self.path / NEW / secrets.token_hex(12)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try_flock(fd)
        except BaseException:
            os.close(fd)
            raise
        return path, fd

    def _of(self, place: str) -> Path:
        return self.path / hashlib.sha256(place.encode()).hexdigest()[:_DIGITS]

    def _block(self, key: CacheKey, at: int) -> Path:
        return self._of(key.place) / key.path / str(at // BLOCK_BYTES)


def size_on_disk(length: int) -> int:
    """Bytes that a file of `length` bytes takes, with its name."""
    return -(-length // FOLDER_BYTES) * FOLDER_BYTES + _NAME_BYTES


def _walk(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """All that is below a folder, as far as it is not removed meanwhile; folders come last."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as names:
        for each in names:
            if each.is_dir(follow_symlinks=False):
                yield from _walk(each.path)
            yield each


def _size(file: os.DirEntry[str]) -> int:
    try:
        return size_on_disk(file.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return 0


def _try_rmdir(folder: str) -> bool:
    try:
        Path(folder).rmdir()
    except OSError:  # it is not empty
        return False
    return True


def _name(start: int) -> str:
    """The start of an entry in its name: in the order of numbers."""
    return f"{start:016}"


def _range(name: str) -> ByteRange | None:
    """The range of an entry, which is its name."""
    start, _, stop = name.partition("-")
    return ByteRange(int(start), int(stop)) if start.isdecimal() and stop.isdecimal() else None
