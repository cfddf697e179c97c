"""clean: removes old files that a dataset's manifest does not name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

from seqrecord.errors import ConflictError, DestinationError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import EDITS, FILE_PATH, INDEX, put_manifest
from seqrecord.reading.record_footers import record_sizes
from seqrecord.storage import Storage, open_storage
from seqrecord.writing.commits import Base, read_base
from seqrecord.writing.destination import writer_of
from seqrecord.writing.left_files import LeftFiles, is_note, left_files
from seqrecord.writing.merge_leftovers import merge_of

__all__ = ["clean"]


def clean(
    location: str | PathLike[str],
    *,
    older_than: float,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Remove record files, unfinished ones, tables and edits that the manifest does not name.

    Episodes that interrupted writers left are lost then: `mode="resume"` would have added
    them. Only files whose writer has written nothing for `older_than` seconds are removed, and
    record files of the dataset as it was only when they left it so long ago: until then a reader
    that had opened it can read on. Returns the paths, sorted; `dry_run` only tells them. A writer
    that is at work meanwhile is refused when it commits: so that no resume recovers what is being
    removed, the manifest is put anew first.

    Raises `DestinationError` where there is no dataset, for then nothing tells what is in use, and
    `ConflictError` if a writer commits at this moment; then nothing is removed.
    """
    with closing(open_storage(location, storage_options)) as storage:
        base = read_base(storage)
        if base.manifest is None:
            raise DestinationError(
                "no dataset there, so nothing tells what is in use; finish it with resume "
                "(--resume), or remove the folder",
                file=storage.url,
            )
        before = time.time() - older_than
        notes = left_files(storage)
        old = _old(storage, base, before, notes)
        gone = {item.path for item in old}
        there = {*base.files, *record_sizes(storage)} - gone
        done = [n.path for n in notes if n.modified <= before and there.isdisjoint(n.files)]
        if not dry_run:
            if old:
                _condemn(storage, base, [item.path for item in old])
            for item in old:
                item.remove()
            for path in done:
                storage.remove(path)
        return sorted({*gone, *done})


@dataclass(frozen=True)
class _Item:
    path: str
    modified: float
    remove: Callable[[], None]


def _old(storage: Storage, base: Base, before: float, notes: Sequence[LeftFiles]) -> list[_Item]:
    """All that is not named, of writers of whom nothing is newer; and what was condemned before.

    What left the dataset later than `before`, by the notes, is not among it.
    """
    assert base.manifest is not None
    items = list(_unnamed(storage, base))
    recent = {path for note in notes if note.modified > before for path in note.files}
    last: dict[str, float] = {}
    for item in items:
        writer = _writer(item.path)
        last[writer] = max(item.modified, last.get(writer, item.modified))
    return [
        item
        for item in items
        if item.path in base.manifest.removed
        or (last[_writer(item.path)] <= before and item.path not in recent)
    ]


def _unnamed(storage: Storage, base: Base) -> Iterator[_Item]:
    assert base.manifest is not None
    named = {*base.files, *(file.path for file in base.manifest.small_files)}
    for folder in (RECORDS, INDEX, EDITS):
        for upload in storage.unfinished(folder):  # of a file that is finished, too
            if _is_ours(upload.path) or is_note(upload.path):
                yield _Item(upload.path, upload.modified, upload.remove)
        for file in storage.files(folder):
            if file.path not in named and _is_ours(file.path):
                yield _Item(file.path, file.modified, partial(storage.remove, file.path))


def _is_ours(path: str) -> bool:
    return FILE_PATH.fullmatch(path) is not None or merge_of(path) is not None


def _writer(path: str) -> str:
    """What the files of one writer have in common, and no other's."""
    return writer_of(path) or merge_of(path) or path


def _condemn(storage: Storage, base: Base, paths: list[str]) -> None:
    """Let the manifest say what is removed, so that nobody who began before can commit it."""
    assert base.manifest is not None
    removed = {path for path in paths if path not in base.files and FILE_PATH.fullmatch(path)}
    removed |= set(base.manifest.removed)
    if removed <= set(base.manifest.removed):
        return
    try:
        manifest = replace(base.manifest, removed=tuple(sorted(removed)))
        put_manifest(storage, manifest, expected=base.tag)
    except ConflictError as error:
        raise ConflictError(
            "another writer committed at this moment; nothing was removed: try again",
            file=storage.url,
        ) from error
