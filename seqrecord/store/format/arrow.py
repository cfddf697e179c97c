"""Reads the record batch of an Arrow IPC file with a known schema, as views of its bytes; and
converts columns without pandas, which `pa.array`, `column.to_numpy` and `column.take` import where
it is installed, in 0.4 CPU s.

The messages are read one by one, since Arrow's file and stream readers trust the file. They crash
(signal 11) if the first message is not a schema, allocate for any schema, and decompress to the
size that the file claims. Here each message's type is checked, the schema is compared before the
batch is read, and compressed batches are rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError

MAX_MESSAGE_BYTES = 1 << 20  # metadata of a message; usually below 2 KiB

Column: TypeAlias = "npt.NDArray[Any] | pa.StringArray"

_MAGIC = b"ARROW1\0\0"
_HEADER, _CUSTOM_METADATA = 2, 4  # fields of Message in Arrow's Message.fbs
_COMPRESSION = 3  # field of RecordBatch
_KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_DTYPES = {pa.from_numpy_dtype(np.dtype(kind)): np.dtype(kind) for kind in _KINDS}


def read_batch(buffer: pa.Buffer, schema: pa.Schema) -> dict[str, Column]:
    """Read the columns of a file by name, as views of `buffer`. Its schema must equal `schema`.

    Column types: numbers become arrays [rows], fixed-size lists [rows, size], fixed-size bytes
    uint8 [rows, size], text an Arrow array. Nothing is nullable.

    Raises `FormatError` unless the file is a single batch without nulls or compression.
    """
    data = memoryview(buffer)
    if (magic := bytes(data[: len(_MAGIC)])) != _MAGIC:
        raise FormatError("not an Arrow IPC file", expected=_MAGIC, got=magic)
    try:
        batch = _read_batch(pa.BufferReader(data), schema)
        batch.validate(full=True)  # checks buffer sizes and UTF-8
    except (pa.ArrowException, OSError) as error:
        raise _not_arrow((str(error).splitlines() or [""])[0][:200]) from error
    return {name: _column(batch.column(i)) for i, name in enumerate(schema.names)}


def to_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Convert numbers without nulls, as a view of the column, or bools, as a copy."""
    data = column.buffers()[1] or b""
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].view(np.bool_)
    dtype = _DTYPES[column.type]
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def to_arrow(numbers: npt.ArrayLike, dtype: pa.DataType) -> pa.Array:
    """Convert numbers that this type can represent to a column."""
    array = np.asarray(numbers)
    values = np.ascontiguousarray(array, _DTYPES[dtype])
    fits = values.dtype == array.dtype or np.array_equal(values, array)
    assert fits, f"numbers do not fit into a column of {dtype}"
    return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(values)])


def text_column(texts: Sequence[str]) -> pa.StringArray:
    """Convert texts of less than 2 GiB to a column."""
    data = [text.encode() for text in texts]
    ends = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(encoded) for encoded in data], dtype=np.int32, out=ends[1:])
    buffers = [pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.StringArray.from_buffers(len(data), *buffers)


def _read_batch(file: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch:
    # The magic is followed by a stream of messages, and a footer that repeats the schema.
    # Not by Arrow's file or stream reader, which trusts the file and crashes for some
    # (test_hostile.py::test_malformed_files_are_refused_with_little_memory).
    file.seek(len(_MAGIC))
    head = _message(file)
    if head is None or head.type != "schema":
        raise _not_arrow("its first message is not a schema")
    if not pa.ipc.read_schema(head).equals(schema):
        raise FormatError(
            "a table with unexpected columns",
            expected=str(schema).replace("\n", ", "),
        )
    message = _message(file)
    if message is None or _message(file) is not None:
        raise FormatError("a table without exactly one batch")
    if message.type != "record batch":
        raise _not_arrow("its second message is not a record batch")
    _check_uncompressed(message)
    return pa.ipc.read_record_batch(message, schema)


def _message(file: pa.NativeFile) -> pa.Message | None:
    """Return the next message, with a flatbuffer verified by Arrow;

    `None` at the end of the stream.
    """
    try:
        message = pa.ipc.read_message(file)
    except EOFError:
        return None
    if (size := message.metadata.size) > MAX_MESSAGE_BYTES:
        raise _not_arrow(f"a message of {size} bytes")
    return message


def _check_uncompressed(message: pa.Message) -> None:
    """Raise `FormatError` for a compressed batch. Its buffers claim their decompressed sizes."""
    data = memoryview(message.metadata)
    table = struct.unpack_from("<I", data)[0]
    header = _field(data, table, _HEADER)
    # Before version 5, custom metadata declared the compression.
    if header is None or _field(data, table, _CUSTOM_METADATA) is not None:
        raise _not_arrow("a batch without a header, or with metadata")
    batch = header + struct.unpack_from("<I", data, header)[0]
    if _field(data, batch, _COMPRESSION) is not None:
        raise FormatError("a compressed table")


def _field(data: memoryview, table: int, slot: int) -> int | None:
    """Return the position of a field in a verified flatbuffer's table; `None` if absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * slot
    if entry >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + offset if offset else None


def _column(column: pa.Array) -> Column:
    if column.null_count:
        raise FormatError("a table with nulls")
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size  # `flatten` would import pyarrow.compute, which is slow
        values = column.values.slice(column.offset * size, len(column) * size)
        return _column(values).reshape(len(column), size)
    if pa.types.is_fixed_size_binary(column.type):
        size = column.type.byte_width
        values = np.frombuffer(column.buffers()[1] or b"", np.uint8, len(column) * size)
        return values.reshape(len(column), size)
    return to_numpy(column)


def _not_arrow(why: str) -> FormatError:
    return FormatError(f"not an Arrow IPC file of one batch: {why}")
