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
_SLOW = 0.004  # seconds, many times what reading and summing a block takes,
_SPEED = 4e9  # … and so many bytes a second more for long ones

_usual = _BLOCK_BYTES  # how long the blocks of the last call were


def read_blocks(storage: Storage, path: str, start: int, targets: Sequence[memoryview]) -> int:
    """Read a file from `start` on into `targets`, one after the other; the CRC32C of all.

    Where a block takes long, the next is longer, in this call and in those after it. That is where
    another thread holds the GIL, which each call waits for, or where the disk is slow, and then it
    does no harm.
    """
    global _usual
    checksum, block = 0, _usual
    for target in targets:
        at = 0
        while at < len(target):
            part = target[at : at + block]
            begin = perf_counter()
            storage.read_ranges(path, [ByteRange(start, start + len(part))], [part])
            checksum = crc32c(part, start=checksum)
            seconds = perf_counter() - begin - len(part) / _SPEED
            if seconds > _SLOW:
                block = min(2 * block, _LONGEST_BLOCK)
            elif seconds < _SLOW / 2:
                block = max(block // 2, _BLOCK_BYTES)
            at, start = at + len(part), start + len(part)
    _usual = block
    return checksum
