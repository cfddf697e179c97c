"""clean: removes old files that a dataset's manifest does not name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from seqrecord.errors import ConflictError, DestinationError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import EDITS, FILE_PATH, INDEX, put_manifest
from seqrecord.storage import Storage, open_storage
from seqrecord.writing.commits import Base, read_base
from seqrecord.writing.destination import writer_of

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
    them. Only files whose writer has written nothing for `older_than` seconds are removed. Returns
    the paths, sorted; `dry_run` only tells them. A writer that is at work meanwhile is refused when
    it commits: so that no resume recovers what is being removed, the manifest is put anew first.

    Raises `DestinationError` where there is no dataset, for then nothing tells what is in use, and
    `ConflictError` if a writer commits at this moment; then nothing is removed.
    """
    storage = open_storage(location, storage_options)
    try:
        base = read_base(storage)
        if base.manifest is None:
            raise DestinationError(
                "no dataset there, so nothing tells what is in use; finish it with resume "
                "(--resume), or remove the folder",
                file=storage.url,
            )
        old = _old(storage, base, time.time() - older_than)
        if old and not dry_run:
            _condemn(storage, base, [item.path for item in old])
            for item in old:
                item.remove()
        return sorted({item.path for item in old})
    finally:
        storage.close()


@dataclass(frozen=True)
class _Item:
    path: str
    modified: float
    remove: Callable[[], None]


def _old(storage: Storage, base: Base, before: float) -> list[_Item]:
    """All that is not named, of writers of whom nothing is newer; and what was condemned before."""
    assert base.manifest is not None
    items = list(_unnamed(storage, base))
    last: dict[str, float] = {}
    for item in items:
        writer = writer_of(item.path) or item.path
        last[writer] = max(item.modified, last.get(writer, item.modified))
    return [
        item
        for item in items
        if item.path in base.manifest.removed or last[writer_of(item.path) or item.path] <= before
    ]


def _unnamed(storage: Storage, base: Base) -> Iterator[_Item]:
    assert base.manifest is not None
    named = {*base.files, *(file.path for file in base.manifest.small_files)}
    for folder in (RECORDS, INDEX, EDITS):
        for upload in storage.unfinished(folder):  # of a file that is finished, too
            if FILE_PATH.fullmatch(upload.path):
                yield _Item(upload.path, upload.modified, upload.remove)
        for file in storage.files(folder):
            if file.path not in named and FILE_PATH.fullmatch(file.path):
                yield _Item(file.path, file.modified, _removal(storage, file.path))


def _removal(storage: Storage, path: str) -> Callable[[], None]:
    return lambda: storage.remove(path)


def _condemn(storage: Storage, base: Base, paths: list[str]) -> None:
    """Let the manifest say what is removed, so that nobody who began before can commit it."""
    assert base.manifest is not None
    removed = {path for path in paths if path not in base.files} | set(base.manifest.removed)
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
