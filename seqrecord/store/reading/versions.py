"""Earlier versions of a dataset. Each commit keeps the replaced manifest, up to ten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from seqrecord.errors import FormatError, NotFoundError, StateError
from seqrecord.store.format.footer import RECORDS
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import (
    EDITS,
    KEPT_VERSIONS,
    MAX_MANIFEST_BYTES,
    VERSIONS,
    Manifest,
    parse_manifest,
    read_manifest,
    version_path,
)
from seqrecord.store.format.text import ID
from seqrecord.store.reading.metadata import load, load_version
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.storage.parallel import map_files
from seqrecord.store.text import counted, printable, repr_of


@dataclass(frozen=True)
class DatasetVersion:
    """A version of a dataset: its id (for `seqrecord.open`), size and completeness.

    `until` is the time of its replacement, by the storage's clock; `None` for the current version.
    `is_whole` is whether its record files and edits are present, judged by name. `base` is the
    version that it replaced, and `command` the edit, if one made it.

    Example:
        newest = seqrecord.edit.list_versions("records/")[0]
        dataset = seqrecord.open("records/", version=newest.id)
    """

    id: str
    until: datetime | None
    num_episodes: int
    num_frames: int
    is_whole: bool
    base: str | None = None
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; times as ISO 8601."""
        return {**vars(self), "until": self.until and self.until.isoformat(timespec="seconds")}

    def __str__(self) -> str:
        until = "now" if self.until is None else f"until {self.until:%Y-%m-%d %H:%M} UTC"
        contents = f"{counted(self.num_episodes, 'episode')}, {counted(self.num_frames, 'frame')}"
        line = f"{self.id}  {until:<26}  {contents}{'' if self.is_whole else '; files are missing'}"
        return line + (f"\n    {printable(self.command)}, of {self.base}" if self.command else "")


def list_versions(
    location: StorageLike, *, storage_options: Mapping[str, Any] | None = None
) -> list[DatasetVersion]:
    """List the current version and kept earlier ones, newest first.

    Raises the errors of `seqrecord.open`, and `StorageError` for a web server, which cannot list
    files.

    Example:
        for version in seqrecord.edit.list_versions("records/"):
            print(version.id, version.num_episodes, version.until)
    """
    with closing(open_storage(location, storage_options)) as storage:
        current = read_manifest(storage)
        versions = [(current, None), *kept_versions(storage, current)]
        paths = {file.path for folder in (RECORDS, EDITS) for file in storage.files(folder)}
        return [
            DatasetVersion(
                manifest.commit,
                None if until is None else datetime.fromtimestamp(until, timezone.utc),
                manifest.num_episodes,
                manifest.num_frames,
                paths.issuperset(needed_paths(manifest)),
                next(iter(manifest.earlier_commits), None),
                manifest.command,
            )
            for manifest, until in versions
        ]


def kept_versions(
    storage: Storage, manifest: Manifest, *, skip_damaged: bool = False
) -> Iterator[tuple[Manifest, float]]:
    """Yield the kept manifests of earlier versions, newest first.

    Each with the time of its replacement, in seconds since 1970. Raises `FormatError` for a damaged
    one, unless they are skipped.
    """
    times = {file.path: file.modified for file in storage.files(VERSIONS)}
    skipped = [NotFoundError, FormatError] if skip_damaged else [NotFoundError]
    for commit in manifest.earlier_commits[:KEPT_VERSIONS]:
        if (path := version_path(commit)) in times:
            with suppress(*skipped):  # `NotFoundError`: removed by a concurrent commit
                yield read_version(storage, commit), times[path]


def needed_paths(manifest: Manifest) -> list[str]:
    """Paths of the files from which a version can be rebuilt: record files and edits."""
    return [file.path for files in (manifest.record_files, manifest.edits) for file in files]


def open_version(storage: Storage, version: str) -> tuple[Manifest, Index]:
    """Open manifest and index of a version, by its id.

    A deleted index is rebuilt from the record files' footers. Raises `NotFoundError` for an unknown
    version, and if a file is missing.
    """
    if read_manifest(storage).commit == version:
        manifest, index = load(storage)
        if manifest.commit == version:  # else another one was committed meanwhile
            return manifest, index
    try:
        manifest = read_version(storage, version)
    except NotFoundError as error:
        raise NotFoundError(
            f"unknown version, or older than the last {KEPT_VERSIONS}; "
            "`seqrecord info --versions` lists them",
            file=storage.url,
            got=repr_of(version, 50),
        ) from error
    try:
        map_files(storage, storage.size, needed_paths(manifest))
        return load_version(storage, manifest, verify=True)
    except (NotFoundError, StateError) as error:
        raise NotFoundError(
            "files of this version are missing; to keep files of earlier versions, pass "
            "--keep-versions to `clean`",
            file=error.file,
            got=version,
        ) from error


def read_version(storage: Storage, commit: str) -> Manifest:
    """Read the kept manifest of a version.

    Raises `NotFoundError` if it is not there, and `FormatError` if it is damaged.
    """
    argument: object = commit
    is_id = isinstance(argument, str) and ID.fullmatch(argument)
    path = version_path(commit) if is_id else None
    if path is None:
        raise NotFoundError("invalid version id", file=storage.url)
    data, _ = storage.read_whole(path, MAX_MANIFEST_BYTES)
    manifest = parse_manifest(storage, data, path)
    if manifest.commit != commit:
        raise FormatError(
            "a manifest's version differs from its file name",
            file=f"{storage.url}/{path}",
            expected=commit,
            got=manifest.commit,
        )
    return manifest
