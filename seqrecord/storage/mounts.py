"""Files of a mount: a local path behind which something fetches them, such as blobfuse.

`Streams` has the open handles: files are best read front to back, each handle by one reader.
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

from seqrecord.errors import DestinationError, NotFoundError, StorageError, TransientError
from seqrecord.processes.forks import PerProcess
from seqrecord.storage.base import Upload, check_buffers, check_path
from seqrecord.storage.failures import classify
from seqrecord.storage.local import LocalStorage, find_remote_mount
from seqrecord.storage.local_upload import make_folder
from seqrecord.storage.open_files import Handle, OpenFiles
from seqrecord.storage.ranges import ByteRange

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
        super().__init__(root)
        self._max_handles = max_handles
        self._streams = PerProcess(lambda: Streams(max_handles))
        self._was_tried = False
        self._mount_point = find_remote_mount(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), max_handles=self._max_handles), (str(self.root),)

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


_MAX_GAP = 64 << 20


class Streams:
    """Handles of files, at most `limit` while fewer are in use, among those of `open_files`.

    What fetches a file for its readers looks at each handle by itself: it reads ahead where a
    handle goes on where it was, and gives that up after jumps. So a read takes the handle that was
    last nearest below it, or a new one where none is; and reads of one handle wait for their turn,
    in the order in which they asked for it.

    ::

        handle 1   [chunk 3][chunk 4][chunk 5]…
        handle 2                                [chunk 70][chunk 71]…

    Safe to use from many threads; a forked child makes its own.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._opened = OpenFiles()
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []  # least recently used first
        self._count = 0

    @property
    def places(self) -> list[tuple[str, int]]:
        """The file of each handle, and where its reads will end; least recently used first."""
        with self._lock:
            return [(each.path, each.tail) for each in self._streams]

    @contextmanager
    def take(
        self, path: str, start: int, stop: int, open_file: Callable[[], Handle]
    ) -> Iterator[Handle]:
        """A handle to read bytes `[start, stop)` of a file, which nobody else uses meanwhile.

        `open_file` is called where a new one is needed. After an error the handle is not used
        again: a mount that came back may not know it any more.
        """
        ended = threading.Event()
        with self._lock:
            near = [
                each
                for each in reversed(self._streams)
                if each.path == path and 0 <= start - each.tail <= _MAX_GAP
            ]
            stream = max(near, key=lambda each: each.tail, default=None)
            if stream is None:
                self._count += 1
                stream = _Stream(path, self._count)
            self._streams = [each for each in self._streams if each is not stream]
            dropped = self._streams[: max(0, len(self._streams) + 1 - self._limit)]
            self._streams = [*self._streams[len(dropped) :], stream]
            stream.tail = stop
            before, stream.last = stream.last, ended
        self._close(dropped)  # outside the lock; one in use is closed after its last read
        handle: Handle | None = None
        try:
            before.wait()
            handle = self._opened.get(stream.number, open_file)
            yield handle
        except BaseException:
            if handle is not None:
                handle.close()
            with self._lock:
                self._streams = [each for each in self._streams if each is not stream]
            self._close([stream])
            raise
        finally:
            if stream.is_dropped:
                self._opened.close(stream.number)
            ended.set()

    def drop(self, path: str | None = None) -> None:
        """Forget the handles of a file, or all; those in use are closed when they are done."""
        with self._lock:
            dropped = self._streams
            self._streams = [each for each in dropped if path not in (None, each.path)]
        self._close([each for each in dropped if path in (None, each.path)])

    def _close(self, streams: Sequence[_Stream]) -> None:
        for stream in streams:
            stream.is_dropped = True
            self._opened.close(stream.number)


class _Stream:
    """A handle's number, where its last booked read will end, and what that read waits for."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.is_dropped = False
        self.tail = 0
        self.last = threading.Event()
        self.last.set()
