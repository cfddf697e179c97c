"""Read TFRecord files with `tf.train.Example` and `tf.train.SequenceExample` records.

A record is a u64 length, the masked CRC32C of these 8 bytes, the data, and the masked CRC32C of the
data, all little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord.

An Example maps names to lists of bytes or numbers:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto and
example.proto. Each list is a flat run of values. A SequenceExample has one list per step; these are
concatenated.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.mcap.protobuf import BYTES, FIXED32, VARINT, Span, fields, varints
from seqrecord.in_place.files import open_file, read_values, size_of, unreadable
from seqrecord.store.checksum import crc32c

_Span = TypeVar("_Span", bound=Span)
_HEAD = struct.Struct("<QI")
RECORD_HEAD = _HEAD.size
"""Bytes of a record before its data."""
_MASK_DELTA = 0xA282EAD8
_TRAILER = 4
_PEEK_BYTES = 512  # enough for the sizes and name of a map entry


@dataclass(frozen=True)
class TfRecord:
    """Position of a record's data in its file."""

    offset: int
    size: int


class TfRecordFile:
    """An open TFRecord file; records can be located and read individually."""

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
        """Yield all records in order. Lengths are checked, data is not read.

        Raises `SourceError` at the first wrong length; the records after it are lost.
        """
        position = 0
        while position < self._size:
            record = self.record_at(position + _HEAD.size)
            yield record
            position = record.offset + record.size + _TRAILER

    def record_at(self, offset: int) -> TfRecord:
        """Return the record whose data begins at `offset`."""
        start = offset - _HEAD.size
        if start < 0 or offset > self._size:
            raise self._broken("truncated TFRecord file", start, "12 more bytes")
        head = self._read(start, _HEAD.size)
        size, crc = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            raise self._broken("checksum mismatch of a record's length", start)
        if size > self._size - offset - _TRAILER:
            raise self._broken("truncated TFRecord file", start, f"a record of {size} bytes")
        return TfRecord(offset, size)

    def read(self, record: TfRecord) -> memoryview:
        """Return the record's data. Raises `SourceError` if its checksum differs."""
        raw = self._read(record.offset, record.size + _TRAILER)
        data = raw[: record.size]
        (crc,) = struct.unpack("<I", raw[record.size :])
        if masked_crc32c(data) != crc:
            raise self._broken("checksum mismatch of a record", record.offset)
        return data

    def unread(self, record: TfRecord) -> Span:
        """Return the record's data as a lazy span, without a checksum test."""
        return _Unread(self, record.offset, record.size)

    def peek(self, offset: int, size: int) -> bytes:
        """Return bytes without a checksum test.

        Reads ahead; the bytes are in memory until other ones are read.
        """
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
            raise self._broken("the file was truncated while it was read", offset)
        return data.data if size else memoryview(b"")

    def _broken(self, message: str, offset: int, expected: str | None = None) -> SourceError:
        return SourceError(
            message,
            file=str(self.path),
            offset=offset,
            expected=expected,
            got=None if expected is None else f"a file of {self._size} bytes",
        )


@dataclass(frozen=True)
class _Unread:
    """Bytes of an open file, read on demand."""

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
    """Return TFRecord's checksum: CRC32C, rotated by 15 bits plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


Values: TypeAlias = "list[memoryview] | npt.NDArray[np.float32] | npt.NDArray[np.int64]"
"""Values of a feature: bytes, floats or integers."""


def parse_example(data: Span, names: Container[str] | None = None) -> dict[str, Values]:
    """Return the features of an Example or a SequenceExample, by default all.

    Of features not in `names` only name and size are read. Raises `ValueError` for invalid data.
    """
    features: dict[str, Values] = {}
    for number, part in _parts(data, 1, 2):
        for _, entry in _parts(part, 1):  # map entries: key and value
            entry_fields = dict(_parts(entry, 1, 2))
            key = entry_fields[1].tobytes().decode() if 1 in entry_fields else ""
            if names is not None and key not in names:
                continue
            if key in features:
                raise ValueError(f"duplicate feature {key}")
            # An unread span is read here, where the value is needed as a whole.
            span: Any = entry_fields.get(2, memoryview(b""))
            value: memoryview = span if isinstance(span, memoryview) else memoryview(span.tobytes())
            if number == 1:
                features[key] = _parse_feature(value)
            else:
                features[key] = _concatenate([_parse_feature(step) for _, step in _parts(value, 1)])
    return features


def _parse_feature(data: memoryview) -> Values:
    """Parse one `tf.train.Feature`."""
    result: Values = []
    for number, part in _parts(data, 1, 2, 3):
        if number == 1:
            result = [value for _, value in _parts(part, 1)]
        elif number == 2:
            result = _floats(part)
        else:
            result = _integers(part)
    return result


def _parts(data: _Span, *numbers: int) -> Iterator[tuple[int, _Span]]:
    """Yield the length-delimited fields of these numbers."""
    for number, kind, part in fields(data):
        if kind == BYTES and number in numbers and not isinstance(part, int):
            yield number, part


def _floats(part: memoryview) -> npt.NDArray[np.float32]:
    runs = []
    for number, kind, value in fields(part):
        if number == 1 and kind in (BYTES, FIXED32) and isinstance(value, memoryview):
            runs.append(np.frombuffer(value, "<f4"))  # packed, or single
    return np.concatenate(runs) if runs else np.empty(0, "<f4")


def _integers(part: memoryview) -> npt.NDArray[np.int64]:
    runs: list[npt.NDArray[np.int64]] = []
    for number, kind, value in fields(part):
        if number == 1 and kind == BYTES and isinstance(value, memoryview):
            runs.append(varints(value))
        elif number == 1 and kind == VARINT and isinstance(value, int):
            runs.append(np.array([value], np.uint64).view(np.int64))
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _concatenate(steps: list[Values]) -> Values:
    arrays = [step for step in steps if isinstance(step, np.ndarray)]
    if not arrays:
        return [value for step in steps if isinstance(step, list) for value in step]
    if any(isinstance(step, list) and step for step in steps):
        raise ValueError("feature list with both bytes and numbers")
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("feature list with both floats and integers")
    values: Values = np.concatenate(arrays)  # type: ignore[assignment]
    return values
