"""Storages: local disks, mounts, object stores, fsspec filesystems; retries and a local cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.cloud.cache import CachedStorage as CachedStorage
    from seqrecord.cloud.remote import FsspecStorage as FsspecStorage
    from seqrecord.store.storage.base import LINKED as LINKED
    from seqrecord.store.storage.base import Entry as Entry
    from seqrecord.store.storage.base import FileInfo as FileInfo
    from seqrecord.store.storage.base import Storage as Storage
    from seqrecord.store.storage.base import StorageWrapper as StorageWrapper
    from seqrecord.store.storage.base import Unfinished as Unfinished
    from seqrecord.store.storage.base import Upload as Upload
    from seqrecord.store.storage.base import entries_of as entries_of
    from seqrecord.store.storage.base import fixed_url_of as fixed_url_of
    from seqrecord.store.storage.base import identity_of as identity_of
    from seqrecord.store.storage.base import reads_commit as reads_commit
    from seqrecord.store.storage.base import state_of as state_of
    from seqrecord.store.storage.base import worth_rereading as worth_rereading
    from seqrecord.store.storage.local import LocalStorage as LocalStorage
    from seqrecord.store.storage.local import follow_links as follow_links
    from seqrecord.store.storage.local import modified_ns as modified_ns
    from seqrecord.store.storage.local import new_since as new_since
    from seqrecord.store.storage.opening import StorageLike as StorageLike
    from seqrecord.store.storage.opening import open_storage as open_storage
    from seqrecord.store.storage.parallel import RequestThreads as RequestThreads
    from seqrecord.store.storage.parallel import identities_of as identities_of
    from seqrecord.store.storage.parallel import map_files as map_files
    from seqrecord.store.storage.parallel import request_threads as request_threads
    from seqrecord.store.storage.ranges import ByteRange as ByteRange
    from seqrecord.store.storage.ranges import unwanted_if as unwanted_if
    from seqrecord.store.storage.url import Location as Location
    from seqrecord.store.storage.url import local_path as local_path
    from seqrecord.store.storage.url import parse_location as parse_location

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
