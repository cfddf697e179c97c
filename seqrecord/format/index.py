"""The index: episode, chunk and gap tables, as Arrow IPC that readers memory-map.

There is a chunk table for each group of features. A row of it is one chunk, in episode order and
front to back, so an episode's chunks of a group lie together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.errors import FormatError
from seqrecord.format.arrow import read_batch
from seqrecord.format.group_index import BLOCK_PAGES, GroupIndex
from seqrecord.format.rows import (
    GAP_ROW,
    MAX_EPISODE_FRAMES,
    WORD,
    check_rows,
    chunk_row,
    count_words,
    features_of,
    split_gaps,
)
from seqrecord.format.text import FORBIDDEN_IN_KEY, MAX_KEY_LENGTH, parse_metadata
from seqrecord.lags import MOST_LAGS, EpisodeLags, num_lags, with_lags
from seqrecord.schema import Schema

__all__ = [
    "MAX_INDEX_TEXT",
    "MAX_TABLE_BYTES",
    "NO_SPLIT",
    "GroupIndex",
    "Index",
    "check_text",
    "most_table_bytes",
    "table_names",
]

MAX_INDEX_TEXT = 2**31 - 1  # bytes of all keys, and of all metadata: Arrow's offsets are int32

MAX_TABLE_BYTES = 1 << 36  # a hundred times what 100 million frames take
NO_SPLIT = 2**16 - 1
_MOST_AROUND = 4 << 20  # bytes around the rows of a table: messages, padding, Arrow's footer
_UID_BYTES = 16


def _table(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, dtype, nullable=False) for name, dtype in columns.items()])


def _numbers(count: int, item: pa.DataType | None = None) -> pa.DataType:
    return pa.list_(pa.field("item", item or pa.uint32(), nullable=False), count)


_GAPS = _table(chunk=pa.uint32(), feature=pa.uint16(), word=pa.uint16(), present=pa.uint64())


def _episodes_schema(num_groups: int) -> pa.Schema:
    return _table(
        key=pa.string(),
        uid=pa.binary(_UID_BYTES),
        num_frames=pa.uint32(),
        fps=pa.float64(),
        split=pa.uint16(),
        metadata=pa.string(),
        num_chunks=_numbers(num_groups),
    )


def _chunks_schema(group: Schema) -> pa.Schema:
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


def _times_schema(num_features: int, longest: int) -> pa.Schema:
    width = num_features * max(1, num_lags(longest))
    return _table(least=_numbers(width, pa.float64()), most=_numbers(width, pa.float64()))


def table_names(schema: Schema) -> tuple[str, ...]:
    """The tables of an index: `episodes`, `chunks0` and so on for each group, `gaps`.

    And `times`, of a schema with timestamps.
    """
    chunks = (f"chunks{number}" for number in range(schema.num_groups))
    return ("episodes", *chunks, "gaps", *(["times"] if with_lags(schema) else []))


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
    rows = {}
    words = most = 0
    for number, group in enumerate(schema.groups):
        row = chunk_row(len(group), len(group.variable)).itemsize
        chunks = min(num_frames, record_bytes // row)
        rows[f"chunks{number}"] = chunks * (20 + 8 * len(group) + 4 * len(group.variable))
        words += len(group) * (chunks + num_frames // WORD)
        most = max(most, chunks)
    size = 2 * 4 + _UID_BYTES + 4 + 8 + 2 + 4 * schema.num_groups  # and the text
    rows["episodes"] = size * min(num_episodes, most) + 2 * MAX_INDEX_TEXT
    if timestamps := with_lags(schema):
        rows["times"] = 2 * 8 * MOST_LAGS * len(timestamps) * min(num_episodes, most)
    rows["gaps"] = min(words, record_bytes // GAP_ROW.itemsize) * GAP_ROW.itemsize
    return {name: min(MAX_TABLE_BYTES, _MOST_AROUND + size) for name, size in rows.items()}


@dataclass(frozen=True, eq=False)
class Index:
    """All episodes of a dataset and, by group of features, their chunks; E episodes.

    `fps` is 0 where nobody said; `split` is a place in the manifest's list of splits, or
    `NO_SPLIT`. `lags` are of the timestamps, in the order of the schema; `None` without any.
    """

    schema: Schema
    keys: pa.StringArray  # [E]
    uids: npt.NDArray[np.uint8]  # [E, 16]
    metadata: pa.StringArray  # [E], JSON objects
    num_frames: npt.NDArray[np.int64]  # [E]
    fps: npt.NDArray[np.float64]  # [E]
    split: npt.NDArray[np.uint16]  # [E]
    groups: tuple[GroupIndex, ...]
    lags: EpisodeLags | None = None

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Episode number by key."""
        return {key: number for number, key in enumerate(self.keys.to_pylist())}

    def group_of(self, feature: str) -> GroupIndex:
        """The group that a feature lies in."""
        return self.groups[self.schema[feature].group]

    def lengths(self, feature: str) -> npt.NDArray[np.uint32]:
        """Bytes of a feature's pages, by chunk of its group."""
        group = self.group_of(feature)
        return group.page_length[:, group.schema.position(feature)]

    def largest_frames(self, feature: str, episodes: npt.NDArray[np.int64]) -> int:
        """Bytes of the largest frame of a feature with a variable dimension, in these episodes."""
        group = self.group_of(feature)
        column = [spec.name for spec in group.schema.variable].index(feature)
        by_episode = np.maximum.reduceat(group.largest_frame[:, column], group.first_chunk)
        return int(by_episode[episodes].max(initial=0))

    def uid(self, episode: int) -> str:
        """An episode's uid, in hexadecimal."""
        return bytes(self.uids[episode]).hex()

    def episode_metadata(self, episode: int) -> dict[str, Any]:
        """An episode's metadata."""
        try:
            return parse_metadata(self.metadata[episode].as_py())
        except FormatError as error:
            raise error.located(episode=self.keys[episode].as_py()) from error.__cause__

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
        return Index(
            schema=self.schema,
            keys=pa.concat_arrays([self.keys, more.keys]),
            uids=np.concatenate([self.uids, more.uids]),
            metadata=pa.concat_arrays([self.metadata, more.metadata]),
            num_frames=np.concatenate([self.num_frames, more.num_frames]),
            fps=np.concatenate([self.fps, more.fps]),
            split=np.concatenate([self.split, more.split]),
            groups=tuple(
                _extended(first, second, first_file)
                for first, second in zip(self.groups, more.groups, strict=True)
            ),
            lags=None if self.lags is None or more.lags is None else self.lags.extended(more.lags),
        )

    def fingerprint(self) -> str:
        """SHA-256 of the content: schema, episodes and pages, however they are cut in files."""
        digest = hashlib.sha256()
        for value in (self.schema.to_json(), self.keys.to_pylist(), self.metadata.to_pylist()):
            digest.update(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
        arrays: list[npt.NDArray[Any]] = [self.num_frames, self.fps]
        for group in self.groups:
            arrays += [group.first_frame, group.num_frames, group.page_length, group.page_crc32c]
        for array in (*arrays, *(group.gaps for group in self.groups)):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(little.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.hexdigest()

    def encode(self) -> dict[str, pa.Buffer]:
        """The tables as Arrow IPC files of one record batch, by name; see `table_names`."""
        counts = np.stack([group.num_chunks for group in self.groups], axis=1)
        episodes = [
            *(self.keys, self.uids, self.num_frames, self.fps, self.split, self.metadata, counts)
        ]
        gaps = np.concatenate([group.gaps for group in self.groups])
        names = iter(table_names(self.schema))
        tables = {next(names): _encode(_episodes_schema(len(self.groups)), episodes)}
        for group in self.groups:
            chunks = [group.file, group.offset, group.first_frame, group.num_frames]
            chunks += [group.page_length, group.page_crc32c]
            if group.schema.variable:
                chunks.append(group.largest_frame)
            tables[next(names)] = _encode(_chunks_schema(group.schema), chunks)
        tables[next(names)] = _encode(_GAPS, [gaps[name] for name in GAP_ROW.names or ()])
        if self.lags is not None:
            schema = _times_schema(self.lags.least.shape[1], int(self.num_frames.max()))
            tables[next(names)] = _encode(schema, [self.lags.least, self.lags.most])
        return tables

    @classmethod
    def decode(
        cls,
        schema: Schema,
        tables: Mapping[str, pa.Buffer],
        file_sizes: Sequence[int],
        *,
        num_splits: int = 0,
        release: Callable[[], None] | None = None,
        block_pages: int = BLOCK_PAGES,
    ) -> Index:
        """Inverse of `encode`: arrays that view `tables`, checked against each other and the files.

        `release` is called after every `block_pages` pages, when what was read of the tables need
        not stay in memory. Raises `FormatError` that names the row, and the table as its `file`.
        """
        release = release or (lambda: None)
        episodes = _decode("episodes", tables["episodes"], _episodes_schema(schema.num_groups))
        num_frames = episodes["num_frames"].astype(np.int64)
        with _located("episodes"):
            _check_episodes(episodes, num_splits)
        groups = []
        for number, (group, features) in enumerate(
            zip(schema.groups, features_of(schema), strict=True)
        ):
            name, counts = f"chunks{number}", episodes["num_chunks"][:, number].astype(np.int64)
            columns = _decode(name, tables[name], _chunks_schema(group))
            columns.setdefault("largest_frame", np.empty((len(columns["file"]), 0), np.uint32))
            table = GroupIndex(group, features, counts, **columns, gaps=np.empty(0, GAP_ROW))
            with _located(name):
                _check_count(table)
                table.check_frames(num_frames, release, block_pages)
            groups.append(table)
        columns = _decode("gaps", tables["gaps"], _GAPS)
        with _located("gaps"):
            words = sum(len(group.schema) * count_words(group.num_frames) for group in groups)
            gaps = split_gaps(_gap_rows(columns, words), schema, 0)
        groups = [replace(group, gaps=some) for group, some in zip(groups, gaps, strict=True)]
        sizes = np.asarray(file_sizes, np.uint64)
        for number, table in enumerate(groups):
            with _located("gaps"):
                table.check_gaps()
            with _located(f"chunks{number}"):
                table.check_chunks(sizes, release, block_pages)
        lags = None
        if timestamps := with_lags(schema):
            wanted = _times_schema(len(timestamps), int(num_frames.max()))
            columns = _decode("times", tables["times"], wanted)
            with _located("times"):
                lags = _lags_of(columns, len(timestamps), num_frames)
        release()
        return cls(
            schema=schema,
            keys=episodes["key"],
            uids=episodes["uid"],
            metadata=episodes["metadata"],
            num_frames=num_frames,
            fps=episodes["fps"],
            split=episodes["split"],
            groups=tuple(groups),
            lags=lags,
        )


def _lags_of(
    columns: Mapping[str, Any], num_features: int, num_frames: npt.NDArray[np.int64]
) -> EpisodeLags:
    if (count := len(columns["least"])) != len(num_frames):
        raise FormatError(
            "the table of times does not fit the episode table",
            expected=f"{len(num_frames)} rows",
            got=count,
        )
    shape = (count, num_features, -1)
    lags = EpisodeLags(columns["least"].reshape(shape), columns["most"].reshape(shape))
    lags.check(num_frames)
    return lags


def _extended(first: GroupIndex, second: GroupIndex, first_file: int) -> GroupIndex:
    gaps = second.gaps.copy()
    gaps["chunk"] += np.uint32(len(first.file))
    more = replace(second, file=second.file + np.uint32(first_file), gaps=gaps)
    joined = {
        field.name: np.concatenate([getattr(first, field.name), getattr(more, field.name)])
        for field in fields(GroupIndex)
        if field.name not in ("schema", "features")
    }
    return GroupIndex(first.schema, first.features, **joined)


def _check_episodes(columns: Mapping[str, Any], num_splits: int) -> None:
    keys, frames, fps = columns["key"], columns["num_frames"], columns["fps"]
    bad_key = pc.or_(
        pc.match_substring_regex(keys, FORBIDDEN_IN_KEY),
        pc.greater(pc.binary_length(keys), MAX_KEY_LENGTH),
    )
    check_rows(~bad_key.to_numpy(zero_copy_only=False), "a bad episode key", 0)
    if len(keys) == 0 or len(keys.unique()) != len(keys):
        raise FormatError("no episode, or a key that stands twice", got=len(keys))
    check_rows((frames >= 1) & (frames <= MAX_EPISODE_FRAMES), "an impossible num_frames", 0)
    check_rows((fps >= 0) & np.isfinite(fps), "an impossible fps", 0)
    split = columns["split"]
    check_rows((split < num_splits) | (split == NO_SPLIT), "a split that is not there", 0)
    chunks = columns["num_chunks"]
    fits = ((chunks >= 1) & (chunks <= frames[:, None])).all(axis=1)
    check_rows(fits, "an impossible num_chunks", 0)


def _check_count(group: GroupIndex) -> None:
    # Counted before any array of one item a chunk is made from the episodes.
    if (count := int(group.num_chunks.sum())) != len(group.file):
        raise FormatError(
            "the chunk table does not fit the episode table",
            expected=f"{count} rows",
            got=len(group.file),
        )


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
        values = pa.array(np.ascontiguousarray(column).reshape(-1), dtype.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=dtype)
    if pa.types.is_fixed_size_binary(dtype):
        data = pa.py_buffer(np.ascontiguousarray(column))
        return pa.FixedSizeBinaryArray.from_buffers(dtype, len(column), [None, data])
    return pa.array(np.ascontiguousarray(column), dtype)


def _decode(table: str, data: pa.Buffer, schema: pa.Schema) -> dict[str, Any]:
    """The columns of a table by name, as views of `data`."""
    with _located(table):
        return read_batch(memoryview(data), schema)


def _gap_rows(columns: Mapping[str, npt.NDArray[Any]], num_words: int) -> npt.NDArray[Any]:
    """The gap table as `GAP_ROW`: a copy, so it is counted first."""
    if (count := len(columns["chunk"])) > num_words:
        raise FormatError(
            "more rows of validity bitmaps than words",
            expected=f"at most {num_words} rows",
            got=count,
        )
    gaps = np.empty(count, GAP_ROW)
    for name, column in columns.items():
        gaps[name] = column
    return gaps
