"""Storages of URLs, mounts and options: backend, retries, parallel requests."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from seqrecord.cloud.mounts import MountStorage
from seqrecord.cloud.retrying import REQUESTS_PER_SECOND, RetryingStorage
from seqrecord.cloud.settings import StorageSettings, split_options
from seqrecord.errors import LocationError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage, find_remote_mount
from seqrecord.store.storage.parallel import ParallelStorage
from seqrecord.store.storage.url import Location

_OBJECT_BACKENDS = (None, "urllib3")
_PACKAGES = {"az": "adlfs", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}  # fsspec's


def open_path(location: Location, options: Mapping[str, Any]) -> Storage:
    """Open a local path, in a mount or not, with `storage_options`; see `open_storage`."""
    settings, client_options = split_options(options, location.shown)
    is_mount = settings.mount
    if is_mount is None:
        is_mount = find_remote_mount(location.root) is not None
    supported_names = {"mount", "deadline", "bandwidth"} if is_mount else {"mount"}
    if unsupported_names := sorted({*client_options, *settings.changed_names()} - supported_names):
        raise LocationError(
            f"a {'mount' if is_mount else 'local path'} does not take these storage_options",
            file=location.shown,
            got=", ".join(unsupported_names),
        )
    if not is_mount:
        return LocalStorage(location.root)
    # See tests/cloud/test_mount.py::test_each_handle_is_read_front_to_back.
    # Not in parallel pieces, since handles of a mount must be read sequentially. The mount itself
    # determines the number of requests.
    mount = MountStorage(location.root)
    return RetryingStorage(mount, requests_per_second=math.inf, retrier=settings.retrier())


def open_url(location: Location, options: Mapping[str, Any]) -> Storage:
    """Open the storage of a URL with `storage_options`; see `open_storage`."""
    settings, client_options = split_options(options, location.shown)
    if settings.mount:
        raise LocationError("storage option mount applies to local paths only", file=location.shown)
    # Imported here, because clients of URLs are slow to import.
    from seqrecord.cloud.objects import is_object, open_objects

    is_supported = settings.backend in _OBJECT_BACKENDS and is_object(location)
    if is_supported or (location.protocol, settings.backend) == ("az", "blobfile"):
        return _layered(open_objects(location, settings, client_options), settings)
    objects = ("urllib3", "blobfile")[: 2 if location.protocol == "az" else 1]
    storage = _fsspec(location, settings, client_options, objects if is_object(location) else ())
    return storage if location.protocol == "memory" else _layered(storage, settings)


def _fsspec(
    location: Location,
    settings: StorageSettings,
    client_options: Mapping[str, Any],
    objects: Collection[str],
) -> Storage:
    """Open by fsspec; `objects` are the other backends that the location has, for errors."""
    # Here, because fsspec is slow to import.
    from seqrecord.cloud.remote import FsspecStorage

    package = _PACKAGES.get(location.protocol, "fsspec")
    if settings.backend not in (None, "fsspec", package):
        backends = {*objects, "fsspec", package}
        raise LocationError(
            f"no such backend for {location.protocol}://",
            file=location.shown,
            expected=f"any of {', '.join(sorted(backends))}",
            got=settings.backend,
        )
    options = {**location.options, **client_options}  # of the filesystem
    if location.protocol == "az":
        from seqrecord.cloud.objects.azure import adlfs_options

        options = adlfs_options(location, client_options, os.environ)
    return FsspecStorage(
        location.protocol,
        location.root,
        shown=location.shown,
        options=options,
        retrier=settings.retrier(),
    )


def _layered(storage: Storage, settings: StorageSettings) -> Storage:
    """Add parallel requests, each of which is retried separately."""
    rate = settings.requests_per_second or REQUESTS_PER_SECOND
    retrying = RetryingStorage(storage, requests_per_second=rate, retrier=settings.retrier())
    return ParallelStorage(retrying, max_requests=settings.max_requests)
