"""Rows of the index: chunk positions and missing features, with their validation.

Footers store them as the structured arrays below, the index as columns of Arrow IPC tables. Each
group of features has its own chunks. `check_*` functions raise `FormatError` with the number of
the first invalid row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.store.format.arrow import to_arrow
from seqrecord.store.format.encoded_pages import table_bytes
from seqrecord.store.format.page_kinds import MAX_CHUNK_FRAMES, page_kind
from seqrecord.store.format.pages import ALIGNMENT, DIGEST_BYTES, chunk_bytes
from seqrecord.store.format.references import least_reference_bytes
from seqrecord.store.format.time_spans import MAX_TIME_SPANS, num_time_spans, timestamp_features
from seqrecord.store.schema import MAX_FRAME_BYTES, FeatureSpec, Schema

HEADER_BYTES = 64  # before a record file's first chunk
MAX_EPISODE_FRAMES = 2**31 - 1
WORD = 64  # frames in a word of a validity bitmap
_BLOCK = 1 << 18  # chunks processed at a time

GAP_ROW = np.dtype([("chunk", "<u4"), ("feature", "<u2"), ("word", "<u2"), ("present", "<u8")])
"""Row type of validity bitmaps. Bit i of `present` is set if frame 64 * `word` + i of the chunk
has the feature. `chunk` is a row number in the feature's group, `feature` a position in the
dataset's schema. Rows are sorted by group, chunk, feature and word. Words with all bits set have
no row.
"""


@lru_cache
def chunk_row(num_features: int, num_variable: int) -> np.dtype[Any]:
    """Return the dtype of a group's chunk rows in a footer.

    `pages` has length, CRC32C and digest (see `page_digest`) for each feature of the group, in
    schema order. `largest` has an
    entry for each feature with a variable dimension: the decoded size of the largest frame, in
    bytes. `external` is the number of bytes in external files referenced by the page, 0 if the
    page contains its packets or frames.
    """
    page = np.dtype([("length", "<u4"), ("crc32c", "<u4"), ("digest", "u1", (DIGEST_BYTES,))])
    return np.dtype(
        [
            ("episode", "<u4"),
            ("num_frames", "<u4"),
            ("first_frame", "<u4"),
            ("external", "<u4"),
            ("offset", "<u8"),
            ("pages", page, (num_features,)),
            ("largest", "<u8", (num_variable,)),
        ]
    )


def may_be_references(group: Schema) -> bool:
    """Return whether pages of a group can be references. The group must have a single feature whose
    kind of pages allows them.
    """
    return len(group) == 1 and all(page_kind(spec).may_refer(spec) for spec in group.values())


def features_of(schema: Schema) -> list[npt.NDArray[np.int64]]:
    """Return the schema positions of each group's features, ascending: one int64 array a group."""
    groups = np.array([spec.group for spec in schema.values()])
    return [np.flatnonzero(groups == number) for number in range(schema.num_groups)]


