"""Bytes of a record file around its pages: header and footer. The normative text is docs/format.md.

Pure: bytes in, bytes out, no I/O. Every `parse_*` function trusts nothing and raises `FormatError`
with the offset inside the bytes that it was given; callers add the file's name.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer, crc32c
from seqrecord.errors import ChecksumError, FormatError, SchemaError, VersionError
from seqrecord.pages import ALIGNMENT, page_offsets, table_bytes
from seqrecord.schema import Schema
from seqrecord.text import check_key, parse_json, parse_metadata

__all__ = [
    "FORMAT_VERSION",
    "GAP_ROW",
    "HEADER_BYTES",
    "MAX_CHUNK_FRAMES",
    "MAX_EPISODE_FRAMES",
    "MAX_FOOTER_BYTES",
    "TAIL_BYTES",
    "EpisodePart",
    "Footer",
    "check_gaps",
    "check_pages",
    "check_rows",
    "chunk_row",
    "count_present",
    "encode_footer",
    "encode_header",
    "parse_footer",
    "parse_header",
    "parse_tail",
]

FORMAT_VERSION = 1
HEADER_BYTES = 64
TAIL_BYTES = 24

MAX_CHUNK_FRAMES = 64  # so that a page's validity bitmap is one 64-bit word
MAX_EPISODE_FRAMES = 2**32 - 1
MAX_FOOTER_BYTES = 1 << 30

_MAGIC = b"\x89SQREC\r\n"
_HEADER = struct.Struct("<8sI16s32s")  # magic, version, file id, reserved; then CRC32C
_TAIL = struct.Struct("<QII8s")  # footer length, CRC32C, version, magic
_U32 = struct.Struct("<I")
_FILE_ID = re.compile(r"[0-9a-f]{32}")
_EPISODE_UID = re.compile(r"[0-9a-f]{32}")

GAP_ROW = np.dtype([("chunk", "<u4"), ("feature", "<u4"), ("present", "<u8")])
"""Frames that lack a feature: bit i of `present` is set where frame i of the chunk has it."""


def chunk_row(num_features: int) -> np.dtype[Any]:
    """One chunk of a record file: whose frames it holds, where, and its pages in schema order."""
    page = np.dtype([("length", "<u4"), ("crc32c", "<u4")])
    return np.dtype(
        [
            ("episode", "<u4"),
            ("num_frames", "<u4"),
            ("first_frame", "<u4"),
            ("reserved", "<u4"),
            ("offset", "<u8"),
            ("pages", page, (num_features,)),
        ]
    )


@dataclass(frozen=True)
class EpisodePart:
    """What one record file says of an episode.

    `uid` names one attempt to write the episode: an episode that crosses record files has parts of
    the same uid, and is complete where its chunks cover `[0, num_frames)`. `num_frames` is `None`
    in a file that was finished before the episode was. `ordinal` orders episodes in the index.
    """

    key: str
    uid: str
    ordinal: int
    chunk_frames: int
    num_frames: int | None
    metadata: str  # a JSON object


@dataclass(frozen=True)
class Footer:
    """A record file's schema and its rows of the index."""

    schema: Schema
    file_id: str
    episodes: tuple[EpisodePart, ...]
    chunks: npt.NDArray[Any]  # of chunk_row(len(schema))
    gaps: npt.NDArray[Any]  # of GAP_ROW, ordered by chunk and feature


def encode_header(file_id: bytes) -> bytes:
    """The first 64 bytes of a record file with this 16-byte id."""
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, file_id, b"")
    return head + _U32.pack(crc32c(head))


def parse_header(data: bytes) -> str:
    """The file id, in hexadecimal, of a header."""
    if len(data) != HEADER_BYTES or data[:8] != _MAGIC:
        raise FormatError("not a record file", offset=0, expected=_MAGIC, got=bytes(data[:8]))
    _, version, file_id, reserved = _HEADER.unpack_from(data)
    stored = _U32.unpack_from(data, _HEADER.size)[0]
    if (actual := crc32c(data[: _HEADER.size])) != stored:
        raise _mismatch("the header", 0, stored, actual)
    _check_version(version, 8)
    if any(reserved):
        raise FormatError("reserved header bytes are not zero", offset=28)
    return str(file_id.hex())


