"""Earlier versions of a dataset: each commit keeps the manifest that it replaces, up to ten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from seqrecord.errors import FormatError, NotFoundError, StateError
from seqrecord.format.footer import RECORDS
from seqrecord.format.index import Index
from seqrecord.format.manifest import (
    EDITS,
    KEPT_VERSIONS,
    MAX_MANIFEST_BYTES,
    VERSIONS,
    Manifest,
    parse_manifest,
    read_manifest,
    version_path,
)
from seqrecord.format.text import ID
from seqrecord.reading.metadata import load, load_version
from seqrecord.storage import Storage, StorageLike, map_files, open_storage
from seqrecord.text import counted, repr_of


@dataclass(frozen=True)
class DatasetVersion:
    """A version of a dataset: its id, which `seqrecord.open` takes, and what it holds.

    `until` is when it was replaced, by the storage's clock; `None` for the dataset as it is.
    `is_whole` says whether its record files and edits are there, as far as their names tell.
    """

    id: str
    until: datetime | None
    num_episodes: int
    num_frames: int
    is_whole: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; times as ISO 8601."""
        return {**vars(self), "until": self.until and self.until.isoformat(timespec="seconds")}

    def __str__(self) -> str:
        until = "now" if self.until is None else f"until {self.until:%Y-%m-%d %H:%M} UTC"
        held = f"{counted(self.num_episodes, 'episode')}, {counted(self.num_frames, 'frame')}"
        return f"{self.id}  {until:<26}  {held}{'' if self.is_whole else '; files are gone'}"


def list_versions(
    location: StorageLike, *, storage_options: Mapping[str, Any] | None = None
) -> list[DatasetVersion]:
    """The dataset as it is, and the versions before it of which the manifest is kept; newest first.

    Raises what `seqrecord.open` raises, and `StorageError` for a web server, which lists no files.
    """
    with closing(open_storage(location, storage_options)) as storage:
        current = read_manifest(storage)
        found = [(current, None), *kept_versions(storage, current)]
        there = {file.path for folder in (RECORDS, EDITS) for file in storage.files(folder)}
        return [
            DatasetVersion(
                manifest.commit,
                None if until is None else datetime.fromtimestamp(until, timezone.utc),
                manifest.num_episodes,
                manifest.num_frames,
                all(file.path in there for file in manifest.record_files)
                and all(file.path in there for file in manifest.edits),
            )
            for manifest, until in found
        ]


def kept_versions(storage: Storage, manifest: Manifest) -> Iterator[tuple[Manifest, float]]:
    """The manifests that are kept of versions before this one, newest first.

    Each with when it was replaced, in seconds since 1970.
    """
    there = {file.path: file.modified for file in storage.files(VERSIONS)}
    for commit in manifest.earlier_commits[:KEPT_VERSIONS]:
        if (path := version_path(commit)) in there:
            with suppress(NotFoundError):  # another has committed meanwhile
                yield _read(storage, commit), there[path]


def open_version(storage: Storage, version: str) -> tuple[Manifest, Index]:
    """Manifest and index of a version, by its id.

    An index that is gone is built anew from the footers of the record files. Raises `NotFoundError`
    for a version that is not kept, or of which a file is gone.
    """
    if (manifest := read_manifest(storage)).commit == version:
        return load(storage)
    try:
        manifest = _read(storage, version)
    except NotFoundError as error:
        raise NotFoundError(
            f"no such version, or not one of the last {KEPT_VERSIONS} before the dataset; "
            "`seqrecord info --versions` lists them",
            file=storage.url,
            got=repr_of(version, 50),
        ) from error
    try:
        map_files(storage, storage.size, [file.path for file in manifest.record_files])
        return load_version(storage, manifest, verify=True)
    except (NotFoundError, StateError) as error:
        raise NotFoundError(
            "files of this version are gone; of earlier versions `clean` keeps only what "
            "--keep-versions says",
            file=error.file,
            got=version,
        ) from error


def _read(storage: Storage, commit: str) -> Manifest:
    path = version_path(commit) if ID.fullmatch(commit) else None
    if path is None:
        raise NotFoundError("not the id of a version", file=storage.url)
    data, _ = storage.read_whole(path, MAX_MANIFEST_BYTES)
    manifest = parse_manifest(storage, data, path)
    if manifest.commit != commit:
        raise FormatError(
            "a manifest of another version than its name says",
            file=f"{storage.url}/{path}",
            expected=commit,
            got=manifest.commit,
        )
    return manifest
