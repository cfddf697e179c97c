"""Manifest and index together: load a dataset's, commit a new one, rebuild a lost one."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from seqrecord.assemble import assemble
from seqrecord.checksum import crc32c
from seqrecord.errors import (
    ChecksumError,
    DestinationError,
    FormatError,
    NotFoundError,
    StateError,
    StorageError,
)
from seqrecord.format import RECORDS, Footer
from seqrecord.index import Index, most_table_bytes
from seqrecord.manifest import (
    INDEX_TABLES,
    IndexFile,
    Manifest,
    RecordFile,
    check_record_path,
    commit_manifest,
    read_manifest,
)
from seqrecord.mapped import Mapped, map_file
from seqrecord.ranges import ByteRange
from seqrecord.record_reading import read_footer
from seqrecord.storage import Storage, forget_cached, map_files, open_storage, request_threads
from seqrecord.version import CREATED_BY
from seqrecord.wording import counted

__all__ = [
    "INDEX",
    "commit",
    "index_of",
    "load",
    "load_version",
    "map_table",
    "read_footers",
    "record_paths",
    "reindex",
    "tidy",
]

INDEX = "index"

_logger = logging.getLogger("seqrecord")


def load(storage: Storage, *, verify: bool = True) -> tuple[Manifest, Index]:
    """The manifest and the index of a dataset; no record file is touched.

    A large index is memory-mapped: see `map_file`. `verify` checks its checksums. Raises
    `NotFoundError` where there is no dataset and `FormatError` for one that is not as it should.
    """
    manifest = read_manifest(storage)
    try:
        return manifest, _load_index(storage, manifest, verify=verify)
    except NotFoundError:
        # A writer may have committed, and dropped the old index, since the manifest was read.
        manifest = read_manifest(storage)
        return manifest, _load_index(storage, manifest, verify=verify)


def load_version(storage: Storage, manifest: Manifest) -> tuple[Manifest, Index]:
    """The index of a dataset as it was when `manifest` was its manifest, and was verified.

    Writers keep record files, but drop an index that is old: then it is built anew from the footers
    of the record files. Raises `StateError` where these, too, are not what they were.
    """
    try:
        return manifest, _load_index(storage, manifest, verify=False)
    except NotFoundError:
        pass
    with contextlib.suppress(NotFoundError, FormatError):
        current, index = load(storage)
        if current.fingerprint == manifest.fingerprint:
            return current, index
    try:
        _logger.info("%s: the index is gone; reading that of the record files", storage.url)
        paths = [file.path for file in manifest.record_files]
        index = index_of(map_files(storage, lambda path: read_footer(storage, path), paths), paths)
        got = index.fingerprint()
    except (NotFoundError, FormatError) as error:
        raise _changed(storage, manifest, str(error)) from error
    if got != manifest.fingerprint:
        raise _changed(storage, manifest, got)
    return manifest, index


def index_of(footers: Mapping[str, Footer], paths: Sequence[str]) -> Index:
    """The index of all complete episodes in these footers, with files numbered as in `paths`.

    Raises `FormatError` as `assemble` does; it names a path.
    """
    index, used = assemble(footers)
    number = {path: position for position, path in enumerate(paths)}
    return replace(index, file=np.array([number[path] for path in used], np.uint32)[index.file])


def _changed(storage: Storage, manifest: Manifest, got: str) -> StateError:
    return StateError(
        "the dataset has changed since it was opened; open it anew",
        file=storage.url,
        expected=f"the record files of fingerprint {manifest.fingerprint}",
        got=got,
    )


def _load_index(storage: Storage, manifest: Manifest, *, verify: bool) -> Index:
    mapped = _tables(storage, manifest, verify)
    tables = {name: pa.py_buffer(table.data) for name, table in mapped.items()}
    sizes = [file.size for file in manifest.record_files]

    def release() -> None:
        for table in mapped.values():
            table.release()

    try:
        index = Index.decode(manifest.schema, tables, sizes, release=release)
    except FormatError as error:  # it names the table
        error.file = f"{storage.url}/{manifest.index[error.file or INDEX_TABLES[0]].path}"
        raise
    counts = (len(index.num_frames), int(index.num_frames.sum()))
    if counts != (manifest.num_episodes, manifest.num_frames):
        raise FormatError(
            "the index does not hold the episodes and frames that the manifest says",
            file=f"{storage.url}/{manifest.index['episodes'].path}",
            expected=(manifest.num_episodes, manifest.num_frames),
            got=counts,
        )
    return index


def commit(
    storage: Storage,
    created_by: str,
    *,
    footers: Mapping[str, Footer] | None = None,
    keys: Collection[str] = (),
    paths: Collection[str] = (),
) -> Manifest:
    """Make the record files in `storage` the dataset: build the index, then put the manifest last.

    Record files without any complete episode are left out. `footers`, by path, are those that the
    caller has read already. Raises `FormatError` for a record file that cannot be read, and
    `DestinationError` if the dataset would lack an episode of `keys` or a record file of `paths`.
    Then the dataset is as it was.
    """
    found = read_footers(storage, footers)
    try:
        index, used = assemble(found)
    except FormatError as error:  # it names a path
        error.file = f"{storage.url}/{error.file or RECORDS}"
        raise
    _check_whole(storage, index, used, keys, paths)
    sizes = map_files(storage, storage.size, used)
    files = tuple(RecordFile(path, sizes[path], found[path].file_id) for path in used)
    previous = _previous(storage)
    generation = secrets.token_hex(6)
    tables = {}
    for name, data in index.encode().items():
        path = f"{INDEX}/{generation}-{name}.arrow"
        upload = storage.create(path)
        try:
            upload.write(memoryview(data))
            upload.commit()
        except BaseException:
            upload.abort()
            raise
        tables[name] = IndexFile(path, data.size, f"{crc32c(memoryview(data)):08x}")
    manifest = Manifest(
        schema=index.schema,
        record_files=files,
        index=tables,
        num_episodes=len(index.num_frames),
        num_frames=int(index.num_frames.sum()),
        fingerprint=index.fingerprint(),
        created_by=created_by,
    )
    commit_manifest(storage, manifest)
    # The index before this one stays for readers that have just read the manifest before.
    kept = [*tables.values(), *(previous.index.values() if previous else ())]
    keep = {file.path for file in kept}
    tidy(storage, {*storage.list_files(INDEX), *storage.interrupted(INDEX)} - keep)
    return manifest


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

    Logs a warning if a record file of the manifest before, where that can be read, is not there:
    the dataset is made without it.
    """
    storage = open_storage(location, storage_options)
    lock = storage.lock()
    try:
        if not storage.list_files(RECORDS):
            cut = storage.interrupted(RECORDS)
            goes_on = "; an interrupted `seqrecord write` goes on with --resume" if cut else ""
            raise NotFoundError(f"no record files{goes_on}", file=f"{storage.url}/{RECORDS}")
        previous = _previous(storage)
        named = {file.path for file in previous.record_files} if previous else set()
        if gone := sorted(named.difference(record_paths(storage))):
            _logger.warning(
                "the dataset is made without %s that the manifest before named: %s",
                counted(len(gone), "record file"),
                ", ".join(f"{storage.url}/{path}" for path in gone[:3]),
            )
        return commit(storage, created_by)
    finally:
        lock.release()
        storage.close()


