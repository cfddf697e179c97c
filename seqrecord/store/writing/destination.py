"""A writer's destination: existing dataset, recovered episodes, free ordinals, commit.

Any number of writers may write to one destination at the same time. Each has files of its own, and
commits with one conditional write; see docs/storage_details.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from seqrecord.errors import (
    DestinationError,
    FormatError,
    NotFoundError,
    SeqRecordError,
    TransientError,
)
from seqrecord.store.format.footer import RECORDS, Footer
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import MANIFEST, CopiedFiles, Dictionary, Manifest
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.metadata import (
    DamagedFile,
    load_index,
    read_edits,
    read_file_id,
    read_footer,
    read_footers,
    readable_footers,
    record_sizes,
)
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage, Unfinished, upload_limits_of
from seqrecord.store.storage.local import missing_folders, remove_empty_folders
from seqrecord.store.storage.parallel import map_files
from seqrecord.store.text import counted, repr_of
from seqrecord.store.writing.committing import (
    Base,
    SmallFiles,
    edits_of,
    loose_files,
    new_writer_id,
    own_sizes,
    read_base,
    retired_files,
    tidy,
    writer_of,
)

if TYPE_CHECKING:
    from seqrecord.store.format.inventory import Inventory
    from seqrecord.store.writing.commits import Version

WriteMode = Literal["create", "resume", "append"]

RESUME = "continue with resume (--resume)"
"""The remedy in errors of writers that leave episodes behind."""

_logger = logging.getLogger("seqrecord")


class Destination:
    """A destination at the start of one writer, which gets the new id `writer`.

    `create` needs an empty destination. `append` needs a dataset, and ignores files of other
    writers. `resume` accepts anything, and recovers complete episodes of other writers; see
    `recover`. All files of an existing dataset are checked before anything is written. Raises
    `DestinationError`, which names the missing or replaced file or a mode that fits, and closes
    `storage` on any error.

    The commit deletes the episodes `replaced`, by key; new ones may have their keys.

    Attributes:
        committed: keys of the dataset's episodes, without `replaced`.
        recovered: ordinals of other complete episodes on the storage, by key; `commit` adds them.
        first_ordinal: first ordinal that the dataset does not use.
        next_ordinal: first ordinal that no episode on the storage uses.
        damaged: files of other writers that a resume skipped in whole or in part.
    """

    def __init__(self, storage: Storage, mode: WriteMode, replaced: Collection[str] = ()) -> None:
        check_mode(mode)
        self.storage, self._mode, self._replaced = storage, mode, replaced
        self.writer = new_writer_id()
        self._missing_folders = missing_folders(storage, RECORDS)
        try:
            self._open(mode)
        except BaseException:
            storage.close()
            raise

    def _open(self, mode: WriteMode, *, is_second: bool = False) -> None:
        storage = self.storage
        self._base = base = read_base(storage)
        manifest, files = base.manifest, base.files
        sizes, loose, unfinished = _record_files(storage, base, mode)
        _check_mode_fits(storage, mode, manifest, len(loose) + len(unfinished))
        if mode == "append":
            _warn_of_ignored(storage, loose)
        is_resumed = mode == "resume" and (loose or unfinished)
        try:
            self._index = _checked_index(storage, manifest, sizes) if manifest else None
            resumed_sizes = {path: sizes[path] for path in (*files, *loose)} if is_resumed else {}
            footers, damaged = readable_footers(storage, resumed_sizes)
        except (DestinationError, NotFoundError):
            if is_second or read_base(storage).tag == base.tag:
                raise
            # Another writer committed, and removed old tables or its unused record files.
            self._open(mode, is_second=True)
            return
        self.damaged = _report_damaged(storage, damaged, files)
        self.schema, self.first_ordinal = None, 0
        positions: Mapping[str, int] = {}
        self._deleted: tuple[str, ...] = ()
        if manifest and self._index:
            self.schema, self.first_ordinal = manifest.schema, manifest.next_ordinal
            positions = self._index.positions
            rows = map(positions.__getitem__, filter(positions.__contains__, self._replaced))
            self._deleted = tuple(map(self._index.uid, rows))
        self.committed = frozenset(positions).difference(self._replaced)
        self.recovered: dict[str, int] = {}
        self._footers: dict[str, Footer] = {}  # of the dataset's and of recovered files
        if is_resumed:
            self._recover(footers, unfinished)
        next_ordinals = (ordinal + 1 for ordinal in self.recovered.values())
        self.next_ordinal = max((self.first_ordinal, *next_ordinals))

    def _recover(self, footers: Mapping[str, Footer], unfinished: Sequence[Unfinished]) -> None:
        """Find complete episodes in files with these footers, and in unfinished files."""
        # Most writers create a dataset.
        from seqrecord.store.reading.index_building import matching_footers
        from seqrecord.store.writing.recovery import recover

        storage, base = self.storage, self._base
        edits = read_edits(storage, edits_of(storage, base))
        schema = self.schema if base.manifest else edits.schema
        edited = edits.schema is not None
        self.schema, matching = matching_footers(
            list(footers.items()), schema, base.files, edited=edited
        )
        self._footers = dict(matching)
        complete_parts = recover(
            storage,
            self._footers,
            unfinished,
            self.committed,
            self.writer,
            self.schema,
            self.damaged,
        )
        # As in `build_index`: of several uids of one key the smallest is taken.
        deleted = {*edits.deleted, *self._deleted}
        uids = [uid for uid in sorted(complete_parts, reverse=True) if uid not in deleted]
        for uid in uids:
            part = complete_parts[uid]
            self.recovered[edits.keys.get(uid, part.key)] = part.ordinal
        self.recovered = {k: n for k, n in self.recovered.items() if k not in self.committed}

    @property
    def copied(self) -> CopiedFiles | None:
        """Lists of the files from which values of the dataset were copied."""
        return self._base.manifest.copied if self._base.manifest else None

    @cached_property
    def finished(self) -> frozenset[str]:
        """The keys of all complete episodes."""
        return self.committed | self.recovered.keys()

    def other_lengths(self, num_frames: Mapping[str, int]) -> dict[str, int]:
        """Numbers of frames here, by key, of the episodes that differ from `num_frames`.

        Trimmed episodes are left out.
        """
        index, manifest = self._index, self._base.manifest
        if index is None or manifest is None:
            return {}
        rows = {key: index.positions[key] for key in num_frames if key in self.committed}
        lengths = {key: int(index.num_frames[row]) for key, row in rows.items()}
        changed_keys = [key for key, length in lengths.items() if length != num_frames[key]]
        trims = read_edits(self.storage, manifest.edits).frames if changed_keys else {}
        return {key: lengths[key] for key in changed_keys if index.uid(rows[key]) not in trims}

    def commit(
        self,
        keys: Collection[str],
        statistics: Statistics | None = None,
        splits: Mapping[str, str] | None = None,
        inventories: Sequence[Inventory] = (),
        check: Callable[[Index], None] = lambda _: None,
        copied: CopiedFiles | None = None,
        dictionaries: Sequence[Dictionary] = (),
    ) -> Manifest:
        """Commit the dataset with all episodes that were recovered, or written under this id.

        Args:
            keys: episodes that must be in the new dataset.
            statistics: of the frames written under this id.
            splits: split names by key, for new episodes; episodes of the dataset keep their splits.
            inventories: added to the dataset's inventories.
            check: called with the new index; may raise to refuse it.
            copied: replaces the dataset's lists of copied files.
            dictionaries: added to the dataset's dictionaries. Their datasets are there already.

        Raises `ConflictError` if another writer committed since this one began, and
        `DestinationError` if an episode of `keys` or a record file of the dataset is missing. Then
        nothing is committed or removed.
        """
        # Here, because a writer needs the code that builds indexes at its end only.
        from seqrecord.store.writing.commits import put_version
        from seqrecord.store.writing.edit_files import put_splits
        from seqrecord.store.writing.stored_statistics import statistics_of

        _logger.info("%s: committing %s", self.storage.url, counted(len(keys), "episode"))
        sizes = record_sizes(self.storage)
        if gone := sorted({*self._base.files, *self._footers}.difference(sizes)):
            raise DestinationError(
                "a record file of the dataset disappeared while writing; nothing is committed",
                file=f"{self.storage.url}/{gone[0]}",
            )
        written_sizes = own_sizes(sizes, self.writer)
        footers = read_footers(self.storage, written_sizes)
        with SmallFiles(self.storage, self.writer) as small_files:
            version = self._version(small_files, footers, sizes)
            if absent_keys := [key for key in keys if key not in version.index.positions]:
                raise DestinationError(
                    "record files lack an episode that had ended (was a file removed?); nothing is "
                    "committed",
                    episode=absent_keys[0],
                    expected=f"{len(keys)} episodes that had ended",
                    got=f"{len(keys) - len(absent_keys)} of them",
                )
            check(version.index)
            # Record files with incomplete episodes only: from this commit on no resume may recover
            # them, and a writer that recovered them before cannot commit.
            draft = version.manifest
            unused = sorted(written_sizes.keys() - {file.path for file in draft.record_files})
            version = version.with_fields(
                removed=(*draft.removed, *unused),
                copied=copied or draft.copied,
                dictionaries=tuple(dict.fromkeys((*draft.dictionaries, *dictionaries))),
            )
            merged_statistics = None  # of replaced frames too
            if not self._deleted:
                previous = self._base.manifest
                merged_statistics = statistics_of(self.storage, previous, version, statistics)
            new_splits = {key: n for key, n in (splits or {}).items() if key not in self.committed}
            version = put_splits(small_files, version, new_splits)
            stored_inventories = self._inventories() if inventories else ()
            all_inventories = (*stored_inventories, *inventories)
            manifest = put_version(
                small_files, self._base, version, merged_statistics, inventories=all_inventories
            )
        tidy(self.storage, unused)
        if self._mode == "resume":
            from seqrecord.store.writing.recovery import name_unfinished  # see _recover

            name_unfinished(self.storage)
        return manifest

    def _version(
        self, small_files: SmallFiles, footers: Mapping[str, Footer], sizes: Mapping[str, int]
    ) -> Version:
        """The next version, with the episodes in these record files of this writer."""
        # Here like those of `commit`.
        from seqrecord.store.writing.commits import append_version, rebuild_version

        base, manifest, all_footers = self._base, self._base.manifest, {**self._footers, **footers}
        if self._deleted:
            from seqrecord.store.format.edits import Delete
            from seqrecord.store.writing.edit_files import put_edits

            assert manifest is not None, "a dataset of which episodes are replaced"
            files = put_edits(small_files, [Delete(self._deleted)], manifest.edits)
            base = replace(base, manifest=replace(manifest, edits=(*manifest.edits, *files)))
            old_sizes = {path: sizes[path] for path in base.files if path not in all_footers}
            all_footers = {**read_footers(self.storage, old_sizes), **all_footers}
        elif self._index is not None and manifest is not None and not self._footers:
            return append_version(manifest, self._index, footers, sizes)
        return rebuild_version(self.storage, base, all_footers, sizes)

    def _inventories(self) -> tuple[Inventory, ...]:
        """The dataset's inventories; none, with a warning, if they are damaged."""
        manifest = self._base.manifest
        if manifest is None or manifest.inventory is None:
            return ()
        # Few datasets that are appended to have some.
        from seqrecord.store.format.inventory import read_inventories

        try:
            return read_inventories(self.storage, manifest.inventory)
        except (NotFoundError, FormatError) as error:
            _logger.warning("%s: inventories dropped: %s", self.storage.url, error)
            return ()

    def give_up(self, error: BaseException | None, cause: BaseException | None = None) -> None:
        """Clean up after a failure: remove this writer's files if no episode has ended or was
        flushed.

        A corrected second attempt then finds an unchanged destination. If an episode has ended or
        was flushed, its files are kept, and `error` gets a note on `--resume`; not so for an index
        in the user's home, which is made again. `cause` is the failure, if it is not `error`. After
        a `TransientError` the storage is not contacted.
        """
        if isinstance(error, TransientError) or isinstance(cause, TransientError):
            is_kept = True
        else:
            try:
                is_kept = not self._remove_useless()
            except SeqRecordError as second:
                is_kept = True
                _logger.info("%s: own files stay: %s", self.storage.url, second)
        from seqrecord.store.reading.home import home  # after failures only

        path = self.storage.local_path(MANIFEST)
        is_in_home = path is not None and home() in Path(path).parents
        if (is_kept or self.recovered) and not is_in_home:
            _name_resume(error, self.storage)

    def _remove_useless(self) -> bool:
        """Remove all own files if none has an episode that ended or was flushed."""
        storage = self.storage
        unfinished = [u for u in storage.unfinished(RECORDS) if writer_of(u.path) == self.writer]
        sizes = own_sizes(record_sizes(storage), self.writer)
        if any(upload.checkpoints() for upload in unfinished if upload.path not in sizes):
            return False
        for path, size in sizes.items():
            parts = read_footer(storage, path, size).episodes
            if any(part.num_frames is not None for part in parts):
                return False
        tidy(storage, {*sizes, *(upload.path for upload in unfinished)})
        remove_empty_folders(self._missing_folders)
        return True

    def release(self) -> None:
        """Close the storage. Uncommitted files are kept there."""
        self.storage.close()


