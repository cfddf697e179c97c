"""Reads the one record batch of an Arrow IPC file of known columns, as views of its bytes.

Not with Arrow's reader: that takes much of a message on trust (a message of another type than the
first one must have ends in signal 11), and makes what a schema asks for. Here each message, vector
and buffer is looked at before it is used, and nothing is made but views. The layout is that of
Arrow's `Message.fbs` and `Schema.fbs`, in flatbuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError

__all__ = ["MAX_MESSAGE_BYTES", "Column", "read_batch"]

MAX_MESSAGE_BYTES = 1 << 20  # of a message without its body; usual are below 2 KiB

Column: TypeAlias = "npt.NDArray[Any] | pa.StringArray"

_MAGIC = b"ARROW1\0\0"
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3  # MessageHeader
_INT, _FLOAT, _UTF8, _FIXED_SIZE_BINARY, _FIXED_SIZE_LIST = 2, 3, 5, 15, 16  # Type
_DOUBLE = 2  # Precision
_OLDEST, _NEWEST = 3, 4  # MetadataVersion: V4 and V5
_WORD = 8  # bytes: what messages and buffers are aligned to


def read_batch(data: memoryview, schema: pa.Schema) -> dict[str, Column]:
    """The columns of a file whose schema must be this one, by name.

    They view `data`. A column of numbers is an array [rows], one of lists of a fixed size an array
    [rows, size], one of bytes of a fixed size an array of uint8 [rows, size], one of text an Arrow
    array. Integers are unsigned, other numbers float64, and nothing is nullable.

    Raises `FormatError` for what is not exactly one plain batch without nulls or compression.
    """
    try:
        return _read_batch(data.cast("B"), schema)
    except (struct.error, pa.ArrowException) as error:
        raise _not_arrow((str(error).splitlines() or [""])[0][:200]) from error


def _read_batch(data: memoryview, schema: pa.Schema) -> dict[str, Column]:
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("not an Arrow IPC file", expected=_MAGIC, got=bytes(data[: len(_MAGIC)]))
    # After the magic comes a stream of messages; the footer behind it repeats the schema.
    head = _message(data, len(_MAGIC))
    if head is None or head.kind != _SCHEMA:
        raise _not_arrow("its first message is no schema")
    _check_schema(head.header, schema)
    if len(head.body):
        raise _not_arrow("its schema has a body")
    batch = _message(data, head.stop)
    if batch is None:
        raise FormatError("a table of more or less than one batch", got=0)
    if batch.kind != _RECORD_BATCH:
        raise _not_arrow("its second message is no record batch")
    if _message(data, batch.stop) is not None:
        raise FormatError("a table of more or less than one batch", got="at least 2")
    return _columns(batch, schema)


class _Table:
    """A table in a flatbuffer. Its fields are numbered; one that is left out is 0."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - _number(data, "<i", at)
        self._size = _number(data, "<H", self._vtable)

    def number(self, slot: int, layout: str) -> int:
        at = self._find(slot)
        return 0 if at is None else _number(self._data, layout, at)

    def table(self, slot: int) -> _Table | None:
        at = self._find(slot)
        return None if at is None else _Table(self._data, at + _number(self._data, "<I", at))

    def tables(self, slot: int, count: int) -> list[_Table] | None:
        """A vector of so many tables; `None` for one of another length."""
        data, at, found = self._data, *self._vector(slot, 4)
        if found != count:
            return None
        places = [at + 4 * i for i in range(count)]
        return [_Table(data, place + _number(data, "<I", place)) for place in places]

    def text(self, slot: int) -> bytes:
        at, length = self._vector(slot, 1)
        return bytes(self._data[at : at + length])

    def pairs(self, slot: int, count: int) -> list[tuple[int, int]]:
        """A vector of so many structs of two int64."""
        at, found = self._vector(slot, 16)
        if found != count:
            raise _not_arrow(f"a vector of {found} items, not {count}")
        return list(struct.iter_unpack("<qq", self._data[at : at + 16 * count]))

    def has(self, slot: int) -> bool:
        return self._find(slot) is not None

    def _find(self, slot: int) -> int | None:
        entry = 4 + 2 * slot
        offset = 0
        if entry + 2 <= self._size:
            offset = _number(self._data, "<H", self._vtable + entry)
        return self._at + offset if offset else None

    def _vector(self, slot: int, item: int) -> tuple[int, int]:
        """Where a vector's items begin, and how many there are; they are inside the buffer."""
        at = self._find(slot)
        if at is None:
            return 0, 0
        at += _number(self._data, "<I", at)
        count = _number(self._data, "<I", at)
        if at + 4 + count * item > len(self._data):
            raise _not_arrow("a vector leads out of its message")
        return at + 4, count


class _Message(NamedTuple):
    kind: int
    header: _Table
    body: memoryview
    stop: int  # where the next one begins


def _message(data: memoryview, at: int) -> _Message | None:
    """The message at an offset of the stream, `None` at its end."""
    if _number(data, "<I", at) != _CONTINUATION:
        raise _not_arrow(f"no message at offset {at}")
    size = _number(data, "<i", at + 4)
    if size == 0:
        return None
    begin, stop = at + 8, at + 8 + size
    if not 0 < size <= MAX_MESSAGE_BYTES or stop > len(data) or stop % _WORD:
        raise _not_arrow(f"a message of {size} bytes at offset {at}")
    metadata = data[begin:stop]
    message = _Table(metadata, _number(metadata, "<I", 0))
    if not _OLDEST <= message.number(0, "<h") <= _NEWEST:
        raise _not_arrow("a message of an unknown version")
    header, length = message.table(2), message.number(3, "<q")
    if header is None or not 0 <= length <= len(data) - stop or length % _WORD:
        raise _not_arrow(f"a message without header, or with a body of {length} bytes")
    return _Message(message.number(1, "<B"), header, data[stop : stop + length], stop + length)


