"""Uploads to a local folder: a file beside the target, synced and renamed when it is whole."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from seqrecord.checksum import Buffer
from seqrecord.errors import DestinationError, NotFoundError, StorageError
from seqrecord.storage.local.claims import GRACE_SECONDS, ClaimedFile
from seqrecord.storage.local.folders import sync_folder

__all__ = ["NOTES", "PARTIAL", "LocalUpload", "local_errors", "with_suffix"]

PARTIAL = ".partial"
NOTES = ".notes"


class LocalUpload:
    """Writes beside its target; checkpoints go to a file of notes, one JSON line each."""

    def __init__(self, path: str, target: Path, *, replace: bool, reopen: bool = False) -> None:
        self.path = path
        self._target = target
        self._replace = replace
        self._notes = with_suffix(target, NOTES)
        self._committed = False
        # Holding the claim, nobody takes up this upload as an interrupted one while it is written.
        self._file = ClaimedFile(
            with_suffix(target, PARTIAL),
            create=not reopen,
            held="another writer is still at work on this file",
            grace=GRACE_SECONDS if reopen else 0,
        )
        if reopen:
            # After a sync that failed, memory may still hold what the disk has not: who reads it
            # again is to see the disk.
            os.fsync(self._file.fd)
            os.posix_fadvise(self._file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            self._notes.unlink(missing_ok=True)
            os.ftruncate(self._file.fd, 0)
        self._size = os.lseek(self._file.fd, 0, os.SEEK_END)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        fd = self._fd()
        with local_errors(str(self._target)):
            while view:
                written = os.write(fd, view)
                self._size += written
                view = view[written:]

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        line = json.dumps({"size": self._size, "note": note.hex()}).encode() + b"\n"
        with local_errors(str(self._notes)):
            fd = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            before = os.fstat(fd).st_size
            try:
                if os.write(fd, line) < len(line):
                    raise StorageError("the disk is full", file=str(self._notes))
            except BaseException:
                os.ftruncate(fd, before)  # or what follows would be lost with the half line
                raise
            finally:
                os.close(fd)

    def rewind(self, offset: int) -> bool:
        fd = self._fd()
        with local_errors(str(self._target)):
            os.ftruncate(fd, offset)
            self._size = os.lseek(fd, offset, os.SEEK_SET)
        return True

    def commit(self) -> None:
        fd = self._fd()
        try:
            with local_errors(str(self._target)):
                os.fsync(fd)
                # Names of record files are unique, so nothing comes between this and the rename.
                if not self._replace and self._target.exists():
                    raise DestinationError("the file exists already", file=str(self._target))
                self._file.path.replace(self._target)
                self._committed = True
                sync_folder(self._target.parent)
                self._notes.unlink(missing_ok=True)
        finally:
            self._file.close()

    def abort(self) -> None:
        if self._committed:
            return
        with local_errors(str(self._target)):
            self._notes.unlink(missing_ok=True)
            self._file.path.unlink(missing_ok=True)
        self._file.close()

    def leave(self) -> None:
        """Close it, to be reopened."""
        self._file.close()

    def _fd(self) -> int:
        if self._file.fd < 0:
            raise StorageError("the upload is closed", file=str(self._target))
        return self._file.fd


def with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextlib.contextmanager
def local_errors(file: str) -> Iterator[None]:
    """The system's errors as this package's."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError("no such file", file=file) from error
    except OSError as error:
        raise StorageError(error.strerror or str(error), file=file) from error
