"""CRC32C (RFC 3720, Castagnoli), the checksum of pages, footers, indexes and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from crc32c import crc32c as extend
from crc32c import hardware_based

Buffer: TypeAlias = bytes | bytearray | memoryview

_SMALL = (1 << 20) if hardware_based else (1 << 15)


def crc32c(*parts: Buffer, start: int = 0) -> int:
    """CRC32C of the concatenated `parts`, which are C-contiguous buffers.

    `start` is the checksum of the bytes before them. The GIL is released for large parts only,
    because releasing it costs more time than a small sum.
    """
    value = start
    for part in parts:
        value = extend(part, value, len(part) > _SMALL)
    return value


def combined_crc32c(checksums: Sequence[int], size: int, last_size: int) -> int:
    """CRC32C of concatenated parts, computed from the parts' checksums without their bytes.

    Each part has `size` bytes, the last one `last_size`. The method is that of zlib's
    `crc32_combine`: crc(A + B) = shift(crc(A), len(B)) xor crc(B), where `shift`, by a number of
    zero bytes, is a linear map over GF(2).
    """
    value = 0
    for number, checksum in enumerate(checksums):
        columns = _shift(last_size if number == len(checksums) - 1 else size)
        value = _times(columns, value) ^ checksum
    return value


_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed


@lru_cache(maxsize=64)
def _shift(num_bytes: int) -> tuple[int, ...]:
    """Matrix over GF(2), as 32 columns, that appends `num_bytes` zero bytes to a checksum."""
    square = (_POLYNOMIAL, *(1 << bit for bit in range(31)))  # appends one zero bit
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
