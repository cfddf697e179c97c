"""Files of a local disk or of anything mounted like one."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError, NotFoundError, StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import (
    FileInfo,
    Unfinished,
    Upload,
    check_buffers,
    check_path,
    short_read,
)
from seqrecord.storage.local.folders import make_folder
from seqrecord.storage.local.replacing import put_file, read_file
from seqrecord.storage.local.unfinished import LocalUnfinished
from seqrecord.storage.local.upload import NOTES, PARTIAL, LocalUpload, local_errors, with_suffix

__all__ = ["LocalStorage"]

_MAX_HANDLES = 128  # open files kept; least recently used are closed

# One for all storages, so that a fork can wait until no thread holds it. Reentrant, since garbage
# that is collected while it is held may close a storage.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class LocalStorage:
    """Storage in a folder.

    Files are read with `preadv` through handles that stay open. They are written under another
    name, then synced and renamed. Links that lead out of the folder are not followed, and what is
    not a regular file is not opened.

    Args:
        root: the folder.
    """

    _shared = False  # whether other machines may write here too

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        try:
            self._real_root = os.path.realpath(self.root)
        except ValueError as error:
            raise LocationError(f"not a path: {error}", got=repr(str(root))[:200]) from error
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._uploads: weakref.WeakSet[LocalUpload] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStorage, (str(self.root),)

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def place(self) -> str:
        return str(self.root)

    def size(self, path: str) -> int:
        with self._errors(path):
            handle = self._open(path)
            self._keep(path, handle)
            return os.fstat(handle.fd).st_size

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        shown = self._shown(path)
        with self._errors(path):
            with _lock:
                handle = self._handles.get(path)
                if handle is not None:
                    self._handles.move_to_end(path)
            if handle is None:
                handle = self._open(path)
                self._keep(path, handle)
            for item, buffer in zip(ranges, buffers, strict=True):
                _read_exactly(handle.fd, shown, item, buffer.cast("B"))

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        target = self._target(path)
        with self._errors(path):
            self._check_inside(target)
            return read_file(target, limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        target = self._target(path)
        with self._errors(path, writing=True):
            self._check_inside(target)
            make_folder(target.parent)
            put_file(target, data, expected, shared=self._shared)
            self._tidy()
        self._drop(path)

    def files(self, folder: str) -> list[FileInfo]:
        return self._infos(folder, lambda name: not name.endswith((PARTIAL, NOTES)))

    def unfinished(self, folder: str) -> list[Unfinished]:
        found = self._infos(folder, lambda name: name.endswith(PARTIAL))
        return [
            LocalUnfinished(self, self.root, each.path.removesuffix(PARTIAL), each.modified)
            for each in found
        ]

    def create(self, path: str) -> Upload:
        target = self._target(path)
        with self._errors(path, writing=True):
            self._check_inside(target)
            make_folder(target.parent)
            upload = LocalUpload(path, target)
        with _lock:
            self._uploads.add(upload)
        return upload

    def remove(self, path: str) -> None:
        target = self._target(path)
        self._drop(path)
        with self._errors(path):
            for name in (with_suffix(target, NOTES), with_suffix(target, PARTIAL), target):
                name.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove what a kill leaves that hits between a rename and the removal of its notes."""
        for notes in self.root.glob(f"*/*{NOTES}"):
            # A writer makes the first note after the file that it is of.
            if not with_suffix(notes.with_suffix(""), PARTIAL).exists():
                notes.unlink(missing_ok=True)

    def local_path(self, path: str) -> str | None:
        self._check_inside(self._target(path))
        return self._shown(path)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        with _lock:
            dropped, uploads = list(self._handles.values()), list(self._uploads)
            self._handles.clear()
            self._uploads.clear()
        del dropped
        for upload in uploads:
            upload.leave()

    def _infos(self, folder: str, is_meant: Callable[[str], bool]) -> list[FileInfo]:
        target = self._target(folder)
        found = []
        try:
            with self._errors(folder):
                self._check_inside(target)
                with os.scandir(target) as entries:
                    for entry in entries:
                        if not entry.name.startswith(".") and is_meant(entry.name):
                            found += _info(folder, entry)
        except NotFoundError:
            return []
        return sorted(found, key=lambda each: each.path)

    def _errors(
        self, path: str, *, writing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """The system's errors as this package's, about a path."""
        return local_errors(self._shown(path), writing=writing)

    def _target(self, path: str) -> Path:
        return self.root / check_path(path)

    def _shown(self, path: str) -> str:
        return str(self.root / path)

    def _open(self, path: str) -> _Handle:
        target = self._target(path)
        self._check_inside(target)
        return _Handle(target)

    def _drop(self, path: str) -> None:
        with _lock:
            dropped = self._handles.pop(path, None)
        del dropped  # closed outside the lock

    def _keep(self, path: str, handle: _Handle) -> None:
        # A reader that still uses a dropped handle keeps it open until it is done.
        dropped = []
        with _lock:
            dropped.append(self._handles.pop(path, None))
            self._handles[path] = handle
            while len(self._handles) > _MAX_HANDLES:
                dropped.append(self._handles.popitem(last=False)[1])

    def _check_inside(self, target: Path) -> None:
        real = os.path.realpath(target)
        if os.path.commonpath([real, self._real_root]) != self._real_root:
            raise StorageError(
                "a link leads out of the folder",
                file=str(target),
                expected=f"inside {self._real_root}",
                got=real,
            )


class _Handle:
    """An open file; closes with its last use."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        # Opening a pipe would otherwise wait for its other end.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise StorageError("not a regular file", file=str(path))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _info(folder: str, entry: os.DirEntry[str]) -> list[FileInfo]:
    """The one file, or none where it has gone meanwhile or is none."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return []
    if not stat.S_ISREG(found.st_mode):
        return []
    return [FileInfo(f"{folder}/{entry.name}", found.st_size, found.st_mtime)]


def _read_exactly(fd: int, shown: str, item: ByteRange, buffer: memoryview) -> None:
    done = 0
    while done < item.length:
        count = os.preadv(fd, [buffer[done:]], item.start + done)
        if count == 0:
            raise short_read(shown, item, done)
        done += count
