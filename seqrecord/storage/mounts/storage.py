"""Files of a mount: a local path behind which something fetches them, such as blobfuse."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from seqrecord.errors import DestinationError, NotFoundError, StorageError, TransientError
from seqrecord.forks import PerProcess
from seqrecord.storage.base import Upload, check_buffers, check_path
from seqrecord.storage.failures import classify
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.local.folders import make_folder
from seqrecord.storage.local.storage import find_remote_mount
from seqrecord.storage.local.upload import Handle
from seqrecord.storage.mounts.streams import Streams
from seqrecord.storage.ranges import ByteRange

__all__ = ["MountStorage"]

_MAX_HANDLES = 64


class MountStorage(LocalStorage):
    """Storage in a folder of a mount: blobfuse, rclone, s3fs, gcsfuse, goofys, NFS, …

    Reads go through handles that stay open, each of which is read front to back; see `Streams`.
    `max_handles` bounds them, since each may cost its mount read-ahead memory. Nothing is
    memory-mapped: a fault there would be a signal instead of an error. What may pass, such as EIO,
    ESTALE or a mount that is gone for a while, is a `TransientError`, and the next read opens its
    file anew.

    Files are written as on a local disk, so the mount needs a write cache. The mount decides
    what it uploads when.
    """

    _shared = True

    def __init__(self, root: str | os.PathLike[str], *, max_handles: int = _MAX_HANDLES) -> None:
        super().__init__(root, max_handles=max_handles)
        self._streams = PerProcess(lambda: Streams(max_handles))
        self._was_tried = False
        self._mount_point = find_remote_mount(self.root)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        wanted = sorted(zip(ranges, buffers, strict=True), key=lambda pair: pair[0])
        if not wanted:
            return
        start, stop = wanted[0][0].start, max(item.stop for item, _ in wanted)
        with (
            self._errors(path),
            self._streams.get().take(
                path, start, stop, lambda: Handle(self._inside(path))
            ) as handle,
        ):
            for item, buffer in wanted:
                handle.read(item, buffer.cast("B"), self._shown(path))

    def create(self, path: str) -> Upload:
        """As `Storage.create`; `DestinationError` where the mount cannot do what writing takes."""
        with self._errors(path, writing=True):
            if not self._was_tried:
                make_folder(self.root)
                _try_to_write(self.root)
                self._was_tried = True
            return super().create(path)

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def close(self) -> None:
        self._streams.get().drop()
        super().close()

    def _drop(self, path: str) -> None:
        self._streams.get().drop(path)

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
        return find_remote_mount(self.root) != self._mount_point is not None


def _try_to_write(folder: Path) -> None:
    """What an upload does: write, take some of it back, append, sync, rename."""
    name = folder / f".seqrecord-{secrets.token_hex(6)}"
    renamed = name.with_suffix(".renamed")
    try:
        with name.open("xb", buffering=0) as file, name.open("ab", buffering=0) as more:
            try:
                file.write(b"try")
                os.ftruncate(file.fileno(), 1)
                more.write(b"again")
                os.fsync(file.fileno())
                name.replace(renamed)
            except OSError:  # what fails while these are closed then tells less
                for opened in (more, file):
                    with suppress(OSError):
                        opened.close()
                raise
    finally:
        for each in (name, renamed):
            each.unlink(missing_ok=True)
