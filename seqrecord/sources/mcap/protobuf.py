"""The wire format of protocol buffers, as much as is needed to find fields in a message.

https://protobuf.dev/programming-guides/encoding/. A message is a run of fields, each a varint of
its number and type, then its value. Nothing is copied: values are parts of the message, which may
lie in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_MAX_VARINT = 10  # bytes of a 64-bit number


class Span(Protocol):
    """Bytes that need not be in memory, such as a `memoryview`, which are."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...

    def tobytes(self) -> bytes: ...


_Span = TypeVar("_Span", bound=Span)


def read_varint(data: Span, position: int) -> tuple[int, int]:
    """A varint at `position`, and the position behind it; `ValueError` where there is none."""
    value = 0
    for i, byte in enumerate(data[position : position + _MAX_VARINT].tobytes()):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + i + 1
    raise ValueError(f"no varint at byte {position}")


def fields(message: _Span) -> Iterator[tuple[int, int, int | _Span]]:
    """All fields in their order: number, type and value, an int for `VARINT`, else its bytes.

    Raises `ValueError` where the message breaks the rules.
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
            raise ValueError(f"a field of type {kind} at byte {position}")
        if size > end - position:
            raise ValueError(f"a field of {size} bytes at byte {position} of {end}")
        yield number, kind, message[position : position + size]
        position += size


def varints(data: memoryview) -> npt.NDArray[np.int64]:
    """All numbers of a packed field of type int64; raises `ValueError` for a broken one."""
    encoded = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(encoded < 0x80)
    if len(encoded) and (not len(ends) or ends[-1] != len(encoded) - 1):
        raise ValueError("packed numbers that end in the middle of one")
    if len(ends) == len(encoded):  # all below 128, as flags are
        return encoded.astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - begins
    if lengths.max() > _MAX_VARINT:
        raise ValueError(f"a number of more than {_MAX_VARINT} bytes")
    values = np.zeros(len(ends), np.uint64)
    for i in range(int(lengths.max())):
        has = lengths > i
        byte = (encoded[begins[has] + i] & 0x7F).astype(np.uint64)
        values[has] |= byte << np.uint64(7 * i)
    return values.view(np.int64)
