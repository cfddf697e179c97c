"""Commits a new version of a dataset; rebuilds lost manifests and indexes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from seqrecord.errors import ConflictError, FormatError, NotFoundError, StorageError
from seqrecord.store.format.edits import Edits
from seqrecord.store.format.footer import RECORDS, Footer
from seqrecord.store.format.index import Index
from seqrecord.store.format.inventory import Inventory, encode_inventories
from seqrecord.store.format.manifest import (
    DICTIONARIES,
    CopiedFiles,
    Dictionary,
    Manifest,
    RecordFile,
)
from seqrecord.store.format.references import stored_list_ids
from seqrecord.store.format.text_keys import feature_of_texts
from seqrecord.store.reading.index_building import (
    BuiltIndex,
    build_index,
    complete_episodes,
    declared_rates,
)
from seqrecord.store.reading.metadata import (
    DamagedFile,
    load,
    load_index,
    read_edits,
    readable_footers,
    record_sizes,
)
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Browsable, Storage
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.text import counted, first_of
from seqrecord.store.writing.committing import (
    Base,
    SmallFiles,
    commit,
    edits_of,
    loose_files,
    put_retired_note,
    read_base,
    recorded,
)
from seqrecord.version import CREATED_BY

_MAX_SHOWN = 20  # episodes in one line of the log

_REFUSED = (
    "another writer committed first. The episodes of this writer stay on the storage: add them "
    "with resume (--resume) or `seqrecord reindex`"
)

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class Version:
    """The next version of a dataset. `put_version` completes the manifest: tables, counts, id."""

    index: Index
    manifest: Manifest

    def with_fields(self, **fields: Any) -> Version:
        """The version with these fields of the manifest."""
        return Version(self.index, replace(self.manifest, **fields))


def rebuild_version(
    storage: Storage, base: Base, footers: Mapping[str, Footer], sizes: Mapping[str, int]
) -> Version:
    """Build the version with all complete episodes in these record files.

    Record files are left out if they only have dropped features, or copies of chunks in other
    files, and no other fact of an episode. The index is that of the others.

    If several episodes have the same key, one is kept, and the log names the others; see
    `build_index`. The dataset's edits apply, or those on the storage if there is no manifest.
    Statistics are kept if the content is unchanged. Raises `FormatError` as `build_index` does.
    """
    previous = base.manifest
    left_out = previous.left_out if previous else ()
    edits = edits_of(storage, base)
    effect = read_edits(storage, edits)
    built = _built_index(storage, base, footers, effect)
    duplicates = [f"{e.key} (uid {e.uid})" for e in built.duplicates if e.uid not in left_out]
    _warn_of(storage, "%s: skipped %s (duplicate keys): %s", "episode", duplicates)
    # A file of the dataset stays in it, even if it only has duplicates now.
    schema = built.index.schema
    paths = dict.fromkeys(built.files)
    paths |= {
        path: None
        for path in base.files
        if path in footers and _holds_any(footers[path], effect.deleted, schema)
    }
    lost = [episode.uid for episode in built.duplicates if not episode.files.isdisjoint(paths)]
    unused_files = [footer for path, footer in footers.items() if path not in paths]
    if _affect_episodes(built.index, unused_files, footers.values()):
        # A timestamp that was dropped contradicts no fps:
        # tests/store/test_rates.py::test_a_dropped_timestamp_contradicts_nothing
        named_footers = {path: footers[path] for path in paths}
        built = _built_index(storage, base, named_footers, replace(effect, schema=schema))
        paths = dict.fromkeys((*built.files, *paths))
    template = previous or Manifest(schema, (), {}, 0, 0, "", CREATED_BY)
    is_same = template.fingerprint == built.index.fingerprint()
    manifest = replace(
        template,
        record_files=tuple(RecordFile(path, sizes[path], footers[path].file_id) for path in paths),
        next_ordinal=max(built.next_ordinal, template.next_ordinal),
        left_out=tuple(sorted(lost)),
        splits=built.splits,
        statistics=template.statistics if is_same else None,
        edits=edits,
    )
    return Version(built.index, manifest)


def _built_index(
    storage: Storage, base: Base, footers: Mapping[str, Footer], edits: Edits
) -> BuiltIndex:
    """Build the index; errors name the file with its URL."""
    previous = base.manifest
    left_out, splits = (previous.left_out, previous.splits) if previous else ((), ())
    try:
        return build_index(footers, base.files, left_out, edits, splits)
    except FormatError as error:  # it names a path
        error.file = f"{storage.url}/{error.file or RECORDS}"
        raise


def _affect_episodes(
    index: Index, unused_files: Iterable[Footer], footers: Iterable[Footer]
) -> bool:
    """Whether parts in unused record files may contradict the fps of an episode, or discard it.

    Nothing else in an index depends on unused files.
    """
    numbers, contradicted_uids = index.positions_by_uid, set[str]()
    for part in (part for footer in unused_files for part in footer.episodes):
        if (number := numbers.get(part.uid)) is None:
            continue
        if part.is_discarded:
            return True
        if part.num_frames is not None and part.fps is None and not index.fps[number]:
            contradicted_uids.add(part.uid)
    return bool(contradicted_uids) and not contradicted_uids.isdisjoint(declared_rates(footers))


def _holds_any(footer: Footer, deleted: Collection[str], schema: Schema) -> bool:
    """Whether a record file has a chunk of a remaining episode with a remaining feature."""
    lives = np.array([part.uid not in deleted for part in footer.episodes], bool)
    return any(
        lives[rows["episode"]].any() and not all(spec.is_dropped for spec in group.values())
        for rows, group in zip(footer.chunks, schema.groups, strict=False)
    )


def append_version(
    manifest: Manifest, index: Index, footers: Mapping[str, Footer], sizes: Mapping[str, int]
) -> Version:
    """Extend the dataset by the complete episodes of these record files, whose keys are all new.

    Their ordinals start at the manifest's `next_ordinal`, so the old index is extended without
    reading old record files. The result is the same as from `rebuild_version`.
    """
    if not complete_episodes(list(footers.items()), manifest.schema):
        return Version(index, manifest)
    addition = build_index(footers, edits=Edits(schema=manifest.schema))
    files = tuple(RecordFile(path, sizes[path], footers[path].file_id) for path in addition.files)
    extended = replace(
        manifest,
        record_files=(*manifest.record_files, *files),
        next_ordinal=max(manifest.next_ordinal, addition.next_ordinal),
        statistics=None,
    )
    return Version(index.extended(addition.index, len(manifest.record_files)), extended)


def put_version(
    small_files: SmallFiles,
    base: Base,
    version: Version,
    statistics: Statistics | None = None,
    *,
    inventories: Sequence[Inventory] = (),
    created_by: str = CREATED_BY,
    refused: str = _REFUSED,
) -> Manifest:
    """Commit: write the index under new names, then replace the manifest in one step.

    `small_files` are those of this commit, written before or here. `statistics` and `inventories`
    replace the files of `version`; features whose statistics do not match the schema are left out.

    Record files that leave the dataset remain on the storage for readers that have them open; a
    note records the time. The log names statistics that the new version lacks. Raises as `commit`
    does, with the message `refused` if another writer committed first.
    """
    storage, index, manifest = small_files.storage, version.index, version.manifest
    tables = {
        name: small_files.put_index(f"{name}.arrow", memoryview(data))
        for name, data in index.encode().items()
    }
    misfits: list[str] = []
    if statistics is not None:
        fitting = statistics.fitting(index.schema)
        misfits = [name for name in statistics if name not in fitting]
        is_empty = bool(misfits) and not fitting
        file = None if is_empty else small_files.put_statistics(fitting)
        manifest = replace(manifest, statistics=file)
    if inventories:
        data = encode_inventories(inventories)
        manifest = replace(manifest, inventory=small_files.put_index("inventory.json", data))
    if retired_paths := base.files.keys() - {file.path for file in manifest.record_files}:
        put_retired_note(small_files, sorted(retired_paths))
    removed = (path for path in manifest.removed if path not in base.removed)
    manifest = replace(
        manifest,
        schema=index.schema,
        index=tables,
        num_episodes=len(index.num_frames),
        num_frames=int(index.num_frames.sum()),
        fingerprint=index.fingerprint(),
        created_by=created_by,
        removed=(*_remaining_paths(storage, base.removed), *removed),
    )
    try:
        committed = commit(small_files, base, manifest)
    except ConflictError as error:
        raise ConflictError(refused, file=storage.url) from error
    if misfits:
        _logger.warning(
            "%s: statistics of %s removed because its channels changed; run `seqrecord stats%s`",
            *(storage.url, ", ".join(misfits), " --recompute" if committed.statistics else ""),
        )
    elif (
        base.manifest is not None
        and base.manifest.statistics is not None
        and not committed.statistics
    ):
        _logger.warning(
            "%s: statistics removed because the episodes changed (%s before, %s now); run "
            "`seqrecord stats`",
            *(storage.url, counted(base.manifest.num_frames, "frame")),
            counted(committed.num_frames, "frame"),
        )
    return committed


@recorded
def reindex(
    location: str | PathLike[str],
    *,
    created_by: str = CREATED_BY,
    on_damaged: Callable[[DamagedFile], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Rebuild index and manifest of a dataset from its record files alone.

    The result has all complete episodes, also the complete episodes of interrupted writers. Files
    that a cluster wrote after the conversion's commit, and files that `restore_version` left out,
    are ignored, and the log lists them. A
    damaged record file is not deleted, but episodes with frames in it are left out; warnings
    name both, and `on_damaged` is called for each such file. Other warnings name record files of
    the old manifest that are missing, and edits whose commit is unknown because the manifest cannot
    be read.

    Raises `FormatError` if all record files are damaged, `NotFoundError` if there are none, and
    `ConflictError` if another writer commits meanwhile.

    Example:
        manifest = seqrecord.reindex("records/")
        print(manifest.num_episodes, manifest.num_frames)
    """
    with contextlib.closing(open_storage(location, storage_options)) as storage:
        base = read_base(storage, accept_damaged=True)
        try:
            return _reindex(storage, base, created_by, on_damaged)
        except NotFoundError:
            new_base = read_base(storage, accept_damaged=True)
            if new_base.tag == base.tag:
                raise
            # Another writer committed meanwhile, and removed its unused record files.
            return _reindex(storage, new_base, created_by, on_damaged)


