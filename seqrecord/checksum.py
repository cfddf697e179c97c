"""CRC32C (RFC 3720, Castagnoli), the checksum of every stored byte that is read."""

from __future__ import annotations

from typing import TypeAlias

from crc32c import crc32c as extend

__all__ = ["Buffer", "crc32c"]

Buffer: TypeAlias = bytes | bytearray | memoryview


def crc32c(*parts: Buffer, start: int = 0) -> int:
    """CRC32C of the parts as if they were joined; each is C-contiguous.

    `start` is the checksum of what comes before them.
    """
    value = start
    for part in parts:
        value = extend(part, value)  # without the GIL where a part is large
    return value
