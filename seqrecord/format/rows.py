"""Rows of the index: where chunks lie, which frames lack a feature, and what must hold of both.

A footer has them as the structured arrays below, the index as columns. Every `check_*` function
raises `FormatError` with the first row that breaks its rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.format.pages import ALIGNMENT, page_offsets, table_bytes
from seqrecord.schema import MAX_FRAME_BYTES, FeatureSpec, Schema

__all__ = [
    "GAP_ROW",
    "HEADER_BYTES",
    "MAX_CHUNK_FRAMES",
    "check_chunks",
    "check_gaps",
    "check_pages",
    "check_rows",
    "chunk_row",
    "count_present",
]

HEADER_BYTES = 64  # in front of a record file's first chunk
MAX_CHUNK_FRAMES = 64  # so that a page's validity bitmap is one 64-bit word

GAP_ROW = np.dtype([("chunk", "<u4"), ("feature", "<u4"), ("present", "<u8")])
"""Frames that lack a feature: bit i of `present` is set where frame i of the chunk has it."""


def chunk_row(num_features: int, num_variable: int) -> np.dtype[Any]:
    """One chunk of a record file: whose frames it holds, where, and its pages in schema order.

    `largest` is of the features with a variable dimension: the bytes of the page's largest frame
    when it is decoded.
    """
    page = np.dtype([("length", "<u4"), ("crc32c", "<u4")])
    return np.dtype(
        [
            ("episode", "<u4"),
            ("num_frames", "<u4"),
            ("first_frame", "<u4"),
            ("reserved", "<u4"),
            ("offset", "<u8"),
            ("pages", page, (num_features,)),
            ("largest", "<u8", (num_variable,)),
        ]
    )


def check_chunks(
    chunks: npt.NDArray[Any],
    num_frames: npt.NDArray[np.int64],
    chunk_frames: npt.NDArray[np.int64],
    end: int,
) -> None:
    """Each episode's chunks are a run of full ones, and all lie in file order before `end`.

    `num_frames` and `chunk_frames` are those of the file's episodes, int64 [E]; 0 frames stand for
    an episode that goes on in a later file. Only an episode's last chunk may be less than full.
    """
    episode = chunks["episode"].astype(np.int64)
    step = np.diff(episode, prepend=-1, append=len(num_frames))
    if len(chunks) == 0 or step[-1] != 1 or not np.isin(step, (0, 1)).all():
        raise FormatError(
            "chunk rows are out of order",
            offset=end,
            expected="chunks of every episode, in the episodes' order",
        )
    size, total = chunk_frames[episode], num_frames[episode]
    held = chunks["num_frames"].astype(np.int64)
    first = chunks["first_frame"].astype(np.int64)
    check_rows(first % size == 0, "a chunk starts inside another", end)
    full = np.where(total > 0, np.minimum(size, total - first), size)
    check_rows((held == full) & (held >= 1), "a chunk of the wrong number of frames", end)
    follows = (step[1:-1] == 1) | (np.diff(first) == size[1:])
    check_rows(follows, "a chunk does not follow the one before it", end)
    check_rows(chunks["reserved"] == 0, "reserved bytes are not zero", end)
    start = chunks["offset"]
    check_rows((start % ALIGNMENT == 0) & (start >= HEADER_BYTES), "a chunk at a wrong offset", end)
    # Compared as they are stored: an offset beyond 2**63 must not turn negative.
    check_rows(start <= np.uint64(end), "a chunk outside its file", end)
    # Pages are below 2**32 bytes and features below 2**11, so int64 holds any sum.
    stop = start.astype(np.int64) + page_offsets(chunks["pages"]["length"])[:, -1]
    check_rows(stop <= end, "a chunk outside its file", end)
    check_rows(start[1:].astype(np.int64) >= stop[:-1], "chunks overlap", end)


def check_gaps(
    gaps: npt.NDArray[Any], num_frames: npt.NDArray[Any], schema: Schema, offset: int
) -> None:
    """Validity bitmaps, ordered by chunk and feature, each of a chunk that lacks a frame."""
    if len(gaps) == 0:
        return
    chunk = gaps["chunk"].astype(np.int64)
    check_rows(chunk < len(num_frames), "a validity bitmap for no chunk", offset)
    check_rows(gaps["feature"] < len(schema), "a validity bitmap for no feature", offset)
    order = chunk * len(schema) + gaps["feature"]
    check_rows(order[1:] > order[:-1], "validity bitmaps out of order", offset)
    # At least one frame lacks the feature, and no bit stands beyond the chunk's frames.
    full = ~np.uint64(0) >> (np.uint64(64) - num_frames[chunk].astype(np.uint64))
    check_rows(gaps["present"] & ~full == 0, "a validity bitmap longer than its chunk", offset)
    check_rows(gaps["present"] != full, "a validity bitmap that lacks nothing", offset)


def check_pages(
    lengths: npt.NDArray[Any],
    largest: npt.NDArray[Any],
    num_frames: npt.NDArray[Any],
    gaps: npt.NDArray[Any],
    schema: Schema,
    offset: int,
    *,
    first: int = 0,
) -> None:
    """Every page has a length, and a largest frame, that its frames can have.

    `lengths` is [chunks, features], `largest` [chunks, features with a variable dimension].
    `first` is the number of the first chunk among those that the error counts.
    """
    count = count_present(num_frames, gaps, len(schema))
    variable = {spec.name: column for column, spec in enumerate(schema.variable)}
    for column, spec in enumerate(schema.values()):
        n, length = count[:, column], lengths[:, column]
        if spec.is_raw:
            fits = length == n * spec.nbytes
        else:
            fits = np.where(n == 0, length == 0, length >= table_bytes(spec, n))
        check_rows(fits, f"a page of {spec.name} of an impossible length", offset, first=first)
        if spec.name in variable:
            fits = _can_be_largest(largest[:, variable[spec.name]], n, length, spec)
            message = f"a page of {spec.name} with an impossible largest frame"
            check_rows(fits, message, offset, first=first)


def _can_be_largest(
    largest: npt.NDArray[Any],
    count: npt.NDArray[np.int64],
    length: npt.NDArray[Any],
    spec: FeatureSpec,
) -> npt.NDArray[np.bool_]:
    """Whether a page of so many frames, and of such length, can hold a largest one of this size."""
    nbytes: npt.NDArray[np.int64] = np.minimum(largest, MAX_FRAME_BYTES + 1).astype(np.int64)
    fits: npt.NDArray[np.bool_]
    fits = (nbytes <= MAX_FRAME_BYTES) & (nbytes % spec.nbytes == 0) & ((count > 0) | (nbytes == 0))
    if not spec.codec:  # then blobs are the frames' bytes
        blobs = np.where(count > 0, length.astype(np.int64) - table_bytes(spec, count), 0)
        fits = fits & (nbytes <= blobs) & (blobs <= count * nbytes)
    return fits


def count_present(
    num_frames: npt.NDArray[Any], gaps: npt.NDArray[Any], num_features: int
) -> npt.NDArray[np.int64]:
    """Frames that have the feature, per chunk and feature: int64 [chunks, features]."""
    count = np.repeat(num_frames.astype(np.int64)[:, None], num_features, axis=1)
    bits = np.unpackbits(gaps["present"].astype("<u8")[:, None].view(np.uint8), axis=1)
    count[gaps["chunk"], gaps["feature"]] = bits.sum(axis=1)
    return count


def check_rows(
    condition: npt.NDArray[np.bool_], message: str, offset: int, *, first: int = 0
) -> None:
    """`FormatError` with the first row that breaks the condition; they count from `first`."""
    if not condition.all():
        raise FormatError(message, offset=offset, got=f"row {first + int(np.argmin(condition))}")
