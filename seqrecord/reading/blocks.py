"""Reads from a local disk block by block, and takes the checksum of what was read.

The processor's cache still holds a block when its checksum is taken, and memory is spared a
reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from seqrecord.checksum import crc32c
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange

__all__ = ["read_blocks"]

_BLOCK_BYTES = 2 << 20  # less would be many calls
_LONGEST_BLOCK = 16 << 20
_SLOW = 0.004  # seconds, many times what reading and summing a block takes


def read_blocks(storage: Storage, path: str, start: int, targets: Sequence[memoryview]) -> int:
    """Read a file from `start` on into `targets`, one after the other; the CRC32C of all.

    Where a block takes long, the next is longer. That is where another thread holds the GIL, which
    each call waits for, or where the disk is slow, and then it does no harm.
    """
    checksum, block = 0, _BLOCK_BYTES
    for target in targets:
        at = 0
        while at < len(target):
            part = target[at : at + block]
            begin = perf_counter()
            storage.read_ranges(path, [ByteRange(start, start + len(part))], [part])
            checksum = crc32c(part, start=checksum)
            if perf_counter() - begin > _SLOW:
                block = min(2 * block, _LONGEST_BLOCK)
            at, start = at + len(part), start + len(part)
    return checksum
