"""The folder of a cache: its names are its index, so that nothing else has to be kept right.

::

    CACHEDIR.TAG                            tells backup programs what the folder is
    taken                                   bytes that it takes at most; locked by whoever adds
    new/<random>                            an entry that is being written, locked by its writer
    <digest>/where                          the place of a storage, of which that is the digest
    <digest>/<path>.<block>/<start>-<stop>  an entry: a byte range of a stored file

An entry holds one byte range of one stored file, with its checksums; integers are little-endian::

    │ data │ CRC32C of each piece │ CRC32C of what it is and of these │

Pieces are what is checked as one, so that a part of the range can be read without the rest.

An entry is read without a lock, and its time of change is that of its last use. Who adds one takes
its space in `taken` before its file has a byte. While somebody adds, and so after a kill there,
`taken` holds no number; after a kill elsewhere it may be more than there is, never less. It is
counted anew then, where room seems to be lacking, and after the machine was started anew.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from seqrecord.checksum import Buffer, crc32c
from seqrecord.errors import LocationError
from seqrecord.storage.open_files import with_descriptor
from seqrecord.storage.ranges import ByteRange, coalesce
from seqrecord.text import repr_of

MIN_LIMIT = 1 << 20

_BLOCK_BYTES = 8 << 20  # of a stored file, in one folder; no entry reaches over its end
_MIN_ENTRY_BYTES = 64 << 10
_FOLDER_BYTES = 4096
_NAME_BYTES = 128  # of a name in its folder, at most
_UNCOUNTED_BYTES = 4 * _FOLDER_BYTES  # for what of the cache's own is not there when first counted
_SETTLED_NS = 10**8  # the kernel's times are some milliseconds apart

_NEW, _WHERE, _TAKEN, _TAG = "new", "where", "taken", "CACHEDIR.TAG"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_PIECE_BYTES = 256 << 10
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord: `seqrecord cache clear` empties it.\n"
)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}

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
        self._limit, self._patience = limit - _UNCOUNTED_BYTES, patience
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
            except _DamagedError as error:
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
                    fd = with_descriptor(functools.partial(os.open, path, _CREATE, 0o600))
                    files.append((item, data, path, fd))
                    _try_lock(fd)
                    os.ftruncate(fd, _entry_bytes(item.length))  # so that a scan sees its size
                    taken.bytes += _on_disk(_entry_bytes(item.length))
            for item, data, path, fd in files:
                _write_entry(fd, _label(key, item), data)
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
            folders.sort(key=_NEW.__ne__)  # what is being written first: it may get its name
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
            for folder in (*folders, self.path / _NEW):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)

    def locked(self) -> contextlib.AbstractContextManager[_Taken]:
        """Alone with the cache, but for readers; see `locked`."""
        return _locked(self.path, self._patience)

    def _make_room(self, taken: _Taken, needed: int) -> tuple[bool, int]:
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

    def _make_folders(self, taken: _Taken, key: CacheKey, item: ByteRange) -> None:
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
        folder = self.path / _NEW
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / secrets.token_hex(12)

    def _remove_abandoned(self) -> None:
        """Remove what kills have left half written."""
        with contextlib.suppress(FileNotFoundError):
            for path in list((self.path / _NEW).iterdir()):
                fd = with_descriptor(functools.partial(os.open, path, _READ))
                try:
                    if _try_lock(fd):
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
        fd = with_descriptor(lambda: os.open(entry.path, _READ))
        try:
            _read_entry(fd, _label(key, entry.range), entry.range, part, out)
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
    return _on_disk(_entry_bytes(item.length)) + 3 * _FOLDER_BYTES


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


class CacheBusyError(OSError):
    """Another process has held the lock for too long: the cache is not used for a while."""


class CacheReadOnlyError(OSError):
    """The cache can be read and not changed."""


@dataclass
class _Taken:
    """The bytes that a cache takes, where that is known."""

    bytes: int
    is_known: bool


@contextlib.contextmanager
def _locked(folder: Path, patience: float) -> Iterator[_Taken]:
    """Alone with the cache in a folder, which is made, but for readers.

    Whoever wants it asks again and again, for `patience` seconds, and holds nothing meanwhile.
    Raises `CacheBusyError` where another has it, and `CacheReadOnlyError`.
    """
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    fd = _open_taken(folder)
    try:
        while not _try_lock(fd):
            if time.monotonic() >= end:
                raise CacheBusyError(
                    errno.EWOULDBLOCK, "another process or thread holds its lock", folder
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        boot, _, number = os.pread(fd, 100, 0).decode("ascii", "replace").partition(" ")
        is_known = boot == _boot() and number.strip().isdecimal()
        os.pwrite(fd, b"unknown".ljust(80), 0)
        taken = _Taken(int(number) if is_known else 0, is_known)
        yield taken
        if taken.is_known:
            os.pwrite(fd, f"{_boot()} {taken.bytes}".ljust(80).encode(), 0)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # or a forked child would hold it
        os.close(fd)


def check_folder(path: Path) -> bool:
    """Whether a folder is a cache; `LocationError` if it is neither that nor empty."""
    try:
        names = {each.name for each in path.iterdir()}
    except NotADirectoryError:
        raise LocationError("the cache's folder is a file", file=str(path)) from None
    except OSError:
        return False  # it is not there; anything else is found out, and counted, when it is used
    is_cache = {_TAG, _TAKEN} <= names
    # `lost+found` is what a disk brings with it.
    other = names - {_TAG, _TAKEN, _NEW, "lost+found"}
    if other and not is_cache:
        raise LocationError(
            "not a folder for a cache: something else is in it",
            file=str(path),
            expected="an empty folder, or one that is not there yet",
            got=repr_of(min(other)),
        )
    return is_cache


def _open_taken(folder: Path) -> int:
    path = folder / _TAKEN
    try:
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
            (folder / _TAG).write_text(_TAG_TEXT, "ascii")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return with_descriptor(lambda: os.open(path, flags, 0o600))
    except OSError as error:
        if error.errno not in _READ_ONLY or not path.exists():
            raise
        raise CacheReadOnlyError(error.errno, error.strerror, str(path)) from error


def _boot() -> str:
    """When the machine went down, `taken` may be older than the entries."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return "unknown"


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _DamagedError(Exception):
    """An entry does not hold what it should."""


