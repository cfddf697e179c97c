"""Storage on a remote mount, such as blobfuse: a local path whose files are fetched on demand.

`HandlePool` manages open handles: mounts are fastest if each handle is read sequentially.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from seqrecord.cloud.failures import classify
from seqrecord.errors import DestinationError, NotFoundError, StorageError, TransientError
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.processes.system import sync
from seqrecord.store.storage.base import Upload, check_buffers, check_path
from seqrecord.store.storage.local import LocalStorage, find_remote_mount
from seqrecord.store.storage.local_upload import make_folder
from seqrecord.store.storage.open_files import Handle, OpenFiles
from seqrecord.store.storage.ranges import ByteRange

_MAX_HANDLES = 64


class MountStorage(LocalStorage):
    """Storage in a folder of a mount, such as blobfuse, rclone, s3fs, gcsfuse, goofys or NFS.

    Reads use open handles, each of which is read sequentially; see `HandlePool`. `max_handles`
    limits them, because each may cost the mount read-ahead memory. Files are not memory-mapped,
    because an error would then be a signal, not an exception. Failures that may pass, such as EIO,
    ESTALE or a mount that is temporarily gone, raise `TransientError`, and the next read reopens
    its file.

    Files are written as on a local disk, so the mount needs a write cache. The mount decides when
    it uploads them.
    """

    _shared = True

    def __init__(self, root: str | os.PathLike[str], *, max_handles: int = _MAX_HANDLES) -> None:
        super().__init__(root)
        self._max_handles = max_handles
        self._handles = PerProcess(lambda: HandlePool(max_handles))
        self._was_tried = False
        self._mount_point = find_remote_mount(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), max_handles=self._max_handles), (str(self.root),)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        range_buffers = sorted(zip(ranges, buffers, strict=True), key=lambda pair: pair[0])
        if not range_buffers:
            return
        start, stop = (
            range_buffers[0][0].start,
            max(byte_range.stop for byte_range, _ in range_buffers),
        )
        with (
            self._errors(path),
            self._handles.get().take(
                path, start, stop, lambda: Handle(self._resolve_path(path))
            ) as handle,
        ):
            for byte_range, buffer in range_buffers:
                handle.read(byte_range, buffer.cast("B"), self._url_of(path))

    def create(self, path: str) -> Upload:
        """See `Storage.create`; raises `DestinationError` if the mount does not support writing."""
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
        self._handles.get().drop()
        super().close()

    def _drop(self, path: str) -> None:
        self._handles.get().drop(path)

    @contextmanager
    def _errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """OS errors become errors of this package; `TransientError` if they may pass."""
        shown = self._url_of(path)
        try:
            yield
            return
        except StorageError:
            raise
        except OSError as error:
            failure: StorageError
            if isinstance(error, FileNotFoundError) and self._is_gone():
                failure = TransientError(
                    "the mount is gone", file=shown, expected=self._mount_point
                )
            else:
                failure = classify(error, shown)
            if writing and not isinstance(failure, (NotFoundError, TransientError)):
                failure = DestinationError(
                    f"this mount cannot be written to ({error.strerror}): mount it writable and "
                    "with a write cache, or write to the URL of the mounted storage",
                    file=shown,
                )
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    def _is_gone(self) -> bool:
        return find_remote_mount(self.root) != self._mount_point is not None


def _try_to_write(folder: Path) -> None:
    """Try the operations of an upload: write, truncate, append, sync, rename."""
    name = folder / f".seqrecord-{secrets.token_hex(6)}"
    renamed = name.with_suffix(".renamed")
    try:
        with name.open("xb", buffering=0) as file, name.open("ab", buffering=0) as appender:
            try:
                file.write(b"try")
                os.ftruncate(file.fileno(), 1)
                appender.write(b"again")
                sync(file.fileno())
                name.replace(renamed)
            except OSError:  # more informative than an error of `close`
                for opened in (appender, file):
                    with suppress(OSError):
                        opened.close()
                raise
    finally:
        for path in (name, renamed):
            path.unlink(missing_ok=True)


_MAX_GAP = 64 << 20


class HandlePool:
    """Open handles of files, at most `limit` except for handles in use; see `open_files`.

    A mount tracks each handle separately: it reads ahead if reads continue at the handle's last
    position, and stops that after jumps. So a read uses the handle whose last position is nearest
    before it, or a new handle if there is none. Reads on one handle wait for each other, in order
    of arrival.

    ::

        handle 1   [chunk 3][chunk 4][chunk 5]…
        handle 2                                [chunk 70][chunk 71]…

    Thread-safe; a forked child opens its own handles.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open_files = OpenFiles()
        self._lock = threading.Lock()
        self._handles: list[_PooledHandle] = []  # least recently used first
        self._count = 0

    @property
    def places(self) -> list[tuple[str, int]]:
        """File of each handle and the end of its last read; least recently used first."""
        with self._lock:
            return [(handle.path, handle.tail) for handle in self._handles]

    @contextmanager
    def take(
        self, path: str, start: int, stop: int, open_file: Callable[[], Handle]
    ) -> Iterator[Handle]:
        """Handle for reading bytes `[start, stop)` of a file, for exclusive use in the context.

        Calls `open_file` for a new handle. After an error the handle is dropped, because it may be
        invalid after a remount.
        """
        end_event = threading.Event()
        with self._lock:
            near_streams = [
                near_stream
                for near_stream in reversed(self._handles)
                if near_stream.path == path and 0 <= start - near_stream.tail <= _MAX_GAP
            ]
            stream = max(near_streams, key=lambda near_stream: near_stream.tail, default=None)
            if stream is None:
                self._count += 1
                stream = _PooledHandle(path, self._count)
            self._handles = [
                pooled_handle for pooled_handle in self._handles if pooled_handle is not stream
            ]
            dropped_handles = self._handles[: max(0, len(self._handles) + 1 - self._limit)]
            self._handles = [*self._handles[len(dropped_handles) :], stream]
            stream.tail = stop
            # Under the lock, so that reads of a handle run in the order of their schedule; they
            # wait outside of it. tests/cloud/test_mount.py::test_reads_of_one_handle_run_in_order.
            previous_read, stream.last_read = stream.last_read, end_event
        # Outside the lock; handles in use are closed after their last read. See
        # tests/cloud/test_mount.py::test_the_least_recently_used_handle_is_closed.
        self._close(dropped_handles)
        handle: Handle | None = None
        try:
            previous_read.wait()
            handle = self._open_files.get(stream.number, open_file)
            yield handle
        except BaseException:
            if handle is not None:
                handle.close()
            with self._lock:
                self._handles = [
                    pooled_handle for pooled_handle in self._handles if pooled_handle is not stream
                ]
            self._close([stream])
            raise
        finally:
            if stream.is_dropped:
                self._open_files.close(stream.number)
            end_event.set()

    def drop(self, path: str | None = None) -> None:
        """Drop the handles of a file, or all; handles in use are closed after their last read."""
        with self._lock:
            open_handles = self._handles
            self._handles = [
                pooled_handle
                for pooled_handle in open_handles
                if path not in (None, pooled_handle.path)
            ]
        self._close(
            [pooled_handle for pooled_handle in open_handles if path in (None, pooled_handle.path)]
        )

    def _close(self, streams: Sequence[_PooledHandle]) -> None:
        for stream in streams:
            stream.is_dropped = True
            self._open_files.close(stream.number)


class _PooledHandle:
    """A handle's number, the end of its last scheduled read, and an event set when that ends."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.is_dropped = False
        self.tail = 0
        self.last_read = threading.Event()
        self.last_read.set()