def _record_files(
    storage: Storage, base: Base, mode: WriteMode
) -> tuple[dict[str, int], list[str], list[Unfinished]]:
    """Sizes of all record files; paths of those that the dataset lacks; unfinished files."""
    # Unfinished files first: a file that is finished in between is then in `sizes`.
    unfinished = [] if mode == "append" else storage.unfinished(RECORDS)
    sizes = record_sizes(storage)
    loose_paths = set(loose_files(storage, base, {*sizes, *(upload.path for upload in unfinished)}))
    unfinished = [upload for upload in unfinished if upload.path in loose_paths - sizes.keys()]
    return sizes, [path for path in sizes if path in loose_paths], unfinished


def _warn_of_ignored(storage: Storage, loose: Collection[str]) -> None:
    """Log the number of record files that an append ignores."""
    if not loose:
        return
    # Files that an edit left out are of no running writer.
    ignored = set(loose).difference(*(note.files for note in retired_files(storage)))
    if ignored:
        _logger.warning(
            "%s: ignored %s of another writer, which is running or was interrupted; resume "
            "(--resume) adds their episodes",
            *(storage.url, counted(len(ignored), "record file")),
        )


def _name_resume(error: BaseException | None, storage: Storage) -> None:
    """Add the remedy `--resume` to an error that is being raised."""
    noun = "ended episodes" if upload_limits_of(storage) is None else "stored episodes"
    text = f"{noun} are kept: {RESUME}"
    if isinstance(error, SeqRecordError):
        if "resume" not in error.message:
            error.message += f"; {text}"
    elif error is not None and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"seqrecord: {text}")


