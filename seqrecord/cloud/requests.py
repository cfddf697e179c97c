"""Reads byte ranges by requests of a client with fsspec's interface."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from fsspec import AbstractFileSystem

from seqrecord.cloud.clients import Clients
from seqrecord.errors import NotFoundError, StorageError, TransientError
from seqrecord.store.checksum import Buffer
from seqrecord.store.storage.base import (
    check_buffers,
    check_path,
    short_read,
    too_large,
    wrong_length,
)
from seqrecord.store.storage.ranges import ByteRange, plan

MIN_BYTES_PER_SECOND = 64 << 10  # minimum bytes per second
TIMEOUT_SECONDS = 30.0  # without receiving a byte

Request = tuple[ByteRange, list[memoryview]]
"""Byte range of a file, and consecutive views of the same total size for its content."""


class Version(NamedTuple):
    """The version of a file by the headers of a server's answer; `None` for a missing header.

    `tag` and `modified` are the headers `ETag` and `Last-Modified` (RFC 9110, 8.8), `size` is in
    bytes.
    """

    tag: str | None = None
    modified: str | None = None
    size: int | None = None

    @property
    def strong_tag(self) -> str | None:
        """The e-tag, unless it is weak: those do not support `If-Match`, nor prove equal bytes."""
        return None if self.tag is None or self.tag.startswith("W/") else self.tag

    def differs(self, other: Version) -> bool:
        """Whether the two are of different versions for certain.

        Times count only if neither has a tag: machines that serve copies of a file may have
        several.
        """
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        if self.tag is None and other.tag is None:
            are_known = self.modified is not None and other.modified is not None
            return are_known and self.modified != other.modified
        if self.tag is None or other.tag is None:
            return False
        return self.tag.removeprefix("W/") != other.tag.removeprefix("W/")

    def completed(self, other: Version) -> Version:
        """This version, with the headers that only the other answer has."""
        return Version(
            self.tag if self.tag is not None else other.tag,
            self.modified if self.modified is not None else other.modified,
            self.size if self.size is not None else other.size,
        )


class FsspecReader:
    """Reads files below the path `root` of an fsspec filesystem, created by `make`.

    Only uses `info` and `cat_file`, so any object with these methods works. Makes one request per
    run of adjacent ranges, see `plan`. A response is in memory as a whole before it is copied to
    the buffers. `shown` is the root for messages; see `Clients` for `is_reread`. `versions` has
    those of files that the client compares; whoever asks for a size accepts another version.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        root: str,
        shown: str,
        *,
        is_reread: bool = False,
        versions: dict[str, Version] | None = None,
    ) -> None:
        self.root, self._shown = root, shown.rstrip("/")
        self.clients = Clients(make, is_reread=is_reread)
        self._versions = {} if versions is None else versions

    def size(self, path: str) -> int:
        return self.size_and_version(path)[0]

    def size_and_version(self, path: str) -> tuple[int, Version]:
        """Size of a file, and its version, which is empty if the client has none."""
        self._versions.pop(self.full(path), None)
        return self._current(path)

    def _current(self, path: str) -> tuple[int, Version]:
        """Like `size_and_version`, but later reads accept the earlier version only."""
        try:
            return self._size_and_version(path)
        except NotFoundError:
            pass
        # An error of reading distinguishes a missing container from a missing file.
        self.read(path, (ByteRange(0, 1), [memoryview(bytearray(1))]))
        return self._size_and_version(path)  # the file was created meanwhile

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        check_path(path)
        parts = plan(ranges, buffers, max_gap=0, max_bytes=sys.maxsize)
        if not parts:
            self._current(path)  # raises if the file is missing
        for byte_ranges, views in parts:
            self.read(path, (ByteRange(byte_ranges[0].start, byte_ranges[-1].stop), views))

    def _size_and_version(self, path: str) -> tuple[int, Version]:
        full, shown = self.full(path), f"{self._shown}/{path}"

        def info(fs: Any) -> dict[str, Any]:
            if isinstance(fs, AbstractFileSystem):
                fs.invalidate_cache(full.rpartition("/")[0])
            attributes: dict[str, Any] = fs.info(full)
            return attributes

        file_info = self.clients.ask(shown, info)
        if file_info.get("type") == "directory":
            raise NotFoundError("no such file", file=shown)
        if file_info.get("size") is None:
            raise StorageError("the server does not report the file's size", file=shown)
        return int(file_info["size"]), file_info.get("file_version", Version())

    def read(self, path: str, request: Request) -> None:
        """Make one request; fills all views or raises."""
        byte_range, views = request
        shown, full = f"{self._shown}/{path}", self.full(path)
        data = self.clients.ask(shown, lambda fs: _cat(fs, full, byte_range.start, byte_range.stop))
        if len(data) > byte_range.length:
            problem = "the server does not support ranges: it sends whole files"
            raise wrong_length(problem, shown, byte_range, len(data))
        if len(data) < byte_range.length:
            raise self.truncation_error(path, shown, byte_range, len(data))
        fill(views, [data])

    def read_whole(self, path: str, limit: int) -> bytes:
        """Consistent content of a small file; raises `StorageError` above `limit` bytes."""
        shown, full, data = f"{self._shown}/{path}", self.full(path), b""
        if size := self.size(path):  # no range of an empty file can be requested
            if size <= limit:
                data = bytes(self.clients.ask(shown, lambda fs: _cat(fs, full, 0, limit + 1)))
                size = self._size_read(path, size, len(data))  # it may have been replaced
                if len(data) < min(size, limit + 1):
                    raise _cut_answer(shown, ByteRange(0, size), len(data))
                size = len(data)
            if size > limit:
                raise too_large(shown, limit, size)
        return data

    def _size_read(self, path: str, size: int, got: int) -> int:
        """A file's size, `size` before an answer with `got` bytes."""
        version = self._versions.get(self.full(path), Version())
        if version.size is not None:
            return version.size
        return got if got >= size else self._current(path)[0]

    def close(self) -> None:
        self.clients.close()

    def full(self, path: str) -> str:
        """Path in the filesystem."""
        root = self.root if self.root.endswith("/") or not self.root else f"{self.root}/"
        return root + check_path(path)

    def truncation_error(
        self, path: str, file: str, byte_range: ByteRange, got: int
    ) -> StorageError:
        """Error for a successful response with only `got` bytes of a range.

        Checks the file's size: the file may end there, or a retry may return the rest.
        """
        if self._current(path)[0] < byte_range.stop:
            return short_read(file, byte_range, got)
        return _cut_answer(file, byte_range, got)


