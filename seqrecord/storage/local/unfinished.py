"""Uploads that have not ended, as anyone may see them: `<path>.partial` and `<path>.notes`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqrecord.errors import StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import Storage
from seqrecord.storage.local.upload import NOTES, PARTIAL, local_errors

__all__ = ["LocalUnfinished"]

_MAX_LINE = (1 << 26) + 1000  # characters: the largest footer, 2^25 bytes, in hexadecimal


class LocalUnfinished:
    """What is there of a file that is being written, or whose writer was killed; see `Unfinished`.

    It is read through the storage in which it lies, whose folder is `root`.
    """

    def __init__(self, storage: Storage, root: Path, path: str, modified: float) -> None:
        self.path = path
        self.modified = modified
        self._storage = storage
        self._notes = root / (path + NOTES)
        self._partial = root / (path + PARTIAL)

    def checkpoints(self) -> list[tuple[int, bytes]]:
        # First the notes: bytes are written before their note.
        with local_errors(str(self._notes)):
            notes = list(_read_notes(self._notes))
        size = self._storage.size(self.path + PARTIAL)
        # A note of more bytes than there are: the machine went down before they were on disk.
        return [(end, note) for end, note in notes if end <= size]

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        self._storage.read_ranges(self.path + PARTIAL, ranges, buffers)

    def remove(self) -> None:
        with local_errors(str(self._partial)):
            self._notes.unlink(missing_ok=True)
            self._partial.unlink(missing_ok=True)


def _read_notes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Notes up to the first that was not written whole."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError("not a regular file", file=str(path))
        with open(fd, encoding="ascii", errors="replace", closefd=False) as file:
            while line := file.readline(_MAX_LINE):
                try:
                    entry = json.loads(line)
                    yield int(entry["size"]), bytes.fromhex(entry["note"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    return
    finally:
        os.close(fd)
