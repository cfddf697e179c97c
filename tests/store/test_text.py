"""Keys, metadata, JSON, sizes: accepted and refused values, and values in messages."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqrecord import ClipError, FormatError
from seqrecord.store.format.text import (
    FORBIDDEN_IN_KEY,
    MAX_KEY_LENGTH,
    MAX_METADATA_LENGTH,
    check_key,
    encode_metadata,
    parse_json,
    parse_metadata,
)
from seqrecord.store.text import codec_text, repr_of, without_secrets
from seqrecord.store.units import format_size, parse_duration, parse_size


def test_keys() -> None:
    for key in (
        *("a", "abandonedfactory/Easy/P000", "a b", ".hidden", "...", "a..b/c.", "Zürich/日本"),
        *("a:b", "é" * (MAX_KEY_LENGTH // 2)),
    ):
        assert check_key(key) == key
    refused: list[object] = [
        *("", ".", "..", "/", "/a", "a/", "a//b", "./a", "a/.", "../a", "a/..", "a/../b", "a\\b"),
        *("a\nb", "a\n", "\x00", "a\x1b[2J", "\x7f", "a\x9b2J", "\ud800", None, 3, b"a"),
        *("a" * (MAX_KEY_LENGTH + 1), "é" * (MAX_KEY_LENGTH // 2 + 1)),
    ]
    for item in refused:
        with pytest.raises(FormatError, match="episode key") as caught:
            check_key(item)
        assert str(caught.value).isprintable()


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.text("./\\a\n\x9f", max_size=8)
)
def test_arrow_matches_the_same_forbidden_keys(key: str) -> None:
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


def test_metadata_is_refused() -> None:
    fits = {"a": "x" * (MAX_METADATA_LENGTH - 8)}
    assert len(encode_metadata(fits)) == MAX_METADATA_LENGTH
    with pytest.raises(FormatError, match="short text"):
        encode_metadata({"a": fits["a"] + "x"})
    itself: list[Any] = []
    itself.append(itself)
    refused: list[object] = [
        *([], "a", None, {"a": float("nan")}, {"a": float("inf")}, {"a": {1, 2}}, {"a": b"x"}),
        *({1: 2, "a": 3}, {"a": "\ud800"}, {"\udc80": 1}, {"a": 10**5000}, {"a": itself}),
    ]
    for metadata in refused:
        with pytest.raises(FormatError):
            encode_metadata(metadata)


def test_json_is_refused() -> None:
    texts: list[str | bytes] = [
        *("", "{", "nul", '{"a":1}x', "'a'", "[1,]", '"\x01"', b'"\xff"', b"\xef\xbb\xbf{}"),
        *("NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "1" * 1001, "{}".encode("utf-16")),
        *('{"a":1,"a":1}', '[{"b":{"a":1,"a":2}}]', '"\\ud800"', '"\\uDC00x"', '{"\\udfff":1}'),
        *("[" * 10**5, '{"a":' * 10**5),
    ]
    for text in texts:
        with pytest.raises(FormatError, match="JSON") as caught:
            parse_json(text)
        assert len(str(caught.value)) < 300
    odd = b' {"\\ud83d\\ude00": [1e308, -0.0, "\\\\ud800", 12345678901234567890]} '
    assert parse_json(odd) == {"😀": [1e308, 0.0, "\\ud800", 12345678901234567890]}


# --- sizes and durations ----------------------------------------------------------------------


def test_sizes() -> None:
    sizes: list[tuple[Any, int]] = [
        *((0, 0), (2147483648, 2147483648), (np.int64(7), 7), ("12", 12), ("12B", 12)),
        *(("2GiB", 2 << 30), (" 1.5 GB ", 1_500_000_000), ("1.5 kib", 1536), ("0.1 kB", 100)),
        *(("3TiB", 3 << 40), ("0.3 B", 0)),
        ("9007199254740993", 9007199254740993),  # not representable in float64
    ]
    for size, expected in sizes:
        assert parse_size(size) == expected
    refused: list[Any] = [
        *("", "GiB", "-1", "1 XB", "1,5 GB", "1e9", "inf", "٣ GB", "9" * 400, "1..5"),
        *("9223372036854775808", "9" * 30 + "PB", 1 << 63, -1, True, 1.5, None),
        *(10**5000, -(10**5000)),
    ]
    for size in refused:
        with pytest.raises(ValueError, match="not a size"):
            parse_size(size)
    for number, text in (
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB")),
        *(((1 << 20) - 1, "1.0 MiB"), (2 << 30, "2.0 GiB"), (5000 << 40, "5000.0 TiB")),
    ):
        assert format_size(number) == text


def test_durations() -> None:
    seconds = {"7d": 604_800, "12h": 43_200, "1.5m": 90, "90": 90, "0": 0, "3s": 3}
    assert {text: parse_duration(text) for text in seconds} == seconds
    for text in ("", "d", "-1d", "7w", "7 days", "1e3", "7D"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_duration(text)


# --- values in messages: the start of their `repr` ----------------------------------------------


_PLAIN: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.integers(), inner) | st.sets(st.integers()),
)  # fmt: skip


@given(value=_PLAIN, limit=st.sampled_from([1, 20, 200]))
def test_a_value_is_the_start_of_its_repr(value: object, limit: int) -> None:
    whole = repr(value)
    assume(without_secrets(whole) == whole and ":/" not in whole)  # not hidden
    assert len(repr_of(value, limit)) <= limit
    assert repr_of(value, 100_000) == whole
    if len(whole) <= limit:
        assert repr_of(value, limit) == whole


def test_only_the_start_of_a_large_value_is_formatted() -> None:
    deep: list[Any] = [0] * 100
    for _ in range(30):
        deep = [deep] * 100
    itself: list[Any] = []
    itself.append(itself)
    numbers = range(1 << 20)
    large = [deep, itself, list(numbers), {"episode": list(numbers)}, dict.fromkeys(numbers)]
    large += ["x" * (1 << 22), b"\0" * (1 << 22)]
    tracemalloc.start()
    try:
        texts = [repr_of(value) for value in large]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert {len(text) for text in texts} == {200}


class _Repr:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value  # type: ignore[no-any-return]


def test_a_value_without_a_plain_repr() -> None:
    values: list[tuple[object, str]] = [
        *((_Repr(error), "<_Repr>") for error in (KeyError("x"), RecursionError(), MemoryError())),
        *((_Repr(5), "<_Repr>"), ([_Repr(5), 1], "[<_Repr>, 1]"), (_Repr("\udc80"), "\\udc80")),
        ("a\udc80", "'a\\udc80'"),
        *((number, "an integer of 16,610 bits") for number in (10**5000, -(10**5000))),
        ({"a": 10**5000}, "{'a': an integer of 16,610 bits}"),
        (np.float64("nan"), repr(np.float64("nan"))),
        (type("list", (), {"__repr__": lambda _: "mine"})(), "mine"),
    ]
    for value, text in values:
        assert repr_of(value) == text
    error = ClipError("wrong", expected=-(10**5000), got=_Repr(KeyError("x")))
    assert str(error) == "wrong; expected: an integer of 16,610 bits; got: <_Repr>"


# Secrets in any text

SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=20)
TEXTS: list[Callable[[str], str]] = [
    lambda secret: f"GET http://user:{secret}@host:80/path HTTP/1.1",
    lambda secret: f"GET HtTpS:///user:{secret}@[::1]:80/path?x=1",
    lambda secret: f"error at s3://{secret}@bucket/path: refused",
    lambda secret: f"http//user:{secret}@host and more",
    lambda secret: f"http:user:{secret}@host",
    lambda secret: f"http:\\\\user:{secret}@host",
    lambda secret: f"to http%3A%2F%2Fuser%3A{quote(secret, safe='')}%40host%2Fpath",
    lambda secret: f"url=http%253A%252F%252Fuser%253A{quote(quote(secret, safe=''))}%2540host",
    lambda secret: f"repr {f'http://user:{secret}@host'!r}",
    lambda secret: f"{ {'account_key': secret, 'anon': False} }",
    lambda secret: f"{ {'Authorization': secret.encode()} }",
    lambda secret: f"{[('x-amz-security-token', 1), {'client_secret': secret}]}",
    lambda secret: json.dumps({"access_token": secret, "expires_in": 3600}),
    lambda secret: json.dumps({"a": {"private_key": secret}}, indent=1),
    lambda secret: f"{ {'connection_string': f'AccountName=a;AccountKey={secret}'} }",
    lambda secret: f"https://h/a?sv=2024&sig={quote(secret, safe='')}&se=1",
    lambda secret: f"https://h/a?X-Amz-Signature={quote(secret, safe='')}",
    lambda secret: f"https://h/a?X-Goog-Credential={quote(secret, safe='')}",
    lambda secret: f"https://h/a?url=x%3Fsig%3D{quote(quote(secret, safe=''), safe='')}",
    lambda secret: f"DefaultEndpointsProtocol=https;AccountKey={quote(secret, safe='=/+')};x=y",
    lambda secret: (
        f"BlobEndpoint=https://h;SharedAccessSignature=sv=1&sig={quote(secret, safe='')}"
    ),
    lambda secret: f"x-amz-security-token:{quote(secret, safe='')}\nhost:h",
]


@given(SECRET, st.sampled_from(TEXTS))
def test_no_text_shows_a_secret(secret: str, make: Callable[[str], str]) -> None:
    secret = f"Q{secret}Q9"
    shown = without_secrets(make(secret))
    forms = {secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1]}
    assert not any(form in shown for form in forms)
    assert "Q9" not in shown or "Q9" in make("")


def test_texts_without_secrets() -> None:
    for text, shown in {
        "GET http://host:8080/a/b?x=1 200": "GET http://host:8080/a/b?x=1 200",
        "http://u:p@host/a?sig=x&se=1": "http://…@host/a?sig=…&se=1",
        "http://u:it's@host/a": "http://…@host/a",
        "http://u:p/q@r@host/a": "http://…@host/a",
        "Authorization: Bearer abc.def": "Authorization: Bearer …",
        "use hf_abcdefghijkl here": "use hf_… here",
        "by me@example.org at 12:30": "by me@example.org at 12:30",
    }.items():
        assert without_secrets(text) == shown


def test_texts_of_codecs() -> None:
    assert codec_text(()) == "raw"
    chain = ({"id": "seqrecord.delta", "axis": -1}, {"id": "zstd", "level": 3})
    assert codec_text(chain) == "delta(-1) + zstd(3)"