def _cut_answer(file: str, byte_range: ByteRange, got: int) -> StorageError:
    return wrong_length("an answer was cut", file, byte_range, got, TransientError)


def fill(views: Iterable[memoryview], chunks: Iterable[Buffer]) -> int:
    """Copy non-empty chunks into consecutive views; returns the number of bytes copied.

    Stops when the views are full. NumPy copies, because it releases the GIL.
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


def check_rate(
    chunks: Iterable[Buffer],
    timeout: float,
    file: str,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Buffer]:
    """Yield the chunks; raises `TransientError` if they arrive too slowly for a retry to be worse.

    Too slow is less than 64 KiB per second on average, checked after `timeout` seconds.
    """
    start, received_bytes = clock(), 0
    for chunk in chunks:
        yield chunk
        received_bytes += len(chunk)
        seconds = clock() - start
        if seconds > timeout and received_bytes < seconds * MIN_BYTES_PER_SECOND:
            raise TransientError(
                f"the body comes too slowly: {received_bytes} bytes in {seconds:.0f} s", file=file
            )


def _cat(fs: Any, path: str, start: int, stop: int) -> bytes:
    # See tests/cloud/test_objects.py::test_clips_through_fsspec.
    # A buffered file would read megabytes ahead of each range.
    is_buffered = isinstance(fs, AbstractFileSystem) and not fs.async_impl
    is_buffered = is_buffered and type(fs).cat_file is AbstractFileSystem.cat_file
    buffering = {"cache_type": "none"} if is_buffered else {}
    data: bytes = fs.cat_file(path, start=start, end=stop, **buffering)
    return data
