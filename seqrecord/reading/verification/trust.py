"""The index of a dataset as it is stored, and as its record files give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from seqrecord.errors import FormatError, NotFoundError, SeqRecordError
from seqrecord.format import RECORDS, Footer
from seqrecord.format.edits import Edits
from seqrecord.format.index import Index
from seqrecord.format.index_tables import table_names
from seqrecord.format.manifest import MANIFEST, Manifest, RecordFile, read_manifest
from seqrecord.reading.edits import read_edits
from seqrecord.reading.metadata import index_of, load_index, map_table
from seqrecord.reading.record_footers import record_sizes
from seqrecord.storage import Storage

__all__ = ["Files", "rebuilt_index", "stored_index"]


@dataclass(frozen=True)
class Files:
    """The record files of a dataset, in the order in which its index numbers them.

    A `file_id` is empty where no manifest says it. `left_out` are the uids of complete episodes in
    them that are not in the index; `edits` and `splits` are the manifest's, and `None` stands for
    edits that cannot be read.
    """

    record_files: tuple[RecordFile, ...]
    left_out: frozenset[str] = frozenset()
    edits: Edits | None = field(default_factory=Edits)
    splits: tuple[str, ...] = ()

    def manifest(self, index: Index) -> Manifest:
        """A manifest of these files, for reading them."""
        frames = int(index.num_frames.sum())
        count = len(index.num_frames)
        return Manifest(index.schema, self.record_files, {}, count, frames, "", "")


def stored_index(storage: Storage) -> tuple[Files, Index | None, list[SeqRecordError]]:
    """The record files, the index unless it is broken, and what is wrong with manifest and index.

    Without a manifest that can be read, all record files that are there are taken. Where a file is
    missing, it is looked at once more with the manifest read anew. Raises `NotFoundError` where
    there is no manifest.
    """
    found = _stored_index(storage)
    if any(isinstance(problem, NotFoundError) for problem in found[2]):
        return _stored_index(storage)
    return found


def _stored_index(storage: Storage) -> tuple[Files, Index | None, list[SeqRecordError]]:
    try:
        manifest = read_manifest(storage)
    except FormatError as error:
        sizes = record_sizes(storage).items()
        return Files(tuple(RecordFile(path, size, "") for path, size in sizes)), None, [error]
    files = Files(manifest.record_files, frozenset(manifest.left_out), splits=manifest.splits)
    of_edits: list[SeqRecordError] = []
    try:
        files = replace(files, edits=read_edits(storage, manifest.edits))
    except SeqRecordError as error:
        files = replace(files, edits=None)
        of_edits.append(error)
    problems = _check_tables(storage, manifest)
    if not problems:
        try:
            index = load_index(storage, manifest)
            return files, index, of_edits + _check_content(storage, manifest, index)
        except SeqRecordError as error:
            problems.append(error)
    return files, None, of_edits + problems


def rebuilt_index(storage: Storage, files: Files, footers: Sequence[Footer | None]) -> Index:
    """The index that the footers give, one for each of the files; `None` for one that is broken.

    Raises `FormatError` where they contradict each other, and where no episode is complete.
    """
    paths = [file.path for file in files.record_files]
    read = {path: footer for path, footer in zip(paths, footers, strict=True) if footer is not None}
    try:
        return index_of(read, paths, files.left_out, files.edits, files.splits)
    except FormatError as error:  # it names a path, or none
        error.file = f"{storage.url}/{error.file or RECORDS}"
        raise


def _check_tables(storage: Storage, manifest: Manifest) -> list[SeqRecordError]:
    """Length and checksum of every file of the index."""
    problems: list[SeqRecordError] = []
    for name in table_names(manifest.schema):
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
            problems.append(error.located(episode=index.key(number)))
    if (actual := index.fingerprint()) != manifest.fingerprint:
        other = FormatError(
            "the manifest's fingerprint is not that of the index",
            file=f"{storage.url}/{MANIFEST}",
            expected=manifest.fingerprint,
            got=actual,
        )
        problems.append(other)
    return problems
