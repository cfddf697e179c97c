"""An open file."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from seqrecord.errors import StorageError, TransientError
from seqrecord.storage.base import short_read
from seqrecord.storage.ranges import ByteRange

__all__ = ["Handle"]


class Handle:
    """A regular file that is open for reading; it is closed with its last use."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.fd = -1
        # Opening a pipe would otherwise wait for its other end.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise StorageError("not a regular file", file=str(path))

    def read(self, item: ByteRange, buffer: memoryview, shown: str) -> None:
        """Fill `buffer`, of bytes. `TransientError` if the file ends before its size says so."""
        done = 0
        while done < item.length:
            rest = buffer[done:] if done else buffer
            count = os.preadv(self.fd, [rest], item.start + done)
            if count == 0:
                if os.fstat(self.fd).st_size >= item.stop:
                    raise TransientError("a read ended early", file=shown, got=done)
                raise short_read(shown, item, done)
            done += count

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # of a dead mount; the descriptor is gone even so
                os.close(fd)

    def __del__(self) -> None:
        self.close()
