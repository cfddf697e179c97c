"""Claims a destination for one writer: what may be written there, and what is there already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from seqrecord.assemble import complete_episodes
from seqrecord.catalog import INDEX, commit, read_footers
from seqrecord.errors import DestinationError, NotFoundError
from seqrecord.format import Footer
from seqrecord.manifest import Manifest, read_manifest
from seqrecord.record_file import RECORDS, seal
from seqrecord.schema import Schema
from seqrecord.storage import Lock, Storage

__all__ = ["Destination", "WriteMode", "claim"]

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
    _footers: Mapping[str, Footer] = field(repr=False)

    def commit(self, created_by: str) -> Manifest:
        """Make all that has been written the dataset."""
        manifest = commit(self.storage, created_by, footers=self._footers)
        # Record files that hold nothing but pieces of episodes that were given up.
        used = {file.path for file in manifest.record_files}
        for path in _record_files(self.storage):
            if path not in used:
                self.storage.remove(path)
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
    which no episode had ended. Raises `DestinationError` that says what to use instead.
    """
    lock = storage.lock()
    try:
        return _claimed(storage, mode, lock)
    except BaseException:
        try:
            storage.close()
        finally:
            lock.release()
        raise


def _claimed(storage: Storage, mode: WriteMode, lock: Lock) -> Destination:
    manifest = _manifest(storage)
    committed_paths = {file.path for file in manifest.record_files} if manifest else set()
    cut = storage.interrupted(RECORDS)
    loose = [path for path in _record_files(storage) if path not in committed_paths]
    _check_mode(storage, mode, manifest, bool(cut or loose))
    for path in storage.interrupted(INDEX):
        storage.reopen(path).upload.abort()
    for path in cut:
        seal(storage, path)
    footers = read_footers(storage)
    complete = complete_episodes(list(footers.values()))
    for path, footer in list(footers.items()):
        if path not in committed_paths and not any(
            part.uid in complete for part in footer.episodes
        ):
            storage.remove(path)
            del footers[path]
    committed = {
        part.key: part.ordinal
        for path in committed_paths & footers.keys()
        for part in footers[path].episodes
        if part.uid in complete
    }
    finished = {part.key: part.ordinal for part in complete.values()}
    return Destination(
        storage=storage,
        lock=lock,
        schema=next((footer.schema for footer in footers.values()), None),
        finished=finished,
        committed=frozenset(committed),
        first_ordinal=max(committed.values(), default=-1) + 1,
        next_ordinal=max(finished.values(), default=-1) + 1,
        _footers=footers,
    )


def _record_files(storage: Storage) -> list[str]:
    return [path for path in storage.list_files(RECORDS) if path.endswith(".seqrec")]


def _manifest(storage: Storage) -> Manifest | None:
    try:
        return read_manifest(storage)
    except NotFoundError:
        return None


def _check_mode(storage: Storage, mode: WriteMode, manifest: Manifest | None, loose: bool) -> None:
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
