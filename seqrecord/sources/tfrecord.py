"""TFRecord files, and the `tf.train.Example` and `tf.train.SequenceExample` in their records.

https://www.tensorflow.org/tutorials/load_data/tfrecord. A record is a u64 length, the masked
CRC32C of these 8 bytes, the data, and the masked CRC32C of the data, all little-endian.

Examples are names to lists of bytes or numbers,
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto and
example.proto. In both kinds, a list of a name is one flat run of values; of a SequenceExample's
feature lists, one list a step, the steps' values are joined.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import SourceError
from seqrecord.sources.files import open_file, read_values, size_of, unreadable
from seqrecord.sources.protobuf import BYTES, FIXED32, VARINT, fields, read_varint, varints

__all__ = [
    "RECORD_HEAD",
    "TfRecord",
    "TfRecordFile",
    "Values",
    "masked_crc32c",
    "parse_example",
    "parse_feature",
    "scan_example",
]

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

    def __enter__(self) -> TfRecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

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


Values: TypeAlias = "list[memoryview] | npt.NDArray[np.float32] | npt.NDArray[np.int64]"
"""What a feature holds: bytes, floats or integers."""

_HEAD_BYTES = 512  # of a map entry, enough for its sizes and its name


def parse_example(data: memoryview) -> dict[str, Values]:
    """All features of an Example or a SequenceExample; `ValueError` for what is neither."""
    found: dict[str, Values] = {}
    for number, part in _parts(data, 1, 2):
        for _, entry in _parts(part, 1):  # of a map: its key, and its value
            named = dict(_parts(entry, 1, 2))
            key, value = bytes(named.get(1, b"")).decode(), named.get(2, memoryview(b""))
            if key in found:
                raise ValueError(f"{key} is there twice")
            if number == 1:
                found[key] = parse_feature(value)
            else:
                found[key] = _joined([parse_feature(step) for _, step in _parts(value, 1)])
    return found


def parse_feature(data: memoryview) -> Values:
    """One `tf.train.Feature`."""
    result: Values = []
    for number, part in _parts(data, 1, 2, 3):
        if number == 1:
            result = [value for _, value in _parts(part, 1)]
        elif number == 2:
            result = _floats(part)
        else:
            result = _integers(part)
    return result


def scan_example(
    peek: Callable[[int, int], memoryview], offset: int, size: int, wanted: Callable[[str], bool]
) -> dict[str, memoryview]:
    """The encoded features of an Example that are `wanted` by name, without reading the others.

    `peek(offset, size)` reads bytes of the file in which the Example lies at `offset`. Features
    follow each other, so only their first bytes are read, and the whole of those that are wanted.
    Raises `ValueError` for bytes in another order than serializers write them.
    """
    found: dict[str, memoryview] = {}
    end = offset + size
    begin, length, position = _delimited(peek, offset, end)
    if begin + length != end:
        raise ValueError("not one message of features")
    position = begin
    while position < end:
        begin, length, _ = _delimited(peek, position, end)
        head = peek(begin, min(length, _HEAD_BYTES))
        tag, at = read_varint(head, 0)
        name_size, at = read_varint(head, at)
        name = bytes(head[at : at + name_size])
        at += name_size
        value_tag, at = read_varint(head, at)
        value_size, at = read_varint(head, at)
        if (tag, value_tag) != (0x0A, 0x12) or at + value_size != length:
            raise ValueError("not a name and a feature")
        key = name.decode()
        if wanted(key):
            found[key] = peek(begin + at, value_size)
        position = begin + length
    return found


def _delimited(
    peek: Callable[[int, int], memoryview], offset: int, end: int
) -> tuple[int, int, int]:
    """Where the value of field 1 at `offset` begins, its size, and where it ends."""
    head = peek(offset, 11)
    tag, at = read_varint(head, 0)
    size, at = read_varint(head, at)
    if tag != 0x0A or offset + at + size > end:
        raise ValueError(f"no field 1 at byte {offset}")
    return offset + at, size, offset + at + size


def _parts(data: memoryview, *numbers: int) -> Iterator[tuple[int, memoryview]]:
    """The fields of these numbers that are messages, texts or bytes."""
    for number, kind, part in fields(data):
        if kind == BYTES and number in numbers and isinstance(part, memoryview):
            yield number, part


def _floats(part: memoryview) -> npt.NDArray[np.float32]:
    runs = []
    for number, kind, value in fields(part):
        if number == 1 and kind in (BYTES, FIXED32) and isinstance(value, memoryview):
            runs.append(np.frombuffer(value, "<f4"))  # packed, or one by one
    return np.concatenate(runs) if runs else np.empty(0, "<f4")


def _integers(part: memoryview) -> npt.NDArray[np.int64]:
    runs: list[npt.NDArray[np.int64]] = []
    for number, kind, value in fields(part):
        if number == 1 and kind == BYTES and isinstance(value, memoryview):
            runs.append(varints(value))
        elif number == 1 and kind == VARINT and isinstance(value, int):
            runs.append(np.array([value], np.uint64).view(np.int64))
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _joined(steps: list[Values]) -> Values:
    arrays = [step for step in steps if isinstance(step, np.ndarray)]
    if not arrays:
        return [value for step in steps if isinstance(step, list) for value in step]
    if any(isinstance(step, list) and step for step in steps):
        raise ValueError("a feature list of bytes and of numbers")
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("a feature list of floats and of integers")
    joined: Values = np.concatenate(arrays)  # type: ignore[assignment] # of one of the two dtypes
    return joined
