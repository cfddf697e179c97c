"""What storages have in common to which a file can only be put as a whole."""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from seqrecord.errors import LocationError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import FileInfo, Unfinished, Upload, check_path
from seqrecord.storage.parts import PARTS, WholeFiles, kept_uploads
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.redaction import redact_logs
from seqrecord.storage.requests import RequestReader
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.spooled import SpooledUpload

__all__ = ["MOST_BYTES", "WholeFileStorage", "is_listed", "tag_of"]

MOST_BYTES = 64 << 20  # of what is put in place; a manifest is smaller

_T = TypeVar("_T")


class WholeFileStorage(ABC):
    """A `Storage` with `SpooledUpload`s; `reader` reads, and the abstract methods do the rest.

    Uploads repeat their requests by `retrier`; the others are for a `RetryingStorage` around this.
    """

    def __init__(self, reader: RequestReader, shown: str, retrier: Retrier | None) -> None:
        redact_logs()
        self._reader, self._url = reader, shown.rstrip("/")
        self._retrier = retrier or Retrier()
        self._uploads = PerProcess[weakref.WeakSet[SpooledUpload]](weakref.WeakSet)
        self._whole = WholeFiles(
            self._url,
            send=self.send,
            put=lambda path, data: self.retried(path, lambda: self.overwrite(path, data)),
            files=lambda folder: self.listed(folder, deep=True),
            read_whole=lambda path, limit: self.read_whole(path, limit)[0],
            read_ranges=self.read_ranges,
            remove=lambda path: self.retried(path, lambda: self.delete(path)),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {type(self._reader).__name__})"

    @abstractmethod
    def send(self, path: str, read: Callable[[int, int], bytes], size: int) -> None:
        """As `WholeFiles.send`."""

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
        return kept_uploads(folder, self._whole)

    def create(self, path: str) -> Upload:
        upload = SpooledUpload(check_path(path), self._whole)
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
        return self._retrier.counters()

    def close(self) -> None:
        for upload in list(self._uploads.get()):
            upload.leave()
        self._retrier.close()  # what waits for a server that is gone
        self._reader.close()

    def retried(self, path: str, function: Callable[[], _T]) -> _T:
        return self._retrier.call(function, file=self.shown(path))

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}"


def tag_of(data: bytes) -> str:
    """The tag of a file that holds `data`: whichever client reads it, it is the same."""
    return hashlib.sha256(data).hexdigest()


def is_listed(name: str) -> bool:
    """Whether what lies in a folder under this name is a file of ours."""
    try:
        check_path(name)
    except LocationError:
        return False
    return not name.startswith(".")
