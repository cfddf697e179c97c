"""Storages: local disk, any fsspec filesystem, and wrappers that count and break."""

from seqrecord.storage.base import Lock, Storage, Upload
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.remote import FsspecStorage
from seqrecord.storage.url import Location, open_storage, parse_location

__all__ = [
    "FsspecStorage",
    "LocalStorage",
    "Location",
    "Lock",
    "Storage",
    "Upload",
    "open_storage",
    "parse_location",
]
