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

__all__ = [
    "NEW",
    "CacheBusyError",
    "CacheReadOnlyError",
    "Taken",
    "check_folder",
    "locked",
    "try_flock",
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
    """Somebody has held the cache for too long: it is passed by."""


class CacheReadOnlyError(OSError):
    """The cache can be read and not changed."""


@dataclass
class Taken:
    """The bytes that a cache takes, `None` where that is not known, under the lock of the cache."""

    fd: int
    bytes: int | None

    def write(self, taken: int | None) -> None:
        self.bytes = taken
        text = "unknown" if taken is None else f"{_boot()} {taken}"
        os.pwrite(self.fd, f"{text:<80}".encode(), 0)


@contextlib.contextmanager
def locked(folder: Path, patience: float) -> Iterator[Taken]:
    """Alone with the cache in a folder, which is made, but for readers.

    Whoever wants it asks again and again, for `patience` seconds, and holds nothing meanwhile.
    Raises `CacheBusyError` where another has it, and `CacheReadOnlyError`.
    """
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    while (taken := _try_lock(folder)) is None:
        if time.monotonic() >= end:
            raise CacheBusyError(
                errno.EWOULDBLOCK, "another process or thread holds its lock", str(folder)
            )
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    try:
        yield taken
    finally:
        fcntl.flock(taken.fd, fcntl.LOCK_UN)  # or a forked child would hold it
        os.close(taken.fd)


def check_folder(path: Path) -> bool:
    """Whether a folder is a cache; `LocationError` if it is neither that nor empty."""
    try:
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries}
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise LocationError("the cache's folder is a file", file=str(path)) from None
    except OSError:
        return False  # found out, and counted, when it is used
    is_cache = {_TAG, _TAKEN} <= names
    # `lost+found` is what a disk brings with it.
    other = names - {_TAG, _TAKEN, NEW, "lost+found"}
    if other and not is_cache:
        raise LocationError(
            "not a folder for a cache: something else is in it",
            file=str(path),
            expected="an empty folder, or one that is not there yet",
            got=repr(min(other))[:200],
        )
    return is_cache


def _try_lock(folder: Path) -> Taken | None:
    """The lock of the cache, or `None` where another has it."""
    path = folder / _TAKEN
    try:
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(folder)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno not in _READ_ONLY or not path.exists():
            raise
        raise CacheReadOnlyError(error.errno, error.strerror, str(path)) from error
    try:
        if try_flock(fd) and _is_at(fd, path):  # or somebody has removed the cache
            if not (folder / _TAG).exists():
                (folder / _TAG).write_text(_TAG_TEXT, "ascii")
            boot, _, number = os.pread(fd, 100, 0).decode("ascii", "replace").partition(" ")
            known = boot == _boot() and number.strip().isdecimal()
            taken, fd = Taken(fd, int(number) if known else None), -1
            return taken
    finally:
        if fd >= 0:
            os.close(fd)
    return None


def _boot() -> str:
    """When the machine went down, `taken` may be older than the entries."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return "unknown"


def try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    return False
