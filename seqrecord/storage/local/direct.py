"""Reads that pass the page cache by, for datasets that would not fit into it.

Filling the page cache costs the kernel several times what copying from it does, and is of no use
to an epoch that comes back to a page when it has long been evicted. With O_DIRECT the disk writes
to memory of ours: a small block that is copied while it is in the processor's cache.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np

from seqrecord.ranges import ByteRange
from seqrecord.storage.base import short_read

__all__ = ["ALIGNMENT", "half_of_memory", "open_direct", "read_direct"]

ALIGNMENT = 4096  # of offsets, lengths and memory; no disk asks for more
BLOCK_BYTES = 1 << 20  # of one read: long enough for the disk, short enough for the cache

_blocks = threading.local()


def open_direct(path: Path) -> int:
    """A descriptor for `read_direct`, -1 where the filesystem has no such reads."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
    except (OSError, AttributeError):
        return -1


def read_direct(fd: int, shown: str, item: ByteRange, buffer: memoryview) -> None:
    """Fill `buffer`, of bytes, with a range of any alignment."""
    block: mmap.mmap | None = getattr(_blocks, "block", None)
    if block is None:
        block = _blocks.block = mmap.mmap(-1, BLOCK_BYTES)  # begins at a page
    source, target = np.frombuffer(block, np.uint8), np.frombuffer(buffer, np.uint8)
    done = 0
    while done < item.length:
        at = item.start + done
        skipped = at % ALIGNMENT
        wanted = min(BLOCK_BYTES, -(-(skipped + item.length - done) // ALIGNMENT) * ALIGNMENT)
        got = os.preadv(fd, [source[:wanted].data], at - skipped)
        count = min(got - skipped, item.length - done)
        if count <= 0:
            raise short_read(shown, item, done)
        np.copyto(target[done : done + count], source[skipped : skipped + count])  # without the GIL
        done += count


def half_of_memory() -> int:
    """Bytes: what a page cache can be trusted to hold beside a training."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
