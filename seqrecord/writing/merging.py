"""Merges datasets: one of all episodes, in the same record files, without encoding anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, SchemaError
from seqrecord.format import RECORDS, Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import EDITS, IndexFile, Manifest, RecordFile
from seqrecord.format.statistics import read_statistics
from seqrecord.reading.edits import read_edits
from seqrecord.reading.index_building import build_index
from seqrecord.reading.metadata import load_index
from seqrecord.reading.record_footers import read_footers
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.local.storage import LocalStorage
from seqrecord.storage.ranges import ByteRange
from seqrecord.version import CREATED_BY
from seqrecord.writing.commits import Version, put_version, read_base, tidy
from seqrecord.writing.edit_files import put_edit_file, removed_if_unnamed
from seqrecord.writing.statistics import merged

__all__ = ["MergeReport", "merge_datasets"]

_COPY_BYTES = 8 << 20


@dataclass(frozen=True)
class MergeReport:
    """What a merge has made, or with `dry_run` would make; sizes in bytes."""

    num_episodes: int
    num_frames: int
    num_record_files: int
    linked_bytes: int  # of record files of which no second copy is made
    copied_bytes: int


@dataclass(frozen=True)
class _Part:
    """One of the datasets that are merged."""

    storage: Storage
    manifest: Manifest
    index: Index
    footers: dict[str, Footer]


def merge_datasets(
    sources: Sequence[str | PathLike[str]],
    destination: str | PathLike[str],
    *,
    link: bool = True,
    dry_run: bool = False,
    created_by: str = CREATED_BY,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Make a dataset of all episodes of several ones, which stay as they are.

    Record files are hard-linked where they lie on the destination's disk, for they never change;
    elsewhere, and without `link`, they are copied. Nothing is encoded anew. Splits of one name are
    one split. Statistics are those of all together, where each of the datasets has some. Episodes
    come in the order of the ordinals that they were written with. With `dry_run` all is checked and
    nothing written.

    `sources` and `destination` are local paths or URLs, and `storage_options` are for the
    filesystems that serve them. `created_by` is what the manifest says of who wrote it.

    Raises `NotFoundError` where a source is no dataset, `SchemaError` where schemas differ, with
    the first feature that does, `DestinationError` where two of them have an episode of one key, or
    the same record file, and where the destination is not empty.
    """
    with ExitStack() as stack:
        storages = [open_storage(location, storage_options) for location in (*sources, destination)]
        for storage in storages:
            stack.callback(storage.close)
        *opened, made = storages
        parts = [_open(storage) for storage in opened]
        _check(parts, made)
        files = [(part, file) for part in parts for file in part.manifest.record_files]
        linked = [
            link and _local(part.storage, made, file.path) is not None for part, file in files
        ]
        if not dry_run:
            _merge(parts, made, link, created_by)
        return MergeReport(
            sum(part.manifest.num_episodes for part in parts),
            sum(part.manifest.num_frames for part in parts),
            len(files),
            sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if is_),
            sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if not is_),
        )


def _open(storage: Storage) -> _Part:
    base = read_base(storage)
    if base.manifest is None:
        raise NotFoundError("no dataset", file=storage.url)
    sizes = {file.path: file.size for file in base.manifest.record_files}
    index = load_index(storage, base.manifest)
    return _Part(storage, base.manifest, index, read_footers(storage, sizes))


def _check(parts: Sequence[_Part], made: Storage) -> None:
    if not parts:
        raise DestinationError("nothing to merge", file=made.url, expected="at least one dataset")
    if read_base(made).manifest is not None or made.files(RECORDS) or made.unfinished(RECORDS):
        raise DestinationError("not empty", file=made.url, expected="a place without a dataset")
    first, keys, ids = parts[0], dict[str, str](), dict[str, str]()
    for part in parts:
        url = part.storage.url
        if part.manifest.schema != first.manifest.schema:
            pairs = zip_longest(first.manifest.schema.to_json(), part.manifest.schema.to_json())
            want, got = next((want, got) for want, got in pairs if want != got)
            raise SchemaError(
                "datasets of different schemas cannot be merged", file=url, expected=want, got=got
            )
        for file in part.manifest.record_files:
            if (other := ids.setdefault(file.file_id, url)) != url:
                raise DestinationError(
                    "the same record file is in two of the datasets", file=other, got=url
                )
        for key in part.index.keys.to_pylist():
            if (other := keys.setdefault(key, url)) != url:
                raise DestinationError(
                    "two of the datasets have an episode of one key; `seqrecord edit rename` gives "
                    "it another",
                    file=other,
                    episode=key,
                    got=url,
                )


