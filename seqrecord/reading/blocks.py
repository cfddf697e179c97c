"""Reads from a local disk block by block, and takes the checksums of what was read.

The processor's cache still holds a block when its checksum is taken, and memory is spared a
reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from seqrecord.checksum import crc32c
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange

__all__ = ["Stretch", "read_blocks"]

_BLOCK_BYTES = 2 << 20  # less would be many calls
_LONGEST_BLOCK = 64 << 20
_SLOW = 0.004  # seconds, many times what reading and summing a block takes,
_SPEED = 4e9  # … and so many bytes a second more for long ones
_QUICK_BYTES = 4 << 20  # summed with the GIL, where to get it back takes longer

_usual = _BLOCK_BYTES  # how long the blocks of the last call were


class Stretch(NamedTuple):
    """Bytes of a file from `start` on, and the memory that they go to, part after part."""

    start: int
    targets: Sequence[memoryview]


class _Part(NamedTuple):
    stretch: int  # its number
    item: ByteRange
    target: memoryview


def read_blocks(storage: Storage, path: str, stretches: Sequence[Stretch]) -> list[int]:
    """Read stretches of a file, one after the other; the CRC32C of each.

    Where a block takes long, the next is longer, in this call and in those after it. That is where
    another thread holds the GIL, which each call waits for, or where the disk is slow, and then it
    does no harm. A block may be of several stretches.
    """
    global _usual
    checksums, block = [0] * len(stretches), _usual
    number, at = 0, 0  # part, and how many of its bytes are read
    parts = list(_parts(stretches))
    while number < len(parts):
        some: list[_Part] = []
        room = block
        while number < len(parts) and room:
            stretch, (start, stop), target = parts[number]
            start += at
            stop = min(stop, start + room)
            some.append(_Part(stretch, ByteRange(start, stop), target[at : at + stop - start]))
            room -= stop - start
            at += stop - start
            if at == len(target):
                number, at = number + 1, 0
        begin = perf_counter()
        storage.read_ranges(path, [part.item for part in some], [part.target for part in some])
        quick = _QUICK_BYTES if block > _BLOCK_BYTES else None
        for part in some:
            before = checksums[part.stretch]
            checksums[part.stretch] = crc32c(part.target, start=before, quick=quick)
        seconds = perf_counter() - begin - (block - room) / _SPEED
        if seconds > _SLOW:
            block = min(2 * block, _LONGEST_BLOCK)
        elif seconds < _SLOW / 2:
            block = max(block // 2, _BLOCK_BYTES)
    _usual = block
    return checksums


def _parts(stretches: Sequence[Stretch]) -> Iterator[_Part]:
    """The parts that are not empty."""
    for number, (start, targets) in enumerate(stretches):
        stop = start
        for target in targets:
            start, stop = stop, stop + len(target)
            if start < stop:
                yield _Part(number, ByteRange(start, stop), target)
