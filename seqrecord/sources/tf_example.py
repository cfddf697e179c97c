"""`tf.train.Example` and `tf.train.SequenceExample`: names to lists of bytes or numbers.

https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto and
example.proto. In both, a list of a name is one flat run of values; of a SequenceExample's feature
lists, one list a step, the steps' values are joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.sources.protobuf import BYTES, FIXED32, VARINT, fields, read_varint, varints

__all__ = ["Values", "parse_example", "parse_feature", "scan_example"]

Values: TypeAlias = "list[memoryview] | npt.NDArray[np.float32] | npt.NDArray[np.int64]"
"""What a feature holds: bytes, floats or integers."""

_HEAD_BYTES = 512  # of a map entry, enough for its sizes and its name


def parse_example(data: memoryview) -> dict[str, Values]:
    """All features of an Example or a SequenceExample; `ValueError` for what is neither."""
    found: dict[str, Values] = {}
    for number, kind, part in fields(data):
        if kind != BYTES or number not in (1, 2):
            continue
        assert isinstance(part, memoryview)
        for key, value in _entries(part):
            if key in found:
                raise ValueError(f"{key} is there twice")
            if number == 1:
                found[key] = parse_feature(value)
            else:
                steps = [v for n, k, v in fields(value) if n == 1 and k == BYTES]
                found[key] = _joined([parse_feature(s) for s in steps if isinstance(s, memoryview)])
    return found


def parse_feature(data: memoryview) -> Values:
    """One `tf.train.Feature`."""
    result: Values = []
    for number, kind, part in fields(data):
        if kind != BYTES or not isinstance(part, memoryview):
            continue
        if number == 1:
            result = [v for n, k, v in fields(part) if n == 1 and isinstance(v, memoryview)]
        elif number == 2:
            result = _floats(part)
        elif number == 3:
            result = _integers(part)
    return result


def scan_example(
    peek: Callable[[int, int], memoryview], offset: int, size: int, wanted: Callable[[str], bool]
) -> dict[str, memoryview]:
    """The encoded features of an Example that are `wanted` by name, without reading the others.

    `peek(offset, size)` reads bytes of the file in which the Example lies at `offset`. Features
    follow each other, so only their first bytes are read, and the whole of those that are wanted.
    Raises `ValueError` for bytes in another order than serializers write them.
    """
    found: dict[str, memoryview] = {}
    end = offset + size
    begin, length, position = _delimited(peek, offset, end)
    if begin + length != end:
        raise ValueError("not one message of features")
    position = begin
    while position < end:
        begin, length, _ = _delimited(peek, position, end)
        head = peek(begin, min(length, _HEAD_BYTES))
        tag, at = read_varint(head, 0)
        name_size, at = read_varint(head, at)
        name = bytes(head[at : at + name_size])
        at += name_size
        value_tag, at = read_varint(head, at)
        value_size, at = read_varint(head, at)
        if (tag, value_tag) != (0x0A, 0x12) or at + value_size != length:
            raise ValueError("not a name and a feature")
        key = name.decode()
        if wanted(key):
            found[key] = peek(begin + at, value_size)
        position = begin + length
    return found


def _delimited(
    peek: Callable[[int, int], memoryview], offset: int, end: int
) -> tuple[int, int, int]:
    """Where the value of field 1 at `offset` begins, its size, and where it ends."""
    head = peek(offset, 11)
    tag, at = read_varint(head, 0)
    size, at = read_varint(head, at)
    if tag != 0x0A or offset + at + size > end:
        raise ValueError(f"no field 1 at byte {offset}")
    return offset + at, size, offset + at + size


def _entries(data: memoryview) -> list[tuple[str, memoryview]]:
    """The entries of a map from text to messages."""
    entries = []
    for number, kind, part in fields(data):
        if number != 1 or kind != BYTES or not isinstance(part, memoryview):
            continue
        key, value = memoryview(b""), memoryview(b"")
        for n, _, v in fields(part):
            if n == 1 and isinstance(v, memoryview):
                key = v
            elif n == 2 and isinstance(v, memoryview):
                value = v
        entries.append((bytes(key).decode(), value))
    return entries


def _floats(part: memoryview) -> npt.NDArray[np.float32]:
    runs = []
    for number, kind, value in fields(part):
        if number == 1 and kind in (BYTES, FIXED32) and isinstance(value, memoryview):
            runs.append(np.frombuffer(value, "<f4"))  # packed, or one by one
    return np.concatenate(runs) if runs else np.empty(0, "<f4")


def _integers(part: memoryview) -> npt.NDArray[np.int64]:
    runs: list[npt.NDArray[np.int64]] = []
    for number, kind, value in fields(part):
        if number == 1 and kind == BYTES and isinstance(value, memoryview):
            runs.append(varints(value))
        elif number == 1 and kind == VARINT and isinstance(value, int):
            runs.append(np.array([value], np.uint64).view(np.int64))
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _joined(steps: list[Values]) -> Values:
    arrays = [step for step in steps if isinstance(step, np.ndarray)]
    if not arrays:
        return [value for step in steps if isinstance(step, list) for value in step]
    if any(isinstance(step, list) and step for step in steps):
        raise ValueError("a feature list of bytes and of numbers")
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("a feature list of floats and of integers")
    joined: Values = np.concatenate(arrays)  # type: ignore[assignment] # of one of the two dtypes
    return joined
