"""Commits a new version of a dataset if no other writer has; rebuilds a lost manifest and index."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, NamedTuple

from seqrecord.errors import ConflictError, FormatError, NotFoundError, StorageError, TransientError
from seqrecord.format import RECORDS, Footer
from seqrecord.format.edits import Edits
from seqrecord.format.index import Index
from seqrecord.format.manifest import (
    INDEX,
    IndexFile,
    Manifest,
    RecordFile,
    check_record_path,
    parse_manifest,
    put_manifest,
    read_tagged,
)
from seqrecord.format.statistics import encode_statistics
from seqrecord.reading.edits import all_edits, read_edits
from seqrecord.reading.index_building import build_index, complete_episodes
from seqrecord.reading.record_footers import read_footers, record_sizes
from seqrecord.statistics import Statistics
from seqrecord.storage import Storage, open_storage
from seqrecord.text import counted
from seqrecord.version import CREATED_BY
from seqrecord.writing.left_files import put_note
from seqrecord.writing.small_files import put_file

__all__ = [
    "Base",
    "Opened",
    "Version",
    "appended",
    "opened_to_edit",
    "put_version",
    "read_base",
    "read_dataset",
    "read_existing",
    "rebuilt",
    "reindex",
    "tidy",
]

_MAX_SHOWN = 20  # episodes in one line of the log

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class Base:
    """The dataset as a writer found it when it began; `manifest` is `None` where there is none.

    A commit is one conditional write: it succeeds if the manifest's tag is still `tag`. `tables`
    are the files of the index that were there before the manifest was read.
    """

    manifest: Manifest | None
    tag: str | None
    tables: tuple[str, ...]

    @property
    def files(self) -> dict[str, RecordFile]:
        """The record files of the dataset, by path in order."""
        return {file.path: file for file in self.manifest.record_files} if self.manifest else {}


class Opened(NamedTuple):
    """A dataset that is there, with the footers and the sizes of its record files, by path."""

    storage: Storage
    base: Base
    manifest: Manifest
    footers: dict[str, Footer]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Version:
    """What a new manifest is to say of the dataset's episodes and files."""

    index: Index
    record_files: tuple[RecordFile, ...]
    next_ordinal: int
    left_out: tuple[str, ...]
    splits: tuple[str, ...] = ()
    statistics: IndexFile | None = None
    edits: tuple[IndexFile, ...] = ()


def read_base(storage: Storage, *, accept_damaged: bool = False) -> Base:
    """The dataset as it is now; a manifest that is damaged counts as none if that is accepted."""
    # Tables first: those of a commit that comes in between are then not among them.
    tables = tuple(file.path for file in storage.files(INDEX))
    try:
        data, tag = read_tagged(storage)
    except NotFoundError:
        return Base(None, None, tables)
    try:
        return Base(parse_manifest(storage, data), tag, tables)
    except FormatError:
        if not accept_damaged:
            raise
        return Base(None, tag, tables)


def read_dataset(storage: Storage) -> tuple[Base, Manifest]:
    """The dataset there; raises `NotFoundError` where there is none."""
    base = read_base(storage)
    if base.manifest is None:
        raise NotFoundError("no dataset", file=storage.url)
    return base, base.manifest


def read_existing(storage: Storage) -> Opened:
    """The same, with what its record files say."""
    base, manifest = read_dataset(storage)
    sizes = {file.path: file.size for file in manifest.record_files}
    return Opened(storage, base, manifest, read_footers(storage, sizes), sizes)


@contextlib.contextmanager
def opened_to_edit(
    location: str | PathLike[str], storage_options: Mapping[str, Any] | None
) -> Iterator[Opened]:
    """The same of a location; its storage is closed in the end."""
    with contextlib.closing(open_storage(location, storage_options)) as storage:
        yield read_existing(storage)


def rebuilt(
    storage: Storage, base: Base, footers: Mapping[str, Footer], sizes: Mapping[str, int]
) -> Version:
    """The dataset of all complete episodes in these record files.

    Of the episodes of one key all but one are left out, and named in the log; see `build_index`.
    The edits of the dataset apply, or all that are there where it has no manifest. Statistics stay
    where the content is what it was. Raises `FormatError` as `build_index` does.
    """
    old = base.manifest
    left_out = old.left_out if old else ()
    edits = old.edits if old else all_edits(storage)
    effect = read_edits(storage, edits)
    try:
        built = build_index(footers, base.files, left_out, effect, old.splits if old else ())
    except FormatError as error:  # it names a path
        error.file = f"{storage.url}/{error.file or RECORDS}"
        raise
    if new := [episode for episode in built.lost if episode.uid not in left_out]:
        shown = [f"{episode.key} (uid {episode.uid})" for episode in new[:_MAX_SHOWN]]
        _logger.warning(
            "%s: %s written twice, and left out: %s%s",
            *(storage.url, counted(len(new), "episode"), ", ".join(shown)),
            ", …" if len(new) > _MAX_SHOWN else "",
        )
    # A file of the dataset stays in it, though all that it held be copies now.
    paths = dict.fromkeys([*built.files, *(path for path in base.files if path in footers)])
    lost = (episode.uid for episode in built.lost if not episode.files.isdisjoint(paths))
    return Version(
        built.index,
        tuple(RecordFile(path, sizes[path], footers[path].file_id) for path in paths),
        max(built.next_ordinal, old.next_ordinal if old else 0),
        tuple(sorted(lost)),
        built.splits,
        old.statistics if old and old.fingerprint == built.index.fingerprint() else None,
        edits,
    )


