"""The `Storage` protocol: all file operations of this package.

`StorageWrapper` is the base class of storages around another storage.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from seqrecord.errors import LocationError, StorageError
from seqrecord.store.checksum import Buffer
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import without_commit
from seqrecord.store.text import repr_of

LINKED = " at "
"""In the identity of a local file that a link leads to, before the hash of its real path."""

_logger = logging.getLogger("seqrecord")

MIN_CACHE_BYTES = 1 << 20  # the least limit of a cache

MAX_PUT_BYTES = 64 << 20  # of a file written by `Storage.put`, such as the manifest


@dataclass(frozen=True)
class UploadLimits:
    """Limits of uploads that a kill loses: when writers end a record file, so that it is stored.

    Attributes:
        file_bytes: default of `max_file_size`.
        flush_seconds, flush_bytes: a flush ends the open file after this time, or with so many
            bytes, since the last end.
        clock: seconds, from any origin.
    """

    file_bytes: int = 256 << 20
    flush_seconds: float = 60.0
    flush_bytes: int = 64 << 20
    clock: Callable[[], float] = time.monotonic


class Upload(Protocol):
    """A file under construction, written sequentially and invisible until `commit`.

    If its process is killed, the upload is neither committed nor aborted; see `Storage.unfinished`.
    On a storage with `upload_limits_of` nothing of it remains.
    Use it from one thread at a time.
    """

    @property
    def path(self) -> str: ...

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def tell(self) -> int:
        """Number of bytes written so far."""

    def checkpoint(self, note: bytes) -> None:
        """Preserve the bytes written so far, and `note`, in case the process is killed.

        Does nothing on a storage with `upload_limits_of`.
        """

    def rewind(self, offset: int) -> None:
        """Truncate to `offset` bytes; raises `ValueError` if fewer were written."""

    def commit(self) -> None:
        """Make the file durable, then visible under its name, in one step."""

    def abort(self) -> None:
        """Remove all traces of the upload. No-op after a successful `commit`."""


@dataclass(frozen=True)
class FileInfo:
    """A finished file: path, size in bytes, time of modification in seconds since 1970."""

    path: str
    size: int
    modified: float


class Unfinished(Protocol):
    """The durable bytes of an upload in progress, or of one whose writer was killed.

    Any process on any machine can read it without affecting the writer. Between two calls it may
    grow, or vanish because the writer committed it.
    """

    @property
    def path(self) -> str:
        """Path of the file after its commit."""

    @property
    def modified(self) -> float:
        """Time of the last write, in seconds since 1970."""

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """Size and note of each checkpoint, in order, as far as both are complete.

        After a machine crash, even bytes before the last checkpoint may be wrong.
        """

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        """Read bytes before the last checkpoint; see `Storage.read_ranges`."""

    def remove(self) -> None:
        """Remove the upload. Only `seqrecord clean` calls this."""


@runtime_checkable
class Storage(Protocol):
    """Files below one root, named by relative POSIX paths such as `records/00000-ab.seqrec`.

    Paths are clean: see `check_path`. Storages are thread-safe and picklable; a copy in another
    process opens its own handles, and a copy in a forked process works too. Methods raise
    `NotFoundError` for a missing file, `LocationError` for an invalid path, and `StorageError` for
    any other failure. Messages and chained exceptions contain the file's name, but no credential.
    """

    @property
    def url(self) -> str:
        """The root for display, without credentials and query."""

    @property
    def place(self) -> str:
        """Unique name of the root, with account and endpoint, without credentials."""

    def size(self, path: str) -> int:
        """Size of a file in bytes, never from a cache.

        Files are immutable except for the manifest, which is replaced. Later reads return the
        version whose size this returned, or a newer one.
        """

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        """Fill `buffers[i]`, writable and of exactly the right size, with bytes `ranges[i]`.

        Fills all buffers completely or raises. The storage may merge, split, reorder and
        parallelize the ranges of one call.
        """

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        """Content and digest of a small file, consistent even if it is being replaced.

        Never from a cache. A replaced file has another digest. Raises `StorageError` for a file of
        more than `limit` bytes without reading more.
        """

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        """Write a small file atomically and durably if its current digest is `expected`.

        `None` expects that there is no file. Otherwise raises `ConflictError` and changes nothing.
        A lost response to a successful attempt is not a conflict: see `put_once`.

        After a `TransientError` the outcome is unknown: the file may exist already, or appear
        later. After any other error of this package it was not written, and will not be.
        """

    @property
    def has_conditions(self) -> bool:
        """Whether `put` is atomic; otherwise, concurrent writers may both succeed."""

    def files(self, folder: str) -> list[FileInfo]:
        """Finished files directly in a folder, sorted by path; empty without the folder."""

    def unfinished(self, folder: str) -> list[Unfinished]:
        """Unfinished uploads into a folder, sorted by path; none with `upload_limits_of`."""

    def create(self, path: str) -> Upload:
        """Start an upload to a unique path; raises `DestinationError` if the path is in use."""

    def remove(self, path: str) -> None:
        """Remove a file and the remains of an interrupted upload, if they exist."""

    def local_path(self, path: str) -> str | None:
        """Local path for memory-mapping the file; `None` if impossible."""

    def counters(self) -> dict[str, int]:
        """Counters of this process by name: `requests`, `retries`, and the cache's.

        Empty if the storage has no counters.
        """

    def close(self) -> None:
        """Close handles. Open uploads remain as after a kill.

        The storage can be used again and then opens new handles.
        """


@dataclass(frozen=True)
class Entry:
    """A file or folder in a listing: its name without path, and its size in bytes if a file.

    `identity` is the result of `identity_of` if the listing includes it, else `None`.
    """

    name: str
    is_folder: bool
    size: int = 0
    identity: str | None = None


@runtime_checkable
class Browsable(Protocol):
    """A storage that can list any folder, including folders of other programs."""

    def entries(self, folder: str) -> list[Entry]:
        """Files and folders directly in a folder (`""` for the root), sorted by name.

        Empty if the folder does not exist. Raises the errors of `Storage`.
        """
        ...


def entries_of(storage: Storage, folder: str) -> list[Entry]:
    """List a folder; raises `LocationError` if the storage is not `Browsable`."""
    if not isinstance(storage, Browsable):
        raise LocationError("this storage cannot list folders", file=storage.url)
    return storage.entries(folder)


def identity_of(storage: Storage, path: str) -> tuple[int, str | None]:
    """Size of a file, and a text that changes with its content, `None` if unavailable.

    Never from a cache. Raises the errors of `Storage.size`.
    """
    identity = getattr(storage, "identity", None)
    return (storage.size(path), None) if identity is None else identity(path)


def state_of(storage: Storage, path: str) -> list[Any] | None:
    """Return what identifies a file's content without reading it, as JSON; `None` if unavailable.

    Path, size, times of modification and change, and inode of a local file; elsewhere URL, size and
    the text of `identity_of`.
    """
    if (local := storage.local_path(path)) is not None:
        try:
            status = os.stat(local)  # noqa: PTH116 - faster than Path.stat, at each read
        except OSError:
            return None
        return [local, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    size, identity = identity_of(storage, path)
    return None if identity is None else [fixed_url_of(storage), path, size, identity]


def fixed_url_of(storage: Storage) -> str:
    """URL of the root; for a branch on the Hub, the URL of the commit that is read."""
    url: str | None = getattr(storage, "fixed_url", None)
    return storage.url if url is None else url


def reads_commit(storage: Storage) -> bool:
    """Whether the storage is a commit on the Hub, whose files never change."""
    url = fixed_url_of(storage)
    return without_commit(url) != url


def mapped_path_of(storage: Storage, path: str) -> str | None:
    """Local path of a file that may be mapped, without `read_ranges`; `None` for a class that reads
    in its own way.
    """
    method = getattr(storage, "mapped_path", None)
    mapped_path: str | None = None if method is None else method(path)
    return mapped_path


def has_fixed_files(storage: Storage) -> bool:
    """Whether the storage's `place` names a commit, so that no file is ever replaced."""
    return getattr(storage, "has_fixed_files", False)


