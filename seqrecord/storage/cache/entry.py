"""The files of a cache: each holds one byte range of one stored file, with its checksums.

::

    │ data │ CRC32C of each piece │ CRC32C of what it is and of these │

Integers are little-endian. Pieces are what is checked as one, so that a part of the range can be
read without the rest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from seqrecord.checksum import Buffer, crc32c
from seqrecord.ranges import ByteRange

__all__ = ["PIECE_BYTES", "DamagedError", "cut", "entry_bytes", "read_entry", "write_entry"]

PIECE_BYTES = 256 << 10


class DamagedError(Exception):
    """An entry does not hold what it should."""


def entry_bytes(length: int) -> int:
    """Bytes of the file of an entry of `length` bytes."""
    return length + 4 * -(-length // PIECE_BYTES) + 4


def write_entry(fd: int, label: bytes, data: Sequence[memoryview]) -> None:
    """Write an entry, whose bytes are those of `data` joined; `label` says what they are."""
    length = sum(map(len, data))
    checksums = _checksums(data, length)
    at = 0
    for part in [*data, memoryview(checksums + _sum(label, checksums))]:
        done = 0
        while done < len(part):
            done += os.pwrite(fd, part[done:], at + done)
        at += done


def read_entry(fd: int, label: bytes, entry: ByteRange, wanted: ByteRange, out: memoryview) -> None:
    """Fill `out` with bytes `wanted`, a part of the range `entry` that the file should hold.

    Raises `DamagedError` if it does not hold it, or not as it was written; `out` may then hold
    anything.
    """
    size = entry_bytes(entry.length)
    tail = bytearray(size - entry.length)
    _read(fd, [memoryview(tail)], entry.length)
    if os.fstat(fd).st_size != size or _sum(label, tail[:-4]) != tail[-4:]:
        raise DamagedError("its checksums are damaged, or it is another entry")
    # Whole pieces in one call, with what is not wanted of the first and the last beside `out`.
    start, stop = wanted.start - entry.start, wanted.stop - entry.start
    first = start // PIECE_BYTES
    begin, end = first * PIECE_BYTES, min(-(-stop // PIECE_BYTES) * PIECE_BYTES, entry.length)
    parts = [memoryview(bytearray(start - begin)), out, memoryview(bytearray(end - stop))]
    _read(fd, parts, begin)
    found = _checksums(parts, end - begin)
    if found != tail[4 * first : 4 * first + len(found)]:
        raise DamagedError("its data is damaged")


def cut(data: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Bytes `[start, stop)` of parts that follow each other, as parts; as far as there are any."""
    found, at = [], 0
    for part in data:
        if at < stop and start < at + len(part):
            found.append(part[max(0, start - at) : stop - at])
        at += len(part)
    return found


def _checksums(data: Sequence[memoryview], length: int) -> bytes:
    sums = [crc32c(*cut(data, at, at + PIECE_BYTES)) for at in range(0, length, PIECE_BYTES)]
    return struct.pack(f"<{len(sums)}I", *sums)


def _sum(label: bytes, checksums: Buffer) -> bytes:
    return struct.pack("<I", crc32c(label, checksums))


def _read(fd: int, parts: Sequence[memoryview], offset: int) -> None:
    done, length = 0, sum(map(len, parts))
    while done < length:
        count = os.preadv(fd, cut(parts, done, length), offset + done)
        if count == 0:
            raise DamagedError("it ends early")
        done += count
