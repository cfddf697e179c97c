"""TFRecord files: records of bytes, each with its length and masked CRC32Cs.

https://www.tensorflow.org/tutorials/load_data/tfrecord. A record is a u64 length, the masked
CRC32C of these 8 bytes, the data, and the masked CRC32C of the data, all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.errors import SourceError
from seqrecord.sources.files import open_file, read_values, size_of, unreadable

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
        self.path = path
        try:
            self._file = open_file(path, buffered=False)
            self._size = size_of(path)
        except OSError as error:
            raise unreadable(path, error) from error

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> TfRecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            file.close()

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
        raw = self._read(record.offset, record.size + _TRAILER)
        data = raw[: record.size]
        (crc,) = struct.unpack("<I", raw[record.size :])
        if masked_crc32c(data) != crc:
            raise self._broken("a record that does not match its checksum", record.offset)
        return data

    def peek(self, offset: int, size: int) -> memoryview:
        """At most `size` bytes from `offset` on, which nothing has checked."""
        return self._read(offset, max(min(size, self._size - offset), 0))

    def _read(self, offset: int, size: int) -> memoryview:
        try:
            self._file.seek(offset)
            data = read_values(self._file, np.dtype(np.uint8), size)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if data.nbytes != size:
            raise self._broken("a file that was cut while it was read", offset)
        return data.data if size else memoryview(b"")

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
