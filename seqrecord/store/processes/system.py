"""Calls of the operating system that macOS lacks, or has under other names."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_STEP = 1 << 20


def sync(fd: int) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power loss."""
    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        with suppress(OSError):  # a file system that lacks it
            fcntl.fcntl(fd, full)  # `fsync` of macOS leaves them in the cache of the drive
            return
    os.fsync(fd)


def reserve(fd: int, size: int) -> None:
    """Reserve disk space for `size` bytes of a file; raises `OSError` if there is too little.

    The file gets this size and keeps its bytes. Without it, a full disk is a signal at a write into
    mapped memory.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for offset in range(0, size, _STEP):
        length = min(_STEP, size - offset)
        data = memoryview(os.pread(fd, length, offset).ljust(length, b"\0"))
        while data:
            data = data[os.pwrite(fd, data, offset + length - len(data)) :]
