"""Files of any filesystem that fsspec knows: hf, memory, sftp, …"""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from seqrecord.errors import ConflictError, DestinationError, LocationError, NotFoundError
from seqrecord.storage.base import FileInfo, Upload, check_path
from seqrecord.storage.failures import call
from seqrecord.storage.fsspec_reader import FsspecReader
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.whole import MOST_BYTES, WholeFileStorage, is_listed, tag_of

__all__ = ["FsspecStorage"]

_PARTIAL = ".partial"
_OBJECT_STORES = frozenset({"hf", "oci", "oss"})  # a file is there when it is closed
_PIECE_BYTES = 8 << 20
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")

_PLACES = ("account_name", "endpoint", "endpoint_url", "base_url", "host", "port")

_logger = logging.getLogger("seqrecord")


class FsspecStorage(WholeFileStorage):
    """Storage below a path of an fsspec filesystem.

    The filesystem is made when it is first used, in each process anew: no client survives a fork.
    An object store shows a file when it is closed; elsewhere a file gets another name while it is
    written. fsspec has no conditional writes, so of two writers who put a file at the same time
    both may think that they were first; what each checks is the file before and after it.
    """

    def __init__(
        self,
        protocol: str,
        root: str,
        *,
        shown: str,
        options: Mapping[str, Any] | None = None,
        retrier: Retrier | None = None,
    ) -> None:
        self._protocol, self._options = protocol, dict(options or {})
        self._root = root.rstrip("/")
        make = partial(_filesystem, protocol, shown, self._options)
        reader = FsspecReader(make, self._root, shown)
        super().__init__(reader, shown, retrier)
        self._filesystems = reader.filesystems

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._protocol, self._root, self._url, self._options, self._retrier)

    @property
    def place(self) -> str:
        said = [str(self._options[name]) for name in _PLACES if self._options.get(name)]
        return " ".join([self._url, *(each.rpartition("@")[2].split("?")[0] for each in said)])

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        _tell(self._url)
        shown = self.shown(path)
        if self._tag(path) != expected:
            raise ConflictError("another writer was there first", file=shown)
        self._write(path, [data])
        if self._tag(path) != tag_of(data):
            raise ConflictError("another writer replaced it at the same time", file=shown)

    def create(self, path: str) -> Upload:
        self._filesystems.get()  # a package that is missing is noticed now, not at the commit
        return super().create(path)

    def send(self, path: str, read: Callable[[int, int], bytes], size: int) -> None:
        tried = False

        def attempt() -> None:
            nonlocal tried
            try:
                found: int | None = self.size(path)
            except NotFoundError:
                found = None
            if found is not None and not (tried and found == size):
                raise DestinationError("the file exists already", file=self.shown(path))
            tried = True
            if found is None:
                pieces = range(0, size, _PIECE_BYTES)
                self._write(path, (read(at, min(at + _PIECE_BYTES, size)) for at in pieces))

        self.retried(path, attempt)

    def overwrite(self, path: str, data: bytes) -> None:
        self._write(path, [data])

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Put a file in place, under another name until it is whole."""
        fs, full = self._filesystems.get(), self._full(path)
        target = full if self._protocol in _OBJECT_STORES else full + _PARTIAL

        def write() -> None:
            fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            file = fs.open(target, "wb")
            try:
                for piece in pieces:
                    file.write(piece)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                # An fsspec file uploads when it is closed, and closes itself when it is collected.
                with contextlib.suppress(Exception):
                    file.closed = True
                raise
            file.close()
            if target != full:
                fs.mv(target, full)

        call(self.shown(path), write)

    def _tag(self, path: str) -> str | None:
        try:
            return self.read_whole(path, MOST_BYTES)[1]
        except NotFoundError:
            return None

    def delete(self, path: str) -> None:
        with contextlib.suppress(NotFoundError):
            call(self.shown(path), self._filesystems.get().rm_file, self._full(path))

    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        fs, full = self._filesystems.get(), self._full(folder)

        def ls() -> list[dict[str, Any]]:
            fs.invalidate_cache(full)
            try:
                if deep:
                    return list(fs.find(full, detail=True).values())
                return list(fs.ls(full, detail=True))
            except FileNotFoundError:
                return []

        found = [
            (entry["name"].rpartition(f"/{folder}/")[2], entry)
            for entry in call(self.shown(folder), ls)
            if entry["type"] == "file"
        ]
        return sorted(
            (
                FileInfo(f"{folder}/{name}", int(entry["size"] or 0), _modified(entry))
                for name, entry in found
                if is_listed(name) and not name.endswith(_PARTIAL)
            ),
            key=lambda file: file.path,
        )

    def _full(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"


def _modified(entry: Mapping[str, Any]) -> float:
    """When a file was last changed; now, where the filesystem does not say."""
    for name in _TIMES:
        value = entry.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return time.time()


class _Told:
    """Whether it was said in this process that a storage has no conditional writes."""

    yet = False


def _tell(url: str) -> None:
    if not _Told.yet:
        _Told.yet = True
        _logger.warning(
            "%s: this storage has no conditional writes: let one writer be at work at a time", url
        )


def _filesystem(protocol: str, shown: str, options: Mapping[str, Any]) -> Any:
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise LocationError("no known kind of URL", file=shown, got=f"{protocol}://") from None
    except ImportError:
        needed = known_implementations.get(protocol, {}).get("err", "")
        raise LocationError(
            f"a package is missing for {protocol}://: {needed}", file=shown
        ) from None
    # Not the cached instance, which would be another one in every thread.
    return kind(skip_instance_cache=True, **options)


def _rebuild(
    protocol: str, root: str, shown: str, options: Mapping[str, Any], retrier: Retrier
) -> FsspecStorage:
    return FsspecStorage(protocol, root, shown=shown, options=options, retrier=retrier)
