"""Episode keys, metadata and JSON: the text that a dataset holds, checked."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from seqrecord.errors import FormatError, SchemaError
from seqrecord.json_object import MAX_JSON_VALUES
from seqrecord.schema import Schema
from seqrecord.text import repr_of

MAX_KEY_LENGTH = 1024  # bytes of UTF-8
MAX_METADATA_LENGTH = 1 << 20  # characters, all of them ASCII, per episode
MAX_INTEGER_DIGITS = 1000  # reading one takes time that grows with their square
MAX_JSON_DEPTH = 64  # so that nothing which walks a value runs out of stack

_TRUNCATED = "truncated"

_FREE_VALUES = 1 << 16  # which a schema may need, whatever the length of its names
_BYTES_PER_VALUE = 16  # of what there may be many of: record files and episodes
_BLOCK_BYTES = 1 << 20  # looked at at a time

ID = re.compile(r"[0-9a-f]{32}")
"""The id of a record file, and the uid of an episode."""

FORBIDDEN_IN_KEY = r"[\x00-\x1f\x7f-\x9f\\]|(^|/)\.{0,2}(/|$)"
"""What a key may not hold anywhere: a pattern that means the same to `re` and to RE2."""


def parse_schema(value: object, whose: str) -> Schema:
    """The schema in parsed JSON, else `FormatError`; it is `whose`, as "the manifest"."""
    try:
        return Schema.from_json(value)
    except SchemaError as error:
        raise FormatError(f"the schema of {whose} is not allowed: {error}") from error


def check_key(key: object) -> str:
    """`key` if it may name an episode, else `FormatError`.

    Keys become paths when an episode is exported, so they can't climb out of a folder.
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


def encode_metadata(metadata: object) -> str:
    """An episode's metadata as canonical JSON text. `FormatError` for what JSON cannot hold."""
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


def truncated_metadata(text: str) -> str:
    """The metadata of an episode that ends here because its writer was stopped, not by its will."""
    try:
        return encode_metadata({**parse_metadata(text), _TRUNCATED: True})
    except FormatError:  # it would be too long
        return text


def whole_metadata(text: str) -> str:
    """The metadata without the mark of `truncated_metadata`."""
    value = parse_metadata(text)
    value.pop(_TRUNCATED, None)
    return encode_metadata(value)


def parse_json(text: str | bytes) -> Any:
    """The value of strict JSON text, else `FormatError`.

    Strict is what every reader understands alike: UTF-8, no NaN or Infinity and no number that
    overflows to one, no key twice in an object, no half of a surrogate pair, nothing absurdly deep.
    Values in bytes are counted before they are made: `{}` takes two bytes there and 64 in memory.
    """
    if isinstance(text, bytes):
        _check_count(text)
    try:
        decoded = text if isinstance(text, str) else text.decode()
        value = _DECODER.decode(decoded)
        if "\\ud" in decoded.lower():  # only an escape can hide half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # includes bad UTF-8
        raise FormatError(f"not valid JSON: {str(error)[:200]}") from error
    _check_depth(value)
    return value


def _check_count(text: bytes) -> None:
    """Raise `FormatError` for text of more values than what takes its room would have.

    Each value but one comes after a comma or an opening bracket that is in no string.
    """
    limit = min(MAX_JSON_VALUES, _FREE_VALUES + len(text) // _BYTES_PER_VALUE)
    # So that a quote begins or ends a string:
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    count, inside = 1, 0
    for at in range(0, len(plain), _BLOCK_BYTES):
        block = np.frombuffer(plain, np.uint8, min(_BLOCK_BYTES, len(plain) - at), at)
        strings = np.cumsum(block == ord('"'), dtype=np.uint8) + np.uint8(inside)
        opens = (block == ord(",")) | (block == ord("[")) | (block == ord("{"))
        count += int(np.count_nonzero(opens & (strings % 2 == 0)))
        inside = int(strings[-1]) % 2
    if count > limit:
        raise FormatError(
            "JSON of too many values for its length", expected=f"at most {limit}", got=count
        )


def _refuse(value: str) -> float:
    raise ValueError(f"{value} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text[:50])


def _short(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return value


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(
    parse_constant=_refuse, parse_float=_finite, parse_int=_short, object_pairs_hook=_unique
)


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]  # the arrays and objects of one depth
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
