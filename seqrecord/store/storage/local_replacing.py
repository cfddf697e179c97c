"""Atomic conditional writes of a small local file: compare its digest, then replace it.

::

    .manifest.json.<digest>.next/            folder, created by one writer that expects <digest>
    .manifest.json.<digest>.next/<random>    the new bytes, synced
    manifest.json                            the same file after the rename

The writer that created the folder checks that the file is still the expected one, and renames. No
other writer with the same expectation can interfere. This needs neither locks nor hard links, and
works between machines on NFS and cluster filesystems. Locks only detect whether a folder's writer
was killed. Without locks, or if other machines may not see them, a folder older than a minute
counts as abandoned, and its contents are removed. A writer that is still alive then fails to rename
its file, and replaces nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from seqrecord.errors import ConflictError, TransientError
from seqrecord.store.processes.system import sync
from seqrecord.store.storage.base import MAX_PUT_BYTES, digest_of, too_large
from seqrecord.store.storage.local_upload import sync_folder
from seqrecord.store.storage.open_files import Handle, with_descriptor

_GRACE_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0  # the folder exists only while a small file is synced
_POLL_SECONDS = 0.005
_READ_ATTEMPTS = 5
_NEXT = ".next"
_NEW = re.compile(r"[0-9a-f]{12}")
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_file(path: Path, limit: int) -> tuple[bytes, str]:
    """Content and digest of a file. Raises `StorageError` for more than `limit` bytes.

    A mount may report the size of one version and return the bytes of another. If so, reads again,
    and raises `TransientError` if they keep differing.
    """
    for _ in range(_READ_ATTEMPTS):
        handle = Handle(path)
        size = os.fstat(handle.fd).st_size
        if size > limit:
            raise too_large(str(path), limit, size)
        with open(handle.fd, "rb", closefd=False) as file:
            data = file.read(size + 1)
        if len(data) == size:
            return data, digest_of(data)
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
    """Write `data` to `target` if the current digest is `expected`; `None` expects no file.

    Raises `ConflictError` otherwise. After any error the previous file is intact, except after a
    `TransientError` from the last sync of the folder: then the new file is in place, but a power
    loss may revert it. After a kill, one of both is in place, and the next call removes the
    remains. `shared` means that other machines may write too. Raises `TransientError` also if
    another writer occupies the folder for `patience` seconds.
    """
    _check(target, expected)
    folders = re.compile(rf"\.{re.escape(target.name)}\.(none|[0-9a-f]{{16}}){_NEXT}")
    for path in target.parent.iterdir():
        if folders.fullmatch(path.name):
            with contextlib.suppress(OSError):  # for example of another user
                _remove_abandoned(path, shared)
    sync_folder(target.parent)  # first, so that an unsupported sync fails before any change
    folder = target.with_name(f".{target.name}.{(expected or 'none')[:16]}{_NEXT}")
    end = time.monotonic() + patience
    while not _try_to_replace(target, data, expected, folder):
        _check(target, expected)
        if time.monotonic() >= end:
            raise TransientError("another writer is replacing the file", file=str(target))
        if not _remove_abandoned(folder, shared):
            time.sleep(_POLL_SECONDS)
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise TransientError(
            f"the file was written, but not its folder synced: {error.strerror}", file=str(target)
        ) from error


def _try_to_replace(target: Path, data: bytes, expected: str | None, folder: Path) -> bool:
    """Create the folder and replace; false if the folder exists or another writer removed it."""
    new_file = folder / secrets.token_hex(6)
    try:
        folder.mkdir()
        with _locked(folder) as (_, free):
            try:
                if free is False:  # another writer checks it, and may remove it
                    return False
                _write(new_file, data)
                # Another writer may have removed and recreated the folder before our file was in
                # it. Then the later writer finds both files, or the other file was renamed already.
                if list(folder.iterdir()) != [new_file]:
                    return False
                _check(target, expected)
                return _rename(new_file, target, data)
            finally:
                with contextlib.suppress(OSError):  # removed, or recreated by another writer
                    new_file.unlink(missing_ok=True)
                    folder.rmdir()
    except (FileExistsError, FileNotFoundError):
        return False


def _rename(new_file: Path, target: Path, data: bytes) -> bool:
    try:
        new_file.replace(target)
    except FileNotFoundError:
        return _current_digest(target) == digest_of(data)  # NFS may repeat a request
    return True


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = with_descriptor(lambda: os.open(path, flags, 0o666))
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        sync(fd)
    finally:
        os.close(fd)


def _remove_abandoned(folder: Path, shared: bool) -> bool:
    """Remove the folder of a killed writer; whether it is gone."""
    try:
        with _locked(folder) as (fd, free):
            # With differing clocks this may be too soon, which only costs its writer a retry.
            is_young = abs(time.time() - os.fstat(fd).st_mtime) < _GRACE_SECONDS
            if free is False or (is_young and (shared or free is None)):
                return False
            for name in os.listdir(fd):  # noqa: PTH208 - by descriptor, not by name
                if _NEW.fullmatch(name):
                    os.unlink(name, dir_fd=fd)
            folder.rmdir()
    except FileNotFoundError:
        pass  # removed by another writer
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # recreated by another writer
            raise
        return False
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[tuple[int, bool | None]]:
    """Descriptor of a folder, and whether its lock was acquired; `None` if locks do not exist."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = with_descriptor(lambda: os.open(folder, flags))
    try:
        yield fd, _try_lock(fd)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # before `close`: a forked child may have a copy of `fd`
        os.close(fd)


def _check(target: Path, expected: str | None) -> None:
    if _current_digest(target) != expected:
        raise ConflictError("another writer was there first", file=str(target))


def _current_digest(target: Path) -> str | None:
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
