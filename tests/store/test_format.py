"""Header, footer and tail: literal bytes, round trips, and valid values of the tail."""

from __future__ import annotations

import array
import hashlib
import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import FeatureSpec, FormatError, Schema
from seqrecord.errors import NotFoundError
from seqrecord.store.checksum import Buffer, combined_crc32c, crc32c
from seqrecord.store.format import manifest
from seqrecord.store.format.encoded_pages import table_bytes
from seqrecord.store.format.footer import (
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
    parse_footer,
    parse_header,
    parse_tail,
)
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.pages import aligned, chunk_bytes, page_digest
from seqrecord.store.format.rows import (
    GAP_ROW,
    chunk_row,
    count_present,
    features_of,
    gap_rows,
    num_absent,
    present_frames,
)
from seqrecord.store.storage.local import LocalStorage

_MAGIC = b"\x89SQREC\r\n"
_ID = bytes(range(16))


def test_header_bytes() -> None:
    header = encode_header(_ID)
    assert header[:60] == _MAGIC + b"\x01\0\0\0" + _ID + bytes(32)
    assert header[60:] == struct.pack("<I", crc32c(header[:60])) == bytes.fromhex("08b81ddb")
    assert parse_header(header) == _ID.hex()


_DIGESTS = [np.frombuffer(bytes([byte]) * 16, np.uint8) for byte in range(4)]
_CHUNKS = [
    (0, 2, 0, 0, 64, [(4, 1, _DIGESTS[1]), (25, 2, _DIGESTS[2])], [3]),
    (0, 1, 2, 0, 192, [(2, 3, _DIGESTS[3]), (0, 0, _DIGESTS[0])], [0]),
]
_FOOTER = Footer(
    schema=Schema(
        [FeatureSpec("a", np.dtype("u1"), (2,)), FeatureSpec("b", np.dtype("u1"), (None,))]
    ),
    file_id=_ID.hex(),
    episodes=(EpisodePart("k", "0" * 32, 5, 3, 29.97, "{}"),),
    chunks=(np.array(_CHUNKS, chunk_row(2, 1)),),
    gaps=(np.array([(1, 1, 0, 0)], GAP_ROW),),
)


def test_footer_bytes() -> None:
    text = (
        b'{"file_id":"000102030405060708090a0b0c0d0e0f","schema":['
        b'{"name":"a","dtype":"|u1","shape":[2],"codec":[],'
        b'"group":0,"kind":null,"unit":null,"value":"array"},'
        b'{"name":"b","dtype":"|u1","shape":[null],"codec":[],'
        b'"group":0,"kind":null,"unit":null,"value":"array"}],'
        b'"num_chunks":[2],"num_gaps":1,"episodes":['
        b'{"key":"k","uid":"00000000000000000000000000000000","ordinal":5,'
        b'"num_frames":3,"fps":29.97,"metadata":"{}"}]}'
    )
    text += b" " * (-(len(text) + 4) % 8)
    one, two, three, zero = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16, bytes(16)
    rows = struct.pack("<4IQ2I16s2I16sQ", 0, 2, 0, 0, 64, 4, 1, one, 25, 2, two, 3)
    rows += struct.pack("<4IQ2I16s2I16sQ", 0, 1, 2, 0, 192, 2, 3, three, 0, 0, zero, 0)
    rows += struct.pack("<IHHQ", 1, 1, 0, 0)
    body = struct.pack("<I", len(text)) + text + rows
    length = struct.pack("<Q", len(body))
    tail = length + struct.pack("<II", crc32c(body + length), 1) + _MAGIC
    assert encode_footer(_FOOTER) == body + tail
    assert len(tail) == 24


