"""Folders of a storage: the names in them, of files that are not this package's too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from seqrecord.errors import LocationError
from seqrecord.storage.base import Storage

__all__ = ["Browsable", "Entry", "entries_of"]


@dataclass(frozen=True)
class Entry:
    """A file or a folder: its name without a path, and the bytes of a file."""

    name: str
    is_folder: bool
    size: int = 0


@runtime_checkable
class Browsable(Protocol):
    """A storage of which folders can be listed, whoever wrote them."""

    def entries(self, folder: str) -> list[Entry]:
        """Files and folders directly in a folder, `""` for the root, sorted by name.

        Empty for a folder that is not there. Raises as the other requests of a `Storage` do.
        """
        ...


def entries_of(storage: Storage, folder: str) -> list[Entry]:
    """`Browsable.entries`; `LocationError` for a storage that lists no folders."""
    if not isinstance(storage, Browsable):
        raise LocationError("a storage that lists no folders", file=storage.url)
    return storage.entries(folder)
