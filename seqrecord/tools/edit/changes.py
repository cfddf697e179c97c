"""Edits of a dataset: open it, make edits from its state, commit them; restore a version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import ConflictError, FormatError, NotFoundError
from seqrecord.store.areas import IS_ORIGINAL, load_entry
from seqrecord.store.format.edits import Delete, Edit, Relabel, Rename, Trim
from seqrecord.store.format.footer import Footer
from seqrecord.store.format.index import Index
from seqrecord.store.format.inventory import Inventory, read_inventories
from seqrecord.store.format.manifest import Manifest, RecordFile
from seqrecord.store.format.text import encode_metadata
from seqrecord.store.reading.filters import EpisodeFilter, find_episodes
from seqrecord.store.reading.metadata import load_index, read_footers, record_sizes
from seqrecord.store.reading.versions import kept_versions, open_version
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.writing.commits import Version, put_version, rebuild_version
from seqrecord.store.writing.committing import (
    Base,
    SmallFiles,
    own_sizes,
    read_base,
    read_consistent,
    read_indexed,
    recorded,
)
from seqrecord.store.writing.edit_files import put_edits
from seqrecord.store.writing.record_files import ChunkWriter
from seqrecord.store.writing.stored_statistics import stored_statistics

_REFUSED = "another writer committed meanwhile; nothing was committed: try again"


@dataclass(frozen=True)
class EditedDataset:
    """An existing dataset at the start of an edit, with the footers of its record files by path."""

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
        replaced_files: Collection[str] = (),
    ) -> tuple[Manifest, list[str]]:
        """Commit the dataset with these edits; returns the manifest and new record files' paths.

        New record files are files of `writer`; they replace `replaced_files`. Without
        `statistics`, the dataset keeps its statistics if it keeps its frames. Raises `FormatError`,
        and commits nothing, if the record files do not give the expected episodes (`Delete` edits
        may remove some), and `ConflictError` if another writer has committed.
        """
        storage, manifest, kinds = self.storage, self.manifest, {*map(type, edits)}
        own_files = own_sizes(record_sizes(storage), writer) if writer else {}
        new_paths = sorted(own_files.keys() - self.base.files.keys())
        sizes = {path: own_files[path] for path in new_paths}
        old_files = [file for file in manifest.record_files if file.path not in replaced_files]
        footers = {file.path: self.footers[file.path] for file in old_files}
        footers |= read_footers(storage, sizes)
        new_files = [RecordFile(path, size, footers[path].file_id) for path, size in sizes.items()]
        with SmallFiles(storage, writer) as small_files:
            new_manifest = replace(
                manifest,
                edits=(*manifest.edits, *put_edits(small_files, edits, manifest.edits)),
                record_files=(*old_files, *new_files),
            )
            new_base = replace(self.base, manifest=new_manifest)
            version = rebuild_version(storage, new_base, footers, new_manifest.file_sizes)
            is_same = np.array_equal(version.index.uids, self.index.uids)
            if not edits:
                is_same &= version.index.fingerprint() == self.index.fingerprint()
            if not is_same and Delete not in kinds:
                raise FormatError(
                    "record files and index have different episodes; see `seqrecord verify`",
                    file=storage.url,
                )
            if is_same and Trim not in kinds and version.index.schema == manifest.schema:
                version = version.with_fields(statistics=manifest.statistics)
            if statistics is None and version.manifest.statistics is not None:
                statistics = self._rekeyed(edits)
            committed = put_version(small_files, self.base, version, statistics, refused=_REFUSED)
        return committed, new_paths

    def _rekeyed(self, edits: Sequence[Edit]) -> Statistics | None:
        """The statistics with the new keys of renamed episodes; `None` if they need no change."""
        keys = next((edit.keys for edit in reversed(edits) if isinstance(edit, Rename)), None)
        if keys is None:
            return None
        statistics = stored_statistics(self.storage, self.manifest)
        if statistics is None or not any(moments.non_finite for moments in statistics.values()):
            return None
        new_keys = {
            key: keys.get(self.index.uid(i), key) for key, i in self.index.positions.items()
        }
        return statistics.rekeyed(lambda key: new_keys.get(key, key))

    def find(self, episodes: EpisodeFilter) -> list[int]:
        """Numbers of the episodes that a filter selects; see `find_episodes`."""
        numbers: list[int] = find_episodes(
            self.index, self.manifest.splits, episodes, url=self.storage.url
        ).tolist()
        return numbers

    def relabel(
        self, entries: Callable[[dict[str, Any]], dict[str, Any]], episodes: Iterable[int]
    ) -> Change:
        """Replace the metadata of episodes; `entries` returns the new metadata of one."""
        texts = {}
        for i in episodes:
            metadata = self.index.episode_metadata(i)
            if (text := encode_metadata(entries(metadata))) != encode_metadata(metadata):
                texts[i] = text
        return [*texts], [Relabel({self.index.uid(i): text for i, text in texts.items()})]


Change: TypeAlias = tuple[Sequence[int], list[Edit]]
"""Numbers of the changed episodes, and the edits."""


def edit_dataset(
    location: str | PathLike[str],
    make: Callable[[EditedDataset], Change],
    dry_run: bool,
    storage_options: Mapping[str, Any] | None,
    if_version: str | None,
) -> list[str]:
    """Commit the change that `make` returns; returns the keys of the changed episodes."""
    with open_for_edit(location, storage_options, if_version) as dataset:
        numbers, edits = make(dataset)
        if numbers and not dry_run:
            dataset.commit(edits)
        return [dataset.index.key(i) for i in numbers]


def read_existing(storage: Storage) -> EditedDataset:
    """Read the dataset on a storage. Raises `NotFoundError` if there is none."""

    def look(base: Base, manifest: Manifest) -> EditedDataset:
        index, footers = load_index(storage, manifest), read_footers(storage, manifest.file_sizes)
        return EditedDataset(storage, base, manifest, index, footers)

    with naming_originals(storage):
        return read_consistent(storage, look)


@contextmanager
def naming_originals(storage: Storage) -> Iterator[None]:
    """Tell of an original in the block that there is no dataset, and what to do."""
    try:
        yield
    except NotFoundError as error:
        is_dataset = read_base(storage, accept_damaged=True).tag is not None  # it lacks a file
        if is_dataset or not load_entry(IS_ORIGINAL)(storage):
            raise
        raise NotFoundError(
            "no dataset here, but an original, which is never edited; pack it "
            "(`seqrecord write --src SRC`) or make an index of it "
            "(`seqrecord index SRC -o DST`), and edit the result",
            file=storage.url,
            expected="a dataset of record files",
        ) from error


@contextmanager
def open_for_edit(
    location: str | PathLike[str],
    storage_options: Mapping[str, Any] | None,
    if_version: str | None,
) -> Iterator[EditedDataset]:
    """Open the dataset at a location; its storage is closed with the block."""
    with closing(open_storage(location, storage_options)) as storage:
        dataset = read_existing(storage)
        check_version(storage, dataset.manifest, if_version)
        yield dataset


@contextmanager
def closing_or_aborting(files: ChunkWriter) -> Iterator[None]:
    """Close new record files at the end of the block, or remove unfinished ones after an error."""
    try:
        yield
        files.close()
    except BaseException:
        files.abort()
        raise


def check_version(storage: Storage, manifest: Manifest, if_version: str | None) -> None:
    """Raise `ConflictError` if the dataset is not at version `if_version`; `None` is any."""
    if if_version not in (None, manifest.commit):
        raise ConflictError(
            "dataset has another version; nothing was changed. `seqrecord info --versions` shows "
            "the edits since",
            file=storage.url,
            expected=if_version,
            got=manifest.commit,
        )


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
    added since are deleted, and a `reindex` does not bring them back, also without a manifest.
    Statistics are restored unless `clean` has removed their file. No record file is rewritten.

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
        statistics, inventories = None, tuple[Inventory, ...]()
        with suppress(NotFoundError):
            statistics = stored_statistics(storage, old)
        with suppress(NotFoundError):
            if old.inventory is not None:
                inventories = read_inventories(storage, old.inventory)
        added_uids = sorted(_uids(index) - _uids(old_index))
        with SmallFiles(storage) as small_files:
            deletions = [Delete(tuple(added_uids))] if added_uids else []
            undone_files = _files_since(storage, current, version)
            # Otherwise a reindex without a manifest would bring them back:
            # tests/tools/test_versions.py::test_a_lost_manifest_after_restorations
            undone_files -= {file.path for file in old.record_files}
            edits = put_edits(small_files, deletions, old.edits, left_out=sorted(undone_files))
            new_manifest = replace(
                old,
                next_ordinal=max(current.next_ordinal, old.next_ordinal),
                statistics=None,
                edits=(*old.edits, *edits),
                inventory=current.inventory,
                removed=current.removed,
            )
            committed = put_version(
                *(small_files, base, Version(old_index, new_manifest), statistics),
                inventories=inventories,
                refused=_REFUSED,
            )
            return committed.commit


def _files_since(storage: Storage, current: Manifest, version: str) -> set[str]:
    """Paths of the record files of all versions after this one."""
    paths = {file.path for file in current.record_files}
    for manifest, _ in kept_versions(storage, current, skip_damaged=True):
        if manifest.commit == version:
            break
        paths.update(file.path for file in manifest.record_files)
    return paths


def _uids(index: Index) -> set[str]:
    return {index.uid(i) for i in range(len(index.num_frames))}
