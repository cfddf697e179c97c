"""Notes beside record files: which are a merge's, and so no dataset's, and which left a dataset.

They are no part of the format. A merge writes its note before anything else, so whoever lists files
first and notes then knows all of a merge's. What is there is never changed: its merge may still be
at work. A note of files that left a dataset in one commit says by its own age how long ago that
was, for a reader that had opened it may still read them; `clean` alone looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from seqrecord.errors import NotFoundError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import FILE_PATH
from seqrecord.storage import Storage
from seqrecord.writing.small_files import SmallFiles
from seqrecord.writing.writer_ids import writer_of

__all__ = [
    "LeftFiles",
    "is_left_note",
    "is_merge_note",
    "left_files",
    "merge_note_path",
    "merges",
    "of_merges",
    "put_left_note",
    "put_merge_note",
]

_MERGE = re.compile(rf"{RECORDS}/([0-9a-f]{{16}})\.merge")
_LEFT = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.left")


def is_merge_note(path: str) -> bool:
    """Whether it is the path of a merge's note."""
    return _MERGE.fullmatch(path) is not None


def merges(storage: Storage) -> set[str]:
    """The writers' ids of all merges that are at work there, or were interrupted.

    Of files that were listed before, all that are of merges are known then.
    """
    files = storage.files(RECORDS)
    return {match[1] for file in files if (match := _MERGE.fullmatch(file.path))}


def of_merges(paths: Iterable[str], writers: Collection[str]) -> set[str]:
    """Those of the paths that are of these merges, and the notes of any: a merge that was killed
    while it wrote its note has left a part of that, and nothing else."""
    return {path for path in paths if writer_of(path) in writers or is_merge_note(path)}


def merge_note_path(writer: str) -> str:
    """The path of the note of a merge."""
    return f"{RECORDS}/{writer}.merge"


def put_merge_note(own: SmallFiles) -> str:
    """Write the note of a merge that begins; its path."""
    path = merge_note_path(own.writer)
    own.put(path, b"a merge writes here, or was interrupted\n")
    return path


@dataclass(frozen=True)
class LeftFiles:
    """A note: its path, when it was written (seconds since 1970), and the files that it names."""

    path: str
    modified: float
    files: frozenset[str]


def is_left_note(path: str) -> bool:
    """Whether it is the path of a note of files that left a dataset."""
    return _LEFT.fullmatch(path) is not None


def put_left_note(own: SmallFiles, commit_id: str, files: Sequence[str]) -> None:
    """Write a note of these record files, just before the commit that leaves them out."""
    own.put(f"{RECORDS}/{commit_id}.left", "".join(f"{file}\n" for file in files).encode())


def left_files(storage: Storage) -> list[LeftFiles]:
    """All notes of files that left. What is no path of a file of a dataset is not in them."""
    found = []
    for file in storage.files(RECORDS):
        if is_left_note(file.path):
            try:
                data, _ = storage.read_whole(file.path, file.size)
            except NotFoundError:  # another clean has removed it
                continue
            lines = data.decode(errors="replace").splitlines()
            named = frozenset(line for line in lines if FILE_PATH.fullmatch(line))
            found.append(LeftFiles(file.path, file.modified, named))
    return found