def upload_limits_of(storage: Storage) -> UploadLimits | None:
    """Limits of a storage that loses unfinished uploads in a kill; `None` if it keeps them."""
    return getattr(storage, "upload_limits", None)


def worth_rereading(storage: Storage, path: str, ranges: Sequence[ByteRange]) -> bool:
    """Whether reading again may fix a checksum mismatch; removes the ranges from caches.

    Bytes may be damaged on the way from any storage but a local disk, and cached so.
    """
    if storage.local_path(path) is not None:
        return False
    _logger.warning("%s: checksum mismatch; reading again", file_url_of(storage, path))
    while isinstance(storage, StorageWrapper):
        storage.forget(path, ranges)
        storage, path = storage.beneath(path)
    return True


def file_url_of(storage: Storage, path: str) -> str:
    """URL of a file, for messages."""
    file_url: Callable[[str], str] | None = getattr(storage, "file_url", None)
    return f"{storage.url}/{path}" if file_url is None else file_url(path)


_UNCLEAN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]"  # controls, backslashes, bytes that are not UTF-8
    r"|[\u2028-\u202e\u2066-\u2069]"  # ends of lines, changes of direction: see `check_path`
    r"|^[A-Za-z]:"  # a drive
    r"|(^|/)\.{0,2}(/|\Z)"  # "", "." and ".."
)


