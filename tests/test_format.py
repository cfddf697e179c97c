"""Header, footer and tail: literal bytes, round trips, and what the tail may say."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import FeatureSpec, FormatError, Schema
from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, VersionError
from seqrecord.format import (
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
    parse_footer,
    parse_header,
    parse_tail,
)
from seqrecord.format.pages import page_offsets, table_bytes
from seqrecord.format.rows import GAP_ROW, chunk_row, count_present

_MAGIC = b"\x89SQREC\r\n"
_ID = bytes(range(16))


def test_header_bytes() -> None:
    header = encode_header(_ID)
    assert header[:60] == _MAGIC + b"\x01\0\0\0" + _ID + bytes(32)
    assert header[60:] == struct.pack("<I", crc32c(header[:60])) == bytes.fromhex("08b81ddb")
    assert parse_header(header) == _ID.hex()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({0: 0x88}, FormatError),
        ({8: 2}, VersionError),
        ({11: 1}, VersionError),
        ({12: 1}, ChecksumError),
        ({28: 1}, ChecksumError),
        ({63: 0}, ChecksumError),
    ],
)
def test_header_is_refused(change: dict[int, int], error: type[FormatError]) -> None:
    header = bytearray(encode_header(_ID))
    for offset, value in change.items():
        header[offset] = value
    with pytest.raises(error):
        parse_header(header)


def _footer() -> Footer:
    schema = Schema(
        [FeatureSpec("a", np.dtype("u1"), (2,)), FeatureSpec("b", np.dtype("u1"), (None,))]
    )
    chunks = np.zeros(2, chunk_row(2, 1))
    chunks["num_frames"], chunks["first_frame"], chunks["offset"] = [2, 1], [0, 2], [64, 192]
    chunks["pages"]["length"] = [[4, 25], [2, 0]]
    chunks["pages"]["crc32c"] = [[1, 2], [3, 0]]
    chunks["largest"] = [[3], [0]]
    gaps = np.array([(1, 1, 0)], GAP_ROW)
    return Footer(schema, _ID.hex(), (EpisodePart("k", "0" * 32, 5, 2, 3, "{}"),), chunks, gaps)


def test_footer_bytes() -> None:
    text = (
        b'{"file_id":"000102030405060708090a0b0c0d0e0f","schema":['
        b'{"name":"a","dtype":"|u1","shape":[2],"codec":[]},'
        b'{"name":"b","dtype":"|u1","shape":[null],"codec":[]}],'
        b'"num_chunks":2,"num_gaps":1,"episodes":['
        b'{"key":"k","uid":"00000000000000000000000000000000","ordinal":5,"chunk_frames":2,'
        b'"num_frames":3,"metadata":"{}"}]}'
    )
    text += b" " * (-(len(text) + 4) % 8)
    rows = struct.pack("<4IQ4IQ", 0, 2, 0, 0, 64, 4, 1, 25, 2, 3)
    rows += struct.pack("<4IQ4IQ", 0, 1, 2, 0, 192, 2, 3, 0, 0, 0)
    rows += struct.pack("<IIQ", 1, 1, 0)
    body = struct.pack("<I", len(text)) + text + rows
    length = struct.pack("<Q", len(body))
    tail = length + struct.pack("<II", crc32c(body + length), 1) + _MAGIC
    assert encode_footer(_footer()) == body + tail
    assert len(tail) == 24


def _same(a: Footer, b: Footer) -> bool:
    return (a.schema, a.file_id, a.episodes, a.chunks.tobytes(), a.gaps.tobytes()) == (
        (b.schema, b.file_id, b.episodes, b.chunks.tobytes(), b.gaps.tobytes())
    )


@st.composite
def _footers(draw: st.DrawFn) -> Footer:
    """Any footer that a writer could write."""
    dtypes = st.sampled_from(["|u1", "<f8"])
    shapes = st.lists(st.none() | st.integers(1, 3), max_size=2).map(tuple)
    count = draw(st.integers(1, 4))
    schema = Schema(
        [FeatureSpec(f"f{i}", np.dtype(draw(dtypes)), draw(shapes)) for i in range(count)]
    )
    parts, rows = [], []
    for number in range(draw(st.integers(1, 3))):
        cut = draw(st.integers(1, 64))
        first = draw(st.integers(0, 3))
        full = draw(st.integers(0, 3))
        last = draw(st.integers(1, cut)) if full == 0 or draw(st.booleans()) else 0
        total = (first + full) * cut + last
        ends = last or draw(st.booleans())
        key = draw(st.sampled_from(["a", "b/c", "é"]))
        parts.append(
            EpisodePart(key, f"{number:032x}", number, cut, total if ends else None, '{"x":1}')
        )
        sizes = [cut] * full + [last] * bool(last)
        rows += [(number, n, (first + i) * cut) for i, n in enumerate(sizes)]
    chunks = np.zeros(len(rows), chunk_row(count, len(schema.variable)))
    for field, values in zip(
        ("episode", "num_frames", "first_frame"), zip(*rows, strict=True), strict=True
    ):
        chunks[field] = values
    gaps = np.array(
        [
            (row, column, draw(st.integers(0, (1 << int(chunk["num_frames"])) - 2)))
            for row, chunk in enumerate(chunks)
            for column in range(count)
            if draw(st.booleans())
        ],
        GAP_ROW,
    )
    present = count_present(chunks["num_frames"], gaps, count)
    variable = [spec.name for spec in schema.variable]
    at = 64
    for row, chunk in enumerate(chunks):
        at += 64 * draw(st.integers(0, 2))
        chunk["offset"] = at
        for column, spec in enumerate(schema.values()):
            n = int(present[row, column])
            more = draw(st.integers(1, 99)) * spec.nbytes
            chunk["pages"][column]["length"] = (
                n * spec.nbytes if spec.is_raw else (table_bytes(spec, n) + more if n else 0)
            )
            if spec.name in variable and n:
                least = -(-more // (n * spec.nbytes))
                largest = draw(st.integers(least, more // spec.nbytes)) * spec.nbytes
                chunk["largest"][variable.index(spec.name)] = largest
        at += int(page_offsets(chunk["pages"]["length"])[-1])
    return Footer(schema, _ID.hex(), tuple(parts), chunks, gaps)


@given(_footers())
def test_footer_round_trip(footer: Footer) -> None:
    data = encode_footer(footer)
    offset = int(
        footer.chunks["offset"][-1] + page_offsets(footer.chunks["pages"]["length"])[-1, -1]
    )
    assert parse_tail(data[-24:], offset + len(data)) == (offset, len(data) - 24)
    assert _same(parse_footer(data, offset), footer)
    with pytest.raises(FormatError, match=r"outside its file|overlap"):
        parse_footer(data, offset - 64)


@pytest.mark.parametrize("length", range(24))
def test_footer_cut_short(length: int) -> None:
    with pytest.raises(FormatError):
        parse_footer(encode_footer(_footer())[:length], 256)
    with pytest.raises(FormatError, match="too short"):
        parse_tail(encode_footer(_footer())[-24:][:length], length)


@pytest.mark.parametrize(
    ("length", "file_size"),
    [
        (0, 88 + 1),
        (64, 64 + 64 + 24 - 64),
        (65, 64 + 65 + 24 - 1),
        (2**63, 1 << 40),
        (2**64 - 64, 1 << 40),
        ((1 << 30) + 64, 1 << 40),
    ],
)
def test_footer_length_is_refused(length: int, file_size: int) -> None:
    tail = struct.pack("<QII8s", length, 0, 1, _MAGIC)
    with pytest.raises(FormatError, match="impossible footer length") as caught:
        parse_tail(tail, file_size)
    assert caught.value.offset == file_size - 24


@pytest.mark.parametrize(
    ("values", "error"),
    [((64, 0, 2, _MAGIC), VersionError), ((64, 0, 1, b"\x89SQREC\n\n"), FormatError)],
)
def test_tail_is_refused(values: tuple[Any, ...], error: type[FormatError]) -> None:
    with pytest.raises(error):
        parse_tail(struct.pack("<QII8s", *values), 64 + 64 + 24)


def test_present_frames_are_counted() -> None:
    gaps = np.array([(0, 1, 0b101), (2, 0, 0), (2, 1, 2**63)], GAP_ROW)
    count = count_present(np.array([3, 4, 64]), gaps, 2)
    assert count.tolist() == [[3, 2], [4, 4], [0, 1]]
