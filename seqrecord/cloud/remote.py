"""Storage on any fsspec filesystem: hf, memory, sftp, …"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from seqrecord.cloud.failures import call
from seqrecord.cloud.requests import FsspecReader
from seqrecord.cloud.retrying import Retrier
from seqrecord.cloud.whole import Pieces, WholeFileStorage, files_of
from seqrecord.errors import (
    AccessError,
    ConflictError,
    DestinationError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.store.storage.base import MAX_PUT_BYTES, Entry, FileInfo, Upload, digest_of
from seqrecord.store.storage.url import named_place

_PARTIAL = ".partial"
# Object stores: a file becomes visible when it is closed.
_OBJECT_STORES = ("az", "gcs", "gs", "hf", "oci", "oss", "s3", "s3a")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")

_logger = logging.getLogger("seqrecord")


class FsspecStorage(WholeFileStorage):
    """Storage below a path of an fsspec filesystem.

    Each process creates the filesystem at first use, because clients do not survive forks. On
    object stores a file becomes visible when it is closed; elsewhere it has a temporary name until
    then. fsspec has no conditional writes: `put` checks the file before and after writing, but two
    concurrent writers may both succeed.
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
        kind = call(shown, _kind_of, protocol, shown)
        url = _full_url(protocol, root)
        self._options = {**url_options(protocol, root, shown), **(options or {})}
        self._protocol = protocol
        self._remote = FsspecReader(
            # Without fsspec's instance cache, which has an instance per thread.
            functools.partial(kind, skip_instance_cache=True, **self._options),
            call(shown, kind._strip_protocol, url),
            shown,
        )
        super().__init__(self._remote, shown, retrier)

    has_conditions = False
    piece_bytes, max_pieces = 8 << 20, sys.maxsize

    @property
    def place(self) -> str:
        return named_place(self._url, self._options)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        _warn_once(self._url)
        shown = self.shown(path)
        if self._tag(path) != expected:
            raise ConflictError("another writer was there first", file=shown)
        try:
            self.overwrite(path, data)
        except (AccessError, DestinationError, LocationError, NotFoundError):
            raise  # refused, so not written
        except StorageError as error:
            raise _maybe_done(error) from error
        try:
            tag = self._tag(path)
        except StorageError as error:
            raise _maybe_done(error) from error
        if tag != digest_of(data):
            raise ConflictError("another writer replaced it at the same time", file=shown)

    def create(self, path: str) -> Upload:
        self._ask(path, lambda _: None)  # raises early if a package is missing
        return super().create(path)

    def upload(self, path: str, pieces: Pieces) -> None:
        self._write(path, pieces)

    def overwrite(self, path: str, data: bytes) -> None:
        self._write(path, [data])

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file under a temporary name, then rename it (object stores: write directly)."""
        full = self._remote.full(path)
        target = full if self._protocol in _OBJECT_STORES else full + _PARTIAL

        def write(fs: Any) -> None:
            if folder := full.rpartition("/")[0]:
                fs.makedirs(folder, exist_ok=True)
            file = fs.open(target, "wb")
            try:
                for piece in pieces:
                    file.write(piece)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                # An fsspec file uploads in `close`, also when garbage collected.
                with contextlib.suppress(Exception):
                    file.closed = True
                raise
            file.close()
            if target != full:
                fs.mv(target, full)

        self._ask(path, write)

    def _ask(self, path: str, function: Callable[[Any], Any]) -> Any:
        return self._remote.clients.ask(self.shown(path), function)

    def _tag(self, path: str) -> str | None:
        try:
            return self.read_whole(path, MAX_PUT_BYTES)[1]
        except NotFoundError:
            return None

    def delete(self, path: str) -> None:
        with contextlib.suppress(NotFoundError):
            self._ask(path, lambda fs: fs.rm_file(self._remote.full(path)))

    def entries(self, folder: str) -> list[Entry]:
        full = self._remote.full(folder) if folder else self._remote.root

        def list_entries(fs: Any) -> list[Entry]:
            fs.invalidate_cache(full)
            try:
                infos = fs.ls(full, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            # For a file, some filesystems list the file itself.
            children = [info for info in infos if info["name"].strip("/") != full.strip("/")]
            return sorted(map(_entry, children), key=lambda entry: entry.name)

        return list(self._ask(folder or ".", list_entries))

    def listed(self, folder: str) -> list[FileInfo]:
        full = self._remote.full(folder)

        def list_infos(fs: Any) -> list[dict[str, Any]]:
            fs.invalidate_cache(full)
            try:
                return list(fs.ls(full, detail=True))
            except FileNotFoundError:
                return []

        return files_of(
            folder,
            (
                (
                    f"/{entry['name']}".rpartition(f"/{folder}/")[2],
                    entry["size"] or 0,
                    _modified(entry),
                )
                for entry in self._ask(folder, list_infos)
                if entry["type"] == "file" and not entry["name"].endswith(_PARTIAL)
            ),
        )


def _maybe_done(error: StorageError) -> TransientError:
    """Error of a `put` whose outcome is unknown."""
    if isinstance(error, TransientError):
        return error
    return TransientError(error.message, **error.context())


def url_options(protocol: str, root: str, shown: str) -> dict[str, Any]:
    """Options that fsspec derives from a URL, such as a host."""
    kind = call(shown, _kind_of, protocol, shown)
    return dict(call(shown, kind._get_kwargs_from_urls, _full_url(protocol, root)))


def _full_url(protocol: str, root: str) -> str:
    return root if "://" in root else f"{protocol}://{root}"


def _entry(info: Mapping[str, Any]) -> Entry:
    name = str(info["name"]).rstrip("/").rpartition("/")[2]
    return Entry(name, info["type"] == "directory", int(info.get("size") or 0))


def _modified(entry: Mapping[str, Any]) -> float:
    """Modification time in seconds since 1970; the current time if unavailable."""
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


@functools.cache  # once per process
def _warn_once(url: str) -> None:
    _logger.warning(
        "%s: this storage has no conditional writes; use a single writer at a time", url
    )


def _kind_of(protocol: str, shown: str) -> Any:
    """Class of the filesystem for a protocol."""
    try:
        return fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise LocationError("unsupported URL scheme", file=shown, got=f"{protocol}://") from None
    except ImportError:
        requirement = known_implementations.get(protocol, {}).get("err", "")
        raise LocationError(
            f"a package is missing for {protocol}://: {requirement}", file=shown
        ) from None
