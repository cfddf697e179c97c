"""The index: episode, chunk and gap tables, as Arrow IPC that readers memory-map.

A row of the chunk table is one chunk, in episode order and front to back, so an episode's chunks
lie together and their frames need not be stored: all hold `chunk_frames` frames but the last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.errors import FormatError
from seqrecord.format.arrow import read_batch
from seqrecord.format.footer import MAX_EPISODE_FRAMES
from seqrecord.format.pages import ALIGNMENT, chunk_bytes
from seqrecord.format.rows import (
    GAP_ROW,
    HEADER_BYTES,
    MAX_CHUNK_FRAMES,
    check_gaps,
    check_pages,
    check_rows,
    chunk_row,
)
from seqrecord.format.text import FORBIDDEN_IN_KEY, MAX_KEY_LENGTH, parse_metadata
from seqrecord.schema import Schema

__all__ = ["MAX_INDEX_TEXT", "MAX_TABLE_BYTES", "Index", "check_text", "most_table_bytes"]

MAX_INDEX_TEXT = 2**31 - 1  # bytes of all keys, and of all metadata: Arrow's offsets are int32

MAX_TABLE_BYTES = 1 << 36  # a hundred times what 100 million frames take
_MOST_AROUND = 4 << 20  # bytes around the rows of a table: messages, padding, Arrow's footer

_BLOCK_PAGES = 1 << 18  # that are checked at a time

_Integer = TypeVar("_Integer", np.int64, np.uint8)

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


def _chunks_schema(schema: Schema) -> pa.Schema:
    def numbers(count: int) -> pa.DataType:
        return pa.list_(pa.field("item", pa.uint32(), nullable=False), count)

    fields = [
        pa.field("file", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("page_length", numbers(len(schema)), nullable=False),
        pa.field("page_crc32c", numbers(len(schema)), nullable=False),
    ]
    if variable := len(schema.variable):
        fields.append(pa.field("largest_frame", numbers(variable), nullable=False))
    return pa.schema(fields)


def check_text(key_bytes: int, metadata_bytes: int) -> None:
    """`FormatError` for more text than the episode table holds: each column is one string."""
    for name, length in (("key", key_bytes), ("metadata", metadata_bytes)):
        if length > MAX_INDEX_TEXT:
            raise FormatError(
                f"too much {name} text for one dataset",
                expected=f"at most {MAX_INDEX_TEXT} bytes",
                got=f"{length} bytes",
            )


def most_table_bytes(
    schema: Schema, num_episodes: int, num_frames: int, record_bytes: int
) -> dict[str, int]:
    """The most bytes that the files of an index can take, by table.

    For so many episodes and frames, in record files of so many bytes in all: each chunk has a row
    in the footer of one of them.
    """
    row = chunk_row(len(schema), len(schema.variable))
    chunks = min(num_frames, record_bytes // row.itemsize)
    rows = {
        "episodes": 14 * min(num_episodes, chunks) + 2 * MAX_INDEX_TEXT,
        "chunks": chunks * (12 + 8 * len(schema) + 4 * len(schema.variable)),
        "gaps": chunks * len(schema) * GAP_ROW.itemsize,
    }
    return {name: min(MAX_TABLE_BYTES, _MOST_AROUND + size) for name, size in rows.items()}


@dataclass(frozen=True, eq=False)
class Index:
    """All chunks and episodes of a dataset, as arrays; E episodes, C chunks, F features.

    `first_chunk` and `num_chunks` say which rows of the chunk table are an episode's. `file` is a
    position in the manifest's list of record files, `offset` a byte offset in that file. V of the
    features have a variable dimension: of each of their pages, `largest_frame` is the number of
    bytes of its largest frame when it is decoded.
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
    largest_frame: npt.NDArray[np.uint32]  # [C, V]
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

    def largest_frames(self, feature: str, episodes: npt.NDArray[np.int64]) -> int:
        """Bytes of the largest frame of a feature with a variable dimension, in these episodes."""
        column = [spec.name for spec in self.schema.variable].index(feature)
        by_episode = np.maximum.reduceat(self.largest_frame[:, column], self.first_chunk)
        return int(by_episode[episodes].max(initial=0))

    def frames_per_chunk(self) -> npt.NDArray[np.int64]:
        """Frames of every chunk, [C]."""
        return self._frames_per_chunk(np.int64)

    def episode_metadata(self, episode: int) -> dict[str, Any]:
        """An episode's metadata."""
        try:
            return parse_metadata(self.metadata[episode].as_py())
        except FormatError as error:
            raise error.located(episode=self.keys[episode].as_py()) from error.__cause__

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
        first: npt.NDArray[np.int64] = self.gaps["chunk"].astype(np.int64) * len(self.schema)
        order: npt.NDArray[np.int64] = first + self.gaps["feature"]
        return order

    def extended(self, more: Index, first_file: int) -> Index:
        """The episodes of this index, then those of `more`, whose files count from `first_file`.

        Raises `FormatError` where both together hold too much text.
        """
        check_text(
            *(
                sum(pc.sum(pc.binary_length(text)).as_py() for text in texts)
                for texts in ((self.keys, more.keys), (self.metadata, more.metadata))
            )
        )
        gaps = more.gaps.copy()
        gaps["chunk"] += np.uint32(len(self.file))
        return Index(
            schema=self.schema,
            keys=pa.concat_arrays([self.keys, more.keys]),
            metadata=pa.concat_arrays([self.metadata, more.metadata]),
            num_frames=np.concatenate([self.num_frames, more.num_frames]),
            chunk_frames=np.concatenate([self.chunk_frames, more.chunk_frames]),
            file=np.concatenate([self.file, more.file + np.uint32(first_file)]),
            offset=np.concatenate([self.offset, more.offset]),
            page_length=np.concatenate([self.page_length, more.page_length]),
            page_crc32c=np.concatenate([self.page_crc32c, more.page_crc32c]),
            largest_frame=np.concatenate([self.largest_frame, more.largest_frame]),
            gaps=np.concatenate([self.gaps, gaps]),
        )

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
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(little.data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def encode(self) -> dict[str, pa.Buffer]:
        """The tables as Arrow IPC files of one record batch, by name."""
        episodes = [self.keys, self.num_frames, self.chunk_frames, self.metadata]
        chunks = [self.file, self.offset, self.page_length, self.page_crc32c]
        if self.schema.variable:
            chunks.append(self.largest_frame)
        gaps = [self.gaps["chunk"], self.gaps["feature"], self.gaps["present"]]
        return {
            "episodes": _encode(_EPISODES, episodes),
            "chunks": _encode(_chunks_schema(self.schema), chunks),
            "gaps": _encode(_GAPS, gaps),
        }

    @classmethod
    def decode(
        cls,
        schema: Schema,
        tables: Mapping[str, pa.Buffer],
        file_sizes: Sequence[int],
        *,
        release: Callable[[], None] | None = None,
        block_pages: int = _BLOCK_PAGES,
    ) -> Index:
        """Inverse of `encode`: arrays that view `tables`, checked against each other and the files.

        `release` is called after every `block_pages` pages, when what was read of the tables need
        not stay in memory. Raises `FormatError` that names the row, and the table as its `file`.
        """
        episodes = _decode("episodes", tables["episodes"], _EPISODES)
        chunks = _decode("chunks", tables["chunks"], _chunks_schema(schema))
        gaps = _decode("gaps", tables["gaps"], _GAPS)
        count = len(chunks["file"])
        index = cls(
            schema=schema,
            keys=episodes["key"],
            metadata=episodes["metadata"],
            num_frames=episodes["num_frames"].astype(np.int64),
            chunk_frames=episodes["chunk_frames"].astype(np.int64),
            file=chunks["file"],
            offset=chunks["offset"],
            page_length=chunks["page_length"],
            page_crc32c=chunks["page_crc32c"],
            largest_frame=chunks.get("largest_frame", np.empty((count, 0), np.uint32)),
            gaps=_gap_rows(gaps, count * len(schema)),
        )
        index._check(np.asarray(file_sizes, np.int64), release or (lambda: None), block_pages)
        return index

    def _frames_per_chunk(self, dtype: type[_Integer]) -> npt.NDArray[_Integer]:
        frames = np.repeat(self.chunk_frames.astype(dtype), self.num_chunks)
        last = self.first_chunk + self.num_chunks - 1
        frames[last] = self.num_frames - (self.num_chunks - 1) * self.chunk_frames
        return frames

    def _check(
        self, file_sizes: npt.NDArray[np.int64], release: Callable[[], None], block_pages: int
    ) -> None:
        with _located("episodes"):
            self._check_episodes()
        with _located("chunks"):
            self._check_count()
        frames = self._frames_per_chunk(np.uint8)
        with _located("gaps"):
            check_gaps(self.gaps, frames, self.schema, 0)
        with _located("chunks"):
            self._check_chunks(frames, file_sizes, release, block_pages)
        release()

    def _check_episodes(self) -> None:
        bad_key = pc.or_(
            pc.match_substring_regex(self.keys, FORBIDDEN_IN_KEY),
            pc.greater(pc.binary_length(self.keys), MAX_KEY_LENGTH),
        )
        check_rows(~bad_key.to_numpy(zero_copy_only=False), "a bad episode key", 0)
        if len(self.keys) == 0 or len(self.keys.unique()) != len(self.keys):
            raise FormatError("no episode, or a key that stands twice", got=len(self.keys))
        frames, cut = self.num_frames, self.chunk_frames
        check_rows((frames >= 1) & (frames <= MAX_EPISODE_FRAMES), "an impossible num_frames", 0)
        check_rows((cut >= 1) & (cut <= MAX_CHUNK_FRAMES), "an impossible chunk_frames", 0)

    def _check_count(self) -> None:
        # Counted before any array of one item a chunk is made from the episodes.
        if (count := int(self.num_chunks.sum())) != len(self.file):
            raise FormatError(
                "the chunk table does not fit the episode table",
                expected=f"{count} rows",
                got=len(self.file),
            )

    def _check_chunks(
        self,
        frames: npt.NDArray[np.uint8],
        file_sizes: npt.NDArray[np.int64],
        release: Callable[[], None],
        block_pages: int,
    ) -> None:
        """Block by block: what is computed from a row is several times as large as the row."""
        sizes = file_sizes.astype(np.uint64)
        gap_chunk = np.ascontiguousarray(self.gaps["chunk"])
        step = max(1, block_pages // len(self.schema))
        for first in range(0, len(self.file), step):
            rows = slice(first, first + step)
            self._check_places(rows, sizes)
            gaps = self.gaps[slice(*np.searchsorted(gap_chunk, [first, first + step]))].copy()
            gaps["chunk"] -= first
            lengths, largest = self.page_length[rows], self.largest_frame[rows]
            check_pages(lengths, largest, frames[rows], gaps, self.schema, 0, first=first)
            release()

    def _check_places(self, rows: slice, sizes: npt.NDArray[np.uint64]) -> None:
        file, offset, first = self.file[rows], self.offset[rows], rows.start
        check_rows(file < len(sizes), "a chunk in no record file", 0, first=first)
        check_rows(offset % ALIGNMENT == 0, "a chunk at a wrong offset", 0, first=first)
        # Compared as they are stored: an offset beyond 2**63 must not turn negative.
        limit = sizes[file]
        inside = (offset >= HEADER_BYTES) & (offset <= limit)
        check_rows(inside, "a chunk outside its record file", 0, first=first)
        stop = offset + chunk_bytes(self.page_length[rows]).astype(np.uint64)
        check_rows(stop <= limit, "a chunk outside its record file", 0, first=first)


@contextlib.contextmanager
def _located(table: str) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise error.located(file=table) from error.__cause__


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


def _decode(table: str, data: pa.Buffer, schema: pa.Schema) -> dict[str, Any]:
    """The columns of a table by name, as views of `data`."""
    with _located(table):
        return read_batch(memoryview(data), schema)


def _gap_rows(columns: Mapping[str, npt.NDArray[Any]], num_pages: int) -> npt.NDArray[Any]:
    """The gap table as `GAP_ROW`: a copy, so it is counted first."""
    if (count := len(columns["chunk"])) > num_pages:
        raise FormatError(
            "more validity bitmaps than pages",
            file="gaps",
            expected=f"at most {num_pages} rows",
            got=count,
        )
    gaps = np.empty(count, GAP_ROW)
    for name, column in columns.items():
        gaps[name] = column
    return gaps
