"""What an interrupted merge has left at its destination: taken over, or passed over.

A merge first writes a note of the writer's id under which it writes. So a later one knows what is
no dataset's, and in nobody's way. What is there is never changed: its merge may still be at work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from seqrecord.errors import DestinationError, FormatError, NotFoundError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import RecordFile
from seqrecord.reading.record_footers import read_footer
from seqrecord.storage import Storage
from seqrecord.writing.destination import writer_of
from seqrecord.writing.small_files import put_file

__all__ = ["merge_of", "merges", "put_merge_note", "taken_over"]

_NOTE = re.compile(rf"{RECORDS}/([0-9a-f]{{16}})\.merge")
_COPY = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.([0-9a-f]{{16}})\.seqrec")


def merge_of(path: str) -> str | None:
    """The writer's id of the merge that a note is of; `None` for what is no such note."""
    match = _NOTE.fullmatch(path)
    return match and match[1]


def merges(storage: Storage) -> set[str]:
    """The writers' ids of all merges that are at work there, or were interrupted."""
    paths = [file.path for file in storage.files(RECORDS)]
    paths += [upload.path for upload in storage.unfinished(RECORDS)]
    return {writer for path in paths if (writer := merge_of(path)) is not None}


def put_merge_note(storage: Storage, writer: str) -> str:
    """Write the note of a merge that begins; its path."""
    path = f"{RECORDS}/{writer}.merge"
    put_file(storage, path, b"a merge writes here, or was interrupted\n")
    return path


def taken_over(made: Storage, wanted: Mapping[str, RecordFile]) -> dict[str, str]:
    """Record files that are there already, of those `wanted` by file id: their paths by file id.

    `DestinationError` for any file there that no interrupted merge of these has left.
    """
    notes = merges(made)
    paths = {file.path for file in wanted.values()}
    found: dict[str, str] = {}
    for upload in made.unfinished(RECORDS):
        if not _is_of(upload.path, notes) and upload.path not in paths:
            raise _not_empty(made, upload.path)
    for file in made.files(RECORDS):
        if _is_note_or_encoded(file.path, notes):
            continue
        file_id = _file_id(made, file.path)
        if file_id not in wanted or wanted[file_id].size != file.size:
            raise _not_empty(made, file.path)
        found[file_id] = file.path
    return found


def _is_of(path: str, notes: set[str]) -> bool:
    """Whether a merge that has left a note wrote this, whatever it is."""
    copy = _COPY.fullmatch(path)
    return _is_note_or_encoded(path, notes) or (copy is not None and copy[1] in notes)


def _is_note_or_encoded(path: str, notes: set[str]) -> bool:
    return merge_of(path) is not None or writer_of(path) in notes


def _file_id(made: Storage, path: str) -> str:
    """The id of a record file; nothing for what is none."""
    try:
        return read_footer(made, path).file_id
    except (FormatError, NotFoundError):
        return ""


def _not_empty(made: Storage, path: str) -> DestinationError:
    return DestinationError(
        "not empty",
        file=made.url,
        expected="a place without a dataset, or what an interrupted merge of these has left",
        got=path,
    )
