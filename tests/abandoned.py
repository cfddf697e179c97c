"""A writer that stops as if it were killed, in this process."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from seqrecord import SeqRecordWriter
from seqrecord.storage import Storage, StorageLike, open_storage
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
    names = "seqrecord-commit"  # of a thread that has not noticed
    wait_for(lambda: not any(each.name.startswith(names) for each in threading.enumerate()))