def encode_footer(footer: Footer) -> bytes:
    """Footer body and tail: the last bytes of a record file, from an aligned offset on."""
    head = {
        "file_id": footer.file_id,
        "schema": footer.schema.to_json(),
        "num_chunks": len(footer.chunks),
        "num_gaps": len(footer.gaps),
        "episodes": [
            {
                "key": part.key,
                "uid": part.uid,
                "ordinal": part.ordinal,
                "chunk_frames": part.chunk_frames,
                "num_frames": part.num_frames,
                "metadata": part.metadata,
            }
            for part in footer.episodes
        ],
    }
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + _U32.size) % 8)  # so that the rows are aligned
    body = b"".join((_U32.pack(len(text)), text, footer.chunks.tobytes(), footer.gaps.tobytes()))
    if len(body) > MAX_FOOTER_BYTES:
        raise FormatError(
            "a record file's footer is too large; write smaller record files or larger chunks",
            expected=f"at most {MAX_FOOTER_BYTES} bytes",
            got=len(body),
        )
    length = struct.pack("<Q", len(body))
    return body + _TAIL.pack(len(body), crc32c(body, length), FORMAT_VERSION, _MAGIC)


def parse_tail(data: bytes, file_size: int) -> tuple[int, int]:
    """Offset and length of the footer's body, from a file's last `TAIL_BYTES` bytes."""
    at = file_size - TAIL_BYTES
    if len(data) != TAIL_BYTES or file_size < HEADER_BYTES + TAIL_BYTES:
        raise FormatError(
            "too short for a record file",
            offset=file_size,
            expected=f"at least {HEADER_BYTES + TAIL_BYTES} bytes",
            got=f"{file_size} bytes",
        )
    length, _, version, magic = _TAIL.unpack(data)
    if magic != _MAGIC:
        raise FormatError(
            "no closing magic: the file is cut short or is not a record file",
            offset=at + 16,
            expected=_MAGIC,
            got=magic,
        )
    _check_version(version, at + 12)
    start = at - length
    if length > MAX_FOOTER_BYTES or start < HEADER_BYTES or start % ALIGNMENT:
        raise FormatError(
            "an impossible footer length",
            offset=at,
            expected=f"at most {min(MAX_FOOTER_BYTES, at - HEADER_BYTES)}, from an aligned offset",
            got=length,
        )
    return start, length


def parse_footer(data: Buffer, offset: int) -> Footer:
    """A footer from its body and tail, which start at `offset` in their file."""
    view = memoryview(data)
    body, tail = view[:-TAIL_BYTES], view[-TAIL_BYTES:]
    _, stored, _, _ = _TAIL.unpack(tail)
    if (actual := crc32c(body, tail[:8])) != stored:
        raise _mismatch("the footer", offset, stored, actual)
    try:
        return _parse_footer_body(body, offset)
    except SchemaError as error:
        raise FormatError(f"the footer's schema is not allowed: {error}", offset=offset) from error


def _parse_footer_body(body: memoryview, offset: int) -> Footer:
    if len(body) < _U32.size or (size := _U32.unpack_from(body)[0]) > len(body) - _U32.size:
        raise FormatError("the footer's JSON does not fit into it", offset=offset)
    head = parse_json(bytes(body[_U32.size : _U32.size + size]))
    keys = {"file_id", "schema", "num_chunks", "num_gaps", "episodes"}
    if not isinstance(head, dict) or set(head) != keys:
        raise FormatError("the footer is not an object of the right keys", offset=offset)
    schema = Schema.from_json(head["schema"])
    file_id = head["file_id"]
    if not isinstance(file_id, str) or not _FILE_ID.fullmatch(file_id):
        raise FormatError("not a file id", offset=offset, got=repr(file_id)[:50])
    if not isinstance(head["episodes"], list):
        raise FormatError("the footer's episodes are not a list", offset=offset)
    episodes = tuple(_parse_episode(value, offset) for value in head["episodes"])
    if len({part.uid for part in episodes}) != len(episodes):
        raise FormatError("an episode is listed twice in one footer", offset=offset)

    row, rows = chunk_row(len(schema)), body[_U32.size + size :]
    counts = [head["num_chunks"], head["num_gaps"]]
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**32 for n in counts):
        raise FormatError("impossible counts in the footer", offset=offset, got=str(counts)[:100])
    num_chunks, num_gaps = counts
    if num_chunks * row.itemsize + num_gaps * GAP_ROW.itemsize != len(rows):
        raise FormatError(
            "the footer's rows do not fill it",
            offset=offset,
            expected=f"{num_chunks} chunk rows and {num_gaps} gap rows",
            got=f"{len(rows)} bytes",
        )
    split = num_chunks * row.itemsize
    chunks = np.frombuffer(rows[:split], row)
    gaps = np.frombuffer(rows[split:], GAP_ROW)
    _check_chunks(chunks, episodes, offset)
    check_gaps(gaps, chunks["num_frames"], schema, offset)
    check_pages(chunks["pages"]["length"], chunks["num_frames"], gaps, schema, offset)
    return Footer(schema, file_id, episodes, chunks, gaps)


