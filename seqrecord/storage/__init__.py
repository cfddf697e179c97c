"""Storages: local disk, any fsspec filesystem, and wrappers that count and break."""

from seqrecord.storage.base import CutUpload, Lock, Storage, Upload
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.remote import FsspecStorage
from seqrecord.storage.url import Location, StorageLike, open_storage, parse_location
from seqrecord.storage.wrappers import CountingStorage, FaultyStorage, StorageWrapper

__all__ = [
    "CountingStorage",
    "CutUpload",
    "FaultyStorage",
    "FsspecStorage",
    "LocalStorage",
    "Location",
    "Lock",
    "Storage",
    "StorageLike",
    "StorageWrapper",
    "Upload",
    "open_storage",
    "parse_location",
]
