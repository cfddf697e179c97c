"""Reads the one record batch of an Arrow IPC file of known columns, as views of its bytes.

Arrow's reader does, message by message: its own readers of files and streams take on trust which
message comes first (one that is no schema ends in signal 11), make what a schema asks for, and
decompress to the sizes that a file claims. So each message is asked for its type, the schema is
compared before a batch is read by the schema that it must have, and a batch must be plain.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError

MAX_MESSAGE_BYTES = 1 << 20  # of a message without its body; usual are below 2 KiB

Column: TypeAlias = "npt.NDArray[Any] | pa.StringArray"

_MAGIC = b"ARROW1\0\0"
_HEADER, _CUSTOM_METADATA = 2, 4  # fields of a Message, in Arrow's Message.fbs
_COMPRESSION = 3  # of a RecordBatch


def read_batch(data: memoryview, schema: pa.Schema) -> dict[str, Column]:
    """The columns of a file whose schema must be this one, by name.

    They view `data`. A column of numbers is an array [rows], one of lists of a fixed size an array
    [rows, size], one of bytes of a fixed size an array of uint8 [rows, size], one of text an Arrow
    array. Nothing is nullable.

    Raises `FormatError` for what is not exactly one plain batch without nulls or compression.
    """
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("not an Arrow IPC file", expected=_MAGIC, got=bytes(data[: len(_MAGIC)]))
    try:
        batch = _read_batch(pa.BufferReader(data), schema)
        batch.validate(full=True)  # that buffers hold so much, and that text is UTF-8
    except (pa.ArrowException, OSError) as error:
        raise _not_arrow((str(error).splitlines() or [""])[0][:200]) from error
    return {name: _column(batch.column(i)) for i, name in enumerate(schema.names)}


def _read_batch(file: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch:
    # After the magic comes a stream of messages; the footer behind it repeats the schema.
    file.seek(len(_MAGIC))
    head = _message(file)
    if head is None or head.type != "schema":
        raise _not_arrow("its first message is no schema")
    if not pa.ipc.read_schema(head).equals(schema):
        raise FormatError(
            "a table of other columns than it should have",
            expected=str(schema).replace("\n", ", "),
        )
    message = _message(file)
    if message is None or _message(file) is not None:
        raise FormatError("a table of more or less than one batch")
    if message.type != "record batch":
        raise _not_arrow("its second message is no record batch")
    _check_uncompressed(message)
    return pa.ipc.read_record_batch(message, schema)


def _message(file: pa.NativeFile) -> pa.Message | None:
    """The next message, whose flatbuffer Arrow has verified; `None` at the end of the stream."""
    try:
        message = pa.ipc.read_message(file)
    except EOFError:
        return None
    if (size := message.metadata.size) > MAX_MESSAGE_BYTES:
        raise _not_arrow(f"a message of {size} bytes")
    return message


def _check_uncompressed(message: pa.Message) -> None:
    """Raise `FormatError` for a compressed batch: its buffers say what they decompress to."""
    data = memoryview(message.metadata)
    table = struct.unpack_from("<I", data)[0]
    header = _field(data, table, _HEADER)
    # Before version 5 metadata said how a batch is compressed.
    if header is None or _field(data, table, _CUSTOM_METADATA) is not None:
        raise _not_arrow("a batch without a header, or with metadata")
    batch = header + struct.unpack_from("<I", data, header)[0]
    if _field(data, batch, _COMPRESSION) is not None:
        raise FormatError("a table that is compressed")


def _field(data: memoryview, table: int, slot: int) -> int | None:
    """Where a table of a verified flatbuffer has a field; `None` where it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * slot
    if entry >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + offset if offset else None


def _column(column: pa.Array) -> Column:
    if column.null_count:
        raise FormatError("a table that holds nulls")
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size  # `flatten` would import pyarrow.compute, which takes long
        values = column.values.slice(column.offset * size, len(column) * size)
        return _column(values).reshape(len(column), size)
    if pa.types.is_fixed_size_binary(column.type):
        size = column.type.byte_width
        values = np.frombuffer(column.buffers()[1] or b"", np.uint8, len(column) * size)
        return values.reshape(len(column), size)
    return column.to_numpy(zero_copy_only=True)


def _not_arrow(why: str) -> FormatError:
    return FormatError(f"not an Arrow IPC file of one batch: {why}")
