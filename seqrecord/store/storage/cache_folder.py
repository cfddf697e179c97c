"""The folder of a cache: its limit, lock and eviction. File names are its index.

::

    CACHEDIR.TAG        marks the folder as a cache for backup programs
    taken               upper bound of the bytes used; locked by who takes space
    <digest>/where      place of a storage, for readers; <digest> is its hash
    <digest>/<name>     an entry of this place: <digest>, or <tag>-<unique id>

Integers are little-endian. A slot is written before its CRC32C. So processes that are killed, or
fill the same slot with the same bytes, need no lock. Reading takes none either; the modification
time of an entry is its last use, and a time in the future counts as none: a clock was wrong. Space
is evicted by whole entries, and an entry is replaced by a new file: one that other processes have
open or mapped never changes its size. Anything but a regular file in a folder, in place of an
entry, is a missing entry; links are not followed. A process reserves space in `taken` before it
takes it. During that, and so after a kill in the middle, `taken` has no number; after other kills
it may be too large, but never too small. The size is then counted again, and also if space seems to
be lacking, and after a reboot.

The tag's text proves that a folder is a cache. Only files with the names above are removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import re
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import LocationError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.processes.system import sync
from seqrecord.store.storage.base import MIN_CACHE_BYTES
from seqrecord.store.storage.local_upload import sync_folder
from seqrecord.store.storage.open_files import with_descriptor
from seqrecord.store.text import repr_of

_FOLDER_BYTES = 4096
_NAME_BYTES = 128  # upper bound for a directory entry
_UNCOUNTED_BYTES = 4 * _FOLDER_BYTES  # reserve for the cache's own files

_WHERE, _TAKEN, _TAG = "where", "taken", "CACHEDIR.TAG"
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord (layout 4). It may be removed at any time.\n"
)
_ENTRY = re.compile(r"[0-9a-f]{40}/[0-9a-f]{40}")
_SPARSE_ENTRY = re.compile(r"[0-9a-f]{40}/[0-9a-f]{16}-[0-9a-f]{24}")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_BUSY_SECONDS = 10.0
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
_AHEAD_NS = 2 * 10**9  # clocks of the processes of one machine differ by less

Bools: TypeAlias = npt.NDArray[np.bool_]
Protected: TypeAlias = Callable[[str, list[str]], Bools]
"""Which entries must not be evicted, given the hash of their place and their file names."""
_T = TypeVar("_T")
_logger = logging.getLogger("seqrecord")


class CacheFolder:
    """The cache in folder `path`, created at first use; its errors are counted, never raised.

    Adding keeps the size on disk within `limit` bytes by evicting the least recently used entries.
    Processes may use one folder with different limits; each enforces its own. On a read-only disk
    entries are readable and nothing changes. Entries used since `keep_since`, in nanoseconds of
    `time.time_ns`, are not evicted.

    After an error of the disk (full, damaged or read-only) or of the whole folder, the first of
    which is logged, the cache is not used for `pause` seconds. If adding fails so, or an entry does
    not fit, nothing is added for this time; if another process has the lock for `patience` seconds,
    for ten seconds at most. Other errors concern one entry, which is missing then.

    Safe for threads, processes and forks: no file is left open. Picklable; copies have counters of
    their own.
    """

    def __init__(
        self,
        path: Path,
        limit: int = MIN_CACHE_BYTES,
        *,
        patience: float = 0.0,
        pause: float = 0.0,
        keep_since: float = float("inf"),
    ) -> None:
        self.path, self.limit, self.keep_since = path, limit, keep_since
        self.patience, self.pause = patience, pause
        self.counts = Counter[str]()
        """`evictions`, `damaged` slots, `failures` of the disk, timeouts of the lock (`busy`)."""
        self._lock = PerProcess(threading.Lock)
        # Times of the monotonic clock, before which the cache is not read, or not added to.
        self._paused_until = self._adding_paused_until = 0.0
        self._candidates: deque[_FileUse] = deque()  # that may be evicted, as of the last scan
        self._is_trimmed = False
        self._last_use = 0

    def __reduce__(self) -> tuple[Any, ...]:
        since = self.keep_since
        make = functools.partial(
            type(self), patience=self.patience, pause=self.pause, keep_since=since
        )
        return make, (self.path, self.limit)

    @property
    def is_filling(self) -> bool:
        """Whether entries are added: not in a pause after an error."""
        return time.monotonic() >= max(self._paused_until, self._adding_paused_until)

    def attempt(self, function: Callable[[], _T], otherwise: _T, *, is_adding: bool = False) -> _T:
        """Result of `function`, or `otherwise` if the cache's disk fails or is paused."""
        if time.monotonic() < max(self._paused_until, is_adding and self._adding_paused_until):
            return otherwise
        try:
            return function()
        except (OSError, LocationError) as error:
            if not is_failure(error):
                return otherwise
            is_busy = isinstance(error, CacheBusyError)
            until = time.monotonic() + (min(self.pause, _BUSY_SECONDS) if is_busy else self.pause)
            if is_adding:
                self._adding_paused_until = until
            else:
                self._paused_until = until
            if not isinstance(error, CacheReadOnlyError):
                name = "busy" if is_busy else "failures"
                self.count(**{name: 1})
                if self.counts[name] == 1:
                    what = "is locked by another process" if is_busy else "fails"
                    _logger.warning(
                        "%s: the cache %s, and is not used for a while: %s", self.path, what, error
                    )
            return otherwise

    def count(self, **numbers: int) -> None:
        """Add to counters."""
        with self._lock.get():
            self.counts.update(numbers)

    def scan(self) -> tuple[list[_FileUse], int]:
        """All entries, least recently used first, and the size on disk of everything."""
        entries: list[_FileUse] = []
        max_time = time.time_ns() + _AHEAD_NS
        sizes: dict[int, int] = {}  # by inode
        for folder, _, names in os.walk(self.path):
            with contextlib.suppress(FileNotFoundError):
                status = Path(folder).stat()
                # A folder does not shrink when files are removed.
                sizes[status.st_ino] = max(_FOLDER_BYTES, status.st_blocks * 512)
            place = os.path.relpath(folder, self.path)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = f"{folder}/{name}"
                    status = os.lstat(path)
                    # A sparse entry takes space as slots are added, others at once.
                    is_sparse = _SPARSE_ENTRY.fullmatch(f"{place}/{name}") is not None
                    length = status.st_blocks * 512 if is_sparse else status.st_size
                    sizes[status.st_ino] = size = bytes_on_disk(length)
                    if is_sparse or _ENTRY.fullmatch(f"{place}/{name}"):
                        entries.append(_FileUse(status.st_mtime_ns, path, size))
        entries.sort(key=lambda entry: (entry.used <= max_time and entry.used, entry))
        return entries, sum(sizes.values())

    def trim(self) -> None:
        """Evict entries at the first use of a folder that is larger than the limit."""
        if not self._is_trimmed:
            self._is_trimmed = True
            with contextlib.suppress(CacheBusyError, CacheReadOnlyError), self.locked() as usage:
                self.make_room(usage, 0)
                self._candidates.clear()  # they include protected entries

    def pause_adding(self) -> None:
        """Add nothing for a while: an entry does not fit."""
        self._adding_paused_until = time.monotonic() + self.pause

    def locked(self) -> contextlib.AbstractContextManager[Usage]:
        """Acquire the lock against other writers; see `_locked`."""
        return _locked(self.path, self.patience)

    def make_room(self, usage: Usage, nbytes: int, protected: Protected | None = None) -> bool:
        """Evict entries until `nbytes` bytes are available; whether that is possible."""
        is_counted, limit = False, self.limit - _UNCOUNTED_BYTES
        while not usage.is_known or usage.bytes + nbytes > limit:
            if nbytes > limit:
                return False
            if usage.is_known and self._candidates:
                candidate = self._candidates.popleft()
                if protected is not None and protected(candidate.place, [candidate.name])[0]:
                    continue  # its dataset is in use only since the scan
                path = Path(candidate.path)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns == candidate.used:  # not used since the scan
                        path.unlink()
                        usage.bytes -= candidate.size
                        self.count(evictions=1)
            elif not is_counted:
                entries, usage.bytes = self.scan()
                self._candidates, is_counted = deque(self._evictable(entries, protected)), True
                usage.is_known = True
            else:
                return False
        return True

    def _evictable(self, entries: list[_FileUse], protected: Protected | None) -> list[_FileUse]:
        """The entries that are neither in use nor protected, in their order."""
        max_time = time.time_ns() + _AHEAD_NS
        unused = [entry for entry in entries if not self.keep_since <= entry.used <= max_time]
        if protected is None:
            return unused
        numbers: dict[str, list[int]] = {}
        for number, entry in enumerate(unused):
            numbers.setdefault(entry.place, []).append(number)
        spared: set[int] = set()
        for place, group in numbers.items():
            is_kept = protected(place, [unused[number].name for number in group]).tolist()
            spared.update(number for number, keep in zip(group, is_kept, strict=True) if keep)
        return [entry for number, entry in enumerate(unused) if number not in spared]

    def note_use(self, file: int | str) -> None:
        """Set the time of an entry's last use, given its descriptor or path."""
        # Nanoseconds since 1970, strictly increasing.
        self._last_use = max(time.time_ns(), self._last_use + 1)
        os.utime(file, ns=(self._last_use, self._last_use))

    def folder_of(self, place: str) -> str:
        """The folder with the entries of a place."""
        return f"{self.path}/{hash_of_place(place)}"

    def create(self, usage: Usage, place: str, path: str, size: int) -> int:
        """Create an entry as a new file of `size` bytes, in place of anything but a folder with
        files, and open it; the lock must be held.

        Whoever has the file before open, or mapped, keeps it.
        """
        folder = Path(path).parent
        if not is_folder(folder):
            folder.unlink(missing_ok=True)  # a link or a file
            folder.mkdir(mode=0o700, exist_ok=True)
        if not os.path.lexists(where := folder / _WHERE):
            where.write_text(place, "utf-8", "surrogateescape")
            usage.bytes += _FOLDER_BYTES + bytes_on_disk(len(place))
        remove_entry(path)
        fd = with_descriptor(lambda: os.open(path, WRITE | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return fd


class _FileUse(NamedTuple):
    """An entry in a scan: time of last use in nanoseconds, path, and size on disk."""

    used: int
    path: str
    size: int

    @property
    def place(self) -> str:
        """The hash of its place: the name of its folder."""
        return self.path.split("/")[-2]

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.rpartition("/")[2]


@functools.lru_cache(maxsize=4096)
def hash_of_place(text: str) -> str:
    """Return the name of a place's folder, or of this entry: 40 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write bytes at an offset of a file."""
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def is_failure(error: OSError | LocationError) -> bool:
    """Whether an error concerns the whole cache, and not a single entry."""
    is_whole = isinstance(error, LocationError | CacheBusyError | CacheReadOnlyError | CacheError)
    return is_whole or (isinstance(error, OSError) and error.errno in _DISK_FAILURES)


def remove_entry(path: str) -> None:
    """Remove anything but a folder with files."""
    with contextlib.suppress(FileNotFoundError):
        Path(path).rmdir() if is_folder(path) else Path(path).unlink()


@contextlib.contextmanager
def read_only_errors(folder: Path) -> Iterator[None]:
    """Raise `CacheReadOnlyError` for a cache that cannot be changed."""
    try:
        yield
    except OSError as error:
        if error.errno in _READ_ONLY and folder.exists():
            raise CacheReadOnlyError(error.errno, error.strerror, str(folder)) from error
        raise


def is_folder(path: str | Path) -> bool:
    """Whether a path is a folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def open_entry(path: str, flags: int) -> int | None:
    """Open a regular file in a folder, neither of them a link; `None` if there is none.

    Raises `OSError` if the disk fails.
    """
    if not is_folder(path.rpartition("/")[0]):
        return None
    try:
        fd = with_descriptor(lambda: os.open(path, flags | os.O_NONBLOCK))
    except OSError as error:
        if error.errno in _DISK_FAILURES:
            raise
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def bytes_on_disk(length: int) -> int:
    """Size on disk of a file with `length` bytes, with its directory entry."""
    return -(-length // 4096) * 4096 + _NAME_BYTES


class CacheBusyError(OSError):
    """Timeout: another process has the cache's lock."""


class CacheError(OSError):
    """The cache's folder cannot be used."""


class CacheReadOnlyError(OSError):
    """The cache can be read but not changed."""


@dataclass
class Usage:
    """Size of a cache on disk, if known."""

    bytes: int
    is_known: bool


@contextlib.contextmanager
def _locked(folder: Path, patience: float) -> Iterator[Usage]:
    """Acquire the lock of a cache folder, created if missing, against other writers.

    Polls for `patience` seconds, and takes nothing else meanwhile. Raises `CacheBusyError` on
    timeout, and `CacheReadOnlyError`.
    """
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    fd = _open_usage_file(folder)
    try:
        while not _try_lock(fd, folder):
            if time.monotonic() >= end:
                raise CacheBusyError(
                    errno.EWOULDBLOCK, "locked by another process or thread", folder
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        boot, _, number = os.pread(fd, 100, 0).decode("ascii", "replace").partition(" ")
        is_known = boot == _boot() and number.strip().isdecimal()
        # No number while entries change: after a kill in the middle, the size is counted again.
        os.pwrite(fd, b"unknown".ljust(80), 0)
        usage = Usage(int(number) if is_known else 0, is_known)
        yield usage
        if usage.is_known:
            # Without the number, the size is counted again: the entry is right all the same.
            with contextlib.suppress(OSError):
                os.pwrite(fd, f"{_boot()} {usage.bytes}".ljust(80).encode(), 0)
    finally:
        # Before `close`: a forked child may have a copy of `fd`, which would keep the lock.
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def check_folder(path: Path) -> bool:
    """Whether a folder is a cache; raises `LocationError` if it has other content."""
    try:
        names = {child.name for child in path.iterdir()}
    except NotADirectoryError:
        raise LocationError("the cache's folder is a file", file=str(path)) from None
    except OSError:
        return False  # missing; other errors appear, and are counted, at the first use
    tag = _read_tag(path)
    if tag == _TAG_TEXT:
        return True
    if "cache of seqrecord" in tag:
        raise LocationError(
            "this folder is a cache of another version of seqrecord; remove it, or choose another "
            "cache_dir",
            file=str(path),
        )
    # A new disk has a `lost+found`; a kill may leave an empty tag.
    if foreign_names := names - {"lost+found", "" if tag else _TAG}:
        foreign_path = path / min(foreign_names)
        files = (child for child in foreign_path.rglob("*") if child.is_file())
        example = next(files, foreign_path)
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
        fd = with_descriptor(lambda: os.open(folder / _TAG, READ))
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
        # A power loss must not leave entries without it: the folder would be refused. See
        # tests/cloud/test_cache.py::test_the_tag_is_safe_before_anything_else.
        sync(fd)
    finally:
        os.close(fd)
    sync_folder(folder)


def _open_usage_file(folder: Path) -> int:
    path = folder / _TAKEN
    try:
        if _read_tag(folder) != _TAG_TEXT:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
            _write_tag(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return with_descriptor(lambda: os.open(path, flags, 0o600))
    except OSError as error:
        if error.errno not in _READ_ONLY or not os.path.lexists(path):
            raise CacheError(error.errno, error.strerror, str(path)) from error
        raise CacheReadOnlyError(error.errno, error.strerror, str(path)) from error


@functools.cache
def _boot() -> str:
    """Id of this boot: after a crash, `taken` may be older than the entries."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return "unknown"


def _try_lock(fd: int, folder: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a file system without locks, such as Lustre by default
        raise CacheError(error.errno, f"cannot be locked: {error.strerror}", str(folder)) from error
    return True