def read_footers(storage: Storage, known: Mapping[str, Footer] | None = None) -> dict[str, Footer]:
    """Footers of all finished record files, by path in order; those in `known` are not read."""
    known = known or {}
    paths = record_paths(storage)
    for path in paths:
        check_record_path(storage, path)
    new = map_files(
        storage, lambda path: read_footer(storage, path), [p for p in paths if p not in known]
    )
    return {path: known.get(path) or new[path] for path in paths}


def record_paths(storage: Storage) -> list[str]:
    """Paths of all finished record files, in order."""
    return [path for path in storage.list_files(RECORDS) if path.endswith(".seqrec")]


def _check_whole(
    storage: Storage, index: Index, used: list[str], keys: Collection[str], paths: Collection[str]
) -> None:
    """`DestinationError` unless the index has all episodes of `keys` and uses all of `paths`."""
    if lost := sorted(set(paths).difference(used)):
        raise DestinationError(
            "a record file of the dataset is gone since the writer began; nothing is committed",
            file=f"{storage.url}/{lost[0]}",
        )
    if missing := [key for key in keys if key not in index.positions]:
        raise DestinationError(
            "the record files lack an episode that had ended (was a file removed?); nothing is "
            "committed",
            episode=missing[0],
            expected=f"{len(keys)} episodes that had ended",
            got=f"{len(keys) - len(missing)} of them",
        )


def _previous(storage: Storage) -> Manifest | None:
    """The manifest before this commit, where one can be read."""
    try:
        return read_manifest(storage)
    except (NotFoundError, FormatError):
        return None


def _tables(storage: Storage, manifest: Manifest, verify: bool) -> dict[str, Mapped]:
    """The bytes of the index's tables, by name; of a remote storage all are read at once."""

    def table(name: str) -> Mapped:
        return map_table(storage, manifest, name, verify=verify)

    if storage.local_path(manifest.index[INDEX_TABLES[0]].path) is not None:
        return {name: table(name) for name in INDEX_TABLES}
    with request_threads(len(INDEX_TABLES), "index") as threads:
        found = {name: threads.submit(storage.url, table, name) for name in INDEX_TABLES}
        return {name: future.result() for name, future in found.items()}


def map_table(storage: Storage, manifest: Manifest, name: str, *, verify: bool = True) -> Mapped:
    """The bytes of a file of the index, whose length and checksum are those of the manifest."""
    file = manifest.index[name]
    shown = f"{storage.url}/{file.path}"
    if (size := storage.size(file.path)) != file.size:
        raise FormatError(
            "an index file of the wrong length", file=shown, expected=file.size, got=size
        )
    record_bytes = sum(record_file.size for record_file in manifest.record_files)
    counts = (manifest.num_episodes, manifest.num_frames, record_bytes)
    if size > (most := most_table_bytes(manifest.schema, *counts)[name]):
        raise FormatError(
            "an index file larger than the rows of this dataset can be",
            file=shown,
            expected=f"at most {most} bytes",
            got=size,
        )
    mapped = map_file(storage, file.path, size, checksum=verify)
    if not verify:
        return mapped
    if _crc32c(mapped) != file.crc32c and forget_cached(
        storage, file.path, [ByteRange(0, file.size)]
    ):
        mapped = map_file(storage, file.path, size, checksum=True)
    if (actual := _crc32c(mapped)) != file.crc32c:
        raise ChecksumError(
            "an index file does not match its checksum",
            file=shown,
            offset=0,
            expected=f"CRC32C {file.crc32c}",
            got=actual,
        )
    return mapped


def _crc32c(mapped: Mapped) -> str:
    return f"{mapped.crc32c or 0:08x}"