def test_digest_of_a_page() -> None:
    """Of its bytes, its validity and its number of frames; docs/format.md has the text."""
    present = np.array([1, 0, 1, 1, 1, 1, 1, 1, 0, 1], bool)
    text = b"page" + bytes([0b11111101, 0b10]) + b"\x0a\0\0\0"
    assert page_digest(b"page", 10, present) == hashlib.sha256(text).digest()[:16]
    text = b"page" + bytes([0b111]) + b"\x03\0\0\0"
    assert page_digest(memoryview(b"page"), 3, None) == hashlib.sha256(text).digest()[:16]
    assert page_digest(b"", 3, np.zeros(3, bool)) == bytes(16)


@st.composite
def _footers(draw: st.DrawFn) -> Footer:
    """Any footer of a writer: groups of chunks of any length, in the order of completion."""
    dtypes = st.sampled_from(["|u1", "<f8"])
    shapes = st.lists(st.none() | st.integers(1, 3), max_size=2).map(tuple)
    numbers: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        numbers.append(draw(st.integers(0, len(set(numbers)))))
    schema = Schema(
        [
            FeatureSpec(f"f{i}", np.dtype(draw(dtypes)), draw(shapes), group=group)
            for i, group in enumerate(numbers)
        ]
    )
    parts: list[EpisodePart] = []
    rows: list[list[tuple[int, int, int]]] = [[] for _ in schema.groups]
    for number in range(draw(st.integers(1, 3))):
        most = 0
        for table in rows:
            at = draw(st.integers(0, 300))
            for length in draw(st.lists(st.integers(1, 200), min_size=not most, max_size=3)):
                table.append((number, length, at))
                at += length
                most = max(most, at)
        key = draw(st.sampled_from(["a", "b/c", "é"]))
        fps = draw(st.sampled_from([None, 30.0, 0.1]))
        total = draw(st.none() | st.integers(most, most + 5))
        parts.append(EpisodePart(key, f"{number:032x}", number, total, fps, '{"x":1}'))
    chunks, gaps = [], []
    for group, features, table_rows in zip(schema.groups, features_of(schema), rows, strict=True):
        made = np.zeros(len(table_rows), chunk_row(len(group), len(group.variable)))
        found = [np.empty(0, GAP_ROW)]
        for number, (row, values) in enumerate(zip(made, table_rows, strict=True)):
            row["episode"], row["num_frames"], row["first_frame"] = values
            for feature in features.tolist():
                missing = draw(st.sets(st.integers(0, values[1] - 1), max_size=4))
                present = np.ones(values[1], bool)
                present[list(missing)] = False
                found.append(gap_rows(number, feature, present & (draw(st.integers(0, 3)) > 0)))
        chunks.append(made)
        gaps.append(np.concatenate(found))
        counts = count_present(made["num_frames"], gaps[-1], features)
        for row, present in zip(made, counts.tolist(), strict=True):
            for column, (spec, n) in enumerate(zip(group.values(), present, strict=True)):
                more = draw(st.integers(1, 99)) * spec.nbytes
                stored = table_bytes(spec, n) + more if n else 0
                row["pages"][column]["length"] = (
                    n * spec.nbytes if page_kind(spec).in_slices else stored
                )
                if not spec.is_fixed and n:
                    least = -(-more // (n * spec.nbytes))
                    largest = draw(st.integers(least, more // spec.nbytes)) * spec.nbytes
                    row["largest"][list(group.variable).index(spec)] = largest
    # The order of completion: each group in its order, groups interleaved.
    at = 64
    waiting = [list(range(len(table))) for table in chunks]
    while any(waiting):
        number = draw(st.sampled_from([i for i, left in enumerate(waiting) if left]))
        at = aligned(at) + 64 * draw(st.integers(0, 2))
        row = chunks[number][waiting[number].pop(0)]
        row["offset"] = at
        at += int(chunk_bytes(row["pages"]["length"], schema.groups[number]))
    return Footer(schema, _ID.hex(), tuple(parts), tuple(chunks), tuple(gaps))


def _end(footer: Footer) -> int:
    return max(
        int((rows["offset"] + chunk_bytes(rows["pages"]["length"], group).astype("u8")).max())
        for rows, group in zip(footer.chunks, footer.schema.groups, strict=True)
        if len(rows)
    )


@given(_footers())
def test_footer_round_trip(footer: Footer) -> None:
    data = encode_footer(footer)
    offset = aligned(_end(footer))
    assert parse_tail(data[-24:], offset + len(data)) == (offset, len(data) - 24)
    again = parse_footer(data, offset)
    assert (again.schema, again.episodes) == (footer.schema, footer.episodes)
    assert encode_footer(again) == data
    with pytest.raises(FormatError, match="outside its file"):
        parse_footer(data, _end(footer) - 1)


@given(_footers(), st.data())
def test_chunks_of_groups_may_not_overlap(footer: Footer, data: st.DataObject) -> None:
    places: list[tuple[int, int, Any]] = [
        (int(row["offset"]), int(chunk_bytes(row["pages"]["length"], group)), row)
        for rows, group in zip(footer.chunks, footer.schema.groups, strict=True)
        for row in rows
    ]
    places.sort(key=lambda place: place[0])
    if len(places) < 2:
        return
    number = data.draw(st.integers(1, len(places) - 1))
    (first, size, row), (second, next_size, _) = places[number - 1 : number + 1]
    if first == second or not size or not next_size:  # an empty chunk overlaps nothing
        return
    moved = second - aligned(size) + 64  # its end is in the next chunk
    if moved < 64 or moved <= max((offset for offset, *_ in places if offset < first), default=0):
        return
    row["offset"] = moved
    with pytest.raises(FormatError, match=r"overlap|order of their offsets"):
        parse_footer(encode_footer(footer), aligned(_end(footer)))


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_gap_rows_store_present_frames(flags: list[bool]) -> None:
    rows = gap_rows(3, 5, np.array(flags))
    assert present_frames(rows, len(flags)).tolist() == flags
    words = [flags[at : at + 64] for at in range(0, len(flags), 64)]
    expected = [
        (3, 5, word, sum(1 << i for i, flag in enumerate(part) if flag))
        for word, part in enumerate(words)
        if not all(part)
    ]
    assert rows.tolist() == expected
    counted = num_absent(rows, np.full(4, len(flags)))
    assert counted.tolist() == [64 - sum(p) - (64 - len(p)) for p in words if not all(p)]


def test_footer_cut_short() -> None:
    data = encode_footer(_FOOTER)
    for length in range(24):
        with pytest.raises(FormatError):
            parse_footer(data[:length], 256)
        with pytest.raises(FormatError, match="too short"):
            parse_tail(data[-24:][:length], length)


# The manifest: literal text, round trip, atomic replacement


_MANIFEST = manifest.Manifest(
    schema=Schema([FeatureSpec("a", np.dtype("<f4"), (None, 2), ({"id": "zstd", "level": 1},))]),
    record_files=(manifest.RecordFile("records/00000-ab.seqrec", 1234, "0" * 32),),
    index={
        name: manifest.IndexFile(f"index/{name}.arrow", 10, "0000abcd")
        for name in ("episodes", "chunks0", "gaps")
    },
    num_episodes=1,
    num_frames=2,
    fingerprint="0" * 64,
    created_by="test",
    splits=("train", "val"),
    statistics=manifest.StatisticsFile("index/ab-statistics.json", 3, "00000001", True),
    edits=(manifest.IndexFile("edits/00000000-ab.json", 4, "00000002"),),
    next_ordinal=7,
    left_out=("1" * 32,),
    removed=("records/00003-cd.seqrec",),
    command="delete_episodes(episodes='ü')",
    commit="a" * 32,
    earlier_commits=("b" * 32, "c" * 32),
    superseded=("index/old-gaps.arrow", "index/old-statistics.json"),
)

_VALUE = {
    "format": "seqrecord",
    "version": 1,
    "created_by": "test",
    "num_episodes": 1,
    "num_frames": 2,
    "next_ordinal": 7,
    "fingerprint": "0" * 64,
    "schema": [
        {"name": "a", "dtype": "<f4", "shape": [None, 2], "codec": [{"id": "zstd", "level": 1}]}
        | {"group": 0, "kind": None, "unit": None, "value": "array"}
    ],
    "index": {
        "episodes": {"path": "index/episodes.arrow", "size": 10, "crc32c": "0000abcd"},
        "gaps": {"path": "index/gaps.arrow", "size": 10, "crc32c": "0000abcd"},
        "chunks": [{"path": "index/chunks0.arrow", "size": 10, "crc32c": "0000abcd"}],
    },
    "record_files": [{"path": "records/00000-ab.seqrec", "size": 1234, "file_id": "0" * 32}],
    "splits": ["train", "val"],
    "statistics": {
        "path": "index/ab-statistics.json",
        "size": 3,
        "crc32c": "00000001",
        "non_finite": True,
    },
    "edits": [{"path": "edits/00000000-ab.json", "size": 4, "crc32c": "00000002"}],
    "left_out": ["1" * 32],
    "removed": ["records/00003-cd.seqrec"],
    "command": "delete_episodes(episodes='ü')",
    "commit": "a" * 32,
    "earlier_commits": ["b" * 32, "c" * 32],
    "superseded": ["index/old-gaps.arrow", "index/old-statistics.json"],
}


@pytest.mark.parametrize("indent", [1, None])
def test_manifest_text(indent: int | None) -> None:
    """Only the end is fixed: other writers may format the JSON differently."""
    text = json.dumps(_VALUE, indent=indent).removesuffix("}").rstrip().encode()
    text += b',\n "crc32c": "%08x"\n}\n' % crc32c(text)
    assert manifest.Manifest.parse(text) == _MANIFEST
    assert indent is None or _MANIFEST.encode() == text


def test_commit(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(NotFoundError, match="no dataset here"):
        manifest.read_manifest(storage)
    manifest.put_manifest(storage, _MANIFEST, expected=None)
    assert manifest.read_manifest(storage) == _MANIFEST
    _, tag = manifest.read_tagged(storage)
    bad = replace(_MANIFEST, record_files=(manifest.RecordFile("records/a b.seqrec", 1, "0" * 32),))
    with pytest.raises(FormatError, match="bad path"):  # readers would refuse it
        manifest.put_manifest(storage, bad, expected=tag)
    assert manifest.read_manifest(storage) == _MANIFEST
    manifest.put_manifest(storage, replace(_MANIFEST, num_frames=3), expected=tag)
    storage.close()
    assert manifest.read_manifest(storage).num_frames == 3
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(manifest.MAX_MANIFEST_BYTES + 1)
    with pytest.raises(FormatError, match="too large") as caught:
        manifest.read_manifest(LocalStorage(tmp_path))
    assert caught.value.file == str(tmp_path / "manifest.json")


# CRC32C against its published test vectors


def test_checksums() -> None:
    vectors: list[tuple[bytes, int]] = [  # RFC 3720, B.4, and the check value of the CRC catalogue
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ]
    for data, value in vectors:
        for same in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
            assert crc32c(same) == value
    buffers: list[Buffer] = [memoryview(array.array("I", [1, 2])), np.array([[1, 2]], "<u4").data]
    for buffer in buffers:
        assert crc32c(buffer) == crc32c(bytes(buffer))
    for size, count, last in ((1, 1, 1), (7, 3, 2), (4096, 5, 4096), (100_001, 3, 17)):
        data = random.Random(size).randbytes(size * (count - 1) + last)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert len(parts) == count
        assert combined_crc32c([crc32c(part) for part in parts], size, last) == crc32c(data)
    assert combined_crc32c([], 5, 5) == crc32c(b"") == 0


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_checksum_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    assert crc32c(*parts) == crc32c(b"".join(parts))