def _parse_episode(value: object, offset: int) -> EpisodePart:
    keys = {"key", "uid", "ordinal", "chunk_frames", "num_frames", "metadata"}
    if not isinstance(value, dict) or set(value) != keys:
        raise FormatError("an episode is not an object of the right keys", offset=offset)
    key = check_key(value["key"])
    uid = value["uid"]
    if not isinstance(uid, str) or not _EPISODE_UID.fullmatch(uid):
        raise FormatError("not an episode uid", offset=offset, episode=key, got=repr(uid)[:50])
    limits = {
        "ordinal": (0, 2**53),
        "chunk_frames": (1, MAX_CHUNK_FRAMES),
        "num_frames": (1, MAX_EPISODE_FRAMES),
    }
    for name, (low, high) in limits.items():
        number = value[name]
        if name == "num_frames" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise FormatError(
                f"an impossible {name}",
                offset=offset,
                episode=key,
                expected=f"{low} to {high}",
                got=repr(number)[:50],
            )
    parse_metadata(value["metadata"])
    return EpisodePart(**value)


def _check_chunks(chunks: npt.NDArray[Any], episodes: Sequence[EpisodePart], end: int) -> None:
    """Chunks name an episode, hold the frames they should, and lie in file order before `end`."""
    if len(chunks) == 0:
        return
    episode = chunks["episode"]
    check_rows(episode < len(episodes), "a chunk names no episode", end)
    chunk_frames = np.array([part.chunk_frames for part in episodes], np.int64)[episode]
    totals = np.array([part.num_frames or 0 for part in episodes], np.int64)[episode]
    num_frames = chunks["num_frames"].astype(np.int64)
    first = chunks["first_frame"].astype(np.int64)
    check_rows((num_frames >= 1) & (num_frames <= chunk_frames), "an impossible chunk size", end)
    check_rows(first % chunk_frames == 0, "a chunk starts inside another", end)
    full = np.where(totals > 0, np.minimum(chunk_frames, totals - first), num_frames)
    check_rows(num_frames == full, "a chunk does not hold the frames that it should", end)
    check_rows(chunks["reserved"] == 0, "reserved bytes are not zero", end)
    step = np.diff(episode.astype(np.int64))
    # Rows of one episode lie together and front to back, so that readers need not sort.
    in_order = (step > 0) | ((step == 0) & (np.diff(first) > 0))
    check_rows(in_order, "chunk rows are out of order", end)
    start = chunks["offset"]
    # Pages are below 2**32 bytes and features below 2**11, so int64 holds any sum.
    stop = page_offsets(chunks["pages"]["length"])[:, -1]
    check_rows((start % ALIGNMENT == 0) & (start >= HEADER_BYTES), "a chunk at a wrong offset", end)
    check_rows(start <= np.uint64(end), "a chunk outside its file", end)
    stop = start.astype(np.int64) + stop
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
    num_frames: npt.NDArray[Any],
    gaps: npt.NDArray[Any],
    schema: Schema,
    offset: int,
) -> None:
    """Every page has a length that its frames can have; `lengths` is [chunks, features]."""
    count = count_present(num_frames, gaps, len(schema))
    for column, spec in enumerate(schema.values()):
        n, length = count[:, column], lengths[:, column]
        if spec.is_raw:
            fits = length == n * spec.nbytes
        else:
            fits = np.where(n == 0, length == 0, length > table_bytes(spec, n))
        check_rows(fits, f"a page of {spec.name} of an impossible length", offset)


def count_present(
    num_frames: npt.NDArray[Any], gaps: npt.NDArray[Any], num_features: int
) -> npt.NDArray[np.int64]:
    """Frames that have the feature, per chunk and feature: int64 [chunks, features]."""
    count = np.repeat(num_frames.astype(np.int64)[:, None], num_features, axis=1)
    bits = np.unpackbits(gaps["present"].astype("<u8")[:, None].view(np.uint8), axis=1)
    count[gaps["chunk"], gaps["feature"]] = bits.sum(axis=1)
    return count


def _check_version(version: int, offset: int) -> None:
    if version != FORMAT_VERSION:
        raise VersionError(
            "an unknown format version; a newer seqrecord may read it",
            offset=offset,
            expected=FORMAT_VERSION,
            got=version,
        )


def check_rows(condition: npt.NDArray[np.bool_], message: str, offset: int) -> None:
    """`FormatError` with the first row that does not meet the condition."""
    if not condition.all():
        raise FormatError(message, offset=offset, got=f"row {int(np.argmin(condition))}")


def _mismatch(what: str, offset: int, stored: int, actual: int) -> ChecksumError:
    return ChecksumError(
        f"{what} does not match its checksum",
        offset=offset,
        expected=f"CRC32C {stored:08x}",
        got=f"{actual:08x}",
    )
