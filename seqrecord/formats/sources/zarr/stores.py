"""zarr stores over local files and files of a URL. Importing this module imports zarr."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, ZipStore

from seqrecord.errors import NotFoundError
from seqrecord.in_place.files import open_file, regular, size_of
from seqrecord.in_place.limits import MAX_CHUNK_BYTES, check_size
from seqrecord.in_place.remote import RemoteFiles
from seqrecord.store.storage.ranges import ByteRange

MAX_VALUE_BYTES = MAX_CHUNK_BYTES + (1 << 20)
"""Maximum bytes of a value that are read, above the maximum chunk size."""

_METADATA = frozenset((".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json"))
_MAX_METADATA_BYTES = 64 << 20


def limit_of(key: str) -> int:
    """Return the maximum bytes of a value."""
    is_metadata = key.rpartition("/")[2] in _METADATA
    return _MAX_METADATA_BYTES if is_metadata else MAX_VALUE_BYTES


class LocalFiles(LocalStore):  # type: ignore[misc, unused-ignore]  # where zarr is not installed
    """Read-only store of local files; pipes and devices are refused."""

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            path = regular(self.root / key)
            check_size("value", size_of(path), limit_of(key), file=str(path))
        return await super().get(key, prototype, byte_range)


class RemoteStore(Store):  # type: ignore[misc, unused-ignore]  # where zarr is not installed
    """Read-only store of files below a URL; each value is one request."""

    supports_writes = False
    supports_deletes = False
    supports_partial_writes = False
    supports_listing = True

    def __init__(self, files: RemoteFiles, root: Path) -> None:
        super().__init__(read_only=True)
        self._files, self._root = files, root
        self._listing = threading.Lock()  # listings are not thread-safe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and other._root == self._root

    def __hash__(self) -> int:
        return hash(self._root)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        data = await asyncio.to_thread(self._read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._size, key) is not None

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        folders = [prefix.rstrip("/")]
        while folders:
            folder = folders.pop()
            for name, is_folder in await asyncio.to_thread(self._names, folder):
                key = f"{folder}/{name}".lstrip("/")
                if is_folder:
                    folders.append(key)
                else:
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name, _ in await asyncio.to_thread(self._names, prefix.rstrip("/")):
            yield name

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002
        self._check_writable()

    async def set_partial_values(self, key_start_values: Iterable[Any]) -> None:  # noqa: ARG002
        self._check_writable()

    async def delete(self, key: str) -> None:  # noqa: ARG002
        self._check_writable()

    def _read(self, key: str, part: ByteRequest | None) -> bytes | None:
        storage, name = self._files.storage, self._name(key)
        if part is None:
            try:
                data: bytes = self._files.attempt(
                    lambda: storage.read_whole(name, limit_of(key))[0]
                )
            except NotFoundError:
                return None
            return data
        size = self._size(key)
        if size is None:
            return None
        if isinstance(part, RangeByteRequest):
            start, stop = part.start, min(part.end, size)
        elif isinstance(part, OffsetByteRequest):
            start, stop = part.offset, size
        else:
            assert isinstance(part, SuffixByteRequest)
            start, stop = max(0, size - part.suffix), size
        buffer = bytearray(max(0, stop - start))
        if buffer:
            self._files.read(name, [ByteRange(start, stop)], [memoryview(buffer)])
        return bytes(buffer)

    def _size(self, key: str) -> int | None:
        try:
            size: int = self._files.attempt(lambda: self._files.storage.size(self._name(key)))
        except NotFoundError:
            return None
        return size

    def _names(self, folder: str) -> Sequence[tuple[str, bool]]:
        with self._listing:
            entries = self._files.listing(self._root / folder).values()
            return [(entry.name, entry.is_folder) for entry in entries]

    def _name(self, key: str) -> str:
        return self._files.name_of(self._root / key)


class RemoteZip(ZipStore):  # type: ignore[misc, unused-ignore]
    """A ZIP file at a URL."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="r")
        self.path: Any = open_file(path)  # `ZipFile` accepts a file object

    def close(self) -> None:
        super().close()
        self.path.close()
