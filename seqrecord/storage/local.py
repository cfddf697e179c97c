"""Files of a local disk or of anything mounted like one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqrecord.checksum import Buffer
from seqrecord.errors import DestinationError, NotFoundError, StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import CutUpload, Lock, Upload, check_path, short_read

__all__ = ["LocalStorage"]

_MAX_HANDLES = 128  # open files kept; least recently used are closed
_PARTIAL = ".partial"
_NOTES = ".notes"
_LOCK = ".lock"


class LocalStorage:
    """Storage in a folder.

    Files are read with `preadv` through handles that stay open. They are written under another
    name, then synced and renamed. Links that lead out of the folder are not followed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._real_root = os.path.realpath(self.root)
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStorage, (str(self.root),)

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    @property
    def url(self) -> str:
        return str(self.root)

    def size(self, path: str) -> int:
        with _errors(self._shown(path)):
            return os.fstat(self._handle(path).fd).st_size

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        shown = self._shown(path)
        with _errors(shown):
            handle = self._handle(path)
            for item, buffer in zip(ranges, buffers, strict=True):
                _read_exactly(handle.fd, shown, item, buffer)

    def create(self, path: str, *, replace: bool = False) -> Upload:
        target = self._target(path)
        with _errors(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            return _LocalUpload(path, target, replace=replace)

    def list_files(self, folder: str) -> list[str]:
        return [path for path in self._names(folder) if not path.endswith((_PARTIAL, _NOTES))]

    def remove(self, path: str) -> None:
        with self._lock:
            self._handles.pop(path, None)
        target = self._target(path)
        with _errors(str(target)):
            for name in (target, _with_suffix(target, _PARTIAL), _with_suffix(target, _NOTES)):
                name.unlink(missing_ok=True)

    def interrupted(self, folder: str) -> list[str]:
        names = self._names(folder)
        return [path.removesuffix(_PARTIAL) for path in names if path.endswith(_PARTIAL)]

    def reopen(self, path: str) -> CutUpload:
        target = self._target(path)
        with _errors(str(target)):
            upload = _LocalUpload(path, target, replace=False, reopen=True)
        # A note of more bytes than there are: the machine went down before they were on disk.
        notes = _read_notes(_with_suffix(target, _NOTES))
        checkpoints = [(size, note) for note, size in notes if size <= upload.tell()]
        return CutUpload(upload, path + _PARTIAL, checkpoints)

    def lock(self) -> Lock:
        with _errors(self.url):
            self.root.mkdir(parents=True, exist_ok=True)
            return _LocalLock(self.root / _LOCK)

    def local_path(self, path: str) -> str | None:
        self._check_inside(self._target(path))
        return str(self._target(path))

    def close(self) -> None:
        with self._lock:
            self._handles.clear()

    def _names(self, folder: str) -> list[str]:
        target = self._target(folder)
        with _errors(str(target)):
            try:
                with os.scandir(target) as entries:
                    names = [entry.name for entry in entries if entry.is_file()]
            except FileNotFoundError:
                return []
        return sorted(f"{folder}/{name}" for name in names if not name.startswith("."))

    def _target(self, path: str) -> Path:
        return self.root / check_path(path)

    def _shown(self, path: str) -> str:
        return str(self.root / path)

    def _handle(self, path: str) -> _Handle:
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)
                return handle
        target = self._target(path)
        self._check_inside(target)
        handle = _Handle(target)
        with self._lock:
            # A reader that still uses an evicted handle keeps it open until it is done.
            handle = self._handles.setdefault(path, handle)
            while len(self._handles) > _MAX_HANDLES:
                self._handles.popitem(last=False)
        return handle

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
    """An open file descriptor that closes with its last reference."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _LocalUpload:
    """Writes beside its target; checkpoints go to a file of notes, one JSON line each."""

    def __init__(self, path: str, target: Path, *, replace: bool, reopen: bool = False) -> None:
        self.path = path
        self._target = target
        self._replace = replace
        self._partial = _with_suffix(target, _PARTIAL)
        self._notes = _with_suffix(target, _NOTES)
        if not reopen:
            self._notes.unlink(missing_ok=True)
        self._file = self._partial.open("r+b" if reopen else "w+b", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with _errors(str(self._target)):
            while view:
                written = self._file.write(view)
                self._size += written
                view = view[written:]

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        line = json.dumps({"size": self._size, "note": note.hex()}) + "\n"
        with _errors(str(self._notes)), self._notes.open("a", encoding="ascii") as file:
            file.write(line)

    def rewind(self, offset: int) -> bool:
        with _errors(str(self._target)):
            self._file.truncate(offset)
            self._size = self._file.seek(offset)
        return True

    def commit(self) -> None:
        with _errors(str(self._target)):
            os.fsync(self._file.fileno())
            self._file.close()
            if self._replace:
                self._partial.replace(self._target)
            else:
                _rename_new(self._partial, self._target)
            _sync_folder(self._target.parent)
            self._notes.unlink(missing_ok=True)

    def abort(self) -> None:
        if self._file.closed:
            return
        self._file.close()
        with _errors(str(self._target)):
            self._partial.unlink(missing_ok=True)
            self._notes.unlink(missing_ok=True)


class _LocalLock:
    """An advisory lock, which the kernel takes back when the process ends."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DestinationError(
                    "another writer is at work on this destination", file=str(path.parent)
                ) from None
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read_exactly(fd: int, shown: str, item: ByteRange, buffer: memoryview) -> None:
    if buffer.nbytes != item.length:
        raise ValueError(f"{item.length} bytes do not go into a buffer of {buffer.nbytes}")
    done = 0
    while done < item.length:
        count = os.preadv(fd, [buffer[done:]], item.start + done)
        if count == 0:
            raise short_read(shown, item, done)
        done += count


def _read_notes(path: Path) -> Iterator[tuple[bytes, int]]:
    """Notes up to the first that was not written whole."""
    if not path.exists():
        return
    with path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
                yield bytes.fromhex(entry["note"]), int(entry["size"])
            except (ValueError, KeyError, TypeError):
                return


def _rename_new(source: Path, target: Path) -> None:
    """Rename without replacing: a hard link is the portable way that fails if `target` exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise DestinationError("the file exists already", file=str(target)) from None
    except OSError:  # no hard links on this mount
        if target.exists():
            raise DestinationError("the file exists already", file=str(target)) from None
        source.rename(target)
        return
    source.unlink()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some mounts cannot sync a folder; they make renames durable on their own.
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextlib.contextmanager
def _errors(file: str) -> Iterator[None]:
    """The system's errors as this package's."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError("no such file", file=file) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(error.strerror or str(error), file=file) from error
