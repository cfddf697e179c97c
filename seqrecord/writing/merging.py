"""Merges datasets of one schema: one of all episodes, in the same record files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from seqrecord.errors import DestinationError
from seqrecord.format import RECORDS, Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import IndexFile, Manifest, RecordFile
from seqrecord.reading.index_building import build_index
from seqrecord.reading.metadata import read_edits, record_sizes
from seqrecord.statistics import Statistics
from seqrecord.storage import (
    Storage,
    StorageLike,
    can_copy_on_server,
    open_storage,
    parse_location,
)
from seqrecord.writing.bringing import bring, link_source
from seqrecord.writing.commits import Version, put_version, read_existing
from seqrecord.writing.committing import Base, read_base
from seqrecord.writing.edit_files import edit_path, next_number
from seqrecord.writing.merge_schemas import check_schemas
from seqrecord.writing.own_files import SmallFiles, of_merges, put_merge_note, tidy
from seqrecord.writing.statistics import merged, stored_statistics

__all__ = ["MergeReport", "merge_datasets"]


@dataclass(frozen=True)
class MergeReport:
    """What a merge has made, or with `dry_run` would make; sizes in bytes."""

    num_episodes: int
    num_frames: int
    num_record_files: int
    linked_bytes: int  # of record files of which no second copy is made
    copied_bytes: int
    server_bytes: int = 0  # of those copied, that do not come through this machine


@dataclass(frozen=True)
class _Part:
    """One of the datasets that are merged."""

    storage: Storage
    manifest: Manifest
    index: Index
    footers: dict[str, Footer]
    statistics: Statistics | None


def merge_datasets(
    sources: Sequence[StorageLike],
    destination: StorageLike,
    *,
    link: bool = True,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Make a dataset of all episodes of several ones, which stay as they are.

    Record files are hard-linked where they lie on the destination's disk, for they never change;
    elsewhere, and without `link`, they are copied: by the service where source and destination lie
    in one bucket or container, else through this machine. Splits of one name are one split.
    Statistics are those of all together, where each of the datasets has some. Episodes come in the
    order of the ordinals that they were written with. With `dry_run` all is checked and nothing
    written.

    `sources` and `destination` are local paths, URLs or open storages, which are closed in the end;
    `storage_options` are for the filesystems that serve URLs.

    Raises `NotFoundError` where a source is no dataset, `SchemaError` where schemas differ, which
    says how and names the command that packs them into one dataset, `DestinationError` where two of
    them have an episode of one key, or the same record file, and where the destination is not
    empty: what other merges have left there is passed over, and `clean` removes it later. Raises
    `ConflictError` where another writer, such as another merge, has committed there meanwhile; then
    what this one brought stays for `clean`.
    """
    with ExitStack() as stack:
        every = (*sources, destination)
        bare = [_takes_no_options(location) for location in every]
        storages = [
            open_storage(location, None if is_bare and not all(bare) else storage_options)
            for location, is_bare in zip(every, bare, strict=True)
        ]
        for storage in storages:
            stack.callback(storage.close)
        *opened, made = storages
        if not opened:
            raise DestinationError(
                "nothing to merge", file=made.url, expected="at least one dataset"
            )
        base = read_base(made)
        _check_empty(made, base)
        if dry_run:
            return _report(_parts(opened, made), made, link)
        return _merge(opened, made, base, link)


def _takes_no_options(location: StorageLike) -> bool:
    if isinstance(location, (str, PathLike)):
        return parse_location(location).protocol == "file"
    return True


def _merge(opened: Sequence[Storage], made: Storage, base: Base, link: bool) -> MergeReport:
    """Write a note, then the dataset.

    The note and the copies of edits stay if record files may: whatever is made of a merge that
    failed, nothing deleted comes back.
    """
    with SmallFiles(made) as own:
        note = put_merge_note(own)
        parts = _parts(opened, made)
        report = _report(parts, made, link)
        own.keep()
        num_files = _write(parts, own, base, link)
    tidy(made, [note])
    return replace(report, num_record_files=num_files)


def _parts(opened: Sequence[Storage], made: Storage) -> list[_Part]:
    parts = [_open(storage) for storage in opened]
    _check(parts)
    check_schemas([(part.storage.url, part.manifest.schema) for part in parts], made.url)
    return parts


def _report(parts: Sequence[_Part], made: Storage, link: bool) -> MergeReport:
    """What a merge of these makes."""
    files = [(part, file) for part in parts for file in part.manifest.record_files]
    linked = [
        link and link_source(part.storage, made, file.path) is not None for part, file in files
    ]
    sent = [
        not is_linked and can_copy_on_server(part.storage, made)
        for (part, _), is_linked in zip(files, linked, strict=True)
    ]
    return MergeReport(
        sum(part.manifest.num_episodes for part in parts),
        sum(part.manifest.num_frames for part in parts),
        len(files),
        sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if is_),
        sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if not is_),
        sum(file.size for (_, file), is_ in zip(files, sent, strict=True) if is_),
    )


def _open(storage: Storage) -> _Part:
    there = read_existing(storage)
    statistics = stored_statistics(storage, there.manifest)
    return _Part(storage, there.manifest, there.index, there.footers, statistics)


def _check_empty(made: Storage, base: Base) -> None:
    """`DestinationError` unless nothing is there but what merges have left."""
    if base.manifest is not None:
        raise DestinationError("not empty", file=made.url, expected="a place without a dataset")
    # Files first: so the note of each that is a merge's is seen.
    paths = [upload.path for upload in made.unfinished(RECORDS)]
    paths += [file.path for file in made.files(RECORDS)]
    if left := sorted(set(paths) - of_merges(made, paths)):
        raise DestinationError(
            "not empty",
            file=made.url,
            expected="a place without a dataset, or what interrupted merges have left",
            got=left[0],
        )


def _check(parts: Sequence[_Part]) -> None:
    """`DestinationError` where two have the same record file, or an episode of one key."""
    keys, ids = dict[str, str](), dict[str, str]()
    for part in parts:
        url = part.storage.url
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


def _write(parts: Sequence[_Part], own: SmallFiles, base: Base, link: bool) -> int:
    """Write the dataset; returns how many record files it has."""
    made = own.storage
    # Before the record files: whatever is made of a merge that was killed, nothing deleted comes
    # back.
    edits = _bring_edits(parts, own)
    record_files, footers = [], {}
    for part in parts:
        for file in part.manifest.record_files:
            footer = part.footers[file.path]
            ordinal = footer.episodes[0].ordinal if footer.episodes else 0
            brought = bring(part.storage, made, file, ordinal, link, own.writer)
            record_files.append(brought)
            footers[brought.path] = footer
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
    statistics = merged([part.statistics for part in parts])
    _check_there(made, record_files)
    # Of these nothing is needed where the commit is refused; the note is, while record files stay.
    with SmallFiles(made, own.writer) as tables:
        put_version(tables, base, version, statistics)
    return len(record_files)


def _check_there(made: Storage, files: Sequence[RecordFile]) -> None:
    """`DestinationError` unless all files are there: somebody may have removed one."""
    sizes = record_sizes(made)
    for file in files:
        if sizes.get(file.path) != file.size:
            raise DestinationError(
                "a record file is gone since the merge began; nothing is committed",
                file=f"{made.url}/{file.path}",
                expected=file.size,
                got=sizes.get(file.path),
            )


def _bring_edits(parts: Sequence[_Part], own: SmallFiles) -> tuple[IndexFile, ...]:
    """Copies of the files of edits, in names that ascend, and come after those that are there."""
    files: list[IndexFile] = []
    first = next_number(own.storage)
    for part in parts:
        for file in part.manifest.edits:
            data, _ = part.storage.read_whole(file.path, file.size)
            files.append(own.put(edit_path(first + len(files), own.writer), data))
    return tuple(files)
