"""Opens a place in an object store or on a web server: with which client, and what credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.base import Storage
from seqrecord.storage.fsspec_reader import FsspecReader
from seqrecord.storage.objects.azure import AzureContainer
from seqrecord.storage.objects.blobfile import BlobfileReader, split_blobfile_options
from seqrecord.storage.objects.gs import GcsBucket
from seqrecord.storage.objects.reader import ObstoreReader
from seqrecord.storage.objects.s3 import S3Bucket
from seqrecord.storage.objects.settings import split_client_options
from seqrecord.storage.objects.source import Bucket
from seqrecord.storage.objects.storage import ObjectStorage
from seqrecord.storage.objects.web import WebReader, WebServer
from seqrecord.storage.options import StorageSettings
from seqrecord.storage.packages import is_installed, missing
from seqrecord.storage.requests import TIMEOUT_SECONDS, RequestReader
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.url import Location

__all__ = ["open_objects"]


def open_objects(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    """The storage of an Azure container, a bucket of S3 or GCS, or a web server.

    `rest` are the client's options: the account and its credential. Raises `LocationError` for
    what is unclear, and where a package is missing.
    """
    timeout = min(TIMEOUT_SECONDS, settings.deadline / 4)  # one that hangs leaves time for others
    if where.protocol in ("http", "https"):
        return _web(where, settings, rest, timeout)
    bucket: Bucket
    reader: RequestReader
    if where.protocol == "az":
        by_blobfile = settings.backend == "blobfile"
        blobfiles, rest = split_blobfile_options(rest) if by_blobfile else ({}, rest)
        container = bucket = AzureContainer.resolve(where, rest, os.environ)
        if by_blobfile:
            _need("blobfile", where, "blobfile")
            given = bool(set(rest) - {"account_name"})
            reader = BlobfileReader(container, given=given, options=blobfiles)
        else:
            reader = _reader(bucket, where, settings, timeout)
    else:
        kind = S3Bucket if where.protocol in ("s3", "s3a") else GcsBucket
        bucket = kind.resolve(where, {**where.options, **rest}, os.environ)
        reader = _reader(bucket, where, settings, timeout)
    retrier = Retrier(deadline=settings.deadline)
    return ObjectStorage(bucket, reader, where.shown, timeout=timeout, retrier=retrier)


def _web(
    where: Location, settings: StorageSettings, rest: Mapping[str, Any], timeout: float
) -> Storage:
    client_options, rest = split_client_options(rest, where.shown)
    if rest:
        raise LocationError(
            "an unknown storage option of a web server", file=where.shown, got=", ".join(rest)
        )
    if settings.backend not in (None, "obstore"):
        raise _no_backend(where, settings, "obstore", "fsspec")
    _need("obstore", where, "obstore")
    quiet = None if client_options else WebReader(where.root, where.shown, timeout=timeout)
    server = WebServer(where.root.rstrip("/"), client_options)
    reader = ObstoreReader(server, where.shown, quiet=quiet, timeout=timeout)
    return ObjectStorage(server, reader, where.shown, is_web=True)


def _reader(
    bucket: Bucket, where: Location, settings: StorageSettings, timeout: float
) -> RequestReader:
    package = bucket.package
    known = ["obstore", package, "fsspec", *(["blobfile"] if where.protocol == "az" else [])]
    backend = settings.backend or ("obstore" if is_installed("obstore") else package)
    if backend not in known:
        raise _no_backend(where, settings, *known)
    make = partial(bucket.filesystem, timeout)
    plain = FsspecReader(make, bucket.path, where.shown, is_reread=bucket.is_reread)
    if backend == "obstore":
        _need("obstore", where, "obstore")
        # What obstore's client_options ask for, a proxy say, fsspec's filesystems would not do.
        quiet = plain if is_installed(package) and not bucket.client_options else None
        return ObstoreReader(bucket, where.shown, quiet=quiet, timeout=timeout)
    if bucket.client_options:
        raise LocationError(
            "storage options of obstore alone",
            file=where.shown,
            got=", ".join(bucket.client_options),
        )
    if settings.backend is None and not is_installed(package):
        _need(f"{where.protocol}://", where, "obstore")
    _need(package, where, package)
    return plain


def _need(what: str, where: Location, *packages: str) -> None:
    if not all(map(is_installed, packages)):
        raise LocationError(
            f"a package is missing for {what}: {missing(*packages)}", file=where.shown
        )


def _no_backend(where: Location, settings: StorageSettings, *known: str) -> LocationError:
    return LocationError(
        f"no such backend for {where.protocol}://",
        file=where.shown,
        expected=f"one of {', '.join(known)}",
        got=settings.backend,
    )
