"""Puts a small file in place in one step, if what is there is still what its writer expects.

::

    .manifest.json.<random>.new     the new bytes, synced
    .manifest.json.<tag>.next       a link to them: of all that expect <tag> only one can have it
    manifest.json                   that link, renamed; of a new file a link to the first

Where no file was, the link to its name decides who was first. Where one was, the writer that has
the second name looks whether the file is still the expected one, and then renames; nobody else that
expects the same comes between. Both hold without locks, and between the machines of an NFS server
or a cluster filesystem. Locks tell only whether the writer of a name was killed. Where there are
none, or other machines may not see them, a name that is a minute old is taken for left behind. A
writer that lives on then finds its name gone, and replaces nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from pathlib import Path

from seqrecord.errors import ConflictError, StorageError, TransientError
from seqrecord.storage.local.folders import sync_folder

__all__ = ["put_file", "read_file"]

_GRACE_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0  # the second name is held for as long as a read and a rename take
_POLL_SECONDS = 0.005
_MOST_BYTES = 64 << 20
_NEW, _NEXT = ".new", ".next"
# rclone answers EIO; a disk that fails answers it to what follows, too.
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EIO}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_file(path: Path, limit: int) -> tuple[bytes, str]:
    """A file's bytes and their digest. `StorageError` for more than `limit` bytes."""
    # Opening a pipe would otherwise wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StorageError("not a regular file", file=str(path))
        if found.st_size > limit:
            raise StorageError(
                "the file is too large",
                file=str(path),
                expected=f"at most {limit} bytes",
                got=f"{found.st_size} bytes",
            )
        with open(fd, "rb", closefd=False) as file:
            data = file.read(found.st_size + 1)
    finally:
        os.close(fd)
    if len(data) != found.st_size:
        raise TransientError("the file changed while it was read", file=str(path))
    return data, _digest(data)


def put_file(
    target: Path,
    data: bytes,
    expected: str | None,
    *,
    shared: bool,
    patience: float = _PATIENCE_SECONDS,
) -> None:
    """Put `data` in place if what is there has the digest `expected`; `None`: if nothing is.

    `ConflictError` otherwise. After any error what was there is there still, but after one of the
    last sync of the folder, when the new bytes are there and may go with a loss of power. After a
    kill it is one or the other; the next call removes what is left beside it. `shared` says that
    other machines may write here too. `TransientError` where another has been about to replace it
    for `patience` seconds.
    """
    _check(target, expected)
    new = _New(target, shared=shared)
    try:
        new.write(data)
        new.remove_leftovers()
        sync_folder(target.parent)  # where that fails always, before anything has changed
        linked = _try_link(new.path, target) if expected is None else None
        if linked is None:
            _rename(new, target, data, expected, patience)
        elif not linked:
            raise _conflict(target)
    finally:
        new.close()
    sync_folder(target.parent)


def _rename(new: _New, target: Path, data: bytes, expected: str | None, patience: float) -> None:
    name = _beside(target, (expected or "none")[:16] + _NEXT)
    end = time.monotonic() + patience
    tried = False
    while not (tried and _found(target) == _digest(data)):
        _check(target, expected)
        source = new.take(name)
        if source is not None:
            tried = True
            try:
                _check(target, expected)
                source.replace(target)
                return
            except FileNotFoundError:
                # Another took it for left behind, or NFS has sent the same request twice.
                if not new.is_there():
                    raise
            finally:
                new.give_back(name)
        elif not new.remove_if_left(name):
            if time.monotonic() >= end:
                raise TransientError(
                    "another writer has begun to put it in place", file=str(target)
                )
            time.sleep(_POLL_SECONDS)


class _New:
    """New bytes beside their target, under a lock that tells others that their writer lives."""

    def __init__(self, target: Path, *, shared: bool) -> None:
        self._target = target
        self._shared = shared
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            self.path = _beside(target, secrets.token_hex(6) + _NEW)
            self._fd = self._name_fd = os.open(self.path, flags, 0o666)
            if _try_lock(self._fd) is not False and self.is_there():
                break
            os.close(self._fd)  # another took it for left behind before it was locked
        # By the clock that files are stamped with, which may be a server's.
        self._clock = os.fstat(self._fd).st_mtime - time.monotonic()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fsync(self._fd)

    def is_there(self) -> bool:
        return _is_at(self._fd, self.path)

    def take(self, name: Path) -> Path | None:
        """Have a name that others cannot have together with us: what to rename, or `None`."""
        linked = _try_link(self.path, name)
        if linked is not None:
            # NFS may answer that it is there already when it has sent the same request twice.
            return name if linked or _is_at(self._fd, name) else None
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return None
        # Whoever looks whether it was left behind has the lock for a moment: to give up then would
        # leave it behind indeed.
        end = time.monotonic() + _PATIENCE_SECONDS
        while (free := _try_lock(fd)) is False and _is_at(fd, name) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS / 10)
        if free is False or not _is_at(fd, name):
            os.close(fd)
            return None
        self._name_fd = fd
        return self.path

    def give_back(self, name: Path) -> None:
        """Let others have the name, if it is ours still."""
        if _is_at(self._name_fd, name):
            name.unlink(missing_ok=True)
        if self._name_fd != self._fd:
            os.close(self._name_fd)
            self._name_fd = self._fd

    def remove_leftovers(self) -> None:
        """Remove what kills have left beside the target."""
        for path in self._target.parent.iterdir():
            if path != self.path and _is_beside(path, self._target):
                with contextlib.suppress(OSError):  # of another user, say
                    self.remove_if_left(path)

    def remove_if_left(self, path: Path) -> bool:
        """Remove a name whose writer was killed; whether it is gone."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        try:
            free = _try_lock(fd)
            age = self._clock + time.monotonic() - os.fstat(fd).st_mtime
            if free is False or ((free is None or self._shared) and age < _GRACE_SECONDS):
                return False
            if _is_at(fd, path):
                path.unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)

    def close(self) -> None:
        try:
            if self.is_there():
                self.path.unlink()
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # or a forked child would hold it
            os.close(self._fd)


def _check(target: Path, expected: str | None) -> None:
    if _found(target) != expected:
        raise _conflict(target)


def _conflict(target: Path) -> ConflictError:
    return ConflictError("another writer was there first", file=str(target))


def _found(target: Path) -> str | None:
    try:
        return read_file(target, _MOST_BYTES)[1]
    except FileNotFoundError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _beside(target: Path, rest: str) -> Path:
    return target.with_name(f".{target.name}.{rest}")


def _is_beside(path: Path, target: Path) -> bool:
    return path.name.startswith(f".{target.name}.") and path.suffix in (_NEW, _NEXT)


def _try_link(path: Path, name: Path) -> bool | None:
    """Whether `name` is now a link to `path`; `None` where there are no links."""
    try:
        os.link(path, name)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return None
    return True


def _try_lock(fd: int) -> bool | None:
    """Whether the lock is ours; `None` where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
