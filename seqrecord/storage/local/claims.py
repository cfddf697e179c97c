"""Exclusive claims on local files, which the kernel takes back when their holders end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import warnings
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from seqrecord.errors import DestinationError
from seqrecord.storage.local.folders import make_folder

__all__ = ["GRACE_SECONDS", "ClaimedFile", "LocalLock"]

GRACE_SECONDS = 3.0  # the workers of a killed process notice its end within this time
_POLL_SECONDS = 0.02
_LOCK = ".lock"


class ClaimedFile:
    """A file open for reading and writing under an advisory lock that no other claim shares.

    A forked child, and a process spawned with a pickled copy, hold the same claim: it ends when the
    process that made it closes it, or when all of them have ended. `held` is the message of the
    `DestinationError` when another still has the claim after `grace` seconds.
    """

    def __init__(self, path: Path, *, create: bool, held: str, grace: float) -> None:
        self.path = path
        self.fd = -1
        self._pid = os.getpid()
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        deadline = time.monotonic() + grace
        while self.fd < 0:
            fd = os.open(path, flags, 0o666)
            try:
                if not _try_lock(fd, path):
                    if time.monotonic() >= deadline:
                        raise DestinationError(held, file=str(path))
                    time.sleep(_POLL_SECONDS)
                elif _is_at(fd, path):
                    self.fd, fd = fd, -1
                # Otherwise another claim renamed or removed it before the lock was granted.
            finally:
                if fd >= 0:
                    os.close(fd)

    @property
    def is_mine(self) -> bool:
        """Whether this process made the claim."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """End the claim; in another process than the one that made it, only that one's part."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                if self.is_mine:  # or it would last as long as a forked child
                    fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _adopt, (str(self.path), self._pid, reduction.DupFd(self.fd))


class LocalLock:
    """A folder's lock file. `release` removes it, and the folder if it was made for nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = not folder.exists()
        make_folder(folder)
        self._claim = ClaimedFile(
            folder / _LOCK,
            create=True,
            held="another writer is at work on this destination",
            grace=GRACE_SECONDS,
        )

    def release(self) -> None:
        if self._claim.fd >= 0 and self._claim.is_mine:
            with contextlib.suppress(OSError):
                self._claim.path.unlink()
                if self._made:
                    self._folder.rmdir()
        self._claim.close()


def _adopt(path: str, pid: int, fd: Any) -> ClaimedFile:
    claim = ClaimedFile.__new__(ClaimedFile)
    claim.path, claim._pid, claim.fd = Path(path), pid, fd.detach()
    return claim


def _try_lock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        warnings.warn(
            f"{path.parent}: no file locks here; make sure that nothing else writes to it",
            RuntimeWarning,
            stacklevel=2,
        )
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