def _entry_bytes(length: int) -> int:
    """Bytes of the file of an entry of `length` bytes."""
    return length + 4 * -(-length // _PIECE_BYTES) + 4


def _write_entry(fd: int, label: bytes, data: memoryview) -> None:
    """Write an entry; `label` says what it is."""
    pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
    checksums = b"".join(_checksum(piece) for piece in pieces)
    at = 0
    for part in (data, memoryview(checksums + _checksum(label, checksums))):
        left = part
        while left:
            written = os.pwrite(fd, left, at)
            at, left = at + written, left[written:]


def _read_entry(
    fd: int, label: bytes, entry: ByteRange, wanted: ByteRange, out: memoryview
) -> None:
    """Fill `out` with bytes `wanted`, a part of the range `entry` that the file should hold.

    Raises `_DamagedError` if it does not hold it, or not as it was written; `out` may then hold
    anything.
    """
    size = _entry_bytes(entry.length)
    tail = os.pread(fd, size, entry.length)
    if os.fstat(fd).st_size != size or _checksum(label, tail[:-4]) != tail[-4:]:
        raise _DamagedError("its checksums are damaged, or it is another entry")
    start, stop = wanted.start - entry.start, wanted.stop - entry.start
    for at in range(start - start % _PIECE_BYTES, stop, _PIECE_BYTES):
        end = min(at + _PIECE_BYTES, entry.length)
        low, high = max(at, start), min(end, stop)
        # What is not wanted of the first piece and the last goes beside `out`.
        before, after = bytearray(low - at), bytearray(end - high)
        parts: list[Buffer] = [before, out[low - start : high - start], after]
        index = at // _PIECE_BYTES * 4
        if os.preadv(fd, parts, at) < end - at or _checksum(*parts) != tail[index : index + 4]:
            raise _DamagedError("its data is damaged")


def _checksum(*parts: Buffer) -> bytes:
    return crc32c(*parts).to_bytes(4, "little")
