"""Files read through any filesystem of fsspec, a request at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from seqrecord.errors import (
    AccessError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.failures import call
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import Request, RequestReader, fill

__all__ = ["FsspecReader"]

_T = TypeVar("_T")


class FsspecReader(RequestReader):
    """Reads below the path `root` of the filesystem that `make` makes.

    The filesystem is made when it is first used, in each process anew: no client survives a fork.
    A request is held in memory before it is copied to its buffers. `shown` is the root as it may
    be shown. `is_reread` says that `make` looks for the credential anew: after a refusal it does.
    """

    def __init__(
        self, make: Callable[[], Any], root: str, shown: str, *, is_reread: bool = False
    ) -> None:
        self._make, self._root, self._shown = make, root.rstrip("/"), shown.rstrip("/")
        self._is_reread = is_reread
        self.filesystems = PerProcess(partial(call, self._shown, make))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._make, self._root, self._shown, self._is_reread)

    def __repr__(self) -> str:
        return f"FsspecReader({self._shown!r})"

    def size(self, path: str) -> int:
        full, shown = self.full(path), f"{self._shown}/{path}"

        def info(fs: Any) -> dict[str, Any]:
            fs.invalidate_cache(full.rpartition("/")[0])
            described: dict[str, Any] = fs.info(full)
            return described

        found: dict[str, Any] | None
        try:
            found = self._ask(shown, info)
        except NotFoundError:
            found = None
        if found is None:
            # Reading says whether it is the container that is not there.
            self.read(path, (ByteRange(0, 1), [memoryview(bytearray(1))]))
            found = self._ask(shown, info)  # now it is there
        if found.get("type") == "directory":
            raise NotFoundError("no such file", file=shown)
        if found.get("size") is None:
            raise StorageError("the server does not tell the file's length", file=shown)
        return int(found["size"])

    def read(self, path: str, request: Request) -> None:
        item, views = request
        shown, full = f"{self._shown}/{path}", self.full(path)
        data, failure = b"", None
        try:
            data = self._ask(shown, lambda fs: _cat(fs, full, item.start, item.stop))
        except _CLEAR:
            raise
        except StorageError as error:
            failure = error
        if len(data) != item.length:
            # Of a range beyond the end each client tells in its own way.
            missing = self.missing(path, shown, item, len(data))
            raise failure if failure and isinstance(missing, TransientError) else missing
        fill(views, [data])

    def read_whole(self, path: str, limit: int) -> bytes:
        shown = f"{self._shown}/{path}"
        if (size := self.size(path)) > limit:
            raise too_large(shown, limit, size)
        full, data = self.full(path), b""
        if size:
            data = self._ask(shown, lambda fs: _cat(fs, full, 0, limit + 1))
        if len(data) > limit:  # it is another file now
            raise too_large(shown, limit, len(data))
        return data

    def close(self) -> None:
        self.filesystems.take()  # it closes its connections when it is collected

    def _ask(self, shown: str, function: Callable[[Any], _T]) -> _T:
        try:
            return call(shown, function, self.filesystems.get())
        except AccessError:
            if not self._is_reread:
                raise
        self.filesystems.take()
        return call(shown, function, self.filesystems.get())

    def full(self, path: str) -> str:
        """The path in the filesystem."""
        return f"{self._root}/{check_path(path)}"


def _cat(fs: Any, path: str, start: int, stop: int) -> bytes:
    # Where it is done with a buffered file, that would read ahead, megabytes beyond each range.
    is_buffered = type(fs).cat_file is AbstractFileSystem.cat_file and not fs.async_impl
    buffering = {"cache_type": "none"} if is_buffered else {}
    data: bytes = fs.cat_file(path, start=start, end=stop, **buffering)
    return data


def _rebuild(make: Callable[[], Any], root: str, shown: str, is_reread: bool) -> FsspecReader:
    return FsspecReader(make, root, shown, is_reread=is_reread)


_CLEAR = (AccessError, LocationError, NotFoundError, TransientError)
