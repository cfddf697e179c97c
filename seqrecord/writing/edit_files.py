"""Files of edits: what becomes of episodes later, told beside record files, which never change.

The manifest names these files, so that a lost index is rebuilt with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.format.edits import Delete, Edit, Relabel, Rename, Split, encode_edit
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import EDITS, SPLIT_NAME, IndexFile
from seqrecord.storage import Storage
from seqrecord.text import repr_of
from seqrecord.writing.commits import Version
from seqrecord.writing.own_files import SmallFiles

_NUMBERED = re.compile(rf"{EDITS}/([0-9]{{8}})-")

_UIDS_AT_ONCE = 500_000  # in one file
_TEXT_AT_ONCE = 1 << 22  # characters, of which JSON makes at most six bytes each

_T = TypeVar("_T")


def check_split_name(name: object) -> None:
    """`ClipError` for what is no name of a split."""
    if not isinstance(name, str) or not SPLIT_NAME.fullmatch(name):
        raise ClipError(
            "not the name of a split", expected=SPLIT_NAME.pattern, got=repr_of(name, 100)
        )


def put_splits(
    own: SmallFiles, version: Version, new: npt.NDArray[np.int64], names: tuple[str, ...]
) -> Version:
    """The version in which episodes are in the splits `new`, int64 [episodes]: places in `names`,
    or `NO_SPLIT`. Writes the edits that say so."""
    edits = split_edits(version.index, new, names)
    files = put_edits(own, edits, len(version.edits))
    return replace(
        version,
        index=replace(version.index, split=new.astype(np.uint16)),
        splits=names,
        edits=(*version.edits, *files),
    )


def split_edits(index: Index, new: npt.NDArray[np.int64], names: Sequence[str]) -> list[Split]:
    """What becomes of episodes whose splits are others than in the index; see `put_splits`."""
    changed = np.flatnonzero(new != index.split)
    return [
        Split(
            None if number == NO_SPLIT else names[number],
            tuple(index.uid(i) for i in changed[new[changed] == number].tolist()),
        )
        for number in np.unique(new[changed]).tolist()
    ]


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
    if isinstance(edit, Delete | Split):
        for i in range(0, len(edit.uids), _UIDS_AT_ONCE):
            yield replace(edit, uids=edit.uids[i : i + _UIDS_AT_ONCE])
    elif isinstance(edit, Rename):
        yield from (Rename(dict(some)) for some in _parts(edit.keys))
    elif isinstance(edit, Relabel):
        yield from (Relabel(dict(some)) for some in _parts(edit.metadata))
    else:
        yield edit


def _parts(texts: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    return batched(texts.items(), lambda item: len(item[0]) + len(item[1]), _TEXT_AT_ONCE)


def batched(items: Iterable[_T], size_of: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """The items in lists that come to at most so much each, or of one item that is larger."""
    some: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if some and total + size > most:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some
