"""A writer that stops as if its process were killed."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from seqrecord import SeqRecordWriter
from seqrecord.storage import Storage, StorageLike, open_storage
from tests.kit.own_threads import own_threads
from tests.kit.services.process import wait_for

__all__ = ["abandon", "abandonable", "small_writer"]

_STORAGES: WeakKeyDictionary[SeqRecordWriter, Storage] = WeakKeyDictionary()


def abandonable(destination: StorageLike, **options: Any) -> SeqRecordWriter:
    """A `SeqRecordWriter` for `abandon`."""
    storage = open_storage(destination)
    writer = SeqRecordWriter(storage, **options)
    _STORAGES[writer] = storage
    return writer


def small_writer(where: Any, mode: Any = "create", **options: Any) -> SeqRecordWriter:
    """A writer with short chunks and files, for `abandon`."""
    defaults = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 700}
    return abandonable(where, mode=mode, **(defaults | options))


def abandon(writer: SeqRecordWriter) -> None:
    """Stop all writes; open files stay as they are."""
    _STORAGES.pop(writer).close()
    wait_for(lambda: not own_threads("seqrecord-commit"))
