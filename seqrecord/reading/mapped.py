"""The bytes of a stored file: read into memory, or memory-mapped if the file is large.

A large file is mapped from its disk, or, if it is remote, from a copy in a temporary file, which
has no name and goes with its last user. Mapped bytes take no memory of the process: the system
keeps those that are used, and can drop them. But a file that is cut while it is mapped ends the
process with SIGBUS, so a small file is read.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import IO

from seqrecord.checksum import crc32c
from seqrecord.errors import NotFoundError, StorageError
from seqrecord.storage import Storage, request_threads
from seqrecord.storage.base import short_read
from seqrecord.storage.ranges import ByteRange

__all__ = ["Mapped", "Sizes", "map_file"]


@dataclass(frozen=True)
class Sizes:
    """In bytes; what they are by default was measured."""

    small: int = 32 << 20  # of a file that is read
    block: int = 32 << 20  # of a mapped file, checked at a time
    piece: int = 8 << 20  # of a remote file, read at a time; a client may hold it two times more


_SIZES = Sizes()
_COPIES = 2  # pieces at a time


class Mapped:
    """The bytes of a file: `data`, read-only, and their CRC32C if it was asked for."""

    def __init__(self, data: bytearray | mmap.mmap, checksum: int | None) -> None:
        self.data = memoryview(data).toreadonly()
        self.crc32c = checksum
        self._map = data if isinstance(data, mmap.mmap) else None

    def release(self) -> None:
        """Free the memory of what was read so far; it is read again when it is needed."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def map_file(
    storage: Storage, path: str, size: int, *, checksum: bool, sizes: Sizes = _SIZES
) -> Mapped:
    """The first `size` bytes of a file. Raises `StorageError` for one that is shorter."""
    local = storage.local_path(path) if size > sizes.small else None
    if local is not None:
        mapped = _map_local(local, size)
        return _checked(mapped, sizes.block) if checksum else mapped
    file = _temporary(size) if size > sizes.small else None
    if file is None:
        try:
            data = bytearray(size)
        except MemoryError as error:
            raise StorageError(
                "no room for a copy of the file; set TMPDIR to a folder that has it",
                file=f"{storage.url}/{path}",
                expected=f"{size} bytes",
            ) from error
        storage.read_ranges(path, [ByteRange(0, size)], [memoryview(data)])
        return Mapped(data, crc32c(data) if checksum else None)
    with file:
        _copy(storage, path, size, file, sizes.piece)
        mapped = Mapped(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), None)
    return _checked(mapped, sizes.block) if checksum else mapped


def _map_local(path: str, size: int) -> Mapped:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if (actual := os.fstat(fd).st_size) < size:
                raise short_read(path, ByteRange(0, size), actual)
            return Mapped(mmap.mmap(fd, size, prot=mmap.PROT_READ), None)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise NotFoundError("no such file", file=path) from None
    except OSError as error:
        raise StorageError(error.strerror or str(error), file=path) from error


def _checked(mapped: Mapped, block: int) -> Mapped:
    """With its checksum, taken block by block."""
    actual = 0
    for at in range(0, len(mapped.data), block):
        actual = crc32c(mapped.data[at : at + block], start=actual)
        mapped.release()
    mapped.crc32c = actual
    return mapped


def _temporary(size: int) -> IO[bytes] | None:
    """A temporary file with room for so many bytes; `None` where there is none."""
    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - for the caller
    except OSError:
        return None
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        file.close()
        return None
    return file


def _copy(storage: Storage, path: str, size: int, file: IO[bytes], piece: int) -> None:
    """Copy the file's first `size` bytes, several pieces at a time.

    A client's work on one piece goes on while the server sends another.
    """
    target = mmap.mmap(file.fileno(), size)
    buffer = memoryview(target)

    def copy(at: int) -> None:
        item = ByteRange(at, min(at + piece, size))
        storage.read_ranges(path, [item], [buffer[item.start : item.stop]])
        target.madvise(mmap.MADV_DONTNEED)  # the file has them

    with request_threads(_COPIES, "copy") as threads:
        futures = [threads.submit(copy, at) for at in range(0, size, piece)]
        for future in futures:
            future.result()
