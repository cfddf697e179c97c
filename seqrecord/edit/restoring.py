"""Restores an earlier version of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from os import PathLike
from typing import Any

from seqrecord.edit.changes import REFUSED, check_version
from seqrecord.errors import NotFoundError
from seqrecord.format.edits import Delete
from seqrecord.format.index import Index
from seqrecord.reading.versions import open_version
from seqrecord.storage import open_storage
from seqrecord.writing.commits import Version, put_version
from seqrecord.writing.committing import SmallFiles, read_indexed, recorded
from seqrecord.writing.edit_files import put_edits
from seqrecord.writing.stored_statistics import stored_statistics


@recorded
def restore_version(
    location: str | PathLike[str],
    version: str,
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Commit a new version that is equal to an earlier one; returns its id.

    Episodes, frames, features and splits are as in `version`; `list_versions` has its id. The
    versions in between are kept, so a restoration can be undone by another one. Episodes that were
    added since are deleted, and a `reindex` does not bring them back. Statistics are restored if
    their file is left. No record file is rewritten.

    Arguments and errors as for `delete_episodes`; also raises `NotFoundError` for an unknown
    version, and for one with files that `clean` has removed.

    Example:
        from seqrecord import edit

        before = edit.list_versions("records/")[0].id
        edit.delete_episodes("records/", ["demo/000"])
        edit.restore_version("records/", before)
    """
    with closing(open_storage(location, storage_options)) as storage:
        base, current, index = read_indexed(storage)
        check_version(storage, current, if_version)
        old, old_index = open_version(storage, version)
        if dry_run or version == current.commit:
            return current.commit
        inventory, statistics = current.inventory, None
        with suppress(NotFoundError):
            statistics = stored_statistics(storage, old)
        with suppress(NotFoundError):
            if old.inventory is not None and storage.size(old.inventory.path):
                inventory = old.inventory
        added = sorted(_uids(index) - _uids(old_index))
        with SmallFiles(storage) as own:
            edits = put_edits(own, [Delete(tuple(added))] if added else [], len(old.edits))
            restored = replace(
                old,
                next_ordinal=max(current.next_ordinal, old.next_ordinal),
                statistics=None,
                edits=(*old.edits, *edits),
                inventory=inventory,
                removed=current.removed,
            )
            made = Version(old_index, restored)
            done = put_version(own, base, made, statistics, refused=REFUSED, is_final=True)
            return done.commit


def _uids(index: Index) -> set[str]:
    return {index.uid(i) for i in range(len(index.num_frames))}
