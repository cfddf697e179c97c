"""Files of edits: written before the manifest that names them, and removed where none does."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence

from seqrecord.errors import SeqRecordError
from seqrecord.format.edits import Delete, Edit, Features, Relabel, Rename, Split, encode_edit
from seqrecord.format.manifest import EDITS, IndexFile, read_manifest
from seqrecord.storage import Storage
from seqrecord.writing.commits import tidy
from seqrecord.writing.small_files import put_file

__all__ = ["next_number", "put_edits", "removed_if_unnamed"]

_NUMBERED = re.compile(rf"{EDITS}/([0-9]{{8}})-")

_UIDS_AT_ONCE = 500_000  # in one file
_TEXT_AT_ONCE = 1 << 22  # characters, of which JSON makes at most six bytes each


def put_edits(storage: Storage, edits: Sequence[Edit], number: int) -> list[IndexFile]:
    """Write files of edits; their names ascend, and come after `number` others.

    They come after what is there, too, and be it of an edit that was interrupted: where the
    manifest is lost, what was committed last counts.
    """
    token, files = secrets.token_hex(8), list[IndexFile]()
    number = max(number, next_number(storage))
    try:
        pieces = (piece for edit in edits for piece in _pieces(edit))
        for i, edit in enumerate(pieces, number):
            path = f"{EDITS}/{i:08d}-{token}.json"
            files.append(put_file(storage, path, encode_edit([edit])))
    except BaseException:
        tidy(storage, [file.path for file in files])
        raise
    return files


def next_number(storage: Storage) -> int:
    """The number of a file of edits whose name comes after all that are there."""
    known = (_NUMBERED.match(file.path) for file in storage.files(EDITS))
    return max((int(match[1]) + 1 for match in known if match), default=0)


@contextlib.contextmanager
def removed_if_unnamed(storage: Storage, files: Sequence[IndexFile]) -> Iterator[None]:
    """If the block raises, remove files of edits unless the manifest that is there names them.

    What is not known to be in a manifest stays only where it may be in one.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(SeqRecordError):
            named = {file.path for file in read_manifest(storage).edits}
            tidy(storage, [file.path for file in files if file.path not in named])
        raise


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
