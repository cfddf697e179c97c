"""What a feature may be: names, kinds, dtypes, shapes and codecs, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from seqrecord.errors import SchemaError
from seqrecord.text import repr_of

__all__ = [
    "ADDED",
    "DTYPES",
    "KIND",
    "MAX_CODECS",
    "MAX_DIMENSIONS",
    "MAX_GROUPS",
    "MAX_NAME_LENGTH",
    "UNIT",
    "CodecConfig",
    "ValueKind",
    "check_codec",
    "check_dtype",
    "check_group",
    "check_matches",
    "check_name",
    "check_shape",
    "check_value",
    "unstorable",
]

MAX_NAME_LENGTH = 128  # characters, all of them ASCII
MAX_DIMENSIONS = 8
MAX_CODECS = 4  # in a feature's chain
MAX_GROUPS = 256

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_DROPPED = re.compile(r"~[0-9]{1,4}")  # a feature that was dropped, by its place in the schema
ADDED = re.compile(r"[0-9a-f]{16}")
KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
UNIT = re.compile(r"[\x20-\x7e]{1,32}")
DTYPES = frozenset("|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split())  # noqa: SIM905

ValueKind = Literal["array", "text", "bytes"]
"""What a frame's value of a feature is to its users: an array, `str` or `bytes`."""

CodecConfig = Mapping[str, Any]
"""A codec as its JSON configuration: `{"id": "zstd", "level": 1}`."""


def check_name(name: object) -> None:
    """`SchemaError` for a text that names no feature."""
    text = name if isinstance(name, str) and len(name) <= MAX_NAME_LENGTH else ""
    if not (_NAME.fullmatch(text) or _DROPPED.fullmatch(text)):
        raise SchemaError(
            "not a feature name",
            expected=f"1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ and, inside, . and -",
            got=repr_of(name),
        )


def check_group(name: str, group: object) -> None:
    """`SchemaError` for what is not the number of a group."""
    if type(group) is not int or not 0 <= group < MAX_GROUPS:
        raise SchemaError(
            "not the number of a group",
            feature=name,
            expected=f"0 to {MAX_GROUPS - 1}",
            got=repr_of(group, 50),
        )


def check_matches(name: str, what: str, text: object, pattern: re.Pattern[str]) -> None:
    """`SchemaError` for a text, such as a kind or a unit, that is not as it must be; None is."""
    if text is not None and not (isinstance(text, str) and pattern.fullmatch(text)):
        raise SchemaError(
            f"not a {what}",
            feature=name,
            expected=f"null, or {pattern.pattern}",
            got=repr_of(text),
        )


def check_value(name: str, value: object, dtype: np.dtype[Any], shape: object) -> None:
    """`SchemaError` for a kind of value that is none, or that such arrays do not hold."""
    if value not in get_args(ValueKind):
        raise SchemaError(
            "not a kind of value",
            feature=name,
            expected=f"one of {', '.join(get_args(ValueKind))}",
            got=repr_of(value, 50),
        )
    if value != "array" and (dtype.str != "|u1" or shape != (None,)):
        raise SchemaError(
            "text and bytes are not of this dtype and shape",
            feature=name,
            expected="|u1 [null]",
            got=f"{dtype.str} {shape}",
        )


def check_dtype(name: str, dtype: object) -> np.dtype[Any]:
    """The dtype as it is stored, little-endian; `SchemaError` for one that cannot be stored."""
    try:
        checked: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaError("not a dtype", feature=name, got=repr_of(dtype)) from error
    little = checked.newbyteorder("<")
    if little.str not in DTYPES:
        raise unstorable(name, str(checked)[:200])
    plain: np.dtype[Any] = np.dtype(little.str)  # without what NumPy may attach to a dtype
    return plain


def unstorable(name: str, got: str) -> SchemaError:
    """What is said of a dtype that cannot be stored."""
    return SchemaError(
        "a dtype that cannot be stored",
        feature=name,
        expected="bool, or integer, float or complex of at most 64 bits a part",
        got=got,
    )


def check_shape(name: str, shape: object) -> tuple[int | None, ...]:
    """The shape as integers, None for a variable dimension; `SchemaError` for another thing."""
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        raise SchemaError(
            "not a shape",
            feature=name,
            expected=f"up to {MAX_DIMENSIONS} dimensions",
            got=repr_of(shape),
        )
    for size in shape:
        if size is not None and (
            isinstance(size, bool)
            or not isinstance(size, (int, np.integer))
            or not 1 <= size < 2**31
        ):
            raise SchemaError(
                "not a dimension",
                feature=name,
                expected="1 to 2**31 - 1, or null",
                got=repr_of(size, 50),
            )
    return tuple(None if size is None else int(size) for size in shape)


def check_codec(name: str, codec: object) -> tuple[CodecConfig, ...]:
    """A copy of a chain of codecs; `SchemaError` for what is none."""
    if not isinstance(codec, tuple) or len(codec) > MAX_CODECS:
        raise SchemaError(
            f"not a chain of at most {MAX_CODECS} codecs", feature=name, got=repr_of(codec)
        )
    for config in codec:
        if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
            raise SchemaError("a codec is an object with an id", feature=name, got=repr_of(config))
    return tuple(dict(config) for config in codec)