def _merge(parts: Sequence[_Part], made: Storage, link: bool, created_by: str) -> None:
    base = read_base(made)
    with _undone(made) as written:
        record_files, footers = [], {}
        for part in parts:
            for file in part.manifest.record_files:
                _bring(part.storage, made, file.path, link, written)
                record_files.append(file)
                footers[file.path] = part.footers[file.path]
        edits = _bring_edits(parts, made, written)
        names = tuple(dict.fromkeys(name for part in parts for name in part.manifest.splits))
        left_out = [uid for part in parts for uid in part.manifest.left_out]
        built = build_index(footers, footers, left_out, read_edits(made, edits), names)
        by_path = {file.path: file for file in record_files}
        paths = dict.fromkeys([*built.files, *by_path])
        lost = (episode.uid for episode in built.lost)
        version = Version(
            built.index,
            tuple(RecordFile(path, by_path[path].size, by_path[path].file_id) for path in paths),
            max(built.next_ordinal, *(part.manifest.next_ordinal for part in parts)),
            tuple(sorted(lost)),
            built.splits,
            edits=edits,
        )
        statistics = merged(
            [
                None
                if (kept := part.manifest.statistics) is None
                else read_statistics(part.storage, kept, part.manifest.schema)
                for part in parts
            ]
        )
        with removed_if_unnamed(made, edits):
            put_version(made, base, version, created_by, statistics)


@contextmanager
def _undone(storage: Storage) -> Iterator[list[str]]:
    """If the block raises, remove the files that it names, unless a manifest is there then."""
    written: list[str] = []
    try:
        yield written
    except BaseException:
        if read_base(storage, accept_damaged=True).tag is None:
            tidy(storage, written)
        raise


def _local(source: Storage, made: Storage, path: str) -> str | None:
    """Where a record file can be linked from to the destination, if it can."""
    if not isinstance(made, LocalStorage) or (found := source.local_path(path)) is None:
        return None
    there = made.root
    while not there.exists():
        there = there.parent
    return found if Path(found).stat().st_dev == there.stat().st_dev else None


def _bring(source: Storage, made: Storage, path: str, link: bool, written: list[str]) -> None:
    """Link or copy a record file."""
    written.append(path)
    found = _local(source, made, path) if link else None
    if found is not None and _link(made, found, path):
        return
    size = source.size(path)
    upload = made.create(path)
    try:
        for start in range(0, size, _COPY_BYTES):
            item = ByteRange(start, min(start + _COPY_BYTES, size))
            buffer = bytearray(item.length)
            source.read_ranges(path, [item], [memoryview(buffer)])
            upload.write(buffer)
        upload.commit()
    except BaseException:
        upload.abort()
        raise


def _link(made: Storage, found: str, path: str) -> bool:
    """Whether the file could be linked."""
    assert isinstance(made, LocalStorage)
    target = made.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(os.path.realpath(found), target)
    except OSError:
        return False
    for folder in (target.parent, made.root, made.root.parent):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return True


def _bring_edits(
    parts: Sequence[_Part], made: Storage, written: list[str]
) -> tuple[IndexFile, ...]:
    """Copies of the files of edits, in names that ascend."""
    files: list[IndexFile] = []
    for part in parts:
        for file in part.manifest.edits:
            name = file.path.rpartition("-")[2]
            path = f"{EDITS}/{len(files):08d}-{name}"
            written.append(path)
            data = bytearray(part.storage.size(file.path))
            item = ByteRange(0, len(data))
            part.storage.read_ranges(file.path, [item], [memoryview(data)])
            files.append(put_edit_file(made, path, bytes(data)))
    return tuple(files)
