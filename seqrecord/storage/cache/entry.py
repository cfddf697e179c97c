"""The files of a cache: each holds one byte range of one stored file, with its checksums.

::

    │ data │ CRC32C of each piece │ CRC32C of what it is and of these │

Integers are little-endian. Pieces are what is checked as one, so that a part of the range can be
read without the rest.
"""

from __future__ import annotations

import os

from seqrecord.checksum import Buffer, crc32c
from seqrecord.storage.ranges import ByteRange

__all__ = ["PIECE_BYTES", "DamagedError", "entry_bytes", "read_entry", "write_entry"]

PIECE_BYTES = 256 << 10


class DamagedError(Exception):
    """An entry does not hold what it should."""


def entry_bytes(length: int) -> int:
    """Bytes of the file of an entry of `length` bytes."""
    return length + 4 * -(-length // PIECE_BYTES) + 4


def write_entry(fd: int, label: bytes, data: memoryview) -> None:
    """Write an entry; `label` says what it is."""
    pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
    checksums = b"".join(_checksum(piece) for piece in pieces)
    at = 0
    for part in (data, memoryview(checksums + _checksum(label, checksums))):
        left = part
        while left:
            written = os.pwrite(fd, left, at)
            at, left = at + written, left[written:]


def read_entry(fd: int, label: bytes, entry: ByteRange, wanted: ByteRange, out: memoryview) -> None:
    """Fill `out` with bytes `wanted`, a part of the range `entry` that the file should hold.

    Raises `DamagedError` if it does not hold it, or not as it was written; `out` may then hold
    anything.
    """
    size = entry_bytes(entry.length)
    tail = os.pread(fd, size, entry.length)
    if os.fstat(fd).st_size != size or _checksum(label, tail[:-4]) != tail[-4:]:
        raise DamagedError("its checksums are damaged, or it is another entry")
    start, stop = wanted.start - entry.start, wanted.stop - entry.start
    for at in range(start - start % PIECE_BYTES, stop, PIECE_BYTES):
        end = min(at + PIECE_BYTES, entry.length)
        low, high = max(at, start), min(end, stop)
        # What is not wanted of the first piece and the last goes beside `out`.
        before, after = bytearray(low - at), bytearray(end - high)
        parts: list[Buffer] = [before, out[low - start : high - start], after]
        index = at // PIECE_BYTES * 4
        if os.preadv(fd, parts, at) < end - at or _checksum(*parts) != tail[index : index + 4]:
            raise DamagedError("its data is damaged")


def _checksum(*parts: Buffer) -> bytes:
    return crc32c(*parts).to_bytes(4, "little")
