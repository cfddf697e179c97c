"""Files read through any filesystem of fsspec, a request at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from seqrecord.errors import (
    AccessError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.failures import call, classify
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import Request, RequestReader, fill

__all__ = ["PARTIAL", "FsspecReader"]

PARTIAL = "seqrecord_partial"  # metadata of a file that is unfinished: to readers it is not there


class FsspecReader(RequestReader):
    """Reads below the path `root` of the filesystem that `make` makes.

    The filesystem is made when it is first used, in each process anew: no client survives a fork.
    A request is held in memory before it is copied to its buffers. `shown` is the root as it may
    be shown.
    """

    def __init__(self, make: Callable[[], Any], root: str, shown: str) -> None:
        self._make, self._root, self._shown = make, root.rstrip("/"), shown.rstrip("/")
        self.filesystems = PerProcess(partial(call, self._shown, make))

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecReader, (self._make, self._root, self._shown)

    def __repr__(self) -> str:
        return f"FsspecReader({self._shown!r})"

    def size(self, path: str) -> int:
        fs, full, shown = self.filesystems.get(), self.full(path), f"{self._shown}/{path}"

        def info() -> dict[str, Any]:
            fs.invalidate_cache(full.rpartition("/")[0])
            described: dict[str, Any] = fs.info(full)
            return described

        found: dict[str, Any] | None
        try:
            found = call(shown, info)
        except NotFoundError:
            found = None
        if found is None:
            # Reading says whether it is the container that is not there.
            self.read_ranges(path, [ByteRange(0, 1)], [memoryview(bytearray(1))])
            found = call(shown, info)  # now it is there
        if found.get("type") == "directory" or PARTIAL in (found.get("metadata") or {}):
            raise NotFoundError("no such file", file=shown)
        if found.get("size") is None:
            raise StorageError("the server does not tell the file's length", file=shown)
        return int(found["size"])

    def read(self, path: str, request: Request) -> None:
        item, views = request
        shown, fs, full = f"{self._shown}/{path}", self.filesystems.get(), self.full(path)
        failure: StorageError | None = None
        data = b""
        try:
            data = fs.cat_file(full, start=item.start, end=item.stop)
        except Exception as error:
            failure = error if isinstance(error, StorageError) else classify(error, shown)
        # The rest may be of a range beyond the end, which each client tells in its own way.
        if isinstance(failure, _CLEAR):
            raise failure
        if len(data) != item.length:
            raise self.missing(path, shown, item, len(data))
        fill(views, [data])

    def read_whole(self, path: str, limit: int) -> bytes:
        shown = f"{self._shown}/{path}"
        if (size := self.size(path)) > limit:
            raise too_large(shown, limit, size)
        read = partial(self.filesystems.get().cat_file, self.full(path), end=limit + 1)
        data: bytes = call(shown, read) if size else b""
        if len(data) > limit:  # it is another file now
            raise too_large(shown, limit, len(data))
        return data

    def close(self) -> None:
        self.filesystems.take()  # it closes its connections when it is collected

    def full(self, path: str) -> str:
        """The path in the filesystem."""
        return f"{self._root}/{check_path(path)}"


_CLEAR = (AccessError, LocationError, NotFoundError, TransientError)
