"""`open_storage`: options, backend and layers (retries, parallel requests, cache) by location."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from seqrecord.errors import LocationError
from seqrecord.storage.base import Storage
from seqrecord.storage.local import LocalStorage, find_remote_mount
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.retrying import REQUESTS_PER_SECOND, RetryingStorage
from seqrecord.storage.settings import StorageSettings, split_options
from seqrecord.storage.url import Location, parse_location

_OBJECT_BACKENDS = (None, "obstore", "urllib3")
_PACKAGES = {"az": "adlfs", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}  # fsspec's

StorageLike: TypeAlias = "str | os.PathLike[str] | Storage"
"""A local path, a URL, or an open storage."""


def open_storage(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Storage:
    """Open the storage of a path or URL; returns an open storage unchanged.

    No request is made yet.

    Args:
        location: a local path, a URL, or an open storage.
        storage_options: settings of this package, see `StorageSettings`, and options of the
            client, such as account and credential for Azure.
        cache_dir: local folder for caching data of a URL or mount; see `CachedStorage`.
        cache_limit: maximum size of the cache, such as `"200GiB"`.

    Raises `LocationError` for an invalid location or option, and for a missing package.

    Example:
        storage = seqrecord.storage.open_storage("records/")
        data, digest = storage.read_whole("manifest.json", limit=64 << 20)
        print(storage.size("manifest.json"), digest)
    """
    storage = _opened(location, dict(storage_options or {}))
    if cache_dir is None and cache_limit is None:
        return storage
    if cache_dir is None or cache_limit is None:
        raise LocationError(
            "cache_dir and cache_limit must be set together",
            file=storage.url,
            expected="for example cache_dir='/scratch/cache', cache_limit='200GiB'",
        )
    if type(storage) is LocalStorage:  # but a mount may have a cache
        raise LocationError("a local path needs no cache; leave out cache_dir", file=storage.url)
    from seqrecord.storage.cache import CachedStorage  # most storages have none

    return CachedStorage(storage, cache_dir, cache_limit)


def _opened(location: StorageLike, options: dict[str, Any]) -> Storage:
    if not isinstance(location, (str, os.PathLike)) and isinstance(location, Storage):
        if options:
            raise LocationError("an open storage takes no storage_options", file=location.url)
        return location
    where = parse_location(location, backend=options.get("backend"))
    settings, rest = split_options(options, where.shown)
    return (_local if where.protocol == "file" else _remote)(where, settings, rest)


def _local(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    is_mount = settings.mount
    if is_mount is None:
        is_mount = find_remote_mount(where.root) is not None
    useful = {"mount", "deadline", "bandwidth"} if is_mount else {"mount"}
    if useless := sorted({*rest, *settings.given()} - useful):
        raise LocationError(
            f"a {'mount' if is_mount else 'local path'} does not take these storage_options",
            file=where.shown,
            got=", ".join(useless),
        )
    if not is_mount:
        return LocalStorage(where.root)
    from seqrecord.storage.mounts import MountStorage

    # Not in parallel pieces, since handles of a mount must be read sequentially. The mount itself
    # determines the number of requests.
    mount = MountStorage(where.root)
    return RetryingStorage(mount, requests_per_second=math.inf, retrier=settings.retrier())


def _remote(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    if settings.mount:
        raise LocationError("storage option mount applies to local paths only", file=where.shown)
    # Imported here, because clients of URLs are slow to import.
    from seqrecord.storage.objects import is_object, open_objects

    is_ours = settings.backend in _OBJECT_BACKENDS and is_object(where)
    if is_ours or (where.protocol, settings.backend) == ("az", "blobfile"):
        return _layered(open_objects(where, settings, rest), settings)
    storage = _fsspec(where, settings, rest)
    return storage if where.protocol == "memory" else _layered(storage, settings)


def _fsspec(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    from seqrecord.storage.objects import is_object
    from seqrecord.storage.remote import FsspecStorage

    package = _PACKAGES.get(where.protocol, "fsspec")
    if settings.backend not in (None, "fsspec", package):
        objects = ("obstore", "urllib3", "blobfile")[: 3 if where.protocol == "az" else 2]
        known = {*(objects if is_object(where) else ()), "fsspec", package}
        raise LocationError(
            f"no such backend for {where.protocol}://",
            file=where.shown,
            expected=f"any of {', '.join(sorted(known))}",
            got=settings.backend,
        )
    in_url = {name: value for name, value in where.options.items() if name != "endpoint"}
    options = {**in_url, **rest}  # of the filesystem
    return FsspecStorage(
        where.protocol,
        where.root,
        shown=where.shown,
        options=options,
        retrier=settings.retrier(),
    )


def _layered(storage: Storage, settings: StorageSettings) -> Storage:
    """Add parallel requests, each of which is retried separately."""
    rate = settings.requests_per_second or REQUESTS_PER_SECOND
    retrying = RetryingStorage(storage, requests_per_second=rate, retrier=settings.retrier())
    return ParallelStorage(retrying, max_requests=settings.max_requests)
