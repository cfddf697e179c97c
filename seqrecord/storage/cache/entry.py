"""The files of a cache: each holds one byte range of one stored file, with its checksums.

::

    │ magic │ digest of URL and path │ start │ stop │ CRC32C of each piece │ CRC32C │ data │

Integers are little-endian; the CRC32C before the data is that of all before it. Pieces are what
is checked as one, so that a part of the range can be read without the rest.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.ranges import ByteRange

__all__ = [
    "PIECE_BYTES",
    "CacheKey",
    "DamagedError",
    "cut",
    "read_entry",
    "size_on_disk",
    "write_entry",
]

PIECE_BYTES = 256 << 10
_MAGIC = b"SEQCACH1"
_HEAD = struct.Struct("<8s32sQQ")
_BLOCK_BYTES = 4096  # what a file takes is a multiple of it
_READ_BYTES = 16 * PIECE_BYTES  # by one call: few calls, and checksums of what is in a cache


class DamagedError(Exception):
    """An entry does not hold what it should."""


class _Key(NamedTuple):
    url: str
    path: str


class CacheKey(_Key):
    """A stored file: the URL of its storage as it may be shown, without credentials, and a path."""

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.url}\0{self.path}".encode()).digest()

    @property
    def number(self) -> int:
        """63 bits of the digest. Should two files share them, their entries look damaged."""
        return int.from_bytes(self.digest[:8], "little") >> 1


def size_on_disk(length: int) -> int:
    """Bytes that an entry of `length` bytes takes."""
    return -(-(_head_bytes(length) + length) // _BLOCK_BYTES) * _BLOCK_BYTES


def write_entry(fd: int, key: CacheKey, item: ByteRange, data: Sequence[memoryview]) -> None:
    """Write an entry, whose bytes are those of `data` joined, to an empty file.

    The head, which makes it one, comes last.
    """
    ends = range(0, item.length + PIECE_BYTES, PIECE_BYTES)
    checksums = [crc32c(*cut(data, start, start + PIECE_BYTES)) for start in ends[:-1]]
    head = _HEAD.pack(_MAGIC, key.digest, *item) + struct.pack(f"<{len(checksums)}I", *checksums)
    head += struct.pack("<I", crc32c(head))
    at = len(head)
    for part in data:
        _write(fd, part, at)
        at += len(part)
    _write(fd, memoryview(head), 0)


def cut(data: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Bytes `[start, stop)` of parts that follow each other, as parts; as far as there are any."""
    found, at = [], 0
    for part in data:
        if at < stop and start < at + len(part):
            found.append(part[max(0, start - at) : stop - at])
        at += len(part)
    return found


def read_entry(
    fd: int, key: CacheKey, entry: ByteRange, wanted: ByteRange, out: memoryview
) -> None:
    """Fill `out` with bytes `wanted`, a part of the range `entry` that the file should hold.

    Raises `DamagedError` if it does not hold it, or not as it was written; `out` may then hold
    anything.
    """
    checksums, base = _read_head(fd, key, entry)
    at = wanted.start
    while at < wanted.stop:
        number = (at - entry.start) // PIECE_BYTES
        piece = entry.start + number * PIECE_BYTES
        whole = min(wanted.stop, at + _READ_BYTES)
        if whole < entry.stop:
            whole -= (whole - entry.start) % PIECE_BYTES
        target = out[at - wanted.start :]
        if at == piece and whole > at:
            data = target[: whole - at]
            _read(fd, data, base + at - entry.start)
            _check(data, checksums[number:])
            at = whole
        else:  # a piece of which only a part is wanted
            data = np.empty(min(PIECE_BYTES, entry.stop - piece), np.uint8).data
            _read(fd, data, base + piece - entry.start)
            _check(data, checksums[number:])
            stop = min(piece + len(data), wanted.stop)
            target[: stop - at] = data[at - piece : stop - piece]
            at = stop


def _head_bytes(length: int) -> int:
    return _HEAD.size + 4 * -(-length // PIECE_BYTES) + 4


def _read_head(fd: int, key: CacheKey, entry: ByteRange) -> tuple[tuple[int, ...], int]:
    """Checksums of the pieces, and where the data begins in the file."""
    size = _head_bytes(entry.length)
    head = os.pread(fd, size, 0)
    if len(head) < size or struct.unpack("<I", head[-4:])[0] != crc32c(head[:-4]):
        raise DamagedError("its head is damaged")
    if _HEAD.unpack_from(head) != (_MAGIC, key.digest, *entry):
        raise DamagedError("it is another entry")
    return struct.unpack(f"<{(size - _HEAD.size) // 4 - 1}I", head[_HEAD.size : -4]), size


def _check(data: memoryview, checksums: tuple[int, ...]) -> None:
    for i, at in enumerate(range(0, len(data), PIECE_BYTES)):
        if crc32c(data[at : at + PIECE_BYTES]) != checksums[i]:
            raise DamagedError("its data is damaged")


def _read(fd: int, out: memoryview, offset: int) -> None:
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:]], offset + done)
        if count == 0:
            raise DamagedError("it ends early")
        done += count


def _write(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
