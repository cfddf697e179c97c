"""Files of a mount: a local path behind which something fetches them, such as blobfuse."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, StorageError, TransientError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import (
    Upload,
    check_buffers,
    short_read,
)
from seqrecord.storage.failures import classify
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.local.folders import make_folder
from seqrecord.storage.mounts.streams import Streams
from seqrecord.storage.mounts.table import find_remote_mount
from seqrecord.storage.per_process import PerProcess

__all__ = ["MountStorage"]

_MAX_HANDLES = 64


class MountStorage(LocalStorage):
    """Storage in a folder of a mount: blobfuse, rclone, s3fs, gcsfuse, goofys, NFS, …

    Reads go through handles that stay open, each of which is read front to back; see `Streams`.
    `max_handles` bounds them, since each may cost its mount read-ahead memory. Nothing is
    memory-mapped: a fault there would be a signal instead of an error. What may pass, such as EIO,
    ESTALE or a mount that is gone for a while, is a `TransientError`, and the next read opens its
    file anew.

    Files are written as on a local disk, which takes a mount with a write cache. What it uploads
    when is its own affair.
    """

    _shared = True

    def __init__(self, root: str | os.PathLike[str], *, max_handles: int = _MAX_HANDLES) -> None:
        super().__init__(root)
        self._max_handles = max_handles
        self._streams = PerProcess(lambda: Streams(max_handles))
        self._was_tried = False
        self._mount_point = find_remote_mount(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self.root), self._max_handles)

    def __repr__(self) -> str:
        return f"MountStorage({str(self.root)!r})"

    def size(self, path: str) -> int:
        target = self._target(path)
        self._drop(path)  # reads that follow are of this file or of a newer one
        with self._errors(path):
            self._check_inside(target)
            found = target.stat()
            if not stat.S_ISREG(found.st_mode):
                raise StorageError("not a regular file", file=str(target))
            return found.st_size

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        self._target(path)
        wanted = sorted(
            ((item, buffer.cast("B")) for item, buffer in zip(ranges, buffers, strict=True)),
            key=lambda pair: pair[0],
        )
        if not wanted:
            return
        start, stop = wanted[0][0].start, max(item.stop for item, _ in wanted)
        with (
            self._errors(path),
            self._streams.get().take(path, start, stop, lambda: self._open_file(path)) as fd,
        ):
            for item, buffer in wanted:
                _read_exactly(fd, self._shown(path), item, buffer)

    def create(self, path: str) -> Upload:
        """As `Storage.create`; `DestinationError` where the mount cannot do what writing takes."""
        with self._errors(path, writing=True):
            if not self._was_tried:
                make_folder(self.root)
                _try_to_write(self.root)
                self._was_tried = True
            return super().create(path)

    def local_path(self, path: str) -> str | None:
        self._target(path)
        return None

    def close(self) -> None:
        streams = self._streams.take()
        if streams is not None:
            streams.drop()
        super().close()

    def _drop(self, path: str) -> None:
        self._streams.get().drop(path)

    def _open_file(self, path: str) -> int:
        target = self._target(path)
        self._check_inside(target)
        # Opening a pipe would otherwise wait for its other end.
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StorageError("not a regular file", file=str(target))
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextmanager
    def _errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """The system's errors as this package's, told apart by whether they may pass."""
        shown = self._shown(path)
        try:
            yield
            return
        except StorageError:
            raise
        except OSError as error:
            failure: StorageError
            if isinstance(error, FileNotFoundError) and self._is_gone():
                failure = TransientError(
                    "it is not mounted any more", file=shown, expected=self._mount_point
                )
            else:
                failure = classify(error, shown)
            if writing and not isinstance(failure, (NotFoundError, TransientError)):
                failure = DestinationError(
                    f"this mount cannot be written to ({error.strerror}): mount it writable and "
                    "with a write cache, or write to the URL of what is mounted",
                    file=shown,
                )
        raise failure

    def _is_gone(self) -> bool:
        point = self._mount_point
        return point is not None and find_remote_mount(self.root) != point


def _read_exactly(fd: int, shown: str, item: ByteRange, buffer: memoryview) -> None:
    done = 0
    while done < item.length:
        count = os.preadv(fd, [buffer[done:]], item.start + done)
        if count == 0:
            if os.fstat(fd).st_size >= item.stop:
                raise TransientError("the mount ended a file early", file=shown, got=done)
            raise short_read(shown, item, done)
        done += count


def _try_to_write(folder: Path) -> None:
    """What an upload does: write, take some of it back, append, sync, rename."""
    name = folder / f".seqrecord-{secrets.token_hex(6)}"
    renamed = name.with_suffix(".renamed")
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.write(fd, b"try")
            os.ftruncate(fd, 1)
            with name.open("ab", buffering=0) as file:
                file.write(b"again")
            os.fsync(fd)
            name.replace(renamed)
        finally:
            os.close(fd)
    finally:
        for each in (name, renamed):
            each.unlink(missing_ok=True)


def _rebuild(root: str, max_handles: int) -> MountStorage:
    return MountStorage(root, max_handles=max_handles)
