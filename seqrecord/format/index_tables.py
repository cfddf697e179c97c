"""The tables of the index as Arrow IPC: their schemas, their sizes, to bytes and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from seqrecord.codecs.video.gops import MAX_GOP_FRAMES
from seqrecord.errors import FormatError
from seqrecord.format.arrow import read_batch
from seqrecord.format.rows import GAP_ROW, WORD, chunk_row
from seqrecord.lags import MOST_LAGS, num_lags, with_lags
from seqrecord.schema import Schema

__all__ = [
    "GAPS",
    "MAX_INDEX_TEXT",
    "MAX_TABLE_BYTES",
    "chunks_schema",
    "decode_table",
    "encode_table",
    "episodes_schema",
    "located",
    "most_table_bytes",
    "table_names",
    "times_schema",
]

MAX_INDEX_TEXT = 2**31 - 1  # bytes of all keys, and of all metadata: Arrow's offsets are int32
MAX_TABLE_BYTES = 1 << 36  # a hundred times what 100 million frames take
_MOST_AROUND = 4 << 20  # bytes around the rows of a table: messages, padding, Arrow's footer
_UID_BYTES = 16


def _table(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, dtype, nullable=False) for name, dtype in columns.items()])


def _numbers(count: int, item: pa.DataType | None = None) -> pa.DataType:
    return pa.list_(pa.field("item", item or pa.uint32(), nullable=False), count)


GAPS = _table(chunk=pa.uint32(), feature=pa.uint16(), word=pa.uint16(), present=pa.uint64())


def episodes_schema(num_groups: int) -> pa.Schema:
    return _table(
        key=pa.string(),
        uid=pa.binary(_UID_BYTES),
        num_frames=pa.uint32(),
        fps=pa.float64(),
        split=pa.uint16(),
        metadata=pa.string(),
        num_chunks=_numbers(num_groups),
    )


def chunks_schema(group: Schema) -> pa.Schema:
    columns = {
        "file": pa.uint32(),
        "offset": pa.uint64(),
        "first_frame": pa.uint32(),
        "num_frames": pa.uint32(),
        "page_length": _numbers(len(group)),
        "page_crc32c": _numbers(len(group)),
    }
    if variable := len(group.variable):
        columns["largest_frame"] = _numbers(variable)
    return _table(**columns)


def times_schema(num_features: int, longest: int) -> pa.Schema:
    width = num_features * max(1, num_lags(longest))
    return _table(least=_numbers(width, pa.float64()), most=_numbers(width, pa.float64()))


def table_names(schema: Schema) -> tuple[str, ...]:
    """The tables of an index: `episodes`, `chunks0` and so on for each group, `gaps`.

    And `times`, of a schema with timestamps.
    """
    chunks = (f"chunks{number}" for number in range(schema.num_groups))
    return ("episodes", *chunks, "gaps", *(["times"] if with_lags(schema) else []))


def most_table_bytes(
    schema: Schema, num_episodes: int, num_frames: int, record_bytes: int
) -> dict[str, int]:
    """The most bytes that the files of an index can take, by table.

    For so many episodes and frames, in record files of so many bytes in all: each chunk has a row
    in the footer of one of them, and so have its gaps. Only a group that was dropped, or added, may
    have chunks that no record file has: those lie where another group's do.
    """
    groups = schema.groups
    sizes = [chunk_row(len(group), len(group.variable)).itemsize for group in groups]
    most = min(num_frames, record_bytes // min(sizes))  # chunks of any group in record files
    absent = min(num_frames, most + num_frames // MAX_GOP_FRAMES)
    rows, words, more_words = {}, 0, 0
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        may_be_absent = all(spec.is_dropped or spec.added for spec in group.values())
        chunks = absent if may_be_absent else min(num_frames, record_bytes // size)
        rows[f"chunks{number}"] = chunks * (20 + 8 * len(group) + 4 * len(group.variable))
        of_group = len(group) * (chunks + num_frames // WORD)
        words += of_group
        more_words += of_group * may_be_absent
    gaps = min(words, more_words + record_bytes // GAP_ROW.itemsize)
    rows["gaps"] = gaps * GAP_ROW.itemsize
    num_episodes = min(num_episodes, most)
    size = 2 * 4 + _UID_BYTES + 4 + 8 + 2 + 4 * len(groups)  # and the text
    rows["episodes"] = size * num_episodes + 2 * MAX_INDEX_TEXT
    if timestamps := with_lags(schema):
        rows["times"] = 2 * 8 * MOST_LAGS * len(timestamps) * num_episodes
    return {name: min(MAX_TABLE_BYTES, _MOST_AROUND + size) for name, size in rows.items()}


@contextlib.contextmanager
def located(table: str) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise error.located(file=table) from error.__cause__


def encode_table(schema: pa.Schema, columns: Sequence[Any]) -> pa.Buffer:
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


def _array(column: Any, dtype: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if pa.types.is_fixed_size_list(dtype):
        values = pa.array(np.ascontiguousarray(column).reshape(-1), dtype.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=dtype)
    if pa.types.is_fixed_size_binary(dtype):
        data = pa.py_buffer(np.ascontiguousarray(column))
        return pa.FixedSizeBinaryArray.from_buffers(dtype, len(column), [None, data])
    return pa.array(np.ascontiguousarray(column), dtype)


def decode_table(table: str, data: pa.Buffer, schema: pa.Schema) -> dict[str, Any]:
    """The columns of a table by name, as views of `data`."""
    with located(table):
        return read_batch(memoryview(data), schema)
