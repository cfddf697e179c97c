"""The index: episode, chunk and gap tables, as Arrow IPC that readers memory-map.

A row of the chunk table is one chunk, in episode order and front to back, so an episode's chunks
lie together and their frames need not be stored: all hold `chunk_frames` frames but the last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.errors import FormatError
from seqrecord.format import (
    GAP_ROW,
    HEADER_BYTES,
    MAX_CHUNK_FRAMES,
    MAX_EPISODE_FRAMES,
    check_gaps,
    check_pages,
    check_rows,
)
from seqrecord.pages import ALIGNMENT, page_offsets
from seqrecord.schema import Schema
from seqrecord.text import FORBIDDEN_IN_KEY, MAX_KEY_LENGTH, parse_metadata

__all__ = ["Index"]

_EPISODES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("num_frames", pa.uint32(), nullable=False),
        pa.field("chunk_frames", pa.uint16(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
_GAPS = pa.schema(
    [
        pa.field("chunk", pa.uint32(), nullable=False),
        pa.field("feature", pa.uint32(), nullable=False),
        pa.field("present", pa.uint64(), nullable=False),
    ]
)


def _chunks_schema(num_features: int) -> pa.Schema:
    pages = pa.list_(pa.field("item", pa.uint32(), nullable=False), num_features)
    return pa.schema(
        [
            pa.field("file", pa.uint32(), nullable=False),
            pa.field("offset", pa.uint64(), nullable=False),
            pa.field("page_length", pages, nullable=False),
            pa.field("page_crc32c", pages, nullable=False),
        ]
    )


@dataclass(frozen=True, eq=False)
class Index:
    """All chunks and episodes of a dataset, as arrays; E episodes, C chunks, F features.

    `first_chunk` and `num_chunks` say which rows of the chunk table are an episode's. `file` is a
    position in the manifest's list of record files, `offset` a byte offset in that file.
    """

    schema: Schema
    keys: pa.StringArray  # [E]
    metadata: pa.StringArray  # [E], JSON objects
    num_frames: npt.NDArray[np.int64]  # [E]
    chunk_frames: npt.NDArray[np.int64]  # [E]
    file: npt.NDArray[np.uint32]  # [C]
    offset: npt.NDArray[np.uint64]  # [C]
    page_length: npt.NDArray[np.uint32]  # [C, F]
    page_crc32c: npt.NDArray[np.uint32]  # [C, F]
    gaps: npt.NDArray[Any]  # of GAP_ROW

    @cached_property
    def num_chunks(self) -> npt.NDArray[np.int64]:
        """Chunks per episode, [E]."""
        count: npt.NDArray[np.int64] = -(-self.num_frames // self.chunk_frames)
        return count

    @cached_property
    def first_chunk(self) -> npt.NDArray[np.int64]:
        """An episode's first row in the chunk table, [E]."""
        first: npt.NDArray[np.int64] = np.cumsum(self.num_chunks) - self.num_chunks
        return first

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Episode number by key."""
        return {key: number for number, key in enumerate(self.keys.to_pylist())}

    def frames_per_chunk(self) -> npt.NDArray[np.int64]:
        """Frames of every chunk, [C]."""
        frames = np.repeat(self.chunk_frames, self.num_chunks)
        last = self.first_chunk + self.num_chunks - 1
        frames[last] = self.num_frames - (self.num_chunks - 1) * self.chunk_frames
        return frames

    def episode_metadata(self, episode: int) -> dict[str, Any]:
        """An episode's metadata."""
        return parse_metadata(self.metadata[episode].as_py())

    def present(self, chunk: int, feature: int, num_frames: int) -> int:
        """Validity bitmap of a page: bit i is set where frame i of the chunk has the feature."""
        at = np.searchsorted(self._gap_order, chunk * len(self.schema) + feature)
        if at < len(self.gaps):
            row = self.gaps[at]
            if row["chunk"] == chunk and row["feature"] == feature:
                return int(row["present"])
        return (1 << num_frames) - 1

    @cached_property
    def _gap_order(self) -> npt.NDArray[np.int64]:
        return self.gaps["chunk"].astype(np.int64) * len(self.schema) + self.gaps["feature"]

    def fingerprint(self) -> str:
        """SHA-256 of the content: schema, episodes and pages, however they are cut in files."""
        digest = hashlib.sha256()
        for value in (self.schema.to_json(), self.keys.to_pylist(), self.metadata.to_pylist()):
            digest.update(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
        for array in (
            self.num_frames,
            self.chunk_frames,
            self.page_length,
            self.page_crc32c,
            self.gaps,
        ):
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def encode(self) -> dict[str, pa.Buffer]:
        """The tables as Arrow IPC files of one record batch, by name."""
        features = len(self.schema)
        episodes = [self.keys, self.num_frames, self.chunk_frames, self.metadata]
        chunks = [self.file, self.offset, self.page_length, self.page_crc32c]
        gaps = [self.gaps["chunk"], self.gaps["feature"], self.gaps["present"]]
        return {
            "episodes": _encode(_EPISODES, episodes),
            "chunks": _encode(_chunks_schema(features), chunks),
            "gaps": _encode(_GAPS, gaps),
        }

    @classmethod
    def decode(
        cls, schema: Schema, tables: Mapping[str, pa.Buffer], file_sizes: Sequence[int]
    ) -> Index:
        """Inverse of `encode`: arrays that view `tables`, checked against each other and the files.

        Raises `FormatError` that names the table and the row.
        """
        episodes = _decode("episodes", tables["episodes"], _EPISODES)
        chunks = _decode("chunks", tables["chunks"], _chunks_schema(len(schema)))
        gap_columns = _decode("gaps", tables["gaps"], _GAPS)
        gaps = np.empty(gap_columns.num_rows, GAP_ROW)
        for name in GAP_ROW.names or ():
            gaps[name] = gap_columns.column(name).to_numpy()
        index = cls(
            schema=schema,
            keys=episodes.column("key"),
            metadata=episodes.column("metadata"),
            num_frames=episodes.column("num_frames").to_numpy().astype(np.int64),
            chunk_frames=episodes.column("chunk_frames").to_numpy().astype(np.int64),
            file=chunks.column("file").to_numpy(),
            offset=chunks.column("offset").to_numpy(),
            page_length=_matrix(chunks.column("page_length"), len(schema)),
            page_crc32c=_matrix(chunks.column("page_crc32c"), len(schema)),
            gaps=gaps,
        )
        index._check(np.asarray(file_sizes, np.int64))
        return index

    def _check(self, file_sizes: npt.NDArray[np.int64]) -> None:
        bad_key = pc.or_(
            pc.match_substring_regex(self.keys, FORBIDDEN_IN_KEY),
            pc.greater(pc.binary_length(self.keys), MAX_KEY_LENGTH),
        )
        check_rows(~bad_key.to_numpy(zero_copy_only=False), "a bad episode key", 0)
        if len(self.keys.unique()) != len(self.keys):
            raise FormatError("an episode key stands twice in the index")
        frames, cut = self.num_frames, self.chunk_frames
        check_rows((frames >= 1) & (frames <= MAX_EPISODE_FRAMES), "an impossible num_frames", 0)
        check_rows((cut >= 1) & (cut <= MAX_CHUNK_FRAMES), "an impossible chunk_frames", 0)
        if int(self.num_chunks.sum()) != len(self.file):
            raise FormatError(
                "the chunk table does not fit the episode table",
                expected=f"{int(self.num_chunks.sum())} rows",
                got=len(self.file),
            )
        check_rows(self.file < len(file_sizes), "a chunk in no record file", 0)
        check_rows(self.offset % ALIGNMENT == 0, "a chunk at a wrong offset", 0)
        # Compared as they are stored: an offset beyond 2**63 must not turn negative.
        limit = file_sizes.astype(np.uint64)[self.file] if len(self.file) else self.offset
        inside = (self.offset >= HEADER_BYTES) & (self.offset <= limit)
        check_rows(inside, "a chunk outside its record file", 0)
        stop = self.offset + page_offsets(self.page_length)[:, -1].astype(np.uint64)
        check_rows(stop <= limit, "a chunk outside its record file", 0)
        per_chunk = self.frames_per_chunk()
        check_gaps(self.gaps, per_chunk, self.schema, 0)
        check_pages(self.page_length, per_chunk, self.gaps, self.schema, 0)


def _encode(schema: pa.Schema, columns: Sequence[Any]) -> pa.Buffer:
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


def _array(column: Any, dtype: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if pa.types.is_fixed_size_list(dtype):
        values = pa.array(np.ascontiguousarray(column).reshape(-1), pa.uint32())
        return pa.FixedSizeListArray.from_arrays(values, type=dtype)
    return pa.array(np.ascontiguousarray(column), dtype)


def _decode(table: str, data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    try:
        reader = pa.ipc.open_file(data)
        if not reader.schema.equals(schema) or reader.num_record_batches != 1:
            raise FormatError(
                f"the {table} table has other columns than it should",
                expected=str(schema).replace("\n", ", "),
                got=str(reader.schema).replace("\n", ", ")[:500],
            )
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FormatError(f"the {table} table is not Arrow IPC: {error}") from error
    if any(column.null_count for column in batch.columns):
        raise FormatError(f"the {table} table holds nulls")
    return batch


def _matrix(column: pa.FixedSizeListArray, width: int) -> npt.NDArray[np.uint32]:
    values: npt.NDArray[np.uint32] = column.flatten().to_numpy()
    return values.reshape(-1, width)
