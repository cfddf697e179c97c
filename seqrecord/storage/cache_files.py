"""The files of a cache: what it takes, which is locked by whoever adds, and its entries.

Each entry holds one byte range of one stored file, with its checksums::

    │ data │ CRC32C of each piece │ CRC32C of what it is and of these │

Integers are little-endian. Pieces are what is checked as one, so that a part of the range can be
read without the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seqrecord.checksum import Buffer, crc32c
from seqrecord.errors import LocationError
from seqrecord.storage.ranges import ByteRange
from seqrecord.text import repr_of

__all__ = [
    "NEW",
    "PIECE_BYTES",
    "CacheBusyError",
    "CacheReadOnlyError",
    "DamagedError",
    "Taken",
    "check_folder",
    "entry_bytes",
    "locked",
    "read_entry",
    "try_lock",
    "write_entry",
]

NEW = "new"

_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord: `seqrecord cache clear` empties it.\n"
)
_TAKEN = "taken"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class CacheBusyError(OSError):
    """Another process has held the lock for too long: the cache is not used for a while."""


class CacheReadOnlyError(OSError):
    """The cache can be read and not changed."""


@dataclass
class Taken:
    """The bytes that a cache takes, where that is known."""

    bytes: int
    is_known: bool


@contextlib.contextmanager
def locked(folder: Path, patience: float) -> Iterator[Taken]:
    """Alone with the cache in a folder, which is made, but for readers.

    Whoever wants it asks again and again, for `patience` seconds, and holds nothing meanwhile.
    Raises `CacheBusyError` where another has it, and `CacheReadOnlyError`.
    """
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    fd = _open_taken(folder)
    try:
        while not try_lock(fd):
            if time.monotonic() >= end:
                raise CacheBusyError(
                    errno.EWOULDBLOCK, "another process or thread holds its lock", folder
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        boot, _, number = os.pread(fd, 100, 0).decode("ascii", "replace").partition(" ")
        is_known = boot == _boot() and number.strip().isdecimal()
        os.pwrite(fd, b"unknown".ljust(80), 0)
        taken = Taken(int(number) if is_known else 0, is_known)
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
    other = names - {_TAG, _TAKEN, NEW, "lost+found"}
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
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PIECE_BYTES = 256 << 10


class DamagedError(Exception):
    """An entry does not hold what it should."""


def entry_bytes(length: int) -> int:
    """Bytes of the file of an entry of `length` bytes."""
    return length + 4 * -(-length // PIECE_BYTES) + 4


def write_entry(fd: int, label: bytes, data: memoryview) -> None:
    """Write an entry; `label` says what it is."""
    pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
    checksums = b"".join(_checksum(piece) for piece in pieces)
    at = 0
    for part in (data, memoryview(checksums + _checksum(label, checksums))):
        left = part
        while left:
            written = os.pwrite(fd, left, at)
            at, left = at + written, left[written:]


def read_entry(fd: int, label: bytes, entry: ByteRange, wanted: ByteRange, out: memoryview) -> None:
    """Fill `out` with bytes `wanted`, a part of the range `entry` that the file should hold.

    Raises `DamagedError` if it does not hold it, or not as it was written; `out` may then hold
    anything.
    """
    size = entry_bytes(entry.length)
    tail = os.pread(fd, size, entry.length)
    if os.fstat(fd).st_size != size or _checksum(label, tail[:-4]) != tail[-4:]:
        raise DamagedError("its checksums are damaged, or it is another entry")
    start, stop = wanted.start - entry.start, wanted.stop - entry.start
    for at in range(start - start % PIECE_BYTES, stop, PIECE_BYTES):
        end = min(at + PIECE_BYTES, entry.length)
        low, high = max(at, start), min(end, stop)
        # What is not wanted of the first piece and the last goes beside `out`.
        before, after = bytearray(low - at), bytearray(end - high)
        parts: list[Buffer] = [before, out[low - start : high - start], after]
        index = at // PIECE_BYTES * 4
        if os.preadv(fd, parts, at) < end - at or _checksum(*parts) != tail[index : index + 4]:
            raise DamagedError("its data is damaged")


def _checksum(*parts: Buffer) -> bytes:
    return crc32c(*parts).to_bytes(4, "little")
