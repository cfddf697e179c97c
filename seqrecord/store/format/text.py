"""Validation of a dataset's text: episode keys, metadata and JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from seqrecord.errors import FormatError, SchemaError
from seqrecord.store.format.page_kinds import check_shared_groups
from seqrecord.store.json_object import MAX_JSON_VALUES
from seqrecord.store.schema import Schema
from seqrecord.store.text import repr_of

MAX_KEY_LENGTH = 1024  # bytes of UTF-8
MAX_METADATA_LENGTH = 1 << 20  # characters, all of them ASCII, per episode
MAX_INTEGER_DIGITS = 1000  # parsing takes time quadratic in the digits
MAX_JSON_DEPTH = 64  # a recursive walk never overflows the stack

MEASURED_FPS = "measured_fps"
"""Entry of an episode's metadata: the rate of a loop that was slower than the episode's fps."""

_TRUNCATED = "truncated"

_FREE_VALUES = 1 << 16  # enough for any schema, even with short names
_BYTES_PER_VALUE = 16  # for long lists: record files and episodes
_BLOCK_BYTES = 1 << 20  # scanned at a time

ID = re.compile(r"[0-9a-f]{32}")
"""A record file's id, or an episode's uid."""

FORBIDDEN_IN_KEY = r"[\x00-\x1f\x7f-\x9f\\]|(^|/)\.{0,2}(/|$)"
"""Pattern of invalid text in a key. `re` and RE2 interpret it alike."""


def parse_schema(value: object, whose: str) -> Schema:
    """Convert parsed JSON to a schema.

    `whose` names its owner in errors, such as "the manifest".
    """
    try:
        schema = Schema.from_json(value)
        check_shared_groups(schema)
    except SchemaError as error:
        raise FormatError(f"the schema of {whose} is not allowed: {error}") from error
    return schema


def check_key(key: object) -> str:
    """Return `key` if it is a valid episode key; raise `FormatError` otherwise.

    Keys become paths in an export. A valid key never leads out of a folder.
    """
    if not isinstance(key, str) or re.search(FORBIDDEN_IN_KEY, key):
        raise FormatError(
            "not an episode key",
            expected="names joined by single slashes, none of them . or .., no \\ or control codes",
            got=repr_of(key),
        )
    try:
        length = len(key.encode())
    except UnicodeEncodeError as error:
        raise FormatError("an episode key is not valid Unicode", got=repr_of(key)) from error
    if length > MAX_KEY_LENGTH:
        raise FormatError(
            "an episode key is too long", expected=f"at most {MAX_KEY_LENGTH} bytes", got=length
        )
    return key


def metadata_entries(metadata: Any) -> dict[str, Any]:
    """Return the entries of an episode's metadata. Raises `FormatError` if it is not a mapping."""
    try:
        return dict(metadata or {})
    except (TypeError, ValueError) as error:
        raise FormatError(
            "metadata is not a mapping", expected='such as {"task": "stack"}', got=repr_of(metadata)
        ) from error


def encode_metadata(metadata: object) -> str:
    """Encode an episode's metadata as canonical JSON. Raises `FormatError` for other values."""
    try:
        text = _ENCODER.encode(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"metadata cannot be stored as JSON: {error}") from error
    parse_metadata(text)
    return text


def parse_metadata(text: object) -> dict[str, Any]:
    """Inverse of `encode_metadata`."""
    if not isinstance(text, str) or len(text) > MAX_METADATA_LENGTH:
        raise FormatError(
            "metadata is not short text",
            expected=f"at most {MAX_METADATA_LENGTH} characters",
            got=f"{len(text)} characters" if isinstance(text, str) else repr_of(text, 50),
        )
    value = parse_json(text)
    if not isinstance(value, dict):
        raise FormatError("metadata is not a JSON object", got=repr_of(value))
    return value


def mark_truncated(text: str) -> str:
    """Add `"truncated": true` to the metadata of an episode cut off by a stopped writer."""
    try:
        return encode_metadata({**parse_metadata(text), _TRUNCATED: True})
    except FormatError:  # too long with the mark
        return text


def is_truncated(text: str) -> bool:
    """Whether metadata has the mark that `mark_truncated` adds."""
    return parse_metadata(text).get(_TRUNCATED) is True


_GZIP = b"\x1f\x8b"


def parse_json(text: str | bytes) -> Any:
    """Parse strict JSON text; raise `FormatError` otherwise.

    Strict: UTF-8, no NaN, Infinity or overflow, no duplicate keys in an object, no lone surrogates,
    limited depth. For bytes, the values are counted before any is created: `{}` takes 2 bytes in
    the text and 64 in memory.
    """
    if isinstance(text, bytes):
        if text.startswith(_GZIP):
            raise FormatError(
                "the file is compressed by gzip, by its upload or by the server "
                "(Content-Encoding); store it uncompressed",
                expected="JSON",
            )
        # Before parsing: 2 bytes of text are 64 in memory
        # (tests/store/test_claimed_sizes.py::test_values_are_counted_before_they_are_made).
        _check_count(text)
    try:
        decoded = text if isinstance(text, str) else text.decode()
        value = _DECODER.decode(decoded)
        if "\\ud" in decoded.lower():  # only an escape can produce a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # includes bad UTF-8
        raise FormatError(f"not valid JSON: {str(error)[:200]}") from error
    _check_depth(value)
    return value


def _check_count(text: bytes) -> None:
    """Raise `FormatError` if the text has more values than its length justifies.

    Every value but the first follows a comma or opening bracket outside strings.
    """
    limit = min(MAX_JSON_VALUES, _FREE_VALUES + len(text) // _BYTES_PER_VALUE)
    # After this, each quote begins or ends a string.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    count, is_inside = 1, 0
    for start in range(0, len(plain), _BLOCK_BYTES):
        block = np.frombuffer(plain, np.uint8, min(_BLOCK_BYTES, len(plain) - start), start)
        strings = np.cumsum(block == ord('"'), dtype=np.uint8) + np.uint8(is_inside)
        opens = (block == ord(",")) | (block == ord("[")) | (block == ord("{"))
        count += int(np.count_nonzero(opens & (strings % 2 == 0)))
        is_inside = int(strings[-1]) % 2
    if count > limit:
        raise FormatError(
            "JSON of too many values for its length", expected=f"at most {limit}", got=count
        )


def _refuse(value: str) -> float:
    raise ValueError(f"{value} is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text[:50])


def _parse_int(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key in an object")
    return value


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(
    parse_constant=_refuse,
    parse_float=_parse_float,
    parse_int=_parse_int,
    object_pairs_hook=_unique_keys,
)


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]  # arrays and objects of one depth
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise FormatError("JSON is nested too deeply", expected=f"at most {MAX_JSON_DEPTH} levels")
