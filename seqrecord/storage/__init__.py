"""Storages: local disks, mounts, object stores, fsspec filesystems; retries and a local cache."""

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy
from seqrecord.storage.base import (
    Entry,
    FileInfo,
    Storage,
    StorageWrapper,
    Unfinished,
    Upload,
    entries_of,
    expect_pages,
    fixed_url_of,
    identity_of,
    reads_commit,
)
from seqrecord.storage.cache import (
    CachedStorage,
    CacheInfo,
    cache_info,
    clear_cache,
    worth_rereading,
)
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.opening import StorageLike, open_storage
from seqrecord.storage.parallel import RequestThreads, map_files, request_threads
from seqrecord.storage.ranges import ByteRange, unwanted_if
from seqrecord.storage.url import Location, local_path, parse_location

if TYPE_CHECKING:
    from seqrecord.storage.remote import FsspecStorage

__all__ = [
    "ByteRange",
    "CacheInfo",
    "CachedStorage",
    "Entry",
    "FileInfo",
    "FsspecStorage",
    "LocalStorage",
    "Location",
    "RequestThreads",
    "Storage",
    "StorageLike",
    "StorageWrapper",
    "Unfinished",
    "Upload",
    "cache_info",
    "clear_cache",
    "entries_of",
    "expect_pages",
    "fixed_url_of",
    "identity_of",
    "local_path",
    "map_files",
    "open_storage",
    "parse_location",
    "reads_commit",
    "request_threads",
    "unwanted_if",
    "worth_rereading",
]


if not TYPE_CHECKING:  # slow import that local disks do not need
    __getattr__, __dir__, _ = lazy(
        __name__,
        {
            "remote": ["FsspecStorage"],
        },
        __all__,
    )