def _reindex(
    storage: Storage,
    base: Base,
    created_by: str,
    on_damaged: Callable[[DamagedFile], object] | None,
) -> Manifest:
    all_sizes = record_sizes(storage)
    usable_paths = {*base.files, *loose_files(storage, base, all_sizes)}
    sizes = {path: n for path, n in all_sizes.items() if path in usable_paths}
    _warn_of(
        storage,
        "%s: ignored %s: duplicates of a cluster's job, or left out by `edit restore`: %s",
        *("record file", sorted(all_sizes.keys() - usable_paths.union(base.removed))),
    )
    if not sizes:
        hint = "; expected the folder of a dataset, not of originals"
        if storage.unfinished(RECORDS):
            hint = "; `seqrecord write --resume` continues an interrupted write"
        raise NotFoundError(f"no record files{hint}", file=f"{storage.url}/{RECORDS}")
    if gone := sorted(set(base.files).difference(sizes)):
        _logger.warning(
            "the new dataset lacks %s of the old manifest: %s",
            counted(len(gone), "record file"),
            ", ".join(f"{storage.url}/{path}" for path in gone[:3]),
        )
    footers, errors = readable_footers(storage, sizes)
    if not footers:
        raise next(iter(errors.values()))
    damaged = [DamagedFile.logged(storage, path, error) for path, error in errors.items()]
    version = rebuild_version(storage, base, footers, sizes)
    if base.manifest is None:
        # Unknown which files values were copied from: compare all files that the lists name.
        if list_ids := stored_list_ids(storage):
            version = version.with_fields(copied=CopiedFiles(tuple(list_ids)))
        texts = read_edits(storage, version.manifest.edits).dictionaries
        version = version.with_fields(dictionaries=_stored_dictionaries(storage, texts))
        _warn_of(
            storage,
            "%s: no manifest lists the committed edits; applied %s of edits: %s",
            *("file", [file.path for file in version.manifest.edits]),
        )
    elif damaged:
        _log_lost(storage, base.manifest, version.index)
    with SmallFiles(storage) as small_files:
        manifest = put_version(small_files, base, version, created_by=created_by)
    if on_damaged is not None:
        for file in damaged:
            on_damaged(file)
    return manifest


