"""Files read through any filesystem of fsspec, a request at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from seqrecord.storage.base import check_buffers, check_path
from seqrecord.storage.failures import call, classify
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import fill, merge, missing_bytes

__all__ = ["PARTIAL", "FsspecReader"]

PARTIAL = "seqrecord_partial"  # metadata of a file that is unfinished: to readers it is not there


class FsspecReader:
    """A `RangeReader` below the path `root` of the filesystem that `make` makes.

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

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        full, shown = self.full(path), f"{self._shown}/{path}"
        requests = merge(ranges, buffers)
        if not requests:
            self.size(path)  # raises if it is not there
            return
        parts = call(
            shown,
            self.filesystems.get().cat_ranges,
            [full] * len(requests),
            [item.start for item, _ in requests],
            [item.stop for item, _ in requests],
            on_error="return",
        )
        for (item, views), part in zip(requests, parts, strict=True):
            if isinstance(part, BaseException):
                failure = part if isinstance(part, StorageError) else classify(part, shown)
                if isinstance(failure, _CLEAR):
                    raise failure
                part = b""  # of a range beyond the end, say, which each client tells in its own way
            if len(part) != item.length:
                raise missing_bytes(self, path, shown, item, len(part))
            fill(views, [part])

    def close(self) -> None:
        self.filesystems.take()  # it closes its connections when it is collected

    def full(self, path: str) -> str:
        """The path in the filesystem."""
        return f"{self._root}/{check_path(path)}"


_CLEAR = (AccessError, LocationError, NotFoundError, TransientError)
