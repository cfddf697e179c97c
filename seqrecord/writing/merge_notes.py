"""Notes of merges: which writers' files are those of a merge, and no dataset's.

A merge writes its note before anything else, so whoever lists files first and notes then knows all
of a merge's. What is there is never changed: its merge may still be at work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from seqrecord.format import RECORDS
from seqrecord.storage import Storage
from seqrecord.writing.small_files import SmallFiles
from seqrecord.writing.writer_ids import writer_of

__all__ = ["is_merge_note", "merges", "note_path", "of_merges", "put_merge_note"]

_NOTE = re.compile(rf"{RECORDS}/([0-9a-f]{{16}})\.merge")


def is_merge_note(path: str) -> bool:
    """Whether it is the path of such a note."""
    return _NOTE.fullmatch(path) is not None


def merges(storage: Storage) -> set[str]:
    """The writers' ids of all merges that are at work there, or were interrupted.

    Of files that were listed before, all that are of merges are known then.
    """
    files = storage.files(RECORDS)
    return {match[1] for file in files if (match := _NOTE.fullmatch(file.path))}


def of_merges(paths: Iterable[str], writers: Collection[str]) -> set[str]:
    """Those of the paths that are of these merges, their notes too."""
    return {path for path in paths if writer_of(path) in writers}


def note_path(writer: str) -> str:
    """The path of the note of a merge."""
    return f"{RECORDS}/{writer}.merge"


def put_merge_note(own: SmallFiles) -> str:
    """Write the note of a merge that begins; its path."""
    path = note_path(own.writer)
    own.put(path, b"a merge writes here, or was interrupted\n")
    return path
