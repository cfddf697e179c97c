"""Episode keys and metadata: the text that a dataset holds, checked."""

from __future__ import annotations

import json
import re
from typing import Any

from seqrecord.errors import FormatError

__all__ = [
    "FORBIDDEN_IN_KEY",
    "MAX_KEY_LENGTH",
    "MAX_METADATA_LENGTH",
    "check_key",
    "encode_metadata",
    "parse_json",
    "parse_metadata",
]

MAX_KEY_LENGTH = 1024  # bytes of UTF-8
MAX_METADATA_LENGTH = 1 << 20  # characters, all of them ASCII, per episode

FORBIDDEN_IN_KEY = r"[\x00-\x1f\x7f\\]|(^|/)\.{0,2}(/|$)"
"""What a key may not hold anywhere: a pattern that means the same to `re` and to RE2."""


def check_key(key: object) -> str:
    """`key` if it may name an episode, else `FormatError`.

    Keys become paths when an episode is exported, so they can't climb out of a folder.
    """
    if not isinstance(key, str) or re.search(FORBIDDEN_IN_KEY, key):
        raise FormatError(
            "not an episode key",
            expected="names joined by single slashes, none of them . or .., no \\ or control codes",
            got=repr(key)[:200],
        )
    try:
        length = len(key.encode())
    except UnicodeEncodeError as error:
        raise FormatError("an episode key is not valid Unicode", got=repr(key)[:200]) from error
    if length > MAX_KEY_LENGTH:
        raise FormatError(
            "an episode key is too long", expected=f"at most {MAX_KEY_LENGTH} bytes", got=length
        )
    return key


def encode_metadata(metadata: object) -> str:
    """An episode's metadata as canonical JSON text. `FormatError` for what JSON cannot hold."""
    try:
        text = json.dumps(metadata, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"metadata cannot be stored as JSON: {error}") from error
    parse_metadata(text)
    return text


def parse_metadata(text: object) -> dict[str, Any]:
    """Inverse of `encode_metadata`."""
    if not isinstance(text, str) or len(text) > MAX_METADATA_LENGTH:
        raise FormatError(
            "metadata is not short text",
            expected=f"at most {MAX_METADATA_LENGTH} bytes",
            got=repr(text)[:50],
        )
    value = parse_json(text)
    if not isinstance(value, dict):
        raise FormatError("metadata is not a JSON object", got=repr(value)[:200])
    return value


def parse_json(text: str | bytes) -> Any:
    """The value of strict JSON text (no NaN or Infinity), else `FormatError`."""

    def refuse(value: str) -> None:
        raise ValueError(f"{value} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # includes bad UTF-8
        raise FormatError(f"not valid JSON: {error}") from error
