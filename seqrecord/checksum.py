"""CRC32C (RFC 3720, Castagnoli), the checksum of every stored byte that is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from crc32c import crc32c as extend
from crc32c import hardware_based

Buffer: TypeAlias = bytes | bytearray | memoryview

_SMALL = (1 << 20) if hardware_based else (1 << 15)


def crc32c(*parts: Buffer, start: int = 0) -> int:
    """CRC32C of the parts as if they were joined; each is C-contiguous.

    `start` is the checksum of what comes before them. Small parts are summed with the GIL: to get
    it back would take longer.
    """
    value = start
    for part in parts:
        value = extend(part, value, len(part) > _SMALL)
    return value


def combined_crc32c(checksums: Sequence[int], size: int, last_size: int) -> int:
    """CRC32C of parts as if they were joined, from their own checksums alone.

    All parts have `size` bytes but the last, which has `last_size`. As zlib's `crc32_combine`: the
    checksum of A and B is that of A, moved by the length of B, xor that of B; to move it by a
    number of bytes is a linear map over GF(2).
    """
    value = 0
    for number, checksum in enumerate(checksums):
        columns = _shift(last_size if number == len(checksums) - 1 else size)
        value = _times(columns, value) ^ checksum
    return value


_POLYNOMIAL = 0x82F63B78  # of Castagnoli, bits reversed


@lru_cache(maxsize=64)
def _shift(num_bytes: int) -> tuple[int, ...]:
    """What becomes of each of a checksum's 32 bits when so many zero bytes follow."""
    square = (_POLYNOMIAL, *(1 << bit for bit in range(31)))  # by one bit
    columns = tuple(1 << bit for bit in range(32))
    count = 8 * num_bytes
    while count:
        if count & 1:
            columns = tuple(_times(square, column) for column in columns)
        square = tuple(_times(square, column) for column in square)
        count >>= 1
    return columns


def _times(columns: Sequence[int], value: int) -> int:
    result = 0
    for bit in range(32):
        if value >> bit & 1:
            result ^= columns[bit]
    return result