def _stored_dictionaries(storage: Storage, texts: Mapping[str, str]) -> tuple[Dictionary, ...]:
    """Return the dictionaries in a storage's folder of such, as far as they are readable.

    `texts` are text features that were renamed after the dictionary was written, by its name.
    """
    dictionaries = list[Dictionary]()
    names: list[str] = []
    if isinstance(storage, Browsable):
        with contextlib.suppress(NotFoundError):
            names = [entry.name for entry in storage.entries(DICTIONARIES) if entry.is_folder]
    for name in names:
        folder = in_folder(storage, f"{DICTIONARIES}/{name}")
        with contextlib.suppress(FormatError, StorageError):
            _, index = load(folder)
            text = texts.get(name, feature_of_texts(index))
            if text is not None and [*index.schema] == [name]:
                dictionaries.append(Dictionary(name, text))
    return tuple(dictionaries)


def _log_lost(storage: Storage, old_manifest: Manifest, index: Index) -> None:
    """Log the episodes that the new index lacks, as far as the old index is readable."""
    with contextlib.suppress(FormatError, StorageError):
        keys = load_index(storage, old_manifest).positions
        lost = [key for key in keys if key not in index.positions]
        _warn_of(storage, "%s: %s lost with damaged record files: %s", "episode", lost)


def _warn_of(storage: Storage, message: str, noun: str, items: Sequence[str]) -> None:
    """Log a message about a dataset, with its URL, the number of items and the first ones.

    Without items, nothing is logged.
    """
    if items:
        examples = first_of(items, _MAX_SHOWN)
        _logger.warning(message, storage.url, counted(len(items), noun), examples)


def _remaining_paths(storage: Storage, removed: tuple[str, ...]) -> tuple[str, ...]:
    """The paths in `removed` that still exist; no resume may recover them."""
    if not removed:
        return ()
    paths = {upload.path for upload in storage.unfinished(RECORDS)} | set(record_sizes(storage))
    return tuple(path for path in removed if path in paths)
