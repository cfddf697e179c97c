"""A storage around another one, which passes every call on."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.storage.base import Entry, FileInfo, Storage, Unfinished, Upload, entries_of
from seqrecord.storage.ranges import ByteRange

__all__ = ["StorageWrapper"]


class StorageWrapper:
    """Passes every call on, but maps no file into memory: such reads would not come through it."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def place(self) -> str:
        return self.inner.place

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self.inner.read_ranges(path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        return self.inner.read_whole(path, limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self.inner.put(path, data, expected=expected)

    @property
    def has_conditions(self) -> bool:
        return self.inner.has_conditions

    def files(self, folder: str) -> list[FileInfo]:
        return self.inner.files(folder)

    def entries(self, folder: str) -> list[Entry]:
        """See `Browsable`; `LocationError` where the inner storage lists no folders."""
        return entries_of(self.inner, folder)

    def unfinished(self, folder: str) -> list[Unfinished]:
        return self.inner.unfinished(folder)

    def create(self, path: str) -> Upload:
        return self.inner.create(path)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - never mapped
        return None

    def counters(self) -> dict[str, int]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()
