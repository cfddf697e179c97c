"""Uploads to storages without appends: written to a local file, then sent as one object."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from seqrecord.errors import StorageError
from seqrecord.store.checksum import Buffer
from seqrecord.store.storage.base import check_rewind
from seqrecord.store.storage.ranges import check_wanted


class WholeFiles(Protocol):
    """Interface of storages without appends, as needed by uploads."""

    @property
    def url(self) -> str: ...

    def send(self, path: str, content: Content) -> None:
        """Store a new file, with retries; raises `DestinationError` if it exists."""


class Content(Protocol):
    """Content of a file that is sent."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`, fewer at the end; raises `StorageError` after the upload's end."""


class SpooledUpload:
    """Upload that writes to an unnamed temporary file, sent by `commit` as one object.

    A kill loses it: the system removes the file.
    """

    def __init__(self, path: str, store: WholeFiles) -> None:
        self.path = path
        self.size = 0
        self._store, self._shown = store, f"{store.url}/{path}"
        with self._local_errors():
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `abandon`
        weakref.finalize(self, self._file.close)
        # tests/cloud/test_spooled.py has
        # test_an_upload_that_is_abandoned_while_it_is_sent_stores_nothing.
        # Another thread may close the file while it is sent, and its descriptor be used again.
        self._lock = threading.Lock()

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._opened(), self._local_errors():
            while view:
                count = self._file.write(view)
                self.size += count
                view = view[count:]

    def tell(self) -> int:
        return self.size

    def checkpoint(self, note: bytes) -> None:
        """Do nothing; see `Upload.checkpoint`."""

    def rewind(self, offset: int) -> None:
        with self._opened(), self._local_errors():
            check_rewind(self.size, offset)
            self._file.truncate(offset)
            self._file.seek(offset)
            self.size = offset

    def commit(self) -> None:
        check_wanted(self._shown)
        with self._opened():
            pass
        self._store.send(self.path, self)
        self.abandon()

    def abort(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Remove the temporary file, as a kill would; ends a `commit` in another thread."""
        with self._lock:
            self._file.close()

    def read(self, start: int, stop: int) -> bytes:
        """See `Content.read`."""
        stop = min(stop, self.size)
        with self._opened(), self._local_errors():
            data = os.pread(self._file.fileno(), stop - start, start)
        if len(data) < stop - start:
            raise StorageError("the temporary file was truncated", file=self._shown)
        return data

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Keep the file open; raises `StorageError` if it is closed."""
        with self._lock:
            if self._file.closed:
                raise StorageError("the upload is closed", file=self._shown)
            yield

    @contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = error.strerror or type(error).__name__
            raise StorageError(
                f"the temporary file of an upload, in {tempfile.gettempdir()}: {cause}; set TMPDIR "
                "to use another folder",
                file=self._shown,
            ) from None