def _check_schema(found: _Table, schema: pa.Schema) -> None:
    fields = found.tables(1, len(schema))
    if (
        found.number(0, "<h") != 0  # little-endian
        or fields is None
        or not all(_is_field(field, want) for field, want in zip(fields, schema, strict=True))
    ):
        raise FormatError(
            "a table of other columns than it should have",
            expected=str(schema).replace("\n", ", "),
        )


def _is_field(found: _Table, want: pa.Field) -> bool:
    """Whether a field is the one wanted, not nullable and of no dictionary."""
    kind, details = found.number(2, "<B"), found.table(3)
    if (
        found.text(0) != want.name.encode()
        or found.number(1, "<B")
        or found.has(4)
        or details is None
    ):
        return False
    if pa.types.is_fixed_size_list(want.type):
        children = found.tables(5, 1)
        return (
            kind == _FIXED_SIZE_LIST
            and details.number(0, "<i") == want.type.list_size
            and children is not None
            and _is_field(children[0], want.type.value_field)
        )
    if found.tables(5, 0) is None:
        return False
    if pa.types.is_string(want.type):
        return kind == _UTF8
    if pa.types.is_fixed_size_binary(want.type):
        return kind == _FIXED_SIZE_BINARY and details.number(0, "<i") == want.type.byte_width
    if pa.types.is_float64(want.type):
        return kind == _FLOAT and details.number(0, "<h") == _DOUBLE
    return (
        kind == _INT
        and details.number(0, "<i") == want.type.bit_width
        and details.number(1, "<B") == 0  # unsigned
    )


def _columns(batch: _Message, schema: pa.Schema) -> dict[str, Column]:
    rows = batch.header.number(0, "<q")
    if rows < 0:  # which means another number to NumPy, and to Arrow
        raise _not_arrow(f"a batch of {rows} rows")
    if batch.header.has(3):
        # A compressed buffer declares what it decompresses to.
        raise FormatError("a table that is compressed")
    lists = sum(pa.types.is_fixed_size_list(field.type) for field in schema)
    strings = sum(pa.types.is_string(field.type) for field in schema)
    nodes = iter(batch.header.pairs(1, len(schema) + lists))
    buffers = iter(_buffers(batch, 2 * len(schema) + lists + strings))
    columns: dict[str, Column] = {}
    for field in schema:
        _take_node(nodes, buffers, rows)
        if pa.types.is_string(field.type):
            columns[field.name] = _text(next(buffers), next(buffers), rows)
        elif pa.types.is_fixed_size_list(field.type):
            size = field.type.list_size
            _take_node(nodes, buffers, rows * size)
            item = _item(field.type.value_type)
            columns[field.name] = _numbers(next(buffers), rows * size, item).reshape(rows, size)
        elif pa.types.is_fixed_size_binary(field.type):
            size = field.type.byte_width
            values = _numbers(next(buffers), rows * size, np.dtype("u1"))
            columns[field.name] = values.reshape(rows, size)
        else:
            columns[field.name] = _numbers(next(buffers), rows, _item(field.type))
    return columns


def _take_node(nodes: Iterator[tuple[int, int]], buffers: Iterator[memoryview], rows: int) -> None:
    """The next column's number of rows, and its validity bitmap, which must not be there."""
    length, null_count = next(nodes)
    if length != rows:
        raise _not_arrow(f"a column of {length} rows, not {rows}")
    if null_count or len(next(buffers)):
        raise FormatError("a table that holds nulls")


def _buffers(batch: _Message, count: int) -> list[memoryview]:
    """The batch's buffers in their order, each inside its body."""
    buffers = []
    for offset, length in batch.header.pairs(2, count):
        if offset < 0 or offset % _WORD or not 0 <= length <= len(batch.body) - offset:
            raise _not_arrow(f"a buffer at {offset} of {length} bytes")
        buffers.append(batch.body[offset : offset + length])
    return buffers


def _item(dtype: pa.DataType) -> np.dtype[Any]:
    return np.dtype(f"<{'f' if pa.types.is_float64(dtype) else 'u'}{dtype.bit_width // 8}")


def _numbers(buffer: memoryview, count: int, item: np.dtype[Any]) -> npt.NDArray[Any]:
    if count * item.itemsize > len(buffer):
        raise _not_arrow(f"{count} numbers in a buffer of {len(buffer)} bytes")
    return np.frombuffer(buffer, item, count) if count else np.empty(0, item)


def _text(offsets: memoryview, data: memoryview, rows: int) -> pa.StringArray:
    if rows == 0:
        return pa.array([], pa.string())
    if (rows + 1) * 4 > len(offsets):
        raise _not_arrow(f"{rows} strings in {len(offsets)} bytes of offsets")
    ends = np.frombuffer(offsets, "<i4", rows + 1)
    if ends[0] < 0 or ends[-1] > len(data) or np.any(ends[1:] < ends[:-1]):
        raise _not_arrow("strings that lead out of their buffer")
    array = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data))
    array.validate(full=True)  # that it is UTF-8
    return array


def _number(data: memoryview, layout: str, at: int) -> int:
    if at < 0:  # which would count from the end
        raise _not_arrow("an offset leads out of its message")
    return int(struct.unpack_from(layout, data, at)[0])


def _not_arrow(why: str) -> FormatError:
    return FormatError(f"not an Arrow IPC file of one batch: {why}")
