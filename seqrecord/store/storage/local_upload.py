"""Uploads to a local folder: a temporary file, synced and renamed when complete.

`<path>.partial` has the bytes, `<path>.notes` the checkpoints; other processes may read both. A
name survives a power loss only after its folder was synced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, StorageError
from seqrecord.store.checksum import Buffer
from seqrecord.store.processes.system import sync
from seqrecord.store.storage.base import check_rewind
from seqrecord.store.storage.open_files import Handle, descriptor_limit, with_descriptor

_logger = logging.getLogger("seqrecord")

PARTIAL = ".partial"
NOTES = ".notes"
_MAX_LINE = (1 << 26) + 1000  # characters: the largest footer, 2^25 bytes, in hexadecimal
# Size of writes. For larger ones, the page cache allocates large folios, which Linux must assemble
# first: 323 MB took 0.1 s of CPU in writes of 128 KiB, and 0.1 to 0.9 s in writes of 256 KiB to
# 8 MiB. But after each write the thread may wait 5 ms for the GIL. So after such a wait, writes
# get larger.
_PIECE_BYTES, _MOST_PIECE_BYTES = 128 << 10, 8 << 20
_WAIT_SECONDS = 3e-3
_NO_NOTE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # malformed lines
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


class LocalUpload:
    """Writes a file beside its target; checkpoints are JSON lines in a second file."""

    def __init__(self, path: str, target: Path) -> None:
        self.path = path
        self._target = target
        self._partial, self._notes = with_suffix(target, PARTIAL), with_suffix(target, NOTES)
        self._size, self._noted, self._fd, self._committed = 0, 0, -1, False
        self._piece = _PIECE_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = with_descriptor(lambda: os.open(self._partial, flags, 0o666))
        except FileExistsError:
            raise DestinationError("another writer has begun this file", file=str(target)) from None

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        fd = self._open_fd()
        with local_errors(str(self._target)):
            has_waited = False
            if len(view) <= _PIECE_BYTES:  # a single write
                count = os.write(fd, view)
                self._size += count
                view = view[count:]
            while view:
                began = time.monotonic() - time.thread_time()
                count = os.write(fd, view[: self._piece])
                if time.monotonic() - time.thread_time() - began > _WAIT_SECONDS:
                    self._piece = min(2 * self._piece, _MOST_PIECE_BYTES)
                    has_waited = True
                self._size += count
                view = view[count:]
            if not has_waited:
                self._piece = max(self._piece // 2, _PIECE_BYTES)

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        self._add_note({"size": self._size, "note": note.hex()})
        self._noted = self._size

    def rewind(self, offset: int) -> None:
        fd = self._open_fd()
        check_rewind(self._size, offset)
        if offset < self._noted:
            self._add_note({"size": offset})  # invalidates the notes beyond `offset`
            self._noted = offset
        with local_errors(str(self._target)):
            os.ftruncate(fd, offset)
            self._size = os.lseek(fd, offset, os.SEEK_SET)

    def _add_note(self, note: dict[str, Any]) -> None:
        line = json.dumps(note).encode() + b"\n"
        with local_errors(str(self._notes)):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            fd = with_descriptor(lambda: os.open(self._notes, flags, 0o666))
            size = os.fstat(fd).st_size
            try:
                if os.write(fd, line) < len(line):
                    raise StorageError("the disk is full", file=str(self._notes))
            except BaseException:
                os.ftruncate(fd, size)  # later notes must not follow an incomplete line
                raise
            finally:
                os.close(fd)

    def commit(self) -> None:
        fd = self._open_fd()
        try:
            with local_errors(str(self._target)):
                sync(fd)
                # Paths are unique, so that nothing happens between this and the rename.
                if self._target.exists():
                    raise DestinationError("the file exists already", file=str(self._target))
                # In this order, content, name, folder: without one of the two syncs a power loss
                # takes a file that the manifest names
                # (tests/store/test_power_loss.py::test_without_one_kind_of_sync_a_dataset_is_lost).
                self._partial.replace(self._target)
                self._committed = True
                sync_folder(self._target.parent)
                self._notes.unlink(missing_ok=True)
        finally:
            self.abandon()

    def abort(self) -> None:
        if self._committed:
            return
        try:
            with local_errors(str(self._target)):
                self._notes.unlink(missing_ok=True)
                self._partial.unlink(missing_ok=True)
        finally:
            self.abandon()  # after the removal, because a mount may upload a file when it is closed

    def abandon(self) -> None:
        """Close the file and keep it, as after a kill."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # durable data was synced before
                os.close(fd)

    def __del__(self) -> None:
        self.abandon()

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise StorageError("the upload is closed", file=str(self._target))
        return self._fd


def with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextlib.contextmanager
def local_errors(file: str, *, writing: bool = False) -> Iterator[None]:
    """OS errors become errors of this package; `DestinationError` for refused writes."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError("no such file", file=file) from error
    except OSError as error:
        if writing and error.errno in _REFUSED:
            raise DestinationError(f"cannot write: {error.strerror}", file=file) from error
        if error.errno == errno.EMFILE:
            raise StorageError(
                "too many open files: raise the limit with `ulimit -n` or "
                "resource.setrlimit(resource.RLIMIT_NOFILE, …)",
                file=file,
                expected=f"at most {descriptor_limit()} in this process",
            ) from error
        raise StorageError(error.strerror or str(error), file=file) from error


def read_notes(path: Path) -> list[tuple[int, bytes]]:
    """Valid notes before the first incomplete line, without notes that `rewind` removed."""
    notes: list[tuple[int, bytes]] = []
    with contextlib.suppress(FileNotFoundError):
        handle = Handle(path, os.O_NOFOLLOW)
        with open(handle.fd, encoding="ascii", errors="replace", closefd=False) as file:
            while line := file.readline(_MAX_LINE):
                try:
                    entry = json.loads(line)
                    size = int(entry["size"])
                    note = bytes.fromhex(entry["note"]) if "note" in entry else None
                except _NO_NOTE:
                    size, note = -1, None
                if size < 0:
                    if file.readline(1):  # only the last line may be incomplete
                        _logger.warning("%s: damaged; later checkpoints are lost", path)
                    break
                if note is not None:
                    notes.append((size, note))
                else:
                    notes = [each for each in notes if each[0] <= size]
    return notes


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are durable."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = with_descriptor(lambda: os.open(folder, flags))
    try:
        sync(fd)
    except OSError as error:
        # Some mounts cannot sync a folder, but make renames durable on their own.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)
