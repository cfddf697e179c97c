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
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import SourceError
from seqrecord.sources.common.files import open_file, read_values, size_of, unreadable
from seqrecord.sources.mcap.protobuf import BYTES, FIXED32, VARINT, Span, fields, varints

_Span = TypeVar("_Span", bound=Span)
_HEAD = struct.Struct("<QI")
RECORD_HEAD = _HEAD.size
"""Bytes of a record before its data."""
_MASK_DELTA = 0xA282EAD8
_TRAILER = 4
RECORD_BYTES = RECORD_HEAD + _TRAILER
"""Bytes of a record beside its data."""
_PEEK_BYTES = 512  # of an Example's map entry, enough for its sizes and its name


@dataclass(frozen=True)
class TfRecord:
    """Where a record's data lies in its file."""

    offset: int
    size: int


class TfRecordFile:
    """An open TFRecord file, of which records are found, and read, without reading the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._peeked_at, self._peeked = 0, memoryview(b"")
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

    def unread(self, record: TfRecord) -> Span:
        """The record's data, of which is read what is asked for; nothing checks it."""
        return _Unread(self, record.offset, record.size)

    def peek(self, offset: int, size: int) -> bytes:
        """Bytes that nothing has checked. Some of those behind them are read with them, and stay
        in memory until others are asked for."""
        begin = offset - self._peeked_at
        if begin < 0 or begin + size > len(self._peeked):
            count = max(size, min(_PEEK_BYTES, self._size - offset))
            self._peeked_at, self._peeked, begin = offset, self._read(offset, count), 0
        return self._peeked[begin : begin + size].tobytes()

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


@dataclass(frozen=True)
class _Unread:
    """Bytes of an open file."""

    file: TfRecordFile
    offset: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice, /) -> _Unread:
        start, stop, _ = part.indices(self.size)
        return _Unread(self.file, self.offset + start, stop - start)

    def tobytes(self) -> bytes:
        return self.file.peek(self.offset, self.size)


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """TFRecord's checksum: CRC32C, rotated by 15 bits and moved by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


Values: TypeAlias = "list[memoryview] | npt.NDArray[np.float32] | npt.NDArray[np.int64]"
"""What a feature holds: bytes, floats or integers."""


def parse_example(data: Span, wanted: Container[str] | None = None) -> dict[str, Values]:
    """The features of an Example or a SequenceExample that are `wanted`, by default all.

    No more than the names and sizes of the others is read. Raises `ValueError` for what is neither.
    """
    found: dict[str, Values] = {}
    for number, part in _parts(data, 1, 2):
        for _, entry in _parts(part, 1):  # of a map: its key, and its value
            named = dict(_parts(entry, 1, 2))
            key = named[1].tobytes().decode() if 1 in named else ""
            if wanted is not None and key not in wanted:
                continue
            if key in found:
                raise ValueError(f"{key} is there twice")
            value: memoryview = _in_memory(named.get(2, memoryview(b"")))
            if number == 1:
                found[key] = _parse_feature(value)
            else:
                found[key] = _concatenated([_parse_feature(step) for _, step in _parts(value, 1)])
    return found


def _parse_feature(data: memoryview) -> Values:
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


def _in_memory(data: Any) -> memoryview:
    return data if isinstance(data, memoryview) else memoryview(data.tobytes())


def _parts(data: _Span, *numbers: int) -> Iterator[tuple[int, _Span]]:
    """The fields of these numbers that are messages, texts or bytes."""
    for number, kind, part in fields(data):
        if kind == BYTES and number in numbers and not isinstance(part, int):
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


def _concatenated(steps: list[Values]) -> Values:
    arrays = [step for step in steps if isinstance(step, np.ndarray)]
    if not arrays:
        return [value for step in steps if isinstance(step, list) for value in step]
    if any(isinstance(step, list) and step for step in steps):
        raise ValueError("a feature list of bytes and of numbers")
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("a feature list of floats and of integers")
    joined: Values = np.concatenate(arrays)  # type: ignore[assignment] # of one of the two dtypes
    return joined
