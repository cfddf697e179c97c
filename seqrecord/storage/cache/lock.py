"""The folder of a cache as such: whether it is one, what it takes, and who may add to it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seqrecord.errors import LocationError
from seqrecord.text import repr_of

__all__ = [
    "NEW",
    "CacheBusyError",
    "CacheReadOnlyError",
    "Taken",
    "check_folder",
    "locked",
    "try_lock",
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