def gap_rows(chunk: int, feature: int, present: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the gap rows of one page: none if all frames have the feature.

    `present`, bool [frames], is true for frames that have it.
    """
    bits = np.ones(-(-len(present) // WORD) * WORD, np.bool_)
    bits[: len(present)] = present
    words_with_gaps = np.flatnonzero(~bits.reshape(-1, WORD).all(axis=1))
    bits[len(present) :] = False
    rows = np.zeros(len(words_with_gaps), GAP_ROW)
    rows["chunk"], rows["feature"], rows["word"] = chunk, feature, words_with_gaps
    words = np.packbits(bits.reshape(-1, WORD)[words_with_gaps], axis=1, bitorder="little")
    rows["present"] = words.view("<u8").reshape(-1)
    return rows


def present_frames(gaps: npt.NDArray[Any], num_frames: int) -> npt.NDArray[np.bool_]:
    """Return which frames of a chunk have a feature, bool [num_frames], from its gap rows."""
    present = np.ones((-(-num_frames // WORD), WORD), np.bool_)
    present[gaps["word"]] = _bits(gaps["present"])
    return present.reshape(-1)[:num_frames]


def num_absent(gaps: npt.NDArray[Any], num_frames: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Count missing frames in each gap row, int64 [gaps].

    `num_frames` has an entry for each chunk.
    """
    room = num_frames[gaps["chunk"]].astype(np.int64) - WORD * gaps["word"].astype(np.int64)
    counts: npt.NDArray[np.int64]
    counts = np.minimum(room, WORD) - _bits(gaps["present"]).sum(axis=1, dtype=np.int64)
    return counts


def absent_frames(
    gaps: npt.NDArray[Any], num_frames: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the missing frames of gap rows: row, and bit of its word, int64 [n] each, ascending.

    `num_frames` has an entry for each chunk.
    """
    room = num_frames[gaps["chunk"]].astype(np.int64) - WORD * gaps["word"].astype(np.int64)
    is_absent = (_bits(gaps["present"]) == 0) & (np.arange(WORD) < room[:, None])
    row, bit = np.nonzero(is_absent)
    return row, bit


def count_words(num_frames: npt.NDArray[Any]) -> int:
    """Count the bitmap words of one feature in all chunks together."""
    blocks = (num_frames[start : start + _BLOCK] for start in range(0, len(num_frames), _BLOCK))
    return sum(int((-(-block.astype(np.int64) // WORD)).sum()) for block in blocks)


def split_gaps(gaps: npt.NDArray[Any], schema: Schema, offset: int) -> tuple[npt.NDArray[Any], ...]:
    """Split gap rows by group, as views."""
    check_rows(gaps["feature"] < len(schema), "a validity bitmap for no feature", offset)
    group = np.array([spec.group for spec in schema.values()])[gaps["feature"]]
    check_rows(group[1:] >= group[:-1], "validity bitmaps out of order", offset)
    bounds = np.searchsorted(group, np.arange(schema.num_groups + 1)).tolist()
    return tuple(gaps[start:stop] for start, stop in pairwise(bounds))


def check_chunks(chunks: npt.NDArray[Any], num_frames: npt.NDArray[np.int64], end: int) -> None:
    """Check the chunks of one group: contiguous in each episode, in file order, before `end`.

    `num_frames`, int64 [E], has an entry for each episode of the file; 0 if the episode continues
    in a later file.
    """
    episode = chunks["episode"].astype(np.int64)
    is_ordered = (episode < len(num_frames)) & (np.diff(episode, prepend=0) >= 0)
    check_rows(is_ordered, "chunk rows are out of order", end)
    counts = chunks["num_frames"].astype(np.int64)
    first_frame = chunks["first_frame"].astype(np.int64)
    check_lengths(counts, end)
    total = num_frames[episode]
    stop_frame = np.where(total > 0, total, MAX_EPISODE_FRAMES)
    check_rows(first_frame + counts <= stop_frame, "a chunk beyond the end of its episode", end)
    follows = (np.diff(episode) > 0) | (first_frame[1:] == (first_frame + counts)[:-1])
    check_rows(follows, "a chunk does not follow the one before it", end)
    start = chunks["offset"]
    check_rows((start % ALIGNMENT == 0) & (start >= HEADER_BYTES), "a chunk at a wrong offset", end)
    # No conversion to int64: offsets beyond 2**63 would turn negative.
    check_rows(start <= np.uint64(end), "a chunk outside its file", end)
    check_rows(start[1:] >= start[:-1], "chunks are not in the order of their offsets", end)


def check_lengths(num_frames: npt.NDArray[Any], offset: int, *, first_row: int = 0) -> None:
    """Check that each chunk has 1 to `MAX_CHUNK_FRAMES` frames."""
    fits = (num_frames >= 1) & (num_frames <= MAX_CHUNK_FRAMES)
    check_rows(fits, "a chunk of an impossible number of frames", offset, first_row=first_row)


def check_overlaps(chunks: Sequence[npt.NDArray[Any]], groups: Sequence[Schema], end: int) -> None:
    """Check that the chunks of all groups end before `end` and do not overlap."""
    # int64 suffices for any sum: pages are below 2**32 bytes, features below 2**11.
    starts = [rows["offset"].astype(np.int64) for rows in chunks]
    stops = [
        start + chunk_bytes(rows["pages"]["length"], schema)
        for start, rows, schema in zip(starts, chunks, groups, strict=True)
    ]
    for stop in stops:
        check_rows(stop <= end, "a chunk outside its file", end)
    start, stop = np.concatenate(starts), np.concatenate(stops)
    order = np.lexsort((stop, start))  # chunks with empty pages only have no bytes
    check_rows(start[order][1:] >= stop[order][:-1], "chunks overlap", end)


def check_gaps(
    gaps: npt.NDArray[Any],
    num_frames: npt.NDArray[Any],
    features: npt.NDArray[np.int64],
    offset: int,
) -> None:
    """Check the validity bitmaps of one group: sorted, and at least one frame missing in each word.

    `num_frames` has an entry for each chunk of the group; `features` as in `features_of`.
    """
    if len(gaps) == 0:
        return
    chunk, word = gaps["chunk"].astype(np.int64), gaps["word"].astype(np.int64)
    check_rows(chunk < len(num_frames), "a validity bitmap for no chunk", offset)
    column = np.searchsorted(features, gaps["feature"])
    order = (chunk * len(features) + column) * (MAX_CHUNK_FRAMES // WORD) + word
    check_rows(word < MAX_CHUNK_FRAMES // WORD, "a validity bitmap longer than its chunk", offset)
    check_rows(order[1:] > order[:-1], "validity bitmaps out of order", offset)
    num_bits = num_frames[chunk].astype(np.int64) - word * WORD
    check_rows(num_bits > 0, "a validity bitmap longer than its chunk", offset)
    # At least one frame lacks the feature, and bits beyond the chunk's frames are 0.
    full = ~np.uint64(0) >> (WORD - np.minimum(num_bits, WORD)).astype(np.uint64)
    check_rows(gaps["present"] & ~full == 0, "a validity bitmap longer than its chunk", offset)
    check_rows(gaps["present"] != full, "a validity bitmap that lacks nothing", offset)


def check_pages(
    lengths: npt.NDArray[Any],
    largest: npt.NDArray[Any],
    external: npt.NDArray[Any],
    num_frames: npt.NDArray[Any],
    gaps: npt.NDArray[Any],
    schema: Schema,
    features: npt.NDArray[np.int64],
    offset: int,
    *,
    first_row: int = 0,
) -> None:
    """Check each page's length and largest frame against its number of frames.

    `lengths` is [chunks, features], `largest` [chunks, features with a variable dimension].
    `external`, [chunks], is the number of bytes referenced in external files. `schema` is the
    group's, `features` as in `features_of`. `first_row` is the row number of the first chunk, for
    messages.
    """
    count = count_present(num_frames, gaps, features)
    variable = {spec.name: column for column, spec in enumerate(schema.variable)}
    if not may_be_references(schema):
        check_rows(
            external == 0, "a reference in a group that allows none", offset, first_row=first_row
        )
    for column, spec in enumerate(schema.values()):
        n, length = count[:, column], lengths[:, column]
        kind = page_kind(spec)
        fits = kind.can_be_length(spec, length, n)
        if external.any():
            as_references = (n > 0) & (length >= least_reference_bytes(n))
            fits = np.where(external, as_references, fits)
        fits &= num_frames <= kind.max_chunk_frames
        check_rows(fits, f"a page of {spec.name} with a wrong length", offset, first_row=first_row)
        if spec.name in variable:
            fits = _can_be_largest(largest[:, variable[spec.name]], n, length, spec)
            message = f"a page of {spec.name} with an impossible largest frame"
            check_rows(fits, message, offset, first_row=first_row)


def _can_be_largest(
    largest: npt.NDArray[Any],
    count: npt.NDArray[np.int64],
    length: npt.NDArray[Any],
    spec: FeatureSpec,
) -> npt.NDArray[np.bool_]:
    """Return which pages can have a largest frame of `largest` bytes, bool [chunks]."""
    nbytes: npt.NDArray[np.int64] = np.minimum(largest, MAX_FRAME_BYTES + 1).astype(np.int64)
    fits: npt.NDArray[np.bool_]
    fits = (nbytes <= MAX_FRAME_BYTES) & (nbytes % spec.nbytes == 0) & ((count > 0) | (nbytes == 0))
    if not spec.codec:  # blobs are uncompressed frames
        blobs = np.where(count > 0, length.astype(np.int64) - table_bytes(spec, count), 0)
        fits = fits & (nbytes <= blobs) & (blobs <= count * nbytes)
    return fits


def count_present(
    num_frames: npt.NDArray[Any], gaps: npt.NDArray[Any], features: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Count frames that have each feature of a group: int64 [chunks, features]."""
    count = np.repeat(num_frames.astype(np.int64)[:, None], len(features), axis=1)
    if len(gaps):
        column = np.searchsorted(features, gaps["feature"])
        np.subtract.at(count, (gaps["chunk"], column), num_absent(gaps, num_frames))
    return count


def check_rows(
    condition: npt.NDArray[np.bool_], message: str, offset: int, *, first_row: int = 0
) -> None:
    """Raise `FormatError` with the first row where `condition` is false.

    Row numbers start at `first_row`.
    """
    if not condition.all():
        raise FormatError(
            message, offset=offset, got=f"row {first_row + int(np.argmin(condition))}"
        )


def _bits(words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Unpack bitmap words, lowest bit first: uint8 [n, 64]."""
    octets = np.ascontiguousarray(words, "<u8")[:, None].view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little")


MAX_INDEX_TEXT = 2**31 - 1  # bytes of all keys, and of all metadata: Arrow offsets are int32
MAX_TABLE_BYTES = 1 << 36  # a hundred times the size for 100 million frames
_MOST_AROUND = 4 << 20  # bytes beside the rows of a table: messages, padding, Arrow's footer
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
    num_features, num_variable = len(group), len(group.variable)
    columns = {
        "file": pa.uint32(),
        "offset": pa.uint64(),
        "first_frame": pa.int32(),  # negative: frames before the start of a trimmed episode
        "num_frames": pa.uint32(),
        "page_length": _numbers(num_features),
        "page_crc32c": _numbers(num_features),
        "page_digest": pa.binary(DIGEST_BYTES * num_features),
    }
    if num_variable:
        columns["largest_frame"] = _numbers(num_variable)
    if may_be_references(group):
        columns["external"] = pa.uint32()
    return _table(**columns)


def times_schema(num_features: int, max_episode_frames: int) -> pa.Schema:
    width = num_features * max(1, num_time_spans(max_episode_frames))
    return _table(least=_numbers(width, pa.float64()), most=_numbers(width, pa.float64()))


def table_names(schema: Schema) -> tuple[str, ...]:
    """Return the table names of an index: `episodes`, `chunks0` and so on for each group, `gaps`.

    Schemas with timestamp features add `times`.
    """
    chunks = (f"chunks{number}" for number in range(schema.num_groups))
    return ("episodes", *chunks, "gaps", *(["times"] if timestamp_features(schema) else []))


def most_table_bytes(
    schema: Schema, num_episodes: int, num_frames: int, record_bytes: int
) -> dict[str, int]:
    """Return the maximum size of each index table, in bytes, for a dataset of this size.

    `record_bytes` is the size of all record files. It bounds the tables: each chunk and gap has a
    row in a footer. Only chunks of dropped or added groups may have none; they follow the chunks of
    another group. The first and last chunk of an episode may have hidden frames.
    """
    groups = schema.groups
    widths = [(len(group), len(group.variable)) for group in groups]
    sizes = [chunk_row(*width).itemsize for width in widths]
    max_chunks = min(num_frames, record_bytes // min(sizes))  # chunks of any group in record files
    max_chunk_frames = min(page_kind(spec).max_chunk_frames for spec in schema.values())
    absent_chunks = min(num_frames, max_chunks + num_frames // max_chunk_frames)
    rows, words, absent_words = {}, 0, 0
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        num_features, num_variable = widths[number]
        may_be_absent = all(spec.is_dropped or spec.added for spec in group.values())
        chunks = absent_chunks if may_be_absent else min(num_frames, record_bytes // size)
        row_bytes = 24 + (8 + DIGEST_BYTES) * num_features + 4 * num_variable
        rows[f"chunks{number}"] = chunks * row_bytes
        group_words = num_features * (chunks + num_frames // WORD)
        end_chunks = 2 * min(chunks, num_episodes)
        words += group_words + num_features * end_chunks * MAX_CHUNK_FRAMES // WORD
        absent_words += group_words * may_be_absent
    gaps = min(words, absent_words + record_bytes // GAP_ROW.itemsize)
    rows["gaps"] = gaps * GAP_ROW.itemsize
    num_episodes = min(num_episodes, max_chunks)
    size = 2 * 4 + _UID_BYTES + 4 + 8 + 2 + 4 * len(groups)  # and the text
    rows["episodes"] = size * num_episodes + 2 * MAX_INDEX_TEXT
    if timestamps := timestamp_features(schema):
        rows["times"] = 2 * 8 * MAX_TIME_SPANS * len(timestamps) * num_episodes
    return {name: min(MAX_TABLE_BYTES, _MOST_AROUND + size) for name, size in rows.items()}


def encode_table(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Buffer:
    arrays = [_array(columns[field.name], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


def _array(column: Any, dtype: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if pa.types.is_fixed_size_list(dtype):
        values = to_arrow(np.reshape(column, -1), dtype.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=dtype)
    if pa.types.is_fixed_size_binary(dtype):
        data = pa.py_buffer(np.ascontiguousarray(column))
        return pa.FixedSizeBinaryArray.from_buffers(dtype, len(column), [None, data])
    return to_arrow(column, dtype)
