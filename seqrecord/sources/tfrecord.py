"""TFRecord files: records of bytes, each with its length and masked CRC32Cs.

https://www.tensorflow.org/tutorials/load_data/tfrecord. A record is a u64 length, the masked
CRC32C of these 8 bytes, the data, and the masked CRC32C of the data, all little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seqrecord.checksum import crc32c
from seqrecord.errors import SourceError
from seqrecord.sources.files import unreadable

__all__ = ["RECORD_HEAD", "TfRecord", "TfRecordFile", "masked_crc32c"]

_HEAD = struct.Struct("<QI")
RECORD_HEAD = _HEAD.size
"""Bytes of a record before its data."""
_MASK_DELTA = 0xA282EAD8
_TRAILER = 4


@dataclass(frozen=True)
class TfRecord:
    """Where a record's data lies in its file."""

    offset: int
    size: int


class TfRecordFile:
    """An open TFRecord file, of which records are found, and read, without reading the others."""

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            raise unreadable(path, error) from error

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> TfRecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def records(self) -> Iterator[TfRecord]:
        """All records in their order; the lengths are checked, the data is not looked at.

        Raises `SourceError` at the first length that is wrong: what comes after it is lost.
        """
        position = 0
        while position < self._size:
            record = self.record_at(position + _HEAD.size)
            yield record
            position = record.offset + record.size + _TRAILER

    def record_at(self, offset: int) -> TfRecord:
        """The record whose data begins at `offset`."""
        start = offset - _HEAD.size
        if start < 0 or offset > self._size:
            raise self._broken("a truncated TFRecord file", start, "12 bytes more")
        head = self._read(start, _HEAD.size)
        size, crc = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            raise self._broken("a length that does not match its checksum", start)
        if size > self._size - offset - _TRAILER:
            raise self._broken("a truncated TFRecord file", start, f"a record of {size} bytes")
        return TfRecord(offset, size)

    def read(self, record: TfRecord) -> memoryview:
        """The record's data; raises `SourceError` unless it matches its checksum."""
        raw = memoryview(self._read(record.offset, record.size + _TRAILER))
        data = raw[: record.size]
        (crc,) = struct.unpack("<I", raw[record.size :])
        if masked_crc32c(data) != crc:
            raise self._broken("a record that does not match its checksum", record.offset)
        return data

    def peek(self, offset: int, size: int) -> memoryview:
        """At most `size` bytes from `offset` on, which nothing has checked."""
        return memoryview(self._read(offset, max(min(size, self._size - offset), 0)))

    def _read(self, offset: int, size: int) -> bytearray:
        data, done = bytearray(size), 0
        view = memoryview(data)
        while done < size:
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if count == 0:
                raise self._broken("a file that was cut while it was read", offset)
            done += count
        return data

    def _broken(self, message: str, offset: int, expected: str | None = None) -> SourceError:
        return SourceError(
            message,
            file=str(self.path),
            offset=offset,
            expected=expected,
            got=None if expected is None else f"{self._size} bytes in all",
        )


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """TFRecord's checksum: CRC32C, rotated by 15 bits and moved by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF
