"""`open_storage`: the storage of a location, and a cache around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from seqrecord.errors import LocationError
from seqrecord.store.areas import CACHE, STORAGES, load_entry
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage, find_remote_mount
from seqrecord.store.storage.url import parse_location

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

    Raises `LocationError` for an invalid location or option, and for a missing package, and
    `MissingPackageError` for a URL, a mount, options or a cache without the part `cloud`.

    Example:
        storage = open_storage("records/")
        data, digest = storage.read_whole("manifest.json", limit=64 << 20)
        print(storage.size("manifest.json"), digest)
    """
    storage = _open(location, dict(storage_options or {}))
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
    cached: Storage = load_entry(CACHE)(storage, cache_dir, cache_limit)
    return cached


def _open(location: StorageLike, options: dict[str, Any]) -> Storage:
    if not isinstance(location, (str, os.PathLike)) and isinstance(location, Storage):
        if options:
            raise LocationError("an open storage takes no storage_options", file=location.url)
        return location
    place = parse_location(location, backend=options.get("backend"))
    if place.protocol == "file" and not options and find_remote_mount(place.root) is None:
        return LocalStorage(place.root)
    entry = STORAGES.get(place.protocol, STORAGES["*"])
    storage: Storage = load_entry(entry)(place, options)
    return storage
