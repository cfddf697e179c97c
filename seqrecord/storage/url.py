"""Turns every form of a path or URL into one Location, and a Location into its Storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from seqrecord.errors import LocationError
from seqrecord.storage.base import Storage
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.remote import FsspecStorage

__all__ = ["Location", "open_storage", "parse_location"]

_BLOB_HOST = ".blob.core.windows.net"
_DFS_HOST = ".dfs.core.windows.net"


@dataclass(frozen=True)
class Location:
    """Where a dataset lies.

    `protocol` is `file` or fsspec's name of a filesystem, `root` the path in it, and `shown` the
    URL without credentials. `options` are those that the URL itself says; they are not shown.
    """

    protocol: str
    root: str
    shown: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_location(location: str | os.PathLike[str]) -> Location:
    """Understand a local path or a URL.

    Local: a path or `file:///path`. Azure: `https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH`,
    `abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, and `az://CONTAINER/PATH` with the
    account from `storage_options` or the environment. Anything else goes to fsspec as it is:
    `memory://`, `s3://`, `gs://`, `http://`.

    Raises `LocationError` for what is unclear; the message shows what to write.
    """
    text = os.fspath(location)
    if not text:
        raise LocationError("not a path or URL", expected="text", got=repr(text)[:200])
    if "://" not in text:
        return Location("file", str(Path(text).expanduser()), text)
    parts = urlsplit(text)
    scheme = parts.scheme.lower()
    shown = f"{scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise LocationError("a file URL with a host", expected="file:///path", got=shown)
        return Location("file", unquote(parts.path), unquote(parts.path))
    if scheme in ("abfs", "abfss"):
        return _abfs(parts.username, parts.hostname or "", parts.path)
    if scheme == "https" and (parts.hostname or "").endswith(_BLOB_HOST):
        return _blob(parts.hostname or "", parts.path, parts.query)
    if scheme == "az":
        if not parts.netloc or not parts.path.strip("/"):
            raise LocationError(
                "an az:// URL without container or path",
                expected="az://CONTAINER/PATH",
                got=shown,
            )
        return Location("az", f"{parts.netloc}{parts.path}", shown)
    return Location(scheme, text.split("://", 1)[1] if scheme != "http" else text, shown)


def open_storage(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Storage:
    """The storage of a location. `storage_options` go to the filesystem that serves it."""
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


def _abfs(container: str | None, host: str, path: str) -> Location:
    account = host.removesuffix(_DFS_HOST)
    if not container or account == host or not account:
        raise LocationError(
            "an unclear abfs:// URL",
            expected=f"abfs://CONTAINER@ACCOUNT{_DFS_HOST}/PATH",
            got=f"abfs://{host}{path}",
        )
    shown = f"abfs://{container}@{host}{path}"
    return Location("az", f"{container}{path}", shown, {"account_name": account})


def _blob(host: str, path: str, query: str) -> Location:
    account = host.removesuffix(_BLOB_HOST)
    shown = f"https://{host}{path}"
    if not account or len(path.strip("/").split("/")) < 2:
        raise LocationError(
            "an unclear Azure URL",
            expected=f"https://ACCOUNT{_BLOB_HOST}/CONTAINER/PATH",
            got=shown,
        )
    options = {"account_name": account}
    if query:
        options["sas_token"] = query
    return Location("az", unquote(path.strip("/")), shown, options)
