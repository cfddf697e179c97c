"""The commit: one conditional write of the manifest, and what is known of its outcome.

docs/storage_details.md, "Several writers", has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from seqrecord.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    NotFoundError,
    SeqRecordError,
    TransientError,
)
from seqrecord.format.index import Index
from seqrecord.format.manifest import (
    INDEX,
    KEPT_VERSIONS,
    MAX_EARLIER_COMMITS,
    Manifest,
    RecordFile,
    parse_manifest,
    put_manifest,
    read_manifest,
    read_tagged,
    version_path,
)
from seqrecord.reading.metadata import load_index, still_missing
from seqrecord.storage import Storage
from seqrecord.writing.own_files import SmallFiles, tidy

_logger = logging.getLogger("seqrecord")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Base:
    """The dataset as a writer found it when it began; `manifest` is `None` where there is none.

    A commit is one conditional write: it succeeds if the manifest's tag is still `tag`.
    """

    manifest: Manifest | None
    tag: str | None

    @property
    def files(self) -> dict[str, RecordFile]:
        """The record files of the dataset, by path in order."""
        return {file.path: file for file in self.manifest.record_files} if self.manifest else {}


def read_base(storage: Storage, *, accept_damaged: bool = False) -> Base:
    """The dataset as it is now; a manifest that is damaged counts as none if that is accepted.

    A writer asks for it once, before it looks at anything else.
    """
    try:
        data, tag = read_tagged(storage)
    except NotFoundError:
        return Base(None, None)
    try:
        return Base(parse_manifest(storage, data), tag)
    except FormatError:
        if not accept_damaged:
            raise
        return Base(None, tag)


def read_dataset(storage: Storage) -> tuple[Base, Manifest]:
    """The dataset there; raises `NotFoundError` where there is none."""
    data, tag = read_tagged(storage)
    manifest = parse_manifest(storage, data)
    return Base(manifest, tag), manifest


def read_consistent(storage: Storage, look: Callable[[Base, Manifest], _T]) -> _T:
    """What `look` makes of the dataset there, with the files that its manifest names.

    If one of them is missing, it looks once more with the manifest read anew: others may have
    committed meanwhile, and removed tables. `NotFoundError` where one is missing then too.
    """
    base, manifest = read_dataset(storage)
    try:
        return look(base, manifest)
    except NotFoundError:
        again, manifest = read_dataset(storage)
        if again.tag == base.tag:
            raise
    with still_missing():
        return look(again, manifest)


def read_indexed(storage: Storage) -> tuple[Base, Manifest, Index]:
    """The dataset there with its index; raises `NotFoundError` where there is none."""
    return read_consistent(storage, lambda base, found: (base, found, load_index(storage, found)))


def commit(own: SmallFiles, base: Base, manifest: Manifest) -> Manifest:
    """Put the manifest in place of that of `base`; returns it with the id of the commit.

    `own` are the files that the writer has written for it; they stay where the manifest may name
    them. Raises `ConflictError` if the commit was refused for certain, and `CommitUnknownError` if
    nobody knows whether it went through; after any other error it did not, but after an interrupt,
    whose outcome is unknown too.
    """
    storage, old = own.storage, base.manifest
    named = {file.path for file in manifest.small_files}
    manifest = replace(
        manifest,
        commit=own.commit_id,
        earlier_commits=_ids(old)[:MAX_EARLIER_COMMITS] if old else (),
        superseded=tuple(
            file.path
            for file in (old.small_files if old else ())
            if file.path.startswith(f"{INDEX}/") and file.path not in named
        ),
    )
    if old is not None:
        _keep_version(storage, old)
    own.keep()
    try:
        put_manifest(storage, manifest, expected=base.tag)
    except (ConflictError, TransientError) as error:
        _resolve_outcome(own, base, manifest, error)
    except SeqRecordError:
        own.forget()
        raise
    # Those of the manifest before this one stay, for readers that have just read it.
    unneeded = [path for path in (old.superseded if old else ()) if path not in named]
    unneeded += map(version_path, manifest.earlier_commits[KEPT_VERSIONS:][:1])
    tidy(storage, unneeded)
    return manifest


def _keep_version(storage: Storage, manifest: Manifest) -> None:
    """Keep a manifest that is about to be replaced; nothing is written where it is kept already."""
    with suppress(ConflictError):
        storage.put(version_path(manifest.commit), manifest.encode(), expected=None)


def _resolve_outcome(
    own: SmallFiles, base: Base, manifest: Manifest, error: ConflictError | TransientError
) -> None:
    """Read the manifest to tell the outcome of a commit; an error unless it went through."""
    storage = own.storage
    try:
        found: Manifest | None = read_manifest(storage)
    except SeqRecordError:
        found = None
    if found is not None and manifest.commit in _ids(found):
        _logger.warning("%s: committed, but the answer was lost: %s", storage.url, error.message)
        return
    # Of a refusal the storage says that it is certain; of what was lost the condition does, if the
    # storage has any.
    refused = isinstance(error, ConflictError)
    if found is not None and (
        (refused and base.manifest is not None and found.commit == base.manifest.commit)
        or ((refused or storage.has_conditions) and _is_after(found, base))
    ):
        own.forget(file.path for file in found.small_files)
        raise ConflictError(
            "another writer committed first; nothing was changed", file=storage.url
        ) from error
    raise CommitUnknownError(
        f"nobody knows whether the commit {manifest.commit} went through ({error.message}), and it "
        "may yet do so. `seqrecord info --json` lists the ids of the commits: if this one is among "
        "them, all is there. If not, wait some minutes, look again, and run the same command once "
        "more; what this one has written stays until `seqrecord clean` removes it",
        file=storage.url,
        expected=f"commit {manifest.commit}",
        got=found and f"commit {found.commit}",
    ) from error


def _is_after(found: Manifest, base: Base) -> bool:
    """Whether a manifest came after the base, and all between them is known."""
    if base.manifest is None:
        return len(found.earlier_commits) < MAX_EARLIER_COMMITS
    return base.manifest.commit in found.earlier_commits


def _ids(manifest: Manifest) -> tuple[str, ...]:
    return manifest.commit, *manifest.earlier_commits
