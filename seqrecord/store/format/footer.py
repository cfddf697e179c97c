"""Header and footer of a record file. The normative text is docs/format.md.

Pure functions of bytes, without I/O. `parse_*` functions validate all input and raise
`FormatError` with the offset inside their bytes; callers add the file name.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, FormatError, VersionError, located
from seqrecord.store.checksum import Buffer, crc32c
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.format.rows import (
    GAP_ROW,
    HEADER_BYTES,
    MAX_EPISODE_FRAMES,
    check_chunks,
    check_gaps,
    check_overlaps,
    check_pages,
    chunk_row,
    features_of,
    split_gaps,
)
from seqrecord.store.format.text import ID, check_key, parse_json, parse_metadata, parse_schema
from seqrecord.store.format.time_spans import TimeSpans, timestamp_features
from seqrecord.store.json_object import JsonObject
from seqrecord.store.schema import Schema
from seqrecord.store.text import repr_of

RECORDS = "records"  # the folder of a dataset's record files

FORMAT_VERSION = 1
TAIL_BYTES = 24

MAX_ORDINAL = 2**53 - 1  # so that every JSON parser holds it exactly
MAX_FOOTER_BYTES = 1 << 25

_MAGIC = b"\x89SQREC\r\n"
_HEADER = struct.Struct("<8sI16s32s")  # magic, version, file id, reserved; then CRC32C
_TAIL = struct.Struct("<QII8s")  # footer length, CRC32C, version, magic
_U32 = struct.Struct("<I")
_MISMATCH = "does not match its checksum"

_KEYS = ("file_id", "schema", "num_chunks", "num_gaps", "episodes")
_EPISODE_KEYS = ("key", "uid", "ordinal", "num_frames", "fps", "metadata")
_MOST_ROWS = 2**32 - 1


@dataclass(frozen=True)
class EpisodePart:
    """An episode's entry in the footer of one record file.

    `uid` identifies one attempt to write the episode. An episode that spans several record files
    has an entry with the same uid in each. It is complete once its chunks of each group cover
    `[0, num_frames)`. `num_frames` is `None` in files finished before the episode ended.
    `ordinal` is the sort key of episodes in the index. `fps` is in frames per second, `None` if
    unknown. `time_spans` has an entry for each timestamp feature present in every frame; it is
    empty while `num_frames` is `None`. With `is_discarded` the episode was discarded after other
    files with parts of it were stored.
    """

    key: str
    uid: str
    ordinal: int
    num_frames: int | None
    fps: float | None
    metadata: str  # a JSON object
    time_spans: tuple[tuple[str, TimeSpans], ...] = ()
    is_discarded: bool = False

    def trimmed(self, num_frames: int) -> EpisodePart:
        """Return the entry of an episode with fewer frames; the time spans remain bounds."""
        spans = tuple((name, time_spans.cut(num_frames)) for name, time_spans in self.time_spans)
        return replace(self, num_frames=num_frames, time_spans=spans)


@dataclass(frozen=True)
class Footer:
    """Schema, episodes and chunk tables of one record file.

    `chunks` and `gaps` have one structured array for each group, with the dtypes of `chunk_row`
    and `GAP_ROW`. `chunk` in a gap row is a row number in the group's `chunks`.
    """

    schema: Schema
    file_id: str
    episodes: tuple[EpisodePart, ...]
    chunks: tuple[npt.NDArray[Any], ...]
    gaps: tuple[npt.NDArray[Any], ...]


def encode_header(file_id: bytes) -> bytes:
    """Encode the first 64 bytes of a record file. `file_id` has 16 bytes."""
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, file_id, b"")
    return head + _U32.pack(crc32c(head))


def parse_header(data: Buffer) -> str:
    """Parse a header; returns the file id in hexadecimal."""
    if len(data) != HEADER_BYTES or bytes(data[:8]) != _MAGIC:
        raise FormatError("not a record file", offset=0, expected=_MAGIC, got=bytes(data[:8]))
    _, version, file_id, reserved = _HEADER.unpack_from(data)
    _check_version(version, 8)
    checksum = _U32.unpack_from(data, _HEADER.size)[0]
    if (actual := crc32c(data[: _HEADER.size])) != checksum:
        raise ChecksumError.of(f"the header {_MISMATCH}", checksum, actual, offset=0)
    if any(reserved):
        raise FormatError(
            "reserved header bytes are not zero", offset=28, expected=0, got=reserved.hex()
        )
    return str(file_id.hex())


def encode_footer(footer: Footer) -> bytes:
    """Encode body and tail of a footer. The record file ends with them; the body is aligned."""
    head = {
        "num_chunks": [len(rows) for rows in footer.chunks],
        "num_gaps": sum(len(rows) for rows in footer.gaps),
        "episodes": [_episode_json(part) for part in footer.episodes],
    }
    # Cached text: a writer encodes a footer for each episode, all with one schema.
    schema = _schema_text(footer.schema)
    text = f'{{"file_id":{_json(footer.file_id)},"schema":{schema},{_json(head)[1:]}'.encode()
    text += b" " * (-(len(text) + _U32.size) % 8)  # aligns the rows
    rows = [array.tobytes() for array in (*footer.chunks, *footer.gaps)]
    body = b"".join((_U32.pack(len(text)), text, *rows))
    if len(body) > MAX_FOOTER_BYTES:
        raise FormatError(
            "a record file's footer is too large",
            expected=f"at most {MAX_FOOTER_BYTES} bytes",
            got=len(body),
        )
    length = struct.pack("<Q", len(body))
    return body + _TAIL.pack(len(body), crc32c(body, length), FORMAT_VERSION, _MAGIC)


def _episode_json(part: EpisodePart) -> dict[str, Any]:
    value = {name: getattr(part, name) for name in _EPISODE_KEYS}
    if part.time_spans:
        value["time_spans"] = {name: spans.to_text() for name, spans in part.time_spans}
    if part.is_discarded:
        value["discarded"] = True
    return value


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=8)
def _schema_text(schema: Schema) -> str:
    return _json(schema.to_json())


def parse_tail(data: Buffer, file_size: int) -> tuple[int, int]:
    """Return offset and length of the footer's body, given a file's last `TAIL_BYTES` bytes."""
    tail_start = file_size - TAIL_BYTES
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
            offset=tail_start + 16,
            expected=_MAGIC,
            got=magic,
        )
    _check_version(version, tail_start + 12)
    start = tail_start - length
    if length > MAX_FOOTER_BYTES or start < HEADER_BYTES or start % ALIGNMENT:
        raise FormatError(
            "an impossible footer length",
            offset=tail_start,
            expected=f"at most {min(MAX_FOOTER_BYTES, tail_start - HEADER_BYTES)}, from an aligned "
            "offset",
            got=length,
        )
    return start, length


def parse_footer(data: Buffer, offset: int) -> Footer:
    """Parse body and tail of a footer; `offset` is their position in the file."""
    view = memoryview(data)
    body, tail = view[:-TAIL_BYTES], view[-TAIL_BYTES:]
    if len(tail) < TAIL_BYTES:
        raise FormatError("the footer is cut short", offset=offset, got=f"{len(view)} bytes")
    checksum = _TAIL.unpack(tail)[1]
    if (actual := crc32c(body, tail[:8])) != checksum:
        raise ChecksumError.of(f"the footer {_MISMATCH}", checksum, actual, offset=offset)
    with located(FormatError, offset=offset):
        return _parse_footer_body(body, offset)


def _parse_footer_body(body: memoryview, offset: int) -> Footer:
    size = _U32.unpack_from(body)[0] if len(body) >= _U32.size else 0
    if not 0 < size <= len(body) - _U32.size or (_U32.size + size) % 8:
        raise FormatError(
            "the footer's JSON does not fit into it",
            expected=f"below {len(body)} bytes, to a multiple of 8",
            got=size,
        )
    head = parse_json(bytes(body[_U32.size : _U32.size + size]))
    footer_json = JsonObject(head, _KEYS, "the footer")
    schema = parse_schema(head["schema"], "the footer")
    file_id = footer_json.text("file_id", ID)
    timestamps = timestamp_features(schema)
    episodes = tuple(_parse_episode(value, timestamps) for value in footer_json.list("episodes"))
    if len({part.uid for part in episodes}) != len(episodes):
        raise FormatError("an episode is listed twice in one footer")

    chunks, gaps = _parse_rows(body[_U32.size + size :], schema, footer_json)
    totals = np.array([part.num_frames or 0 for part in episodes], np.int64)
    groups = schema.groups
    for rows in chunks:
        check_chunks(rows, totals, offset)
    chunk_episodes = np.unique(np.concatenate([rows["episode"] for rows in chunks]))
    if len(chunk_episodes) != len(episodes) or not len(chunk_episodes):
        raise FormatError(
            "an episode in the footer has no chunk, or there is no episode",
            expected="at least a chunk of every episode",
            got=f"chunks of {len(chunk_episodes)} of {len(episodes)} episodes",
        )
    check_overlaps(chunks, groups, offset)
    gaps_by_group = split_gaps(gaps, schema, offset)
    columns = zip(chunks, gaps_by_group, groups, features_of(schema), strict=True)
    for rows, group_gaps, group, features in columns:
        num_frames, lengths = rows["num_frames"], rows["pages"]["length"]
        check_gaps(group_gaps, num_frames, features, offset)
        check_pages(
            *(lengths, rows["largest"], rows["external"], num_frames),
            *(group_gaps, group, features, offset),
        )
    return Footer(schema, file_id, episodes, chunks, gaps_by_group)


def _parse_rows(
    data: memoryview, schema: Schema, head: JsonObject
) -> tuple[tuple[npt.NDArray[Any], ...], npt.NDArray[Any]]:
    """Split `data` into chunk rows, one array for each group, and gap rows."""
    num_gaps = head.integer("num_gaps", maximum=_MOST_ROWS)
    counts = head.list("num_chunks", schema.num_groups, schema.num_groups)
    if any(type(n) is not int or not 0 <= n <= _MOST_ROWS for n in counts):
        raise FormatError("impossible counts in the footer", got=repr_of(counts, 100))
    kinds = [chunk_row(len(group), len(group.variable)) for group in schema.groups] + [GAP_ROW]
    sizes = [kind.itemsize * n for kind, n in zip(kinds, (*counts, num_gaps), strict=True)]
    if sum(sizes) != len(data):
        raise FormatError(
            "the footer's rows do not fill it",
            expected=f"{counts} chunk rows and {num_gaps} gap rows",
            got=f"{len(data)} bytes",
        )
    stops = np.cumsum(sizes).tolist()
    *chunks, gaps = (
        np.frombuffer(data[stop - size : stop], kind)
        for kind, size, stop in zip(kinds, sizes, stops, strict=True)
    )
    return tuple(chunks), gaps


def _parse_episode(value: object, timestamps: Sequence[str]) -> EpisodePart:
    episode_json = JsonObject(
        value, _EPISODE_KEYS, "an episode", optional=("time_spans", "discarded")
    )
    key = check_key(episode_json.value["key"])
    with located(FormatError, episode=key):
        num_frames = None
        if episode_json.value["num_frames"] is not None:
            num_frames = episode_json.integer("num_frames", 1, MAX_EPISODE_FRAMES)
        parse_metadata(episode_json.value["metadata"])
        is_discarded = "discarded" in episode_json.value
        if is_discarded and (episode_json.value["discarded"] is not True or num_frames is not None):
            raise FormatError(
                "an impossible mark of a discarded episode",
                expected="discarded: true, and num_frames: null",
                got=repr_of((episode_json.value["discarded"], num_frames), 50),
            )
        return EpisodePart(
            key=key,
            uid=episode_json.text("uid", ID),
            ordinal=episode_json.integer("ordinal", maximum=MAX_ORDINAL),
            num_frames=num_frames,
            fps=_parse_fps(episode_json.value["fps"]),
            metadata=episode_json.value["metadata"],
            time_spans=_parse_time_spans(episode_json.value, num_frames, timestamps),
            is_discarded=is_discarded,
        )


def _parse_time_spans(
    episode: Mapping[str, Any], num_frames: int | None, timestamps: Sequence[str]
) -> tuple[tuple[str, TimeSpans], ...]:
    if "time_spans" not in episode:
        return ()
    value = episode["time_spans"]
    if not isinstance(value, dict) or not value or not set(value) <= set(timestamps):
        raise FormatError(
            "time spans of features that are not timestamps",
            expected=f"some of {', '.join(timestamps) or 'none'}",
            got=repr_of(value, 100),
        )
    if num_frames is None:
        raise FormatError("time spans of an episode whose length is unknown")
    return tuple((name, TimeSpans.from_text(value[name], num_frames)) for name in sorted(value))


def _parse_fps(value: object) -> float | None:
    if value is None:
        return None
    if type(value) in (int, float):
        with contextlib.suppress(OverflowError):
            fps = float(value)  # type: ignore[arg-type]
            if 0 < fps < math.inf:
                return fps
    raise FormatError("an impossible fps", expected="null, or above 0", got=repr_of(value, 50))


def _check_version(version: int, offset: int) -> None:
    if version != FORMAT_VERSION:
        raise VersionError(
            "an unknown format version; a newer seqrecord may read it",
            offset=offset,
            expected=FORMAT_VERSION,
            got=version,
        )
