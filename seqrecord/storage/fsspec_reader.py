"""Files read through any filesystem of fsspec, a request at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsspec import AbstractFileSystem

from seqrecord.errors import (
    NotFoundError,
    StorageError,
)
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.clients import Clients
from seqrecord.storage.requests import Request, RequestReader, fill

__all__ = ["FsspecReader"]


class FsspecReader(RequestReader):
    """Reads below the path `root` of the filesystem that `make` makes.

    Of the filesystem `info` and `cat_file` are used, so two methods make one. A request is held in
    memory before it is copied to its buffers. `shown` is the root as it may be shown, and
    `is_reread` as of `Clients`.
    """

    def __init__(
        self, make: Callable[[], Any], root: str, shown: str, *, is_reread: bool = False
    ) -> None:
        self.root, self._shown = root, shown.rstrip("/")
        self.clients = Clients(make, is_reread=is_reread)

    def length(self, path: str) -> int:
        full, shown = self.full(path), f"{self._shown}/{path}"

        def info(fs: Any) -> dict[str, Any]:
            if isinstance(fs, AbstractFileSystem):
                fs.invalidate_cache(full.rpartition("/")[0])
            described: dict[str, Any] = fs.info(full)
            return described

        found = self.clients.ask(shown, info)
        if found.get("type") == "directory":
            raise NotFoundError("no such file", file=shown)
        if found.get("size") is None:
            raise StorageError("the server does not tell the file's length", file=shown)
        return int(found["size"])

    def read(self, path: str, request: Request) -> None:
        item, views = request
        shown, full = f"{self._shown}/{path}", self.full(path)
        data = self.clients.ask(shown, lambda fs: _cat(fs, full, item.start, item.stop))
        if len(data) != item.length:
            raise self.missing(path, shown, item, len(data))
        fill(views, [data])

    def read_whole(self, path: str, limit: int) -> bytes:
        shown, full, data = f"{self._shown}/{path}", self.full(path), b""
        if size := self.size(path):  # of an empty file no range can be read
            if size <= limit:
                data = self.clients.ask(shown, lambda fs: _cat(fs, full, 0, limit + 1))
                data, size = bytes(data), len(data)  # it may be another file now
            if size > limit:
                raise too_large(shown, limit, size)
        return data

    def close(self) -> None:
        self.clients.close()

    def full(self, path: str) -> str:
        """The path in the filesystem."""
        root = self.root if self.root.endswith("/") or not self.root else f"{self.root}/"
        return root + check_path(path)


def _cat(fs: Any, path: str, start: int, stop: int) -> bytes:
    # Where it is done with a buffered file, that would read ahead, megabytes beyond each range.
    is_buffered = isinstance(fs, AbstractFileSystem) and not fs.async_impl
    is_buffered = is_buffered and type(fs).cat_file is AbstractFileSystem.cat_file
    buffering = {"cache_type": "none"} if is_buffered else {}
    data: bytes = fs.cat_file(path, start=start, end=stop, **buffering)
    return data
