"""Temporary files without a name that are written again and again.

Most of the cost of a temporary file is in its pages: the system finds memory for each when it is
first written, and takes it back when the file is closed. A file that is written again costs a tenth
(836 MB took 0.06 s of a CPU where a new file took 0.5 to 2).
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import weakref
from typing import IO

from seqrecord.forks import PerProcess

__all__ = ["SPARE_FILES", "Hold", "SpareFiles"]

_MOST = 2  # of a writer, one is sent while the next is written


class SpareFiles:
    """Keeps files that are given back while there is a `Hold`; the end of the last closes them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may come in the middle
        self._files: list[IO[bytes]] = []
        self._holds = 0

    def take(self) -> IO[bytes]:
        """A file to be written from its start; what lies behind that is of no meaning."""
        with self._lock:
            if self._files:
                return self._files.pop()
        return tempfile.TemporaryFile(buffering=0)

    def give_back(self, file: IO[bytes]) -> None:
        """Keep a file for the next `take`, or close it."""
        with self._lock, contextlib.suppress(OSError):
            if self._holds and len(self._files) < _MOST:
                file.seek(0)
                self._files.append(file)
                return
        file.close()

    def hold(self) -> None:
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        files: list[IO[bytes]] = []
        with self._lock:
            self._holds -= 1
            if not self._holds:
                files, self._files = self._files, []
        for file in files:
            file.close()


SPARE_FILES = PerProcess(SpareFiles)


class Hold:
    """Has the files of this process kept until it is released or collected."""

    def __init__(self, spare_files: SpareFiles | None = None) -> None:
        spare_files = spare_files or SPARE_FILES.get()
        spare_files.hold()
        self.release = weakref.finalize(self, spare_files.release)
