"""Turns every form of a path or URL into one Location, and a Location into its Storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from seqrecord.errors import LocationError
from seqrecord.storage.base import Storage
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.remote import FsspecStorage

__all__ = ["Location", "StorageLike", "open_storage", "parse_location"]

StorageLike: TypeAlias = "str | os.PathLike[str] | Storage"
"""A local path, a URL, or a storage that is open already."""

_BLOB_HOST = ".blob.core.windows.net"
_DFS_HOST = ".dfs.core.windows.net"


@dataclass(frozen=True)
class Location:
    """Where a dataset lies.

    `protocol` is `file` or fsspec's name of a filesystem, `root` the path in it, and `shown` the
    URL without credentials. `options` are those that the URL itself says. `root` and `options` may
    hold credentials, so `repr` leaves them out.
    """

    protocol: str
    root: str = field(repr=False)
    shown: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_location(location: str | os.PathLike[str]) -> Location:
    """Understand a local path or a URL.

    Local: a path or `file:///path`. Azure: `https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH`,
    with a SAS as its query or without, `abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, and
    `az://CONTAINER/PATH` with the account from `storage_options` or the environment. Anything else
    goes to fsspec as it is: `memory://`, `s3://`, `gs://`, `http://`.

    Raises `LocationError` for what is unclear; the message shows what to write.
    """
    text: str | bytes = os.fspath(location)
    if not isinstance(text, str) or not text or "\0" in text:
        raise LocationError("not a path or URL", expected="text", got=repr(location)[:200])
    if "://" not in text:
        return _local(text, text)
    scheme = text.split("://", 1)[0].lower()
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = None
    if parts is None:  # the error of urlsplit may hold a password, so it is not even the context
        raise LocationError("not a URL", expected=f"{scheme}://HOST/PATH")
    host = parts.netloc.rpartition("@")[2]
    shown = f"{scheme}://{host}{parts.path}"
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise LocationError("a file URL with a host", expected="file:///path", got=shown)
        return _local(unquote(parts.path), unquote(parts.path))
    if ".." in parts.path.split("/"):
        raise LocationError("a URL with .. in its path", got=shown)
    if scheme in ("abfs", "abfss"):
        return _abfs(parts)
    if scheme in ("http", "https") and host.lower().endswith(_BLOB_HOST):
        return _blob(parts, shown)
    if parts.query or parts.fragment:
        raise LocationError(
            "a URL with ? or # cannot be a folder's", expected=shown, got=f"{shown}?…"
        )
    if scheme == "az":
        if not parts.netloc or not parts.path.strip("/"):
            raise LocationError(
                "an az:// URL without container or path", expected="az://CONTAINER/PATH", got=shown
            )
        return Location("az", f"{parts.netloc}{parts.path}", shown)
    rest = text.split("://", 1)[1]
    return Location(scheme, f"{scheme}://{rest}" if scheme in ("http", "https") else rest, shown)


def open_storage(
    location: StorageLike, storage_options: Mapping[str, Any] | None = None
) -> Storage:
    """The storage of a location; a storage is its own.

    `storage_options` go to the filesystem that serves it.
    """
    if not isinstance(location, (str, os.PathLike)) and isinstance(location, Storage):
        if storage_options:
            raise LocationError("storage_options are of no use to a storage", file=location.url)
        return location
    where = parse_location(location)
    if where.protocol == "file":
        if storage_options:
            raise LocationError(
                "storage_options are of no use to a local path",
                file=where.shown,
                got=", ".join(sorted(storage_options)),
            )
        return LocalStorage(where.root)
    options = {**where.options, **(storage_options or {})}
    return FsspecStorage(where.protocol, where.root, shown=where.shown, options=options)


def _local(path: str, shown: str) -> Location:
    if not path:
        raise LocationError("not a path or URL", expected="text", got=repr(path))
    try:
        return Location("file", str(Path(path).expanduser()), shown)
    except RuntimeError as error:
        raise LocationError(str(error), got=shown) from None


def _abfs(parts: SplitResult) -> Location:
    container, host = parts.username, parts.hostname or ""
    account = host.removesuffix(_DFS_HOST)
    clear = container and account and account != host and parts.path.strip("/")
    if not clear or parts.password or parts.query or parts.fragment:
        raise LocationError(
            "an unclear abfs:// URL",
            expected=f"abfs://CONTAINER@ACCOUNT{_DFS_HOST}/PATH",
            got=f"abfs://{host}{parts.path}",
        )
    shown = f"abfs://{container}@{host}{parts.path}"
    return Location("az", f"{container}{parts.path}", shown, {"account_name": account})


def _blob(parts: SplitResult, shown: str) -> Location:
    account = (parts.hostname or "").removesuffix(_BLOB_HOST)
    clear = account and len(parts.path.strip("/").split("/")) >= 2
    if not clear or parts.scheme != "https" or "@" in parts.netloc or parts.fragment:
        raise LocationError(
            "an unclear Azure URL",
            expected=f"https://ACCOUNT{_BLOB_HOST}/CONTAINER/PATH",
            got=shown,
        )
    options = {"account_name": account}
    if parts.query:
        options["sas_token"] = parts.query
    return Location("az", unquote(parts.path.strip("/")), shown, options)