def check_mode(mode: str) -> None:
    """Raise `DestinationError` unless `mode` is a `WriteMode`."""
    if mode not in get_args(WriteMode):
        raise DestinationError(
            "unknown mode", expected="create, append or resume", got=repr_of(mode, 50)
        )


def _report_damaged(
    storage: Storage, damaged: Mapping[str, FormatError], committed: Collection[str]
) -> list[DamagedFile]:
    """Log the damaged record files that a resume leaves out; they are not deleted.

    Raises `DestinationError` if one is in `committed`: a dataset's own file is never skipped.
    """
    for path, error in damaged.items():
        if path in committed:
            raise DestinationError(
                f"record file of the dataset is damaged: {error.message}; {_HELP}",
                **error.context(),
            ) from error
    return [DamagedFile.logged(storage, path, error) for path, error in damaged.items()]


def _checked_index(storage: Storage, manifest: Manifest, sizes: Mapping[str, int]) -> Index:
    """Index of the dataset, after a check of its record files without reading them.

    Raises `DestinationError` for a missing file, a file of another length, and a record file whose
    id differs from the manifest.
    """
    ids = {file.path: file.file_id for file in manifest.record_files}
    for file in manifest.record_files:
        if (size := sizes.get(file.path)) != file.size:
            raise DestinationError(
                f"record file is missing; {_HELP}"
                if size is None
                else f"length of a record file differs from the manifest; {_HELP}",
                file=f"{storage.url}/{file.path}",
                expected=file.size,
                got=size,
            )

    def check(path: str) -> None:
        if (file_id := read_file_id(storage, path)) != ids[path]:
            raise FormatError(
                "record file was replaced (id differs from the manifest)",
                file=f"{storage.url}/{path}",
                expected=ids[path],
                got=file_id,
            )

    try:
        map_files(storage, check, ids)
        return load_index(storage, manifest)
    except (FormatError, NotFoundError) as error:
        raise DestinationError(
            f"file of the dataset is missing or damaged: {error.message}; {_HELP}",
            **error.context(),
        ) from error


_HELP = (
    "nothing was changed: restore the file, or rebuild the dataset from the remaining record "
    "files with `seqrecord reindex`"
)


def _check_mode_fits(
    storage: Storage, mode: WriteMode, manifest: Manifest | None, num_left: int
) -> None:
    """Raise `DestinationError` if `mode` does not fit; `num_left` counts record files without a
    manifest."""
    if mode == "create" and manifest is not None:
        raise DestinationError(
            "dataset exists already; add to it with append (--append), or choose another place",
            file=storage.url,
        )
    if mode == "create" and num_left:
        raise DestinationError(
            "record files of another writer, which is running or was interrupted; continue with "
            "resume (--resume), or remove them",
            file=storage.url,
        )
    if mode == "append" and manifest is None:
        raise DestinationError("no dataset to append to", file=storage.url)
