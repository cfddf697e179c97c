"""Files of any filesystem that fsspec knows: memory, http, s3, gs, Azure through adlfs, …"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec

from seqrecord.checksum import Buffer
from seqrecord.errors import DestinationError, LocationError, NotFoundError, StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import CutUpload, Lock, Upload, check_path, short_read

__all__ = ["FsspecStorage"]


class FsspecStorage:
    """Storage below a path of an fsspec filesystem.

    The filesystem is made when it is first used, in each process anew: no client survives a fork.
    An object store shows a file when its upload is closed, so nothing is renamed.
    """

    def __init__(
        self, protocol: str, root: str, *, shown: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self._protocol = protocol
        self._root = root.rstrip("/")
        self._shown_root = shown.rstrip("/")
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._protocol, self._root, self._shown_root, self._options)

    def __repr__(self) -> str:
        return f"FsspecStorage({self._shown_root!r})"

    @property
    def url(self) -> str:
        return self._shown_root

    def size(self, path: str) -> int:
        with _errors(self._shown(path)):
            size = self._fs().size(self._full(path))
        if size is None:
            raise StorageError("the server does not tell the file's length", file=self._shown(path))
        return int(size)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if not ranges:
            return
        full, shown = self._full(path), self._shown(path)
        with _errors(shown):
            parts = self._fs().cat_ranges(
                [full] * len(ranges),
                [item.start for item in ranges],
                [item.stop for item in ranges],
                on_error="raise",
            )
        for item, buffer, part in zip(ranges, buffers, parts, strict=True):
            if len(part) != item.length:
                raise short_read(shown, item, len(part))
            buffer[:] = part

    def create(self, path: str, *, replace: bool = False) -> Upload:
        with _errors(self._shown(path)):
            return _FsspecUpload(path, self._fs(), self._full(path), self._shown(path), replace)

    def list_files(self, folder: str) -> list[str]:
        fs = self._fs()
        with _errors(self._shown(folder)):
            fs.invalidate_cache(self._full(folder))
            try:
                entries = fs.ls(self._full(folder), detail=True)
            except FileNotFoundError:
                return []
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        return sorted(f"{folder}/{name}" for name in names)

    def remove(self, path: str) -> None:
        with _errors(self._shown(path)), contextlib.suppress(FileNotFoundError):
            self._fs().rm_file(self._full(path))

    def interrupted(self, folder: str) -> list[str]:  # noqa: ARG002 - nothing unfinished is kept
        return []

    def reopen(self, path: str) -> CutUpload:
        raise NotFoundError("no interrupted upload", file=self._shown(path))

    def lock(self) -> Lock:
        return _NoLock()

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - never local
        return None

    def close(self) -> None:
        pass

    def _fs(self) -> Any:
        try:
            return fsspec.filesystem(self._protocol, **self._options)
        except (ImportError, ValueError) as error:
            raise LocationError(
                f"no filesystem for {self._protocol}: {_no_secret(error)}", file=self._shown_root
            ) from None

    def _full(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _shown(self, path: str) -> str:
        return f"{self._shown_root}/{path}"


class _FsspecUpload:
    def __init__(self, path: str, fs: Any, full: str, shown: str, replace: bool) -> None:
        self.path = path
        self._fs = fs
        self._full = full
        self._shown = shown
        self._replace = replace
        self._size = 0
        self._done = False
        fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
        self._file = fs.open(full, "wb")

    def write(self, data: Buffer) -> None:
        with _errors(self._shown):
            self._size += self._file.write(memoryview(data).cast("B"))

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        pass

    def rewind(self, offset: int) -> bool:  # noqa: ARG002 - what is sent is sent
        return False

    def commit(self) -> None:
        with _errors(self._shown):
            if not self._replace and self._fs.exists(self._full):
                self.abort()
                raise DestinationError("the file exists already", file=self._shown)
            self._done = True
            self._file.close()
            self._fs.invalidate_cache()

    def abort(self) -> None:
        if self._done:
            return
        self._done = True
        with contextlib.suppress(Exception):  # whatever it is, the upload is given up
            self._file.discard()
        # An fsspec file uploads when it is closed, and closes itself when it is collected.
        self._file.closed = True


class _NoLock:
    def release(self) -> None:
        pass


def _rebuild(protocol: str, root: str, shown: str, options: dict[str, Any]) -> FsspecStorage:
    return FsspecStorage(protocol, root, shown=shown, options=options)


def _no_secret(error: BaseException) -> str:
    """What kind of error it was. Texts of cloud clients may hold signed URLs."""
    return type(error).__name__


@contextlib.contextmanager
def _errors(file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError("no such file", file=file) from None
    except (StorageError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise StorageError(f"the storage failed with {_no_secret(error)}", file=file) from None
