"""Minimal reader of the protocol buffer wire format.

https://protobuf.dev/programming-guides/encoding/. A message is a sequence of fields: a varint of
number and type, then the value. Values are slices of the message, without copies; the message may
be a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# Own reader of the wire format: the package protobuf needs compiled schemas, and reads a message
# as a whole. tests/formats/test_rlds.py has test_only_selected_features_of_an_example_are_copied.
_MAX_VARINT = 10  # bytes of a 64-bit number


class Span(Protocol):
    """Bytes in memory, such as a `memoryview`, or in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...

    def tobytes(self) -> bytes: ...


_Span = TypeVar("_Span", bound=Span)


def read_varint(data: Span, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it. Raises `ValueError` if invalid."""
    value = 0
    for i, byte in enumerate(data[position : position + _MAX_VARINT].tobytes()):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + i + 1
    raise ValueError(f"invalid varint at byte {position}")


def fields(message: _Span) -> Iterator[tuple[int, int, int | _Span]]:
    """Yield all fields in order: number, type and value, an int for `VARINT`, else bytes.

    Raises `ValueError` for an invalid message.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = read_varint(message, position)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, position = read_varint(message, position)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"unknown field type {kind} at byte {position}")
        if size > end - position:
            raise ValueError(f"field of {size} bytes at byte {position} exceeds {end} bytes")
        yield number, kind, message[position : position + size]
        position += size


def varints(data: memoryview) -> npt.NDArray[np.int64]:
    """Return all numbers of a packed int64 field. Raises `ValueError` if it is invalid."""
    encoded = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(encoded < 0x80)
    if len(encoded) and (not len(ends) or ends[-1] != len(encoded) - 1):
        raise ValueError("truncated packed numbers")
    if len(ends) == len(encoded):  # all below 128, such as flags
        return encoded.astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - begins
    if lengths.max() > _MAX_VARINT:
        raise ValueError(f"varint of more than {_MAX_VARINT} bytes")
    values = np.zeros(len(ends), np.uint64)
    for i in range(int(lengths.max())):
        has = lengths > i
        byte = (encoded[begins[has] + i] & 0x7F).astype(np.uint64)
        values[has] |= byte << np.uint64(7 * i)
    return values.view(np.int64)
