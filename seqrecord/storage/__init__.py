"""Storages: local disks, mounts, object stores, fsspec filesystems; retries and a local cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.storage.base import LINKED as LINKED
    from seqrecord.storage.base import Entry as Entry
    from seqrecord.storage.base import FileInfo as FileInfo
    from seqrecord.storage.base import Storage as Storage
    from seqrecord.storage.base import StorageWrapper as StorageWrapper
    from seqrecord.storage.base import Unfinished as Unfinished
    from seqrecord.storage.base import Upload as Upload
    from seqrecord.storage.base import entries_of as entries_of
    from seqrecord.storage.base import fixed_url_of as fixed_url_of
    from seqrecord.storage.base import identity_of as identity_of
    from seqrecord.storage.base import reads_commit as reads_commit
    from seqrecord.storage.base import state_of as state_of
    from seqrecord.storage.base import worth_rereading as worth_rereading
    from seqrecord.storage.cache import CachedStorage as CachedStorage
    from seqrecord.storage.local import LocalStorage as LocalStorage
    from seqrecord.storage.local import follow_links as follow_links
    from seqrecord.storage.local import modified_ns as modified_ns
    from seqrecord.storage.local import new_since as new_since
    from seqrecord.storage.opening import StorageLike as StorageLike
    from seqrecord.storage.opening import open_storage as open_storage
    from seqrecord.storage.parallel import RequestThreads as RequestThreads
    from seqrecord.storage.parallel import identities_of as identities_of
    from seqrecord.storage.parallel import map_files as map_files
    from seqrecord.storage.parallel import request_threads as request_threads
    from seqrecord.storage.ranges import ByteRange as ByteRange
    from seqrecord.storage.ranges import unwanted_if as unwanted_if
    from seqrecord.storage.remote import FsspecStorage as FsspecStorage
    from seqrecord.storage.url import Location as Location
    from seqrecord.storage.url import local_path as local_path
    from seqrecord.storage.url import parse_location as parse_location

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
