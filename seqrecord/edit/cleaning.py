"""clean: removes old files that a dataset's manifest does not name."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

from seqrecord.errors import ConflictError, DestinationError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import EDITS, FILE_PATH, INDEX, Manifest
from seqrecord.reading.metadata import record_sizes
from seqrecord.storage import Storage, open_storage
from seqrecord.text import counted
from seqrecord.writing.committing import Base, commit, read_base
from seqrecord.writing.own_files import (
    RetiredFiles,
    SmallFiles,
    is_merge_note,
    is_retired_note,
    new_writer_id,
    put_file,
    retired_files,
    writer_of,
)

__all__ = ["clean"]

_CLOCK = re.compile(rf"{RECORDS}/[0-9a-f]{{16}}\.clock")

_logger = logging.getLogger("seqrecord")


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
    that had opened it can read on. Times are those that the storage gives: a small file is written
    there, and removed again, to see what time it is; files with a later time stay, with a warning.
    Returns the paths, sorted; `dry_run` only tells them. A writer that is at work meanwhile is
    refused when it commits: so that no resume recovers what is being removed, the manifest is put
    anew first.

    Raises `DestinationError` where there is no dataset, for then nothing tells what is in use, and
    `ConflictError` if a writer commits at this moment, and `CommitUnknownError` if nobody knows
    whether the manifest was put anew; then nothing is removed.
    """
    with closing(open_storage(location, storage_options)) as storage:
        base = read_base(storage)
        if (manifest := base.manifest) is None:
            raise DestinationError(
                "no dataset there, so nothing tells what is in use; finish it with resume "
                "(--resume), or remove the folder",
                file=storage.url,
            )
        notes = retired_files(storage)
        items = list(_unnamed(storage, manifest))
        sizes = record_sizes(storage)
        now = _time_of(storage)  # after all that was listed
        _warn_of_future(storage, items, now)
        before = min(now, now - older_than)
        old = _old(manifest, items, before, notes)
        gone = {item.path for item in old}
        there = {*base.files, *sizes} - gone
        done = [n.path for n in notes if n.modified <= before and there.isdisjoint(n.files)]
        if not dry_run:
            if old:
                _condemn(storage, base, manifest, gone)
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


def _time_of(storage: Storage) -> float:
    """The storage's time: that of a file that is written for it, and removed again."""
    path = f"{RECORDS}/{new_writer_id()}.clock"
    try:
        put_file(storage, path, b"clean asks what time it is\n")
        for file in storage.files(RECORDS):
            if file.path == path:
                return file.modified
    finally:
        storage.remove(path)
    raise ConflictError(
        "another clean is at work; nothing was removed: try again", file=storage.url
    )


def _warn_of_future(storage: Storage, items: Sequence[_Item], now: float) -> None:
    if late := [item for item in items if item.modified > now]:
        _logger.warning(
            "%s: %s with a time after the storage's own are not removed: %s%s",
            *(storage.url, counted(len(late), "file")),
            ", ".join(f"{item.path} ({item.modified - now:,.0f} s after)" for item in late[:3]),
            ", …" if len(late) > 3 else "",
        )


def _old(
    manifest: Manifest, items: Sequence[_Item], before: float, notes: Sequence[RetiredFiles]
) -> list[_Item]:
    """All that is not named, of writers of whom nothing is newer; and what was condemned before.

    What left the dataset later than `before`, by the notes, is not among it.
    """
    recent = {path for note in notes if note.modified > before for path in note.files}
    last: dict[str, float] = {}
    for item in items:
        writer = writer_of(item.path) or item.path
        last[writer] = max(item.modified, last.get(writer, item.modified))
    return [
        item
        for item in items
        if item.path in manifest.removed
        or (last[writer_of(item.path) or item.path] <= before and item.path not in recent)
    ]


def _unnamed(storage: Storage, manifest: Manifest) -> Iterator[_Item]:
    named = {file.path for file in manifest.record_files}
    named |= {file.path for file in manifest.small_files}
    for folder in (RECORDS, INDEX, EDITS):
        for upload in storage.unfinished(folder):  # of a file that is finished, too
            if _is_ours(upload.path) or is_retired_note(upload.path):
                yield _Item(upload.path, upload.modified, upload.remove)
        for file in storage.files(folder):
            if file.path not in named and _is_ours(file.path):
                yield _Item(file.path, file.modified, partial(storage.remove, file.path))


def _is_ours(path: str) -> bool:
    is_clock = _CLOCK.fullmatch(path) is not None
    return FILE_PATH.fullmatch(path) is not None or is_merge_note(path) or is_clock


def _condemn(storage: Storage, base: Base, manifest: Manifest, paths: Collection[str]) -> None:
    """Let the manifest say what is removed, so that nobody who began before can commit it."""
    unnamed = {path for path in paths if path not in base.files and FILE_PATH.fullmatch(path)}
    removed = unnamed.union(manifest.removed)
    if removed == set(manifest.removed):
        return
    try:
        changed = replace(manifest, removed=tuple(sorted(removed)))
        commit(SmallFiles(storage), base, changed)
    except ConflictError as error:
        raise ConflictError(
            "another writer committed at this moment; nothing was removed: try again",
            file=storage.url,
        ) from error
