"""CRC32C (RFC 3720, Castagnoli), the checksum of every stored byte that is read."""

from __future__ import annotations

from typing import TypeAlias

import google_crc32c
import numpy as np

__all__ = ["Buffer", "crc32c"]

Buffer: TypeAlias = bytes | bytearray | memoryview


def crc32c(*parts: Buffer, start: int = 0) -> int:
    """CRC32C of the parts as if they were joined; each is C-contiguous.

    `start` is the checksum of what comes before them.
    """
    value = start
    for part in parts:
        # The C extension refuses writable buffers, but takes any NumPy array.
        value = google_crc32c.extend(value, np.frombuffer(part, np.uint8) if len(part) else b"")
    return value
