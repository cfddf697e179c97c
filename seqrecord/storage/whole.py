"""The common base of storages that take a file only as a whole."""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from seqrecord.errors import (
    DestinationError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.processes.forks import PerProcess
from seqrecord.storage.base import FileInfo, Unfinished, Upload, check_path
from seqrecord.storage.parts import PARTS, Content, WholeFiles, unfinished_uploads
from seqrecord.storage.ranges import ByteRange, check_wanted
from seqrecord.storage.requests import RequestReader
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.spooled import Hold, SpooledUpload, UploadTiming

__all__ = ["Pieces", "WholeFileStorage", "files_of", "tag_of"]

_COMPARED_BYTES = 1 << 20  # of a file that may be ours: a record file begins with a random id

_T = TypeVar("_T")


class WholeFileStorage(ABC):
    """A `Storage` with `SpooledUpload`s; `reader` reads, and the abstract methods do the rest.

    Uploads repeat their requests by `retrier`; the others are for a `RetryingStorage` around this.
    """

    has_conditions = True
    piece_bytes: int  # of a new file that is sent
    most_pieces: int
    timing: UploadTiming | None = None  # of uploads that begin from now on; `None`: the default

    def __init__(self, reader: RequestReader, shown: str, retrier: Retrier | None) -> None:
        self._reader, self._url = reader, shown.rstrip("/")
        self.retrier = retrier or Retrier()
        self._uploads = PerProcess[weakref.WeakSet[SpooledUpload]](weakref.WeakSet)
        self._hold = PerProcess(Hold)  # of temporary files, while it writes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {type(self._reader).__name__})"

    @abstractmethod
    def upload(self, path: str, pieces: Pieces) -> None:
        """Put a new file in place; one attempt."""

    @abstractmethod
    def overwrite(self, path: str, data: bytes) -> None:
        """Put a small file in place of what is there; one attempt."""

    @abstractmethod
    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        """Files in a folder, sorted; with `deep` below it too. One attempt."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, which need not be there; one attempt."""

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
        return data, tag_of(data)

    def files(self, folder: str) -> list[FileInfo]:
        return self.listed(check_path(folder), deep=False)

    def unfinished(self, folder: str) -> list[Unfinished]:
        return unfinished_uploads(folder, self._files())

    def create(self, path: str) -> Upload:
        self._hold.get()
        upload = SpooledUpload(check_path(path), self._files(), self.timing)
        self._uploads.get().add(upload)
        return upload

    def remove(self, path: str) -> None:
        self.delete(check_path(path))
        for file in self.listed(f"{PARTS}/{path}", deep=False):
            self.delete(file.path)

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def counters(self) -> dict[str, int]:
        return self.retrier.counters()

    def close(self) -> None:
        for upload in list(self._uploads.get()):
            upload.leave()
        if hold := self._hold.take():
            hold.release()
        self.retrier.close()  # what waits for a server that is gone
        self._reader.close()

    def send(self, path: str, content: Content) -> None:
        """Store a new file, whose name nobody else uses, once, however often it is sent.

        Where an answer was lost, the file that is there is ours if its length and its first bytes
        are: a small file is compared whole, and a record file begins with its id.
        """
        sent: Pieces | None = None  # by an attempt whose answer may have been lost

        def attempt() -> None:
            nonlocal sent
            found = self._size(path)
            if found is not None:
                if sent is None or not self._is_stored(path, sent, found):
                    raise DestinationError("the file exists already", file=self.shown(path))
                return
            pieces, failure = (
                Pieces(self.shown(path), content, self.piece_bytes, self.most_pieces),
                None,
            )
            try:
                self.upload(path, pieces)
            except StorageError as error:
                failure = error
            sent = pieces if pieces.total is not None else None
            if sent is not None:
                found = self._size(path)
                # If it failed, then the answer was lost, or another file has the name.
                if found == sent.total and (failure is None or self._is_stored(path, sent, found)):
                    return
            raise failure or StorageError(
                "a file was stored at another length",
                file=self.shown(path),
                expected=pieces.total,
                got=found,
            )

        self.retried(path, attempt)

    def _is_stored(self, path: str, sent: Pieces, size: int | None) -> bool:
        """Whether a file of this size is the one that was sent."""
        if size != sent.total:
            return False
        data = bytearray(len(sent.first))
        if data:
            self.read_ranges(path, [ByteRange(0, len(data))], [memoryview(data)])
        return data == sent.first

    def _size(self, path: str) -> int | None:
        try:
            return self.size(path)
        except NotFoundError:
            return None

    def _files(self) -> WholeFiles:
        """What uploads ask of this storage."""
        return WholeFiles(
            self._url,
            send=self.send,
            put=lambda path, data: self.retried(path, lambda: self.overwrite(path, data)),
            files=lambda folder: self.listed(folder, deep=True),
            read_whole=lambda path, limit: self.read_whole(path, limit)[0],
            read_ranges=self.read_ranges,
            remove=lambda path: self.retried(path, lambda: self.delete(path)),
        )

    def retried(self, path: str, function: Callable[[], _T]) -> _T:
        return self.retrier.call(function, file=self.shown(path))

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}"


class Pieces:
    """A file in pieces of `length` bytes, or more where `most` would not do, read as they are due.

    `total` is the file's length, known when all have been read, and `first` are its first bytes.
    """

    def __init__(self, file: str, content: Content, length: int, most: int) -> None:
        self._file, self._content, self._most = file, content, most
        self.length = max(length, -(-(content.size or 0) // most))
        self.total: int | None = None
        self.first = b""

    def __iter__(self) -> Iterator[bytes]:
        at, number = 0, 0
        while True:
            check_wanted(self._file)
            piece = self._content.read(at, at + self.length)
            if not piece:
                break
            if number == self._most:
                raise TransientError("it became too long for its pieces", file=self._file)
            if not at:
                self.first = bytes(piece[:_COMPARED_BYTES])
            yield piece
            at, number = at + len(piece), number + 1
        self.total = at


def tag_of(data: bytes) -> str:
    """The tag of a file that holds `data`: whichever client reads it, it is the same."""
    return hashlib.sha256(data).hexdigest()


def files_of(folder: str, found: Iterable[tuple[str, int, float]]) -> list[FileInfo]:
    """Files of ours, sorted, among what lies in a folder: names in it, bytes, times of change."""
    return sorted(
        (FileInfo(f"{folder}/{name}", size, at) for name, size, at in found if _is_ours(name)),
        key=lambda file: file.path,
    )


def _is_ours(name: str) -> bool:
    try:
        check_path(name)
    except LocationError:
        return False
    return not name.startswith(".")
