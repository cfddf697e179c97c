"""The Storage protocol: the few operations on files that all other rooms use.

`StorageWrapper` is a storage around another one, which passes every call on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from seqrecord.checksum import Buffer
from seqrecord.errors import LocationError, StorageError
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.url import without_commit
from seqrecord.text import repr_of

MAX_PUT_BYTES = 64 << 20  # of a file that is put in place in one step; a manifest is smaller


class Upload(Protocol):
    """A file being written front to back. Nothing is visible under its name before `commit`.

    A killed process leaves it neither committed nor aborted; see `Storage.unfinished`.
    Used by one thread at a time.
    """

    @property
    def path(self) -> str: ...

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def tell(self) -> int:
        """Bytes written so far."""

    def checkpoint(self, note: bytes) -> None:
        """Keep what has been written so far, and `note`, even if the process is killed later."""

    @property
    def is_durable(self) -> bool:
        """Whether a kill loses no checkpoint: some storages keep one a few seconds after it."""

    def rewind(self, offset: int) -> None:
        """Forget everything after `offset`; `ValueError` if there are fewer bytes."""

    def commit(self) -> None:
        """Make the file durable, then visible under its name, in one step."""

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after a `commit` that succeeded."""


@dataclass(frozen=True)
class FileInfo:
    """A finished file: its length in bytes, and when it was last changed, in seconds since 1970."""

    path: str
    size: int
    modified: float


class Unfinished(Protocol):
    """The durable bytes of an upload that has not ended: its writer was killed, or still runs.

    It can be read by anyone, on any machine, and nothing here disturbs its writer. It may grow, or
    go because its writer finished the file, between two calls.
    """

    @property
    def path(self) -> str:
        """The path of the file when it is finished."""

    @property
    def modified(self) -> float:
        """When it last grew, in seconds since 1970."""

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """The bytes written at each checkpoint, with its note, in order, as far as both are whole.

        Bytes below the last one may still be wrong where a machine went down with its writer.
        """

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        """As `Storage.read_ranges`, of bytes below the last checkpoint."""

    def remove(self) -> None:
        """Remove all that is there of it; for `seqrecord clean` alone."""


@runtime_checkable
class Storage(Protocol):
    """Files below one root, named by clean relative POSIX paths (`records/00000-ab.seqrec`).

    Safe to use from many threads. Picklable: a copy in another process opens its own handles, and
    a forked one works as well. Raises `NotFoundError` for a file that is not there, `LocationError`
    for a path that is not clean and `StorageError` for any other failure; messages name the file
    and never hold a credential, nor do the exceptions behind them.
    """

    @property
    def url(self) -> str:
        """The root as it may be shown to anyone: no credentials, no query."""

    @property
    def place(self) -> str:
        """The root as no other has it, account and endpoint included; nor are there credentials."""

    def size(self, path: str) -> int:
        """A file's length in bytes. Looks anew: of a file replaced since, the new one's.

        Files are not changed in place, but the manifest is replaced; reads that follow are of the
        file that this saw, or of a newer one.
        """

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        """Fill `buffers[i]`, writable and of exactly that length, with bytes `ranges[i]`.

        All of them or an error: never a short buffer. One call is one unit for the storage, which
        may merge, split, reorder and overlap its ranges.
        """

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        """A small file's bytes and its tag, which belong together whoever replaces it meanwhile.

        A file that was replaced has another tag. Looks anew. `StorageError` for a file of more than
        `limit` bytes, of which no more than that are read.
        """

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        """Put a small file in place, durably and in one step, if its tag is still `expected`.

        `None`: if nothing is there. Otherwise `ConflictError`, and what is there stays as it is.
        An attempt whose answer was lost is not a conflict: see `put_once`.

        After a `TransientError` nobody knows: the file may be in place, or come there later. After
        any other error of this package it is not there, and never comes.
        """

    @property
    def has_conditions(self) -> bool:
        """Whether `put` compares and replaces in one step; else two may replace the same file."""

    def files(self, folder: str) -> list[FileInfo]:
        """The finished files directly in a folder, sorted by path; empty if there is none."""

    def unfinished(self, folder: str) -> list[Unfinished]:
        """Uploads into a folder that have not ended, sorted by path."""

    def create(self, path: str) -> Upload:
        """Start a file under a name that nobody else uses; if it is used, `DestinationError`."""

    def remove(self, path: str) -> None:
        """Remove a file and what an interrupted upload of it left; neither need be there."""

    def local_path(self, path: str) -> str | None:
        """Where the file can be memory-mapped, if it can."""

    def counters(self) -> dict[str, int]:
        """What was counted in this process so far, by name; empty where nothing is.

        `requests` to a service, `retries` of them, and what a cache has served.
        """

    def close(self) -> None:
        """Close handles. Uploads that are still open stay as a kill would leave them.

        The storage opens its handles again when it is used again.
        """


