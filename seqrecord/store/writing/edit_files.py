"""Files of edits: changes of episodes, beside record files, which never change.

The manifest names these files, so that a rebuilt index includes the edits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.format.edits import (
    Delete,
    Edit,
    Relabel,
    Rename,
    Reset,
    Split,
    Trim,
    encode_edit,
)
from seqrecord.store.format.index import NO_SPLIT, Index
from seqrecord.store.format.manifest import EDITS, SPLIT_NAME, IndexFile
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import repr_of
from seqrecord.store.writing.commits import Version
from seqrecord.store.writing.committing import SmallFiles

_NUMBERED = re.compile(rf"{EDITS}/([0-9]{{8}})-")

_UIDS_AT_ONCE = 500_000  # per file
_TEXT_AT_ONCE = 1 << 22  # characters per file; in JSON a character takes at most six bytes

_T = TypeVar("_T")


def check_split_name(name: object) -> None:
    """Raise `ClipError` unless `name` is a valid name of a split."""
    if not isinstance(name, str) or not SPLIT_NAME.fullmatch(name):
        raise ClipError(
            "invalid name of a split", expected=SPLIT_NAME.pattern, got=repr_of(name, 100)
        )


def put_splits(own: SmallFiles, version: Version, splits: Mapping[str, str]) -> Version:
    """Put episodes into splits, by key: write the edits, and return the version with them."""
    index, manifest = version.index, version.manifest
    new = {key: name for key, name in splits.items() if key in index.positions}
    if not new:
        return version
    names = tuple(dict.fromkeys((*manifest.splits, *new.values())))
    numbers = index.split.astype(np.int64)
    numbers[[index.positions[key] for key in new]] = [names.index(name) for name in new.values()]
    files = put_edits(own, split_edits(index, numbers, names), manifest.edits)
    manifest = replace(manifest, splits=names, edits=(*manifest.edits, *files))
    return Version(replace(index, split=numbers.astype(np.uint16)), manifest)


def split_edits(index: Index, new: npt.NDArray[np.int64], names: Sequence[str]) -> list[Split]:
    """Edits for the episodes whose split differs from the index.

    `new` has a place in `names` for each episode, or `NO_SPLIT`: int64 [episodes].
    """
    changed = np.flatnonzero(new != index.split)
    return [
        Split(
            None if number == NO_SPLIT else names[number],
            tuple(index.uid(i) for i in changed[new[changed] == number].tolist()),
        )
        for number in np.unique(new[changed]).tolist()
    ]


def put_edits(
    own: SmallFiles,
    edits: Sequence[Edit],
    named: Sequence[IndexFile],
    *,
    left_out: Sequence[str] | None = None,
) -> list[IndexFile]:
    """Write files of edits that follow the files `named` by the manifest.

    Their numbered names come after any existing file. If there are files behind the named ones, of
    undone versions or interrupted edits, a `Reset` comes first: without it they would count where
    the manifest is lost. With `left_out`, record files of undone versions, it is written also
    without edits.
    """
    number = max(len(named), next_number(own.storage))
    if left_out is None and not edits:
        return []
    after = named[-1].path if named else ""
    if left_out or any(file.path > after for file in own.storage.files(EDITS)):
        reset = Reset(tuple(file.path for file in named), tuple(sorted(left_out or ())))
        edits = [reset, *edits]
    pieces = (piece for edit in edits for piece in _pieces(edit))
    return [
        own.put(edit_path(i, own.writer), encode_edit([edit]))
        for i, edit in enumerate(pieces, number)
    ]


def edit_path(number: int, writer: str) -> str:
    """Path of a writer's file of edits."""
    return f"{EDITS}/{number:08d}-{writer}.json"


def next_number(storage: Storage) -> int:
    """First free number for a file of edits."""
    known = (_NUMBERED.match(file.path) for file in storage.files(EDITS))
    return max((int(match[1]) + 1 for match in known if match), default=0)


def _pieces(edit: Edit) -> Iterator[Edit]:
    """Cut a large edit into edits that each fit into one file."""
    if isinstance(edit, Delete | Split):
        for i in range(0, len(edit.uids), _UIDS_AT_ONCE):
            yield replace(edit, uids=edit.uids[i : i + _UIDS_AT_ONCE])
    elif isinstance(edit, Rename):
        yield from (Rename(dict(some)) for some in _parts(edit.keys))
    elif isinstance(edit, Relabel):
        yield from (Relabel(dict(some)) for some in _parts(edit.metadata))
    elif isinstance(edit, Trim):
        yield from map(Trim, map(dict, batched(edit.frames.items(), lambda _: 1, _UIDS_AT_ONCE)))
    else:
        yield edit


def _parts(texts: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    return batched(texts.items(), lambda item: len(item[0]) + len(item[1]), _TEXT_AT_ONCE)


def batched(items: Iterable[_T], size_of: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """Cut the items into lists of at most `most` in total size; a larger item is alone in its
    list."""
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