def check_path(path: str) -> str:
    """Return `path`; raises `LocationError` unless it is a clean relative POSIX path.

    A clean path stays below the root on any system: on Windows, a backslash separates names, and a
    letter and a colon are a drive (a digit and a colon are not). It is one line that a terminal
    shows in its order: no control characters, ends of lines and changes of direction. All other
    characters of Unicode are valid, such as the narrow space in the names of macOS screenshots.
    """
    if _UNCLEAN.search(path):
        raise LocationError(
            "not a clean relative path",
            expected="names joined by single slashes, without . and .., control characters, "
            "changes of direction, backslashes, and a drive",
            got=repr_of(path),
        )
    return path


def check_buffers(ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
    """Raise `ValueError` (a bug of the caller) unless each buffer has the size of its range."""
    for item, buffer in zip(ranges, buffers, strict=True):
        start, stop = item
        if not 0 <= start <= stop or buffer.nbytes != stop - start:
            raise ValueError(f"{item} does not match a buffer of {buffer.nbytes} bytes")


def check_rewind(size: int, offset: int) -> None:
    """Raise `ValueError` (a bug of the caller) unless `offset` is in [0, size]."""
    if not 0 <= offset <= size:
        raise ValueError(f"cannot rewind {size} bytes to {offset}")


def short_read(file: str, item: ByteRange, got: int) -> StorageError:
    """Error for a file that ends inside a requested range."""
    return wrong_length("the file ended early", file, item, got)


def wrong_length(
    problem: str, file: str, item: ByteRange, got: int, kind: type[StorageError] = StorageError
) -> StorageError:
    """Error for `got` bytes in place of a range's."""
    return kind(
        problem,
        file=file,
        offset=item.start,
        expected=f"{item.length} bytes",
        got=f"{got} bytes",
    )


def digest_of(data: bytes) -> str:
    """Digest of a file's content: SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def too_large(file: str, limit: int, size: int) -> StorageError:
    """Error for a file of more than `limit` bytes."""
    return StorageError(
        "the file is too large",
        file=file,
        expected=f"at most {limit} bytes",
        got=f"{size} bytes",
    )


class StorageWrapper:
    """Forwards every call to `inner`, except memory-mapping, which would bypass the wrapper."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def place(self) -> str:
        return self.inner.place

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self.inner.read_ranges(path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        return self.inner.read_whole(path, limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self.inner.put(path, data, expected=expected)

    @property
    def has_conditions(self) -> bool:
        return self.inner.has_conditions

    def files(self, folder: str) -> list[FileInfo]:
        return self.inner.files(folder)

    def identity(self, path: str) -> tuple[int, str | None]:
        """See `identity_of`."""
        return identity_of(self.inner, path)

    def forget(self, path: str, ranges: Sequence[ByteRange]) -> bool:  # noqa: ARG002 - no cache
        """Remove ranges from the cache, if this is one; returns whether it had any."""
        return False

    def beneath(self, path: str) -> tuple[Storage, str]:
        """Return the storage to which a path is forwarded, and the path in it."""
        return self.inner, path

    def file_url(self, path: str) -> str:
        """See `file_url_of`."""
        return file_url_of(*self.beneath(path))

    @property
    def has_disk_cache(self) -> bool:
        """Whether files are cached on a local disk."""
        return getattr(self.inner, "has_disk_cache", False)

    @property
    def fixed_url(self) -> str | None:
        """See `fixed_url_of`."""
        return getattr(self.inner, "fixed_url", None)

    @property
    def has_fixed_files(self) -> bool:
        """See `has_fixed_files`."""
        return has_fixed_files(self.inner)

    @property
    def upload_limits(self) -> UploadLimits | None:
        """See `upload_limits_of`."""
        return upload_limits_of(self.inner)

    def entries(self, folder: str) -> list[Entry]:
        """See `Browsable`; raises `LocationError` if the inner storage cannot list folders."""
        return entries_of(self.inner, folder)

    def unfinished(self, folder: str) -> list[Unfinished]:
        return self.inner.unfinished(folder)

    def create(self, path: str) -> Upload:
        return self.inner.create(path)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - no memory-mapping
        return None

    def counters(self) -> dict[str, int]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()


def innermost(storage: Storage) -> Storage:
    """The storage inside all wrappers."""
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage
