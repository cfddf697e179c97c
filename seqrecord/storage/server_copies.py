"""Copies a file within one bucket or container, without its bytes coming to this machine."""

from __future__ import annotations

import logging
from dataclasses import replace

from seqrecord.errors import StorageError
from seqrecord.storage.base import Storage
from seqrecord.storage.objects.source import Bucket
from seqrecord.storage.objects.storage import ObjectStorage
from seqrecord.storage.wrappers import StorageWrapper

__all__ = ["can_copy_on_server", "copy_on_server"]

_logger = logging.getLogger("seqrecord")


def can_copy_on_server(source: Storage, destination: Storage) -> bool:
    """Whether both lie in one bucket or container of one service, which can be written to."""
    a, b = _objects(source), _objects(destination)
    if a is None or b is None or not b.bucket.is_writable:
        return False
    return _holds_both(a.bucket, b.bucket)


def copy_on_server(source: Storage, path: str, destination: Storage, target: str) -> bool:
    """Have the service copy a file to the path `target` of another root; whether it did.

    `target` is a name that nobody else uses, nor is it used again. `False` where both do not lie in
    one bucket, and where the service refuses, which is logged; then nothing is left there, unless
    the service copies it later.
    """
    a, b = _objects(source), _objects(destination)
    if a is None or b is None or not can_copy_on_server(source, destination):
        return False
    try:
        b.copy(a.bucket.key(path), target)
        if destination.size(target) == source.size(path):
            return True
        why = "the copy has another length"
    except StorageError as error:
        why = str(error)
    _logger.info("%s/%s: copied through this machine: %s", source.url, path, why)
    destination.remove(target)
    return False


def _objects(storage: Storage) -> ObjectStorage | None:
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage if isinstance(storage, ObjectStorage) else None


def _holds_both(a: Bucket, b: Bucket) -> bool:
    return type(a) is type(b) and a.bucket == b.bucket and _service(a) == _service(b)


def _service(bucket: Bucket) -> str:
    """The address of the bucket, without the path in it."""
    return replace(bucket, root="").place
