"""Notes of record files that have left a dataset: a reader that had opened it may still read them.

A note says which files left in one commit, and its own age is how long ago that was. It is no part
of the format; `clean` alone looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seqrecord.errors import NotFoundError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import FILE_PATH
from seqrecord.storage import Storage
from seqrecord.writing.small_files import SmallFiles

__all__ = ["LeftFiles", "is_note", "left_files", "put_note"]

_NOTE = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.left")


@dataclass(frozen=True)
class LeftFiles:
    """A note: its path, when it was written (seconds since 1970), and the files that it names."""

    path: str
    modified: float
    files: frozenset[str]


def is_note(path: str) -> bool:
    """Whether it is the path of such a note."""
    return _NOTE.fullmatch(path) is not None


def put_note(own: SmallFiles, commit_id: str, files: Sequence[str]) -> None:
    """Write a note of these record files, just before the commit that leaves them out."""
    own.put(f"{RECORDS}/{commit_id}.left", "".join(f"{file}\n" for file in files).encode())


def left_files(storage: Storage) -> list[LeftFiles]:
    """All notes that are there. What is no path of a file of a dataset is not in them."""
    found = []
    for file in storage.files(RECORDS):
        if is_note(file.path):
            try:
                data, _ = storage.read_whole(file.path, file.size)
            except NotFoundError:  # another clean has removed it
                continue
            lines = data.decode(errors="replace").splitlines()
            named = frozenset(line for line in lines if FILE_PATH.fullmatch(line))
            found.append(LeftFiles(file.path, file.modified, named))
    return found
