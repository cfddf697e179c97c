"""Files of a local disk or of anything mounted like one."""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError, NotFoundError, StorageError
from seqrecord.storage.base import FileInfo, Unfinished, Upload, check_buffers, check_path
from seqrecord.storage.local.folders import make_folder
from seqrecord.storage.local.handle import Handle
from seqrecord.storage.local.replacing import put_file, read_file
from seqrecord.storage.local.upload import (
    NOTES,
    PARTIAL,
    LocalUnfinished,
    LocalUpload,
    local_errors,
    with_suffix,
)
from seqrecord.storage.ranges import ByteRange
from seqrecord.text import repr_of

__all__ = ["LocalStorage"]

_MAX_HANDLES = 128
_MAX_PARTS = 512  # of a read: Linux takes 1,024


class LocalStorage:
    """Storage in a folder.

    Files are read with `preadv` through handles that stay open, up to `max_handles` of them. They
    are written under another name, then synced and renamed. Links that lead out of the folder are
    not followed, and what is not a regular file is not opened.

    Args:
        root: the folder.
        max_handles: files that are open at most, beside those that are being read.
    """

    has_conditions = True
    _shared = False  # whether other machines may write here too

    def __init__(self, root: str | os.PathLike[str], *, max_handles: int = _MAX_HANDLES) -> None:
        self.root = Path(root).absolute()
        try:
            self._real_root = os.path.realpath(self.root)
        except ValueError as error:
            raise LocationError(f"not a path: {error}", got=repr_of(str(root))) from error
        self._max_handles = max_handles
        # Not of a method: who drops the storage is to close its handles.
        self._handle = lru_cache(max_handles)(partial(_open, self.root, self._real_root))
        self._uploads: weakref.WeakSet[LocalUpload] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), max_handles=self._max_handles), (str(self.root),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def place(self) -> str:
        return str(self.root)

    def size(self, path: str) -> int:
        self._drop(path)  # reads that follow are of this file or of a newer one
        with self._errors(path):
            found = self._inside(path).stat()
            if not stat.S_ISREG(found.st_mode):
                raise StorageError("not a regular file", file=self._shown(path))
            return found.st_size

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        with self._errors(path):
            handle = self._handle(path)
            fd, preadv, begin = handle.fd, os.preadv, 0
            while begin < len(ranges):
                # What follows each other is read in one call. That is mostly enough, and this is
                # done for every few kilobytes of a batch.
                start, stop = ranges[begin]
                end = begin + 1
                while end < len(ranges) and ranges[end][0] == stop and end - begin < _MAX_PARTS:
                    stop = ranges[end][1]
                    end += 1
                if preadv(fd, buffers[begin:end], start) != stop - start:
                    for item, buffer in zip(ranges[begin:end], buffers[begin:end], strict=True):
                        handle.read(item, buffer.cast("B"), self._shown(path))
                begin = end

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        with self._errors(path):
            return read_file(self._inside(path), limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        with self._errors(path, writing=True):
            target = self._inside(path)
            make_folder(target.parent)
            put_file(target, data, expected, shared=self._shared)
        self._drop(path)
        with contextlib.suppress(OSError):  # the file is in place
            self._tidy()

    def files(self, folder: str) -> list[FileInfo]:
        return self._infos(folder, lambda name: not name.endswith((PARTIAL, NOTES)))

    def unfinished(self, folder: str) -> list[Unfinished]:
        found = self._infos(folder, lambda name: name.endswith(PARTIAL))
        return [
            LocalUnfinished(
                self, self.root, each.path.removesuffix(PARTIAL), each.modified, self._errors
            )
            for each in found
        ]

    def create(self, path: str) -> Upload:
        with self._errors(path, writing=True):
            target = self._inside(path)
            make_folder(target.parent)
            upload = LocalUpload(path, target)
        self._uploads.add(upload)
        return upload

    def remove(self, path: str) -> None:
        target = self.root / check_path(path)
        self._drop(path)
        with self._errors(path):
            for name in (with_suffix(target, NOTES), with_suffix(target, PARTIAL), target):
                name.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove what a kill leaves that hits between a rename and the removal of its notes."""
        for notes in self.root.glob(f"[!.]*/*{NOTES}"):
            # A writer makes the first note after the file that it is of.
            if not with_suffix(notes.with_suffix(""), PARTIAL).exists():
                notes.unlink(missing_ok=True)

    def local_path(self, path: str) -> str | None:
        return str(self._inside(path))

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._handle.cache_clear()
        for upload in list(self._uploads):
            upload.leave()

    def _infos(self, folder: str, is_meant: Callable[[str], bool]) -> list[FileInfo]:
        found = []
        try:
            with self._errors(folder), os.scandir(self._inside(folder)) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and is_meant(entry.name):
                        path = f"{folder}/{entry.name}"
                        with contextlib.suppress(NotFoundError):  # it has gone meanwhile
                            with self._errors(path):
                                about = entry.stat()
                            if stat.S_ISREG(about.st_mode):
                                found.append(FileInfo(path, about.st_size, about.st_mtime))
        except NotFoundError:
            return []
        return sorted(found, key=lambda each: each.path)

    def _errors(
        self, path: str, *, writing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """The system's errors as this package's, about a path."""
        return local_errors(self._shown(path), writing=writing)

    def _shown(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _drop(self, path: str) -> None:  # noqa: ARG002 - a mount does it by file
        self._handle.cache_clear()

    def _inside(self, path: str) -> Path:
        return _inside(self.root, self._real_root, path)


def _open(root: Path, real_root: str, path: str) -> Handle:
    return Handle(_inside(root, real_root, path))


def _inside(root: Path, real_root: str, path: str) -> Path:
    """Where a file lies; `StorageError` if that is outside of the folder."""
    target = root / check_path(path)
    real = os.path.realpath(target)
    if os.path.commonpath([real, real_root]) != real_root:
        raise StorageError(
            "a link leads out of the folder",
            file=str(target),
            expected=f"inside {real_root}",
            got=real,
        )
    return target
