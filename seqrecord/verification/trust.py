"""The index that a dataset is verified with: its own, or one rebuilt from its record files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from seqrecord.catalog import index_of, load, map_table
from seqrecord.commits import record_sizes
from seqrecord.errors import FormatError, SeqRecordError
from seqrecord.format import RECORDS, Footer
from seqrecord.index import Index
from seqrecord.manifest import INDEX_TABLES, MANIFEST, Manifest, RecordFile, read_manifest
from seqrecord.record_reading import read_footer
from seqrecord.storage import Storage

__all__ = ["Files", "trusted_index"]


@dataclass(frozen=True)
class Files:
    """The record files of a dataset, in the order in which its index numbers them.

    `left_out` are the uids of complete episodes in them that are not in the index.
    """

    record_files: tuple[RecordFile, ...]
    left_out: frozenset[str] = frozenset()

    def manifest(self, index: Index) -> Manifest:
        """A manifest of these files, for reading them."""
        frames = int(index.num_frames.sum())
        count = len(index.num_frames)
        return Manifest(index.schema, self.record_files, {}, count, frames, "", "")


def trusted_index(storage: Storage) -> tuple[Files, Index | None, list[SeqRecordError]]:
    """The record files and the index, and what is wrong with manifest and index.

    Where those are broken, the index is built anew from the footers of the record files; it is
    `None` if that fails too. Raises `NotFoundError` where there is no manifest.
    """
    try:
        manifest = read_manifest(storage)
    except FormatError as error:
        files = Files(tuple(_record_file(storage, path) for path in record_sizes(storage)))
        rebuilt, errors = _rebuilt(storage, files)
        return files, rebuilt, [error, *errors]
    files = Files(manifest.record_files, frozenset(manifest.left_out))
    problems = _check_tables(storage, manifest)
    if not problems:
        try:
            _, index = load(storage)
            return files, index, _check_content(storage, manifest, index)
        except SeqRecordError as error:
            problems.append(error)
    rebuilt, errors = _rebuilt(storage, files)
    return files, rebuilt, problems + errors


def _record_file(storage: Storage, path: str) -> RecordFile:
    """What a lost manifest would say of the file, as far as the file tells."""
    size, file_id = 0, ""
    with contextlib.suppress(SeqRecordError):  # reported when the file is checked
        size = storage.size(path)
        file_id = read_footer(storage, path).file_id
    return RecordFile(path, size, file_id)


def _rebuilt(storage: Storage, files: Files) -> tuple[Index | None, list[SeqRecordError]]:
    """The index of what can be read of the record files."""
    footers: dict[str, Footer] = {}
    for file in files.record_files:
        try:
            footers[file.path] = read_footer(storage, file.path)
        except SeqRecordError:  # reported when the file is checked
            continue
    try:
        paths = [file.path for file in files.record_files]
        return index_of(footers, paths, files.left_out), []
    except FormatError as error:
        error.file = f"{storage.url}/{error.file or RECORDS}"
        return None, [error]


def _check_tables(storage: Storage, manifest: Manifest) -> list[SeqRecordError]:
    """Length and checksum of every file of the index."""
    problems: list[SeqRecordError] = []
    for name in INDEX_TABLES:
        try:
            map_table(storage, manifest, name)
        except SeqRecordError as error:
            problems.append(error)
    return problems


def _check_content(storage: Storage, manifest: Manifest, index: Index) -> list[SeqRecordError]:
    """What `load` leaves for later: every episode's metadata, and the fingerprint."""
    problems: list[SeqRecordError] = []
    for number in range(len(index.num_frames)):
        try:
            index.episode_metadata(number)
        except FormatError as error:
            problems.append(error.located(episode=index.keys[number].as_py()))
    if (actual := index.fingerprint()) != manifest.fingerprint:
        other = FormatError(
            "the manifest's fingerprint is not that of the index",
            file=f"{storage.url}/{MANIFEST}",
            expected=manifest.fingerprint,
            got=actual,
        )
        problems.append(other)
    return problems
