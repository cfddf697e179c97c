"""Small files that a writer writes whole: of the index, of edits, and notes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType

from seqrecord.checksum import crc32c
from seqrecord.errors import StorageError, TransientError
from seqrecord.format.manifest import EDITS, IndexFile
from seqrecord.storage import Storage

__all__ = ["SmallFiles", "put_file", "tidy"]

_logger = logging.getLogger("seqrecord")


class SmallFiles:
    """The small files that one writer writes for a commit; a context manager.

    If the block raises, they are removed, unless a manifest may name them: from `keep` on they
    stay, until `forget` says that no manifest can name them but perhaps those that it is given.
    After a `TransientError` only edits are removed: it would be waited for each file.
    """

    def __init__(self, storage: Storage, writer: str) -> None:
        self.storage, self.writer = storage, writer
        self._paths: list[str] = []
        self._is_kept = False

    def put(self, path: str, data: bytes | memoryview) -> IndexFile:
        """Write a file under a name that nobody else uses, and which nothing names yet."""
        self._paths.append(path)
        return put_file(self.storage, path, data)

    def keep(self) -> None:
        """A manifest that names the files may be there from now on."""
        self._is_kept = True

    def forget(self, named: Iterable[str] = ()) -> None:
        """No manifest names the files, and none ever will, but those that are `named`."""
        spared = set(named)
        self._paths = [path for path in self._paths if path not in spared]
        self._is_kept = False

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._is_kept:
            return
        if isinstance(error, TransientError):
            self._paths = [path for path in self._paths if path.startswith(f"{EDITS}/")]
        tidy(self.storage, self._paths)


def put_file(storage: Storage, path: str, data: bytes | memoryview) -> IndexFile:
    """Write a file under a name that nobody else uses, and which nothing names yet."""
    upload = storage.create(path)
    try:
        upload.write(data)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return IndexFile(path, len(memoryview(data).cast("B")), f"{crc32c(data):08x}")


def tidy(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that nothing needs. One that cannot be removed is logged, and stays.

    Nor are those after it removed where the storage does not answer.
    """
    for path in paths:
        try:
            storage.remove(path)
        except StorageError as error:
            _logger.warning(
                "%s/%s is not needed but cannot be removed: %s", storage.url, path, error
            )
            if isinstance(error, TransientError):
                return
