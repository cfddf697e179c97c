"""Base class of storages that cannot append: files are written as a whole."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from seqrecord.cloud.requests import FsspecReader
from seqrecord.cloud.retrying import Retrier
from seqrecord.cloud.uploads import Content, SpooledUpload
from seqrecord.errors import (
    DestinationError,
    LocationError,
    NotFoundError,
    StorageError,
)
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import (
    FileInfo,
    Unfinished,
    Upload,
    UploadLimits,
    check_path,
    digest_of,
)
from seqrecord.store.storage.ranges import ByteRange, check_wanted

_COMPARED_BYTES = 1 << 20  # to recognize our file: record files begin with a random id

_T = TypeVar("_T")


class WholeFileStorage(ABC):
    """A `Storage` with `SpooledUpload`s, on top of a `reader` and abstract methods for writing.

    Uploads retry their requests with `retrier`; for other requests, wrap this in `RetryingStorage`.
    """

    has_conditions = True
    piece_bytes: int  # size of pieces when sending a new file
    max_pieces: int
    upload_limits = UploadLimits()

    def __init__(self, reader: FsspecReader, shown: str, retrier: Retrier | None) -> None:
        self._reader, self._url = reader, shown.rstrip("/")
        self.retrier = retrier or Retrier()
        self._uploads = PerProcess[weakref.WeakSet[SpooledUpload]](weakref.WeakSet)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {type(self._reader).__name__})"

    @abstractmethod
    def upload(self, path: str, pieces: Pieces) -> None:
        """Write a new file; one attempt."""

    @abstractmethod
    def listed(self, folder: str) -> list[FileInfo]:
        """Sorted files in a folder; one attempt."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file if it exists; one attempt."""

    @property
    def url(self) -> str:
        return self._url

    def size(self, path: str) -> int:
        return self._reader.size(check_path(path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self._reader.read_ranges(path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        data = self._reader.read_whole(check_path(path), limit)
        return data, digest_of(data)

    def files(self, folder: str) -> list[FileInfo]:
        return self.listed(check_path(folder))

    def unfinished(self, folder: str) -> list[Unfinished]:
        check_path(folder)
        return []

    def create(self, path: str) -> Upload:
        upload = SpooledUpload(check_path(path), self)
        self._uploads.get().add(upload)
        return upload

    def remove(self, path: str) -> None:
        self.delete(check_path(path))

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def counters(self) -> dict[str, int]:
        return self.retrier.counters()

    def close(self) -> None:
        for upload in list(self._uploads.get()):
            upload.abandon()
        self.retrier.close()  # ends delays of retries
        self._reader.close()

    def send(self, path: str, content: Content) -> None:
        """Store a new file with a unique name exactly once, despite retries.

        If a response was lost, an existing file counts as ours if size and first bytes match: this
        compares small files completely, and record files begin with their id.
        """
        was_sent = False  # by an attempt whose response may be lost
        head = content.read(0, _COMPARED_BYTES)

        def is_stored(size: int | None) -> bool:
            if size != content.size:
                return False
            data = bytearray(len(head))
            if data:
                self.read_ranges(path, [ByteRange(0, len(data))], [memoryview(data)])
            return data == head

        def attempt() -> None:
            nonlocal was_sent
            failure: StorageError | None = None
            stored_size = self._size(path)
            if stored_size is not None:
                if was_sent and is_stored(stored_size):
                    return
                raise DestinationError("the file exists already", file=self.shown(path))
            pieces = Pieces(self.shown(path), content, self.piece_bytes, self.max_pieces)
            try:
                self.upload(path, pieces)
            except StorageError as error:
                failure = error
            try:
                was_sent |= pieces.is_read
                if was_sent:
                    stored_size = self._size(path)
                    # On failure, either the response was lost, or another file has the name.
                    if is_stored(stored_size) if failure else stored_size == content.size:
                        return
                raise failure or StorageError(
                    "the stored file has the wrong size",
                    file=self.shown(path),
                    expected=content.size,
                    got=stored_size,
                )
            finally:
                del failure  # its traceback refers to this frame

        self.retried(path, attempt)

    def _size(self, path: str) -> int | None:
        try:
            return self.size(path)
        except NotFoundError:
            return None

    def retried(self, path: str, function: Callable[[], _T]) -> _T:
        return self.retrier.call(function, file=self.shown(path))

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}"


class Pieces:
    """Iterable over a file's content in pieces of `length` bytes, longer if `max_pieces` is
    exceeded.

    Pieces are read on demand. `is_read` is true after the last one.
    """

    def __init__(self, file: str, content: Content, length: int, max_pieces: int) -> None:
        self._file, self._content = file, content
        self.length = max(length, -(-content.size // max_pieces))
        self.is_read = False

    def __iter__(self) -> Iterator[bytes]:
        for offset in range(0, self._content.size, self.length):
            check_wanted(self._file)
            yield self._content.read(offset, offset + self.length)
        self.is_read = True


def files_of(folder: str, file_rows: Iterable[tuple[str, int, float]]) -> list[FileInfo]:
    """Sort the files of a folder, from tuples (name, size in bytes, modification time in seconds).

    Skips names that are not valid paths; see `check_path`.
    """
    return sorted(
        (
            FileInfo(f"{folder}/{name}", size, modified)
            for name, size, modified in file_rows
            if _is_ours(name)
        ),
        key=lambda file: file.path,
    )


def _is_ours(name: str) -> bool:
    try:
        check_path(name)
    except LocationError:
        return False
    return not name.startswith(".")
