"""A writer that stops as if it were killed, in this process."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from seqrecord import SeqRecordWriter
from seqrecord.storage import Storage, StorageLike, open_storage
from tests.own_threads import own_threads
from tests.services.process import wait_for

__all__ = ["abandon", "abandonable"]

_STORAGES: WeakKeyDictionary[SeqRecordWriter, Storage] = WeakKeyDictionary()


def abandonable(destination: StorageLike, **options: Any) -> SeqRecordWriter:
    """A `SeqRecordWriter` for `abandon`."""
    storage = open_storage(destination)
    writer = SeqRecordWriter(storage, **options)
    _STORAGES[writer] = storage
    return writer


def abandon(writer: SeqRecordWriter) -> None:
    """Nothing more is written, and what is open stays as it is."""
    _STORAGES.pop(writer).close()
    wait_for(lambda: not own_threads("seqrecord-commit"))  # one that has not noticed
