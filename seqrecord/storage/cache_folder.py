"""The folder of a cache. File names are its index.

::

    CACHEDIR.TAG                            marks the folder as a cache for backup programs
    taken                                   upper bound of the bytes used; locked by adders
    new/<random>                            an entry under construction, locked by its writer
    <digest>/where                          place of a storage, for readers; <digest> is its hash
    <digest>/<path>.<block>/<start>-<stop>  an entry: a byte range of a file, or a file of slots

An entry has one byte range of one file, with checksums; integers are little-endian::

    │ data │ CRC32C of each piece │ CRC32C of the entry's label and of these │

Each piece is checked separately, so that a part of the range can be read alone.

Reading takes no lock; the modification time of an entry is its last use. A writer reserves space in
`taken` before it writes a byte. During adding, and so after a kill in the middle, `taken` has no
number; after other kills it may be too large, but never too small. The size is then counted again,
and also if space seems to be lacking, and after a reboot.

The tag's text proves that a folder is a cache. Only files with the names above are removed.
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
import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from seqrecord.checksum import Buffer, crc32c
from seqrecord.errors import LocationError
from seqrecord.storage.base import MIN_CACHE_BYTES
from seqrecord.storage.open_files import with_descriptor
from seqrecord.storage.ranges import ByteRange, coalesce
from seqrecord.text import repr_of

_BLOCK_BYTES = 8 << 20  # range of a file per folder; entries do not cross its end
_MIN_ENTRY_BYTES = 64 << 10
_FOLDER_BYTES = 4096
_NAME_BYTES = 128  # upper bound for a directory entry
_UNCOUNTED_BYTES = 4 * _FOLDER_BYTES  # reserve for the cache's own files
_SETTLED_NS = 10**8  # kernel timestamps have a resolution of some milliseconds

_NEW, _WHERE, _TAKEN, _TAG = "new", "where", "taken", "CACHEDIR.TAG"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_PIECE_BYTES = 256 << 10
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord. It may be removed at any time.\n"
)
_UNFINISHED = re.compile(r"[0-9a-f]{24}")
_BLOCK = re.compile(r"[0-9a-f]{40}/[^/]+\.\d+")
_ENTRY = re.compile(r"(\d{16,})-(\d+)", re.ASCII)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}

_logger = logging.getLogger("seqrecord")


class CacheKey(NamedTuple):
    """A cached file: the place of its storage, and its path."""

    place: str
    path: str


class CacheEntry(NamedTuple):
    """An entry; size on disk and time of last use in nanoseconds are set by `scan`."""

    range: ByteRange
    path: str
    size: int = 0
    used: int = 0


class CacheFolder:
    """The cache in folder `path`, created at first use.

    Adding keeps the size on disk within `limit` bytes by evicting the least recently used entries.
    Processes may use one folder with different limits; each enforces its own. On a read-only disk
    entries are readable and nothing changes. Entries used since `keep_since`, in nanoseconds of
    `time.time_ns`, are not evicted. `is_full` is set if a file of `open_slots` did not fit.

    Safe for threads, processes and forks: no file stays open. Methods raise `OSError` for disk
    errors. Methods that add raise `CacheBusyError` if another process has the lock for `patience`
    seconds, and `CacheReadOnlyError`.
    """

    def __init__(
        self,
        path: Path,
        limit: int = MIN_CACHE_BYTES,
        *,
        patience: float = 0.0,
        keep_since: float = float("inf"),
    ) -> None:
        self.path, self._keep_since, self.is_full = path, keep_since, False
        self._limit, self._patience = limit - _UNCOUNTED_BYTES, patience
        # Smaller entries in a small cache, so that evictions are not all or nothing.
        self._entry_bytes = min(_BLOCK_BYTES, max(_MIN_ENTRY_BYTES, limit // 8))
        self._oldest: deque[CacheEntry] = deque()  # as of the last scan
        self._is_trimmed = False
        self._now = 0
        self._ignored: set[str] = set()  # paths of damaged entries that could not be removed

    def fill(self, key: CacheKey, item: ByteRange, out: memoryview) -> tuple[list[ByteRange], int]:
        """Fill `out` with the cached parts of a range, and mark these as used.

        Returns the missing ranges, and the number of damaged entries, which are removed.
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
                continue  # evicted by another process
            except _DamagedError as error:
                _logger.warning("%s: damaged cache entry, reading again: %s", self.path, error)
                damaged += 1
                self._drop(entry)
                continue
            gaps.append(ByteRange(at, part.start))
            at = part.stop
        gaps.append(ByteRange(at, item.stop))
        return [gap for gap in gaps if gap.length], damaged

    def add(self, key: CacheKey, parts: Sequence[tuple[ByteRange, memoryview]]) -> int:
        """Cache ranges of a file, as far as they fit; returns the number of evicted entries.

        Ranges that are already cached are left unchanged.
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
                    # The lock marks it as under construction.
                    fd = with_descriptor(functools.partial(os.open, path, _CREATE, 0o600))
                    files.append((item, data, path, fd))
                    _try_lock(fd)
                    os.ftruncate(fd, _entry_bytes(item.length))  # a scan must count its final size
                    taken.bytes += _on_disk(_entry_bytes(item.length))
            for item, data, path, fd in files:
                _write_entry(fd, _label(key, item), data)
                self._note_use(fd)
                # The folder is gone if the cache was removed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    path.replace(self._block(key, item.start) / _name(item))
        finally:
            for _, _, path, fd in files:
                with contextlib.suppress(OSError):
                    path.unlink()  # unless it was renamed
                os.close(fd)
        return evicted

    def slots_path(self, key: CacheKey, size: int) -> Path:
        """Path of the file that `open_slots` opens."""
        return self._block(key, 0) / _name(ByteRange(0, size))

    def open_slots(self, key: CacheKey, size: int) -> int | None:
        """Open the only entry of a key, a file of `size` bytes written in place, zeros at first.

        Returns a descriptor, which the caller closes; `None` if the file does not fit. The caller
        checks what it reads: others may write at the same time.
        """
        path, flags = self.slots_path(key, size), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with contextlib.suppress(FileNotFoundError):
                fd = with_descriptor(lambda: os.open(path, flags))
                if os.fstat(fd).st_size == size:
                    return fd
                os.close(fd)
            with self.locked() as taken:
                if not self._make_room(taken, _on_disk(size) + 3 * _FOLDER_BYTES)[0]:
                    self.is_full = True
                    return None
                self._make_folders(taken, key, ByteRange(0, size))
                fd = with_descriptor(lambda: os.open(path, flags | os.O_CREAT, 0o600))
                taken.bytes += _on_disk(size)
                try:
                    os.ftruncate(fd, size)
                except BaseException:
                    os.close(fd)
                    raise
                return fd
        except OSError as error:
            if error.errno in _READ_ONLY and self.path.exists():
                raise CacheReadOnlyError(error.errno, error.strerror, str(path)) from error
            raise

    def forget(self, key: CacheKey, ranges: Sequence[ByteRange]) -> int:
        """Remove cached ranges of a file; returns the number of removed entries."""
        entries = {entry for item in ranges for entry in self._overlapping(key, item)}
        for entry in entries:
            self._drop(entry)
        return len(entries)

    def scan(self) -> tuple[list[CacheEntry], int]:
        """All entries, least recently used first, and the size on disk of everything."""
        entries: list[CacheEntry] = []
        sizes: dict[int, int] = {}  # by inode
        for folder, folders, names in os.walk(self.path):
            is_block = _BLOCK.fullmatch(os.path.relpath(folder, self.path)) is not None
            folders.sort(key=_NEW.__ne__)  # `new` first: its files may be renamed during the scan
            with contextlib.suppress(FileNotFoundError):
                found = Path(folder).stat()
                # A folder does not shrink when files are removed.
                sizes[found.st_ino] = max(_FOLDER_BYTES, found.st_blocks * 512)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = f"{folder}/{name}"
                    found = os.lstat(path)
                    sizes[found.st_ino] = size = _on_disk(found.st_size)
                    if is_block and (item := _range(name)) is not None:
                        entries.append(CacheEntry(item, path, size, found.st_mtime_ns))
        return sorted(entries, key=lambda entry: (entry.used, entry.path)), sum(sizes.values())

    def locked(self) -> contextlib.AbstractContextManager[_Taken]:
        """Acquire the lock against other writers; see `_locked`."""
        return _locked(self.path, self._patience)

    def _make_room(self, taken: _Taken, needed: int) -> tuple[bool, int]:
        """Evict entries; returns whether `needed` bytes are available, and the number evicted."""
        evicted, is_counted = 0, False
        while not taken.is_known or taken.bytes + needed > self._limit:
            if needed > self._limit:
                return False, evicted
            if taken.is_known and self._oldest and self._oldest[0].used < self._keep_since:
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
        """Remove unfinished entries of killed processes."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._unfinished():
                fd = with_descriptor(functools.partial(os.open, path, _READ))
                try:
                    if _try_lock(fd):
                        path.unlink()
                finally:
                    os.close(fd)

    def _unfinished(self) -> list[Path]:
        """Entries under construction."""
        return [p for p in (self.path / _NEW).glob("*") if _UNFINISHED.fullmatch(p.name)]

    def _drop(self, entry: CacheEntry) -> None:
        """Remove an entry; if that fails, ignore it from now on."""
        try:
            self._remove(entry)
        except OSError:
            self._ignored.add(entry.path)

    def _remove(self, entry: CacheEntry, *, unless_used: bool = False) -> int:
        """Remove an entry, and its folder if empty; returns the bytes freed on disk.

        With `unless_used`, an entry used since the scan is kept.
        """
        path, given_back = Path(entry.path), 0
        with contextlib.suppress(FileNotFoundError):
            if unless_used and path.stat().st_mtime_ns != entry.used:
                return 0
            path.unlink()
            given_back = entry.size
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()
                given_back += _FOLDER_BYTES
        return given_back

    def _read(self, key: CacheKey, entry: CacheEntry, part: ByteRange, out: memoryview) -> None:
        fd = with_descriptor(lambda: os.open(entry.path, _READ))
        try:
            _read_entry(fd, _label(key, entry.range), entry.range, part, out)
            with contextlib.suppress(OSError):  # read-only disk
                self._note_use(fd)
        finally:
            os.close(fd)

    def _note_use(self, fd: int) -> None:
        # Nanoseconds since 1970, strictly increasing.
        self._now = max(time.time_ns(), self._now + 1)
        os.utime(fd, ns=(self._now, self._now))

    def _overlapping(self, key: CacheKey, item: ByteRange) -> list[CacheEntry]:
        """Entries that overlap a range, in order.

        Concurrent writers may create overlapping entries; some of these may be missing.
        """
        found = []
        for at in range(item.start - item.start % _BLOCK_BYTES, item.stop, _BLOCK_BYTES):
            folder = str(self._block(key, at))
            try:
                changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - speed: for every read
                is_settled = time.time_ns() - changed > _SETTLED_NS
                names = (_names if is_settled else _names.__wrapped__)(folder, changed)
            except FileNotFoundError:
                continue
            # The last entry that starts before the range may overlap it.
            first = bisect.bisect(names, f"{item.start:016}")
            for name in names[max(0, first - 1) : bisect.bisect_left(names, f"{item.stop:016}")]:
                each, path = _range(name), f"{folder}/{name}"
                if each is not None and item.start < each.stop and path not in self._ignored:
                    found.append(CacheEntry(each, path))
        return found

    def _of(self, place: str) -> Path:
        return self.path / hashlib.sha256(place.encode()).hexdigest()[:40]

    def _block(self, key: CacheKey, at: int) -> Path:
        return self._of(key.place) / f"{quote(key.path, safe='')}.{at // _BLOCK_BYTES}"


