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
from seqrecord.store.reading.metadata import edits_in
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


def put_splits(small_files: SmallFiles, version: Version, splits: Mapping[str, str]) -> Version:
    """Put episodes into splits, by key: write the edits, and return the version with them."""
    index, manifest = version.index, version.manifest
    new_splits = {key: name for key, name in splits.items() if key in index.positions}
    if not new_splits:
        return version
    names = tuple(dict.fromkeys((*manifest.splits, *new_splits.values())))
    numbers = index.split.astype(np.int64)
    numbers[[index.positions[key] for key in new_splits]] = [
        names.index(name) for name in new_splits.values()
    ]
    files = put_edits(small_files, split_edits(index, numbers, names), manifest.edits)
    manifest = replace(manifest, splits=names, edits=(*manifest.edits, *files))
    return Version(replace(index, split=numbers.astype(np.uint16)), manifest)


def split_edits(
    index: Index, new_numbers: npt.NDArray[np.int64], names: Sequence[str]
) -> list[Split]:
    """Edits for the episodes whose split differs from the index.

    `new_numbers` has a place in `names` for each episode, or `NO_SPLIT`: int64 [episodes].
    """
    changed_rows = np.flatnonzero(new_numbers != index.split)
    return [
        Split(
            None if number == NO_SPLIT else names[number],
            tuple(index.uid(i) for i in changed_rows[new_numbers[changed_rows] == number].tolist()),
        )
        for number in np.unique(new_numbers[changed_rows]).tolist()
    ]


def put_edits(
    small_files: SmallFiles,
    edits: Sequence[Edit],
    manifest_files: Sequence[IndexFile],
    *,
    left_out: Sequence[str] | None = None,
) -> list[IndexFile]:
    """Write files of edits that follow the `manifest_files`.

    Their numbered names come after any existing file. If there are other files, of undone versions
    or interrupted edits, and no `Reset` after them, one comes first: without it they would count
    where the manifest is lost. With `left_out`, record files of undone versions, it is written also
    without edits.
    """
    number = max(len(manifest_files), next_number(small_files.storage))
    if left_out is None and not edits:
        return []
    if left_out or _needs_reset(small_files.storage, manifest_files):
        reset = Reset(tuple(file.path for file in manifest_files), tuple(sorted(left_out or ())))
        edits = [reset, *edits]
    pieces = (piece for edit in edits for piece in _pieces(edit))
    return [
        small_files.put(edit_path(i, small_files.writer), encode_edit([edit]))
        for i, edit in enumerate(pieces, number)
    ]


def _needs_reset(storage: Storage, manifest_files: Sequence[IndexFile]) -> bool:
    """Whether a storage has edits that the manifest does not name, and no later `Reset` undoes."""
    named_paths = {file.path for file in manifest_files}
    other_paths = [file.path for file in storage.files(EDITS) if file.path not in named_paths]
    if not other_paths:
        return False
    # Edits that begin together have one number, so an interrupted one may be before a named one:
    # tests/tools/test_versions.py::test_a_lost_manifest_after_an_interrupted_edit
    later_files = (file for file in manifest_files if file.path > max(other_paths))
    later_edits = (edit for file in later_files for edit in edits_in(storage, file))
    return not any(isinstance(edit, Reset) for edit in later_edits)


def edit_path(number: int, writer: str) -> str:
    """Path of a writer's edit file."""
    return f"{EDITS}/{number:08d}-{writer}.json"


def next_number(storage: Storage) -> int:
    """First free number for a file of edits."""
    matches = (_NUMBERED.match(file.path) for file in storage.files(EDITS))
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def _pieces(edit: Edit) -> Iterator[Edit]:
    """Cut a large edit into edits that each fit into one file."""
    if isinstance(edit, Delete | Split):
        for i in range(0, len(edit.uids), _UIDS_AT_ONCE):
            yield replace(edit, uids=edit.uids[i : i + _UIDS_AT_ONCE])
    elif isinstance(edit, Rename):
        yield from (Rename(dict(part)) for part in _parts(edit.keys))
    elif isinstance(edit, Relabel):
        yield from (Relabel(dict(part)) for part in _parts(edit.metadata))
    elif isinstance(edit, Trim):
        # Each is three values of JSON, of which a file has at most 2**20.
        yield from map(Trim, map(dict, batched(edit.frames.items(), lambda _: 2, _UIDS_AT_ONCE)))
    else:
        yield edit


def _parts(texts: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    return batched(texts.items(), lambda item: len(item[0]) + len(item[1]), _TEXT_AT_ONCE)


def batched(items: Iterable[_T], size_of: Callable[[_T], int], max_size: int) -> Iterator[list[_T]]:
    """Cut the items into lists of at most `max_size` in total; a larger item is alone in its
    list."""
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > max_size:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
