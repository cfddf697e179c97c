"""A folder of a storage as a storage of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from seqrecord.store.storage.base import (
    Entry,
    FileInfo,
    Storage,
    StorageWrapper,
    Unfinished,
    Upload,
    check_path,
    entries_of,
    identity_of,
)
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange


def in_folder(storage: Storage, folder: str) -> Storage:
    """Return the files of a storage below a folder, by their paths in it.

    Raises `StorageError` for a link that leads out of a local storage.
    """
    if type(storage) is LocalStorage:  # maps files, and keeps unfinished ones
        path = storage.local_path(folder)
        assert path is not None, "a local storage has local paths"
        return LocalStorage(path)
    return FolderStorage(storage, folder)


class FolderStorage(StorageWrapper):
    """The files of `inner` below `folder`. Errors and URLs name the whole path.

    `inner` is the owner's to close.
    """

    def __init__(self, inner: Storage, folder: str) -> None:
        super().__init__(inner)
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.inner, self.folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        return f"{self.inner.url}/{self.folder}"

    @property
    def place(self) -> str:
        return f"{self.inner.place}/{self.folder}"

    @property
    def fixed_url(self) -> str | None:
        url = super().fixed_url
        return None if url is None else f"{url}/{self.folder}"

    def beneath(self, path: str) -> tuple[Storage, str]:
        return self.inner, self._path_of(path)

    def size(self, path: str) -> int:
        return self.inner.size(self._path_of(path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self.inner.read_ranges(self._path_of(path), ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        return self.inner.read_whole(self._path_of(path), limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self.inner.put(self._path_of(path), data, expected=expected)

    def identity(self, path: str) -> tuple[int, str | None]:
        return identity_of(self.inner, self._path_of(path))

    def files(self, folder: str) -> list[FileInfo]:
        infos = self.inner.files(self._path_of(folder))
        return [replace(info, path=self._own(info.path)) for info in infos]

    def entries(self, folder: str) -> list[Entry]:
        return entries_of(self.inner, self._path_of(folder) if folder else self.folder)

    def unfinished(self, folder: str) -> list[Unfinished]:
        uploads = self.inner.unfinished(self._path_of(folder))
        return [cast("Unfinished", _Named(upload, self._own(upload.path))) for upload in uploads]

    def create(self, path: str) -> Upload:
        return cast("Upload", _Named(self.inner.create(self._path_of(path)), path))

    def remove(self, path: str) -> None:
        self.inner.remove(self._path_of(path))

    def close(self) -> None:
        pass

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(self._path_of(path))

    def _path_of(self, path: str) -> str:
        """The path in `inner`. Raises `LocationError` for an unclean one."""
        return f"{self.folder}/{check_path(path)}"

    def _own(self, path: str) -> str:
        """The path in the folder."""
        return path.removeprefix(f"{self.folder}/")


class _Named:
    """A file under construction with its path in the folder."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner, self.path = inner, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