def _entries(
    parts: Sequence[tuple[ByteRange, memoryview]], longest: int
) -> Iterator[tuple[ByteRange, memoryview]]:
    """Split parts into entries: joins adjacent parts, limits the length, cuts at blocks."""
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
def _names(folder: str, changed: int) -> list[str]:  # noqa: ARG001 - part of the cache key
    """Sorted names in a folder with modification time `changed`."""
    return sorted(os.listdir(folder))  # noqa: PTH208 - speed: there may be thousands


def _needed(item: ByteRange) -> int:
    """Upper bound of the size on disk of a new entry, with new folders."""
    return _on_disk(_entry_bytes(item.length)) + 3 * _FOLDER_BYTES


def _on_disk(length: int) -> int:
    """Size on disk of a file of `length` bytes, with its directory entry."""
    return -(-length // 4096) * 4096 + _NAME_BYTES


def _label(key: CacheKey, item: ByteRange) -> bytes:
    return f"{key.place}\0{key.path}\0{item.start}-{item.stop}".encode()


def _name(item: ByteRange) -> str:
    return f"{item.start:016}-{item.stop}"  # sorts numerically


def _range(name: str) -> ByteRange | None:
    """Byte range of an entry, from its name; `None` for other names."""
    found = _ENTRY.fullmatch(name)
    return found and ByteRange(int(found[1]), int(found[2]))


class CacheBusyError(OSError):
    """Timeout: another process has the cache's lock."""


class CacheReadOnlyError(OSError):
    """The cache can be read but not changed."""


@dataclass
class _Taken:
    """Size of a cache on disk, if known."""

    bytes: int
    is_known: bool


@contextlib.contextmanager
def _locked(folder: Path, patience: float) -> Iterator[_Taken]:
    """Acquire the lock of a cache folder, created if missing, against other writers.

    Polls for `patience` seconds, and takes nothing else meanwhile. Raises `CacheBusyError` on
    timeout, and `CacheReadOnlyError`.
    """
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    fd = _open_taken(folder)
    try:
        while not _try_lock(fd):
            if time.monotonic() >= end:
                raise CacheBusyError(
                    errno.EWOULDBLOCK, "locked by another process or thread", folder
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
        fcntl.flock(fd, fcntl.LOCK_UN)  # before `close`: a forked child may have a copy of `fd`
        os.close(fd)


def check_folder(path: Path) -> bool:
    """Whether a folder is a cache; raises `LocationError` if it has other content."""
    try:
        names = {each.name for each in path.iterdir()}
    except NotADirectoryError:
        raise LocationError("the cache's folder is a file", file=str(path)) from None
    except OSError:
        return False  # missing; other errors appear, and are counted, at the first use
    tag = _read_tag(path)
    if tag == _TAG_TEXT:
        return True
    # A new disk has a `lost+found`; a kill may leave an empty tag.
    if other := names - {"lost+found", "" if tag else _TAG}:
        first = path / min(other)
        example = next((each for each in first.rglob("*") if each.is_file()), first)
        raise LocationError(
            "this folder is not a cache and not empty; choose another cache_dir",
            file=str(path),
            expected="an empty folder, or a path that does not exist yet",
            got=repr_of(str(example.relative_to(path))),
        )
    return False


def _read_tag(folder: Path) -> str:
    """Text of the tag; empty without one."""
    try:
        fd = with_descriptor(lambda: os.open(folder / _TAG, _READ))
    except FileNotFoundError:
        return ""
    except OSError:
        return "unreadable"
    try:
        return os.read(fd, len(_TAG_TEXT) + 1).decode("ascii", "replace")
    finally:
        os.close(fd)


def _write_tag(folder: Path) -> None:
    """Write the tag, unlike `write_text` without truncating one of another process."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = with_descriptor(lambda: os.open(folder / _TAG, flags, 0o666))
    try:
        os.pwrite(fd, _TAG_TEXT.encode(), 0)
    finally:
        os.close(fd)


def _open_taken(folder: Path) -> int:
    path = folder / _TAKEN
    try:
        if _read_tag(folder) != _TAG_TEXT:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
            _write_tag(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return with_descriptor(lambda: os.open(path, flags, 0o600))
    except OSError as error:
        if error.errno not in _READ_ONLY or not path.exists():
            raise
        raise CacheReadOnlyError(error.errno, error.strerror, str(path)) from error


def _boot() -> str:
    """Id of this boot: after a crash, `taken` may be older than the entries."""
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
    """An entry is damaged."""


def _entry_bytes(length: int) -> int:
    """File size of an entry with `length` bytes of data."""
    return length + 4 * -(-length // _PIECE_BYTES) + 4


def _write_entry(fd: int, label: bytes, data: memoryview) -> None:
    """Write an entry; `label` identifies it."""
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
    """Fill `out` with bytes `wanted` of a file's range, from the entry for range `entry`.

    Raises `_DamagedError` if the entry is damaged; the content of `out` is then undefined.
    """
    size = _entry_bytes(entry.length)
    tail = os.pread(fd, size, entry.length)
    if os.fstat(fd).st_size != size or _checksum(label, tail[:-4]) != tail[-4:]:
        raise _DamagedError("its checksums are damaged, or it is another entry")
    start, stop = wanted.start - entry.start, wanted.stop - entry.start
    for at in range(start - start % _PIECE_BYTES, stop, _PIECE_BYTES):
        end = min(at + _PIECE_BYTES, entry.length)
        low, high = max(at, start), min(end, stop)
        # Unwanted bytes of the first and last piece go to temporary buffers.
        before, after = bytearray(low - at), bytearray(end - high)
        parts: list[Buffer] = [before, out[low - start : high - start], after]
        index = at // _PIECE_BYTES * 4
        if os.preadv(fd, parts, at) < end - at or _checksum(*parts) != tail[index : index + 4]:
            raise _DamagedError("its data is damaged")


def _checksum(*parts: Buffer) -> bytes:
    return crc32c(*parts).to_bytes(4, "little")
