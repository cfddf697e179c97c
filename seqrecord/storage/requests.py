"""Reads a file request by request: what is common to all clients that answer ranges.

`FsspecReader` reads through any filesystem of fsspec.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem

from seqrecord.checksum import Buffer
from seqrecord.errors import NotFoundError, StorageError, TransientError
from seqrecord.storage.base import check_buffers, check_path, short_read, too_large
from seqrecord.storage.clients import Clients
from seqrecord.storage.ranges import ByteRange, plan

SLOWEST = 64 << 10  # bytes a second
TIMEOUT_SECONDS = 30.0  # without a byte

Request = tuple[ByteRange, list[memoryview]]
"""Bytes of a file, and where they go one after the other: views that are as long together."""


class RequestReader(ABC):
    """Reads, and makes one request of ranges that touch, as `plan` leaves them."""

    @abstractmethod
    def length(self, path: str) -> int:
        """A file's length, of a clean path; asked for without its bytes."""

    def size(self, path: str) -> int:
        check_path(path)
        try:
            return self.length(path)
        except NotFoundError:
            pass
        # Reading says whether it is the container that is not there.
        self.read(path, (ByteRange(0, 1), [memoryview(bytearray(1))]))
        return self.length(path)  # now it is there

    @abstractmethod
    def read(self, path: str, request: Request) -> None:
        """Make one request, of a clean path. All of its bytes or an error."""

    @abstractmethod
    def close(self) -> None: ...

    def expect_pages(self) -> None:  # noqa: B027 - most readers do nothing else then
        """All files are read as record files are, from now on."""

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        check_path(path)
        parts = plan(ranges, buffers, max_gap=0, max_bytes=sys.maxsize)
        if not parts:
            self.size(path)  # raises if it is not there
        for items, views in parts:
            self.read(path, (ByteRange(items[0].start, items[-1].stop), views))

    @abstractmethod
    def read_whole(self, path: str, limit: int) -> bytes:
        """A small file's bytes, all of the same moment; `StorageError` for more than `limit`."""

    def missing(self, path: str, file: str, item: ByteRange, got: int) -> StorageError:
        """The error of an answer that held `got` bytes of a range, and was no error itself.

        The file's length tells whether it ends there, or whether another attempt may bring the
        rest.
        """
        if self.size(path) < item.stop:
            return short_read(file, item, got)
        return TransientError(
            "an answer was cut",
            file=file,
            offset=item.start,
            expected=f"{item.length} bytes",
            got=f"{got} bytes",
        )


def fill(views: Iterable[memoryview], chunks: Iterable[Buffer]) -> int:
    """Copy chunks, none of them empty, into views one after the other; the bytes that came.

    Stops when the views are full. NumPy copies, since it releases the GIL meanwhile.
    """
    targets = iter(views)
    target = np.empty(0, np.uint8)
    total = 0
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        while data.size:
            if not target.size:
                view = next(targets, None)
                if view is None:
                    return total
                target = np.frombuffer(view, np.uint8)
            count = min(data.size, target.size)
            np.copyto(target[:count], data[:count])
            data, target = data[count:], target[count:]
            total += count
    return total


def hurried(
    chunks: Iterable[Buffer],
    timeout: float,
    file: str,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Buffer]:
    """The chunks, or a `TransientError` when they come too slowly: the next attempt may be faster.

    That is, when after `timeout` seconds they were fewer than 64 KiB a second.
    """
    start, got = clock(), 0
    for chunk in chunks:
        yield chunk
        got += len(chunk)
        seconds = clock() - start
        if seconds > timeout and got < seconds * SLOWEST:
            raise TransientError(
                f"the body comes too slowly: {got} bytes in {seconds:.0f} s", file=file
            )


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
