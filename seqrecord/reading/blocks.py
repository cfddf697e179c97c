"""Reads from a local disk block by block, and takes the checksums of what was read.

The processor's cache still holds a block when its checksum is taken, and memory is spared a
reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seqrecord.checksum import crc32c
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange

__all__ = ["Stretch", "read_blocks"]

_BLOCK_BYTES = 2 << 20  # less would be many calls


class Stretch(NamedTuple):
    """Bytes of a file from `start` on, and the memory that they go to, part after part."""

    start: int
    targets: Sequence[memoryview]


class _Part(NamedTuple):
    stretch: int  # its number
    item: ByteRange
    target: memoryview


def read_blocks(storage: Storage, path: str, stretches: Sequence[Stretch]) -> list[int]:
    """Read stretches of a file, one after the other; the CRC32C of each."""
    checksums = [0] * len(stretches)
    for block in _blocks(stretches):
        storage.read_ranges(path, [part.item for part in block], [part.target for part in block])
        for part in block:
            checksums[part.stretch] = crc32c(part.target, start=checksums[part.stretch])
    return checksums


def _blocks(stretches: Sequence[Stretch]) -> Iterator[list[_Part]]:
    """Parts of the stretches, together as many bytes of them as a block has."""
    block: list[_Part] = []
    room = _BLOCK_BYTES
    for number, (at, targets) in enumerate(stretches):
        start = at
        for target in targets:
            done = 0
            while done < len(target):
                size = min(room, len(target) - done)
                item = ByteRange(start + done, start + done + size)
                block.append(_Part(number, item, target[done : done + size]))
                done, room = done + size, room - size
                if not room:
                    yield block
                    block, room = [], _BLOCK_BYTES
            start += len(target)
    if block:
        yield block
