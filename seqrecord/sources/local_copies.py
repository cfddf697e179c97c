"""Temporary copies of originals on a URL, for libraries that read files of a disk alone."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from seqrecord.errors import StorageError

__all__ = ["LocalCopy"]

_PIECE_BYTES = 4 << 20


class LocalCopy:
    """A temporary file with the `size` bytes of `file`, removed when nobody holds this object.

    Raises `StorageError` where the folder for temporary files has no room: that is no matter of
    the original.
    """

    def __init__(self, original: Path, file: io.RawIOBase, size: int) -> None:
        self.original = original
        folder = tempfile.gettempdir()
        if (free := shutil.disk_usage(folder).free) < size:
            raise _no_room(folder, size, f"{free} bytes free")
        number, path = tempfile.mkstemp(prefix="seqrecord-", suffix=original.suffix)
        self.path = Path(path)
        self.remove = weakref.finalize(self, _removed, path)
        file.seek(0)
        left = size
        with os.fdopen(number, "wb", buffering=0) as copy:
            while left and (piece := file.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                try:
                    copy.write(piece)
                except OSError as error:
                    raise _no_room(folder, size, error.strerror or str(error)) from error


def _no_room(folder: str, size: int, got: str) -> StorageError:
    return StorageError(
        "an original on a URL cannot be copied to the folder for temporary files (TMPDIR)",
        file=folder,
        expected=f"room for {size} bytes",
        got=got,
    )


def _removed(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - a finalizer keeps no more than text