def appended(
    manifest: Manifest, index: Index, footers: Mapping[str, Footer], sizes: Mapping[str, int]
) -> Version:
    """This dataset, then the complete episodes of these record files, whose keys are all new.

    Their ordinals are `next_ordinal` of the manifest and above. It is what `rebuilt` would make of
    all files, without a look at those of the dataset.
    """
    version = Version(
        *(index, manifest.record_files, manifest.next_ordinal, manifest.left_out),
        *(manifest.splits, manifest.statistics, manifest.edits),
    )
    if not complete_episodes(list(footers.items()), manifest.schema):
        return version
    new = build_index(footers, edits=Edits(schema=manifest.schema))
    files = tuple(RecordFile(path, sizes[path], footers[path].file_id) for path in new.files)
    return replace(
        version,
        index=index.extended(new.index, len(version.record_files)),
        record_files=(*version.record_files, *files),
        next_ordinal=max(version.next_ordinal, new.next_ordinal),
        statistics=None,
    )


def put_version(
    storage: Storage,
    base: Base,
    version: Version,
    created_by: str,
    statistics: Statistics | None = None,
) -> Manifest:
    """Commit: write the index under new names, then put the manifest in place in one step.

    `statistics` take the place of those of `version`.

    Record files of `base` that it leaves out stay, with a note of when that was, for readers that
    have them open. Raises `ConflictError` if the manifest is no longer that of `base`. Whatever it
    raises, the dataset is as it was.
    """
    generation = secrets.token_hex(8)
    tables: dict[str, IndexFile] = {}
    paths: list[str] = []
    try:
        for name, data in version.index.encode().items():
            paths.append(f"{INDEX}/{generation}-{name}.arrow")
            tables[name] = put_file(storage, paths[-1], memoryview(data))
        if statistics is not None and (text := encode_statistics(statistics)) is not None:
            paths.append(f"{INDEX}/{generation}-statistics.json")
            version = replace(version, statistics=put_file(storage, paths[-1], text))
        left = base.files.keys() - {file.path for file in version.record_files}
        if left and (there := left & record_sizes(storage).keys()):
            paths.append(put_note(storage, generation, sorted(there)))
    except StorageError as error:
        if not isinstance(error, TransientError):  # or it would wait once more for what is gone
            tidy(storage, paths)
        raise
    manifest = Manifest(
        schema=version.index.schema,
        record_files=version.record_files,
        index=tables,
        num_episodes=len(version.index.num_frames),
        num_frames=int(version.index.num_frames.sum()),
        fingerprint=version.index.fingerprint(),
        created_by=created_by,
        splits=version.splits,
        statistics=version.statistics,
        edits=version.edits,
        next_ordinal=version.next_ordinal,
        left_out=version.left_out,
        removed=_still_there(storage, base.manifest.removed if base.manifest else ()),
    )
    try:
        put_manifest(storage, manifest, expected=base.tag)
    except ConflictError as error:
        # After any other error the manifest may be there, and name these.
        tidy(storage, paths)
        raise ConflictError(
            "another writer committed first. Nothing is lost: the episodes that this one wrote "
            "stay on the storage, and resume (--resume) or `seqrecord reindex` adds them",
            file=storage.url,
        ) from error
    # The index before this one stays for readers that have just read the manifest before, and
    # tables that were not there at the start are those of a commit after this one.
    named = {file.path for file in (version.statistics, *_small_files(base.manifest)) if file}
    tidy(storage, [path for path in base.tables if path not in named])
    return manifest


def _small_files(manifest: Manifest | None) -> tuple[IndexFile | None, ...]:
    """What a manifest names in the folder of the index."""
    return () if manifest is None else (*manifest.index.values(), manifest.statistics)


def tidy(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that nothing needs. One that cannot be removed is logged: the commit stands."""
    for path in paths:
        try:
            storage.remove(path)
        except StorageError as error:
            _logger.warning(
                "%s/%s is not needed but cannot be removed: %s", storage.url, path, error
            )


def reindex(
    location: str | PathLike[str],
    *,
    created_by: str = CREATED_BY,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Rebuild index and manifest of a dataset from its record files alone.

    All complete episodes are in it, those of interrupted writers too. Logs a warning if a record
    file of the manifest before, where that can be read, is not there: the dataset is made without
    it. Raises `ConflictError` where another writer commits meanwhile.
    """
    with contextlib.closing(open_storage(location, storage_options)) as storage:
        return _reindex(storage, created_by)


def _reindex(storage: Storage, created_by: str) -> Manifest:
    base = read_base(storage, accept_damaged=True)
    removed = base.manifest.removed if base.manifest else ()
    sizes = {path: n for path, n in record_sizes(storage).items() if path not in removed}
    if not sizes:
        cut = storage.unfinished(RECORDS)
        more = "; `seqrecord write --resume` continues an interrupted write" if cut else ""
        raise NotFoundError(f"no record files{more}", file=f"{storage.url}/{RECORDS}")
    if gone := sorted(set(base.files).difference(sizes)):
        _logger.warning(
            "the dataset is made without %s that the manifest before named: %s",
            counted(len(gone), "record file"),
            ", ".join(f"{storage.url}/{path}" for path in gone[:3]),
        )
    for path in sizes:
        check_record_path(storage, path)
    return put_version(
        storage, base, rebuilt(storage, base, read_footers(storage, sizes), sizes), created_by
    )


def _still_there(storage: Storage, removed: tuple[str, ...]) -> tuple[str, ...]:
    """Of the paths that `clean` removes those that are there yet: nobody may recover them."""
    if not removed:
        return ()
    there = {upload.path for upload in storage.unfinished(RECORDS)} | set(record_sizes(storage))
    return tuple(path for path in removed if path in there)
