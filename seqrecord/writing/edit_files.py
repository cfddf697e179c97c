"""Files of edits: written before the manifest that names them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from seqrecord.format.edits import Delete, Edit, Features, Relabel, Rename, Split, encode_edit
from seqrecord.format.manifest import EDITS, IndexFile
from seqrecord.storage import Storage
from seqrecord.writing.own_files import SmallFiles

__all__ = ["edit_path", "next_number", "put_edits"]

_NUMBERED = re.compile(rf"{EDITS}/([0-9]{{8}})-")

_UIDS_AT_ONCE = 500_000  # in one file
_TEXT_AT_ONCE = 1 << 22  # characters, of which JSON makes at most six bytes each


def put_edits(own: SmallFiles, edits: Sequence[Edit], number: int) -> list[IndexFile]:
    """Write files of edits; their names ascend, and come after `number` others.

    They come after what is there, too, and be it of an edit that was interrupted: where the
    manifest is lost, what was committed last counts.
    """
    number = max(number, next_number(own.storage))
    pieces = (piece for edit in edits for piece in _pieces(edit))
    return [
        own.put(edit_path(i, own.writer), encode_edit([edit]))
        for i, edit in enumerate(pieces, number)
    ]


def edit_path(number: int, writer: str) -> str:
    """The path of a writer's file of edits."""
    return f"{EDITS}/{number:08d}-{writer}.json"


def next_number(storage: Storage) -> int:
    """The number of a file of edits whose name comes after all that are there."""
    known = (_NUMBERED.match(file.path) for file in storage.files(EDITS))
    return max((int(match[1]) + 1 for match in known if match), default=0)


def _pieces(edit: Edit) -> Iterator[Edit]:
    """The same as edits of which each goes into one file."""
    if isinstance(edit, Delete):
        yield from (Delete(uids) for uids in _runs(edit.uids))
    elif isinstance(edit, Split):
        yield from (Split(edit.split, uids) for uids in _runs(edit.uids))
    elif isinstance(edit, Features):
        yield edit
    elif isinstance(edit, Rename):
        yield from (Rename(some) for some in _parts(edit.keys))
    else:
        yield from (Relabel(some) for some in _parts(edit.metadata))


def _runs(uids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for i in range(0, len(uids), _UIDS_AT_ONCE):
        yield tuple(uids[i : i + _UIDS_AT_ONCE])


def _parts(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    part: dict[str, str] = {}
    length = 0
    for uid, text in texts.items():
        size = len(uid) + len(text)
        if part and length + size > _TEXT_AT_ONCE:
            yield part
            part, length = {}, 0
        part[uid] = text
        length += size
    if part:
        yield part
