"""Claims a destination for one writer: what may be written there, and what is there already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from seqrecord.assemble import complete_episodes
from seqrecord.catalog import INDEX, commit, read_footers, record_paths, tidy
from seqrecord.errors import DestinationError, FormatError, NotFoundError
from seqrecord.format import EpisodePart, Footer
from seqrecord.manifest import Manifest, read_manifest
from seqrecord.record_file import RECORDS
from seqrecord.record_reading import read_footer
from seqrecord.schema import Schema
from seqrecord.sealing import seal
from seqrecord.storage import KeepingStorage, Lock, Storage, map_files

__all__ = ["Destination", "WriteMode", "check_mode", "claim"]

WriteMode = Literal["create", "resume", "append"]


@dataclass
class Destination:
    """A destination that this process alone writes to, until `release`.

    `finished` are the keys of all complete episodes with their ordinals, `committed` the keys of
    those in the dataset as it stands. Ordinals from `first_ordinal` on are not in the dataset, and
    from `next_ordinal` on nowhere.
    """

    storage: Storage
    lock: Lock
    schema: Schema | None
    finished: Mapping[str, int]
    committed: frozenset[str]
    first_ordinal: int
    next_ordinal: int
    _guarded: KeepingStorage = field(repr=False)
    _footers: Mapping[str, Footer] = field(repr=False)

    def commit(self, created_by: str, keys: Collection[str]) -> Manifest:
        """Make all that has been written the dataset.

        `keys` are those of the episodes that must be in it. Raises `DestinationError`, and commits
        nothing, if one is missing, or a record file of the dataset as it stands.
        """
        manifest = commit(
            self._guarded,
            created_by,
            footers=self._footers,
            keys=keys,
            paths=[path for path in self._guarded.kept if path.startswith(f"{RECORDS}/")],
        )
        # Record files that hold nothing but pieces of episodes that were given up.
        used = {file.path for file in manifest.record_files}
        tidy(self._guarded, [path for path in record_paths(self.storage) if path not in used])
        return manifest

    def release(self) -> None:
        """Let other writers in."""
        try:
            self.storage.close()
        finally:
            self.lock.release()


def claim(storage: Storage, mode: WriteMode) -> Destination:
    """Lock the destination and look at what is there.

    `create` wants nothing there. `append` wants a dataset and no leftovers of an interrupted
    write. `resume` takes anything: it seals record files that a kill has cut and removes those in
    which no episode had ended. Of a dataset that is there, all files must be there as its manifest
    says; they are checked before anything is written, and never removed or replaced. Raises
    `DestinationError` that says what to use instead, or which file is missing or another.
    """
    check_mode(mode)
    lock = storage.lock()
    try:
        return _claimed(storage, mode, lock)
    except BaseException:
        try:
            storage.close()
        finally:
            lock.release()
        raise


def check_mode(mode: str) -> None:
    """`DestinationError` for what is no `WriteMode`."""
    if mode not in get_args(WriteMode):
        raise DestinationError(
            "no such mode", expected="create, append or resume", got=repr(mode)[:50]
        )


def _claimed(storage: Storage, mode: WriteMode, lock: Lock) -> Destination:
    manifest = _manifest(storage)
    files = {file.path for file in manifest.record_files} if manifest else set()
    cut = [path for path in storage.interrupted(RECORDS) if path not in files]
    loose = [path for path in record_paths(storage) if path not in files]
    _check_mode_fits(storage, mode, manifest, bool(cut or loose))
    footers = _checked_files(storage, manifest) if manifest else {}
    committed = complete_episodes(list(footers.values()))
    if manifest:
        _check_counts(storage, manifest, committed)
    # From here on files are written and removed, but none that the manifest names.
    tables = {file.path for file in manifest.index.values()} if manifest else set()
    guarded = KeepingStorage(storage, files | tables)
    for path in storage.interrupted(INDEX):
        if path not in tables:
            guarded.reopen(path).upload.abort()
    for path in cut:
        seal(guarded, path)
    footers = read_footers(storage, footers)
    complete = complete_episodes(list(footers.values()))
    for path, footer in list(footers.items()):
        if path not in files and not any(part.uid in complete for part in footer.episodes):
            guarded.remove(path)
            del footers[path]
    finished = {part.key: part.ordinal for part in complete.values()}
    return Destination(
        storage=storage,
        lock=lock,
        schema=next((footer.schema for footer in footers.values()), None),
        finished=finished,
        committed=frozenset(part.key for part in committed.values()),
        first_ordinal=max((part.ordinal for part in committed.values()), default=-1) + 1,
        next_ordinal=max(finished.values(), default=-1) + 1,
        _guarded=guarded,
        _footers=footers,
    )


def _checked_files(storage: Storage, manifest: Manifest) -> dict[str, Footer]:
    """Footers of the manifest's record files, by path.

    `DestinationError` for a record file or a file of the index that is missing, of another length,
    or, of the record files, of another id than the manifest says.
    """
    sizes = {file.path: file.size for file in manifest.record_files}
    sizes |= {file.path: file.size for file in manifest.index.values()}
    ids = {file.path: file.file_id for file in manifest.record_files}

    def check(path: str) -> Footer | None:
        shown = f"{storage.url}/{path}"
        try:
            size = storage.size(path)
        except NotFoundError as error:
            raise DestinationError(
                f"a file of the dataset is missing; {_HELP}", file=shown
            ) from error
        if size != sizes[path]:
            raise DestinationError(
                f"a file of the dataset is not as long as its manifest says; {_HELP}",
                file=shown,
                expected=sizes[path],
                got=size,
            )
        if path not in ids:
            return None
        try:
            footer = read_footer(storage, path, size)
        except FormatError as error:
            raise DestinationError(
                f"a record file of the dataset is damaged ({error.message}); {_HELP}", file=shown
            ) from error
        if footer.file_id != ids[path]:
            raise DestinationError(
                f"another record file than the one that the manifest names; {_HELP}",
                file=shown,
                expected=ids[path],
                got=footer.file_id,
            )
        return footer

    found = map_files(storage, check, sizes)
    return {path: footer for path, footer in found.items() if footer is not None}


_HELP = (
    "nothing was changed: bring the file back, or make a dataset of the record files that are "
    "there with `seqrecord reindex`"
)


def _check_counts(
    storage: Storage, manifest: Manifest, committed: Mapping[str, EpisodePart]
) -> None:
    """`DestinationError` if the record files hold other episodes than the manifest counts."""
    frames = sum(part.num_frames or 0 for part in committed.values())
    if (len(committed), frames) != (manifest.num_episodes, manifest.num_frames):
        raise DestinationError(
            "the manifest's record files hold other episodes than it counts; nothing was changed: "
            "`seqrecord verify` says more, `seqrecord reindex` makes a dataset of them",
            file=storage.url,
            expected=f"{manifest.num_episodes} episodes of {manifest.num_frames} frames",
            got=f"{len(committed)} episodes of {frames} frames",
        )


def _manifest(storage: Storage) -> Manifest | None:
    try:
        return read_manifest(storage)
    except NotFoundError:
        return None


def _check_mode_fits(
    storage: Storage, mode: WriteMode, manifest: Manifest | None, loose: bool
) -> None:
    if mode == "create" and manifest is not None:
        raise DestinationError(
            "a dataset is there already; add to it with append (--append), or choose another place",
            file=storage.url,
        )
    if mode == "create" and loose:
        raise DestinationError(
            "an interrupted write left record files there; go on with resume (--resume), or remove "
            "them",
            file=storage.url,
        )
    if mode == "append" and manifest is None:
        raise DestinationError("no dataset to append to", file=storage.url)
    if mode == "append" and loose:
        raise DestinationError(
            "an interrupted append left record files there; finish it with resume (--resume)",
            file=storage.url,
        )
