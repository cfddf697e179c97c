"""The one way to change a dataset that is there: look at it, then commit what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import FormatError
from seqrecord.format.edits import Delete, Edit
from seqrecord.format.footer import Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import Manifest, RecordFile
from seqrecord.reading.filters import EpisodeFilter, find_episodes
from seqrecord.reading.metadata import load_index, read_footers, record_sizes
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage, open_storage
from seqrecord.writing.commits import put_version, rebuilt
from seqrecord.writing.committing import Base, read_consistent
from seqrecord.writing.edit_files import put_edits
from seqrecord.writing.own_files import SmallFiles, own_sizes

_REFUSED = "another writer committed meanwhile; this was not committed: try again"


@dataclass(frozen=True)
class EditedDataset:
    """A dataset that is there, with the footers of its record files by path."""

    storage: Storage
    base: Base
    manifest: Manifest
    index: Index
    footers: Mapping[str, Footer]

    def commit(
        self,
        edits: Sequence[Edit] = (),
        statistics: Statistics | None = None,
        *,
        writer: str | None = None,
        gone: Collection[str] = (),
    ) -> tuple[Manifest, list[str]]:
        """Commit the dataset with these edits; the new manifest, and paths of new record files.

        These are the record files of `writer`, which come in the place of those that are `gone`.
        Without `statistics` those of the dataset stay, if it has the same frames as before. Raises
        `FormatError`, and commits nothing, where it would have other episodes, unless some are
        deleted, and `ConflictError` where another writer has committed.
        """
        storage, manifest = self.storage, self.manifest
        own_files = own_sizes(record_sizes(storage), writer) if writer else {}
        sizes = {path: size for path, size in own_files.items() if path not in self.base.files}
        footers = {path: footer for path, footer in self.footers.items() if path not in gone}
        footers |= read_footers(storage, sizes)
        kept = [file for file in manifest.record_files if file.path not in gone]
        new = [RecordFile(path, size, footers[path].file_id) for path, size in sizes.items()]
        with SmallFiles(storage, writer) as own:
            changed = replace(
                manifest,
                edits=(*manifest.edits, *put_edits(own, edits, len(manifest.edits))),
                record_files=(*kept, *new),
            )
            lengths = {file.path: file.size for file in changed.record_files}
            version = rebuilt(storage, replace(self.base, manifest=changed), footers, lengths)
            is_same = np.array_equal(version.index.uids, self.index.uids)
            if not edits:
                is_same = is_same and version.index.fingerprint() == self.index.fingerprint()
            if not is_same and not any(isinstance(edit, Delete) for edit in edits):
                raise FormatError(
                    "the record files do not give the episodes of the index; see "
                    "`seqrecord verify`",
                    file=storage.url,
                )
            if is_same and version.index.schema == manifest.schema:
                version = replace(version, statistics=manifest.statistics)
            done = put_version(own, self.base, version, statistics, refused=_REFUSED)
        return done, list(sizes)

    def find(self, episodes: EpisodeFilter) -> list[int]:
        """The numbers of the episodes that a filter selects; see `find_episodes`."""
        found: list[int] = find_episodes(
            self.index, self.manifest.splits, episodes, url=self.storage.url
        ).tolist()
        return found


@dataclass(frozen=True)
class CopyProgress:
    """Bytes of record files that are copied or linked, and those that will be in the end."""

    copied_bytes: int
    total_bytes: int


Change: TypeAlias = tuple[Sequence[int], list[Edit]]
"""The numbers of the episodes that change, and the edits."""


def edit_dataset(
    location: str | PathLike[str],
    make: Callable[[EditedDataset], Change],
    dry_run: bool,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    """Commit the change that `make` says; returns the keys of the episodes that change."""
    with open_for_edit(location, storage_options) as dataset:
        chosen, edits = make(dataset)
        if chosen and not dry_run:
            dataset.commit(edits)
        return [dataset.index.key(i) for i in chosen]


def read_existing(storage: Storage) -> EditedDataset:
    """The dataset there; `NotFoundError` where there is none."""

    def look(base: Base, manifest: Manifest) -> EditedDataset:
        sizes = {file.path: file.size for file in manifest.record_files}
        index = load_index(storage, manifest)
        return EditedDataset(storage, base, manifest, index, read_footers(storage, sizes))

    return read_consistent(storage, look)


@contextmanager
def open_for_edit(
    location: str | PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[EditedDataset]:
    """The same of a location; its storage is closed in the end."""
    with closing(open_storage(location, storage_options)) as storage:
        yield read_existing(storage)
