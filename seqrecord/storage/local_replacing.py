"""Puts a small file in place in one step, if what is there is still what its writer expects.

::

    .manifest.json.<tag>.next/            a folder: of all that expect <tag> only one can make it
    .manifest.json.<tag>.next/<random>    the new bytes, synced
    manifest.json                         that file, renamed

The writer that has made the folder looks whether the file is still the expected one, and then
renames; nobody else that expects the same comes between. This holds without locks and links, and
between the machines of an NFS server or a cluster filesystem. Locks tell only whether the writer of
a folder was killed. Where there are none, or other machines may not see them, a folder that is a
minute old is taken for left behind, and what is in it is removed. A writer that lives on then finds
its file gone, and replaces nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from seqrecord.errors import ConflictError, TransientError
from seqrecord.storage.base import MAX_PUT_BYTES, tag_of, too_large
from seqrecord.storage.local_upload import sync_folder
from seqrecord.storage.open_files import Handle, with_descriptor

_GRACE_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0  # the folder is held for as long as a small file takes to be synced
_POLL_SECONDS = 0.005
_READ_ATTEMPTS = 5
_NEXT = ".next"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_file(path: Path, limit: int) -> tuple[bytes, str]:
    """A file's bytes and their digest. `StorageError` for more than `limit` bytes.

    A mount may report the size of one version and give the bytes of the next: it is read again.
    `TransientError` if the two keep differing.
    """
    for _ in range(_READ_ATTEMPTS):
        handle = Handle(path)
        size = os.fstat(handle.fd).st_size
        if size > limit:
            raise too_large(str(path), limit, size)
        with open(handle.fd, "rb", closefd=False) as file:
            data = file.read(size + 1)
        if len(data) == size:
            return data, tag_of(data)
        time.sleep(_POLL_SECONDS)
    raise TransientError("the file changed while it was read", file=str(path))


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
    last sync of the folder, a `TransientError`: then the new bytes are there, and may go with a
    loss of power. After a kill it is one or the other; the next call removes what is left beside
    it. `shared` says that other machines may write here too. `TransientError` too where another has
    been about to replace it for `patience` seconds.
    """
    _check(target, expected)
    for path in target.parent.iterdir():
        if path.name.startswith(f".{target.name}.") and path.suffix == _NEXT:
            with contextlib.suppress(OSError):  # of another user, say
                _remove_abandoned(path, shared)
    sync_folder(target.parent)  # where that fails always, before anything has changed
    folder = target.with_name(f".{target.name}.{(expected or 'none')[:16]}{_NEXT}")
    end = time.monotonic() + patience
    while not _try_to_replace(target, data, expected, folder):
        _check(target, expected)
        if time.monotonic() >= end:
            raise TransientError("another writer has begun to put it in place", file=str(target))
        if not _remove_abandoned(folder, shared):
            time.sleep(_POLL_SECONDS)
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise TransientError(
            f"it is in place, but its folder cannot be synced: {error.strerror}", file=str(target)
        ) from error


def _try_to_replace(target: Path, data: bytes, expected: str | None, folder: Path) -> bool:
    """Replace it if the folder can be made; false if not, or if others took ours for left."""
    new = folder / secrets.token_hex(6)
    try:
        folder.mkdir()
        with _locked(folder) as (_, free):
            try:
                if free is False:  # another looks whether it was left, and may remove it
                    return False
                _write(new, data)
                # Another may have removed the folder, and made it anew, before our file was in it.
                # Of two files in it the later one's writer sees both, or the other one renamed.
                if list(folder.iterdir()) != [new]:
                    return False
                _check(target, expected)
                return _rename(new, target, data)
            finally:
                with contextlib.suppress(OSError):  # removed, or another's now
                    new.unlink(missing_ok=True)
                    folder.rmdir()
    except (FileExistsError, FileNotFoundError):
        return False


def _rename(new: Path, target: Path, data: bytes) -> bool:
    try:
        new.replace(target)
    except FileNotFoundError:
        return _found(target) == tag_of(data)  # NFS may have sent the same request twice
    return True


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = with_descriptor(lambda: os.open(path, flags, 0o666))
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_abandoned(folder: Path, shared: bool) -> bool:
    """Remove the folder of a writer that was killed; whether it is gone."""
    try:
        with _locked(folder) as (fd, free):
            # Too soon, where clocks differ, costs its writer another attempt, and nothing else.
            is_young = abs(time.time() - os.fstat(fd).st_mtime) < _GRACE_SECONDS
            if free is False or (is_young and (shared or free is None)):
                return False
            for name in os.listdir(fd):  # noqa: PTH208 - of this folder, and of none with its name
                os.unlink(name, dir_fd=fd)
            folder.rmdir()
    except FileNotFoundError:
        pass  # another has removed it
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # another has made it anew
            raise
        return False
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[tuple[int, bool | None]]:
    """A descriptor of a folder, and whether its lock is ours; `None` where there are no locks."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = with_descriptor(lambda: os.open(folder, flags))
    try:
        yield fd, _try_lock(fd)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # or a forked child would hold it
        os.close(fd)


def _check(target: Path, expected: str | None) -> None:
    if _found(target) != expected:
        raise ConflictError("another writer was there first", file=str(target))


def _found(target: Path) -> str | None:
    try:
        return read_file(target, MAX_PUT_BYTES)[1]
    except FileNotFoundError:
        return None


def _try_lock(fd: int) -> bool | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
