"""Keys, metadata and JSON: what is taken, what is refused."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import FormatError
from seqrecord.format.text import (
    FORBIDDEN_IN_KEY,
    MAX_JSON_DEPTH,
    MAX_KEY_LENGTH,
    MAX_METADATA_LENGTH,
    check_key,
    encode_metadata,
    parse_json,
    parse_metadata,
)


@pytest.mark.parametrize(
    "key",
    ["a", "abandonedfactory/Easy/P000", "a b", ".hidden", "...", "a..b/c.", "Zürich/日本", "a:b",
     "é" * (MAX_KEY_LENGTH // 2)],
)  # fmt: skip
def test_key_is_taken(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "/", "/a", "a/", "a//b", "./a", "a/.", "../a", "a/..", "a/../b", "a\\b", "a\nb",
     "a\n", "\x00", "a\x1b[2J", "\x7f", "a\x9b2J", "\ud800", "a" * (MAX_KEY_LENGTH + 1),
     "é" * (MAX_KEY_LENGTH // 2 + 1), None, 3, b"a"],
)  # fmt: skip
def test_key_is_refused(key: object) -> None:
    with pytest.raises(FormatError, match="episode key") as caught:
        check_key(key)
    assert str(caught.value).isprintable()


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.text("./\\a\n\x9f", max_size=8)
)
def test_forbidden_means_the_same_to_arrow(key: str) -> None:
    ours = re.search(FORBIDDEN_IN_KEY, key) is not None
    assert pc.match_substring_regex(pa.array([key]), FORBIDDEN_IN_KEY).to_pylist() == [ours]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('aé\\"u\n'), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text('aé😀\\"u\n'), _JSON))
def test_metadata_round_trip(metadata: dict[str, Any]) -> None:
    text = encode_metadata(metadata)
    assert text.isascii()
    assert parse_metadata(text) == metadata
    assert encode_metadata(parse_metadata(text)) == text


@pytest.mark.parametrize(
    "metadata",
    [[], "a", None, {"a": float("nan")}, {"a": float("inf")}, {"a": {1, 2}}, {"a": b"x"},
     {1: 2, "a": 3}, {"a": "\ud800"}, {"\udc80": 1}, {"a": 10**5000}],
)  # fmt: skip
def test_metadata_is_refused(metadata: object) -> None:
    with pytest.raises(FormatError):
        encode_metadata(metadata)


def test_metadata_limits() -> None:
    fits = {"a": "x" * (MAX_METADATA_LENGTH - 8)}
    assert len(encode_metadata(fits)) == MAX_METADATA_LENGTH
    with pytest.raises(FormatError, match="short text"):
        encode_metadata({"a": fits["a"] + "x"})
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(FormatError):
        encode_metadata({"a": itself})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "nul", '{"a":1}x', "'a'", "[1,]", '"\x01"', b'"\xff"', b"\xef\xbb\xbf{}"),
        *("NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "1" * 1001, "{}".encode("utf-16")),
        *('{"a":1,"a":1}', '[{"b":{"a":1,"a":2}}]', '"\\ud800"', '"\\uDC00x"', '{"\\udfff":1}'),
        *("[" * 10**5, '{"a":' * 10**5),
    ],
    ids=lambda text: repr(text)[:20],
)
def test_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(FormatError, match="JSON") as caught:
        parse_json(text)
    assert len(str(caught.value)) < 300


def test_json_that_looks_odd_is_taken() -> None:
    assert parse_json(
        b' {"\\ud83d\\ude00": [1e308, -0.0, "\\\\ud800", 12345678901234567890]} '
    ) == {"😀": [1e308, 0.0, "\\ud800", 12345678901234567890]}


def test_json_depth() -> None:
    assert parse_json("[" * MAX_JSON_DEPTH + "1" + "]" * MAX_JSON_DEPTH)
    with pytest.raises(FormatError, match="too deeply"):
        parse_json("[" * (MAX_JSON_DEPTH + 1) + "1" + "]" * (MAX_JSON_DEPTH + 1))
