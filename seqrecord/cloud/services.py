"""Storages of URLs, mounts and options: backend, retries, parallel requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seqrecord.cloud.retrying import REQUESTS_PER_SECOND, RetryingStorage
from seqrecord.cloud.settings import StorageSettings, split_options
from seqrecord.errors import LocationError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage, find_remote_mount
from seqrecord.store.storage.parallel import ParallelStorage
from seqrecord.store.storage.url import Location

_OBJECT_BACKENDS = (None, "urllib3")
_PACKAGES = {"az": "adlfs", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}  # fsspec's


def open_path(where: Location, options: Mapping[str, Any]) -> Storage:
    """Open a local path, in a mount or not, with `storage_options`; see `open_storage`."""
    settings, rest = split_options(options, where.shown)
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
    from seqrecord.cloud.mounts import MountStorage

    # Not in parallel pieces, since handles of a mount must be read sequentially. The mount itself
    # determines the number of requests.
    mount = MountStorage(where.root)
    return RetryingStorage(mount, requests_per_second=math.inf, retrier=settings.retrier())


def open_url(where: Location, options: Mapping[str, Any]) -> Storage:
    """Open the storage of a URL with `storage_options`; see `open_storage`."""
    settings, rest = split_options(options, where.shown)
    if settings.mount:
        raise LocationError("storage option mount applies to local paths only", file=where.shown)
    # Imported here, because clients of URLs are slow to import.
    from seqrecord.cloud.objects import is_object, open_objects

    is_ours = settings.backend in _OBJECT_BACKENDS and is_object(where)
    if is_ours or (where.protocol, settings.backend) == ("az", "blobfile"):
        return _layered(open_objects(where, settings, rest), settings)
    storage = _fsspec(where, settings, rest)
    return storage if where.protocol == "memory" else _layered(storage, settings)


def _fsspec(where: Location, settings: StorageSettings, rest: Mapping[str, Any]) -> Storage:
    from seqrecord.cloud.objects import is_object
    from seqrecord.cloud.remote import FsspecStorage

    package = _PACKAGES.get(where.protocol, "fsspec")
    if settings.backend not in (None, "fsspec", package):
        objects = ("urllib3", "blobfile")[: 2 if where.protocol == "az" else 1]
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