@dataclass(frozen=True)
class Entry:
    """A file or a folder: its name without a path, and the bytes of a file.

    `identity` is what `identity_of` says of the file, where the listing tells that; else `None`.
    """

    name: str
    is_folder: bool
    size: int = 0
    identity: str | None = None


@runtime_checkable
class Browsable(Protocol):
    """A storage of which folders can be listed, whoever wrote them."""

    def entries(self, folder: str) -> list[Entry]:
        """Files and folders directly in a folder, `""` for the root, sorted by name.

        Empty for a folder that is not there. Raises as the other requests of a `Storage` do.
        """
        ...


def entries_of(storage: Storage, folder: str) -> list[Entry]:
    """`Browsable.entries`; `LocationError` for a storage that lists no folders."""
    if not isinstance(storage, Browsable):
        raise LocationError("a storage that lists no folders", file=storage.url)
    return storage.entries(folder)


def identity_of(storage: Storage, path: str) -> tuple[int, str | None]:
    """A file's length, and text that changes when the file does; `None` where nothing tells that.

    Looks anew. Raises as `Storage.size` does.
    """
    identity = getattr(storage, "identity", None)
    return (storage.size(path), None) if identity is None else identity(path)


def fixed_url_of(storage: Storage) -> str:
    """The root's URL; where that is of a branch, the URL of the commit that is read."""
    found: str | None = getattr(storage, "fixed_url", None)
    return storage.url if found is None else found


def reads_commit(storage: Storage) -> bool:
    """Whether the files are those of a commit of the Hub, which never change."""
    url = fixed_url_of(storage)
    return without_commit(url) != url


def has_fixed_files(storage: Storage) -> bool:
    """Whether no file below the storage's place is ever replaced: it names a commit."""
    return getattr(storage, "has_fixed_files", False)


def expect_pages(storage: Storage) -> None:
    """Say that all files of a storage are read for their pages, as record files are.

    Then it may use a client that does not survive a fork; see `ObstoreReader`.
    """
    expect = getattr(storage, "expect_pages", None)
    if expect is not None:
        expect()


def check_path(path: str) -> str:
    """`path` if it is a clean relative POSIX path, else `LocationError`."""
    parts = path.split("/")
    if (
        not path.isprintable()
        or "\\" in path
        or any(part in ("", ".", "..") for part in parts)
        or path[1:2] == ":"  # a drive
    ):
        raise LocationError(
            "not a clean relative path",
            expected="names joined by single slashes, none of them . or .., of printable "
            "characters and without a backslash",
            got=repr_of(path),
        )
    return path


def check_buffers(ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
    """`ValueError` unless every range has a buffer of its length: a caller's mistake."""
    for item, buffer in zip(ranges, buffers, strict=True):
        start, stop = item
        if not 0 <= start <= stop or buffer.nbytes != stop - start:
            raise ValueError(f"{item} does not go into a buffer of {buffer.nbytes} bytes")


def check_rewind(size: int, offset: int) -> None:
    """`ValueError` unless `size` bytes can be cut to `offset`: a caller's mistake."""
    if not 0 <= offset <= size:
        raise ValueError(f"cannot rewind {size} bytes to {offset}")


def short_read(file: str, item: ByteRange, got: int) -> StorageError:
    """The error of a file that ends inside a range that it should hold."""
    return StorageError(
        "the file ended early",
        file=file,
        offset=item.start,
        expected=f"{item.length} bytes",
        got=f"{got} bytes",
    )


def tag_of(data: bytes) -> str:
    """The tag of a file that holds `data`: whichever client reads it, it is the same."""
    return hashlib.sha256(data).hexdigest()


def too_large(file: str, limit: int, size: int) -> StorageError:
    """The error of a file that is to be read as a whole, and has more bytes than that may have."""
    return StorageError(
        "the file is too large",
        file=file,
        expected=f"at most {limit} bytes",
        got=f"{size} bytes",
    )


class StorageWrapper:
    """Passes every call on, but maps no file into memory: such reads would not come through it."""

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

    @property
    def fixed_url(self) -> str | None:
        """See `fixed_url_of`."""
        return getattr(self.inner, "fixed_url", None)

    def expect_pages(self) -> None:
        """See `expect_pages`."""
        expect_pages(self.inner)

    @property
    def has_fixed_files(self) -> bool:
        """See `has_fixed_files`."""
        return has_fixed_files(self.inner)

    def entries(self, folder: str) -> list[Entry]:
        """See `Browsable`; `LocationError` where the inner storage lists no folders."""
        return entries_of(self.inner, folder)

    def unfinished(self, folder: str) -> list[Unfinished]:
        return self.inner.unfinished(folder)

    def create(self, path: str) -> Upload:
        return self.inner.create(path)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - never mapped
        return None

    def counters(self) -> dict[str, int]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()


def innermost(storage: Storage) -> Storage:
    """The storage below all wrappers."""
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage
