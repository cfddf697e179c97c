"""Bytes of a stored file that take no memory of the process: mapped, from its disk or from a copy.

A remote file that is large is copied to a temporary file, which has no name and goes with its last
user. Of both, the system keeps in memory what is used, and can do without.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.errors import NotFoundError
from seqrecord.ranges import ByteRange
from seqrecord.storage import Storage

__all__ = ["Mapped", "map_file"]

_SMALL_BYTES = 8 << 20  # of a remote file that is kept in memory
_BLOCK_BYTES = 32 << 20  # read, checked and written at a time


class Mapped:
    """The bytes of a file: `data`, read-only, and their CRC32C if it was asked for."""

    def __init__(self, data: bytearray | mmap.mmap, checksum: int | None) -> None:
        self.data = memoryview(data).toreadonly()
        self.crc32c = checksum
        self._map = data if isinstance(data, mmap.mmap) else None

    def release(self) -> None:
        """Let go of what was read so far; it is there again when it is needed."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def map_file(storage: Storage, path: str, size: int, *, checksum: bool) -> Mapped:
    """The first `size` bytes of a file, which is at least as long."""
    local = storage.local_path(path)
    if local is not None and size:
        return _map_local(local, size, checksum)
    file = _temporary(size) if size > _SMALL_BYTES else None
    if file is None:
        data = bytearray(size)
        storage.read_ranges(path, [ByteRange(0, size)], [memoryview(data)])
        return Mapped(data, crc32c(data) if checksum else None)
    with file:
        actual = _copy(storage, path, size, file, checksum)
        return Mapped(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), actual)


def _map_local(path: str, size: int, checksum: bool) -> Mapped:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFoundError("no such file", file=path) from None
    try:
        mapped = Mapped(mmap.mmap(fd, size, prot=mmap.PROT_READ), None)
    finally:
        os.close(fd)
    if checksum:
        actual = 0
        for at in range(0, size, _BLOCK_BYTES):
            actual = crc32c(mapped.data[at : at + _BLOCK_BYTES], start=actual)
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


def _copy(storage: Storage, path: str, size: int, file: IO[bytes], checksum: bool) -> int | None:
    """Copy the file's first `size` bytes; their CRC32C."""
    block = np.empty(min(size, _BLOCK_BYTES), np.uint8).data
    actual = 0
    for at in range(0, size, len(block)):
        part = block[: size - at]
        storage.read_ranges(path, [ByteRange(at, at + len(part))], [part])
        if checksum:
            actual = crc32c(part, start=actual)
        done = 0
        while done < len(part):
            done += os.pwrite(file.fileno(), part[done:], at + done)
    return actual if checksum else None
