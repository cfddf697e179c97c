"""Merges datasets: one of all episodes, in the same record files where schemas are equal."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from seqrecord.errors import DestinationError
from seqrecord.format import RECORDS, Footer
from seqrecord.format.edits import Edit, Split
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import EDITS, IndexFile, Manifest, RecordFile
from seqrecord.format.text import encode_metadata
from seqrecord.reading.edits import read_edits
from seqrecord.reading.index_building import build_index, complete_episodes
from seqrecord.reading.metadata import load_index
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.reading.record_footers import read_footers, record_sizes
from seqrecord.schema import Schema
from seqrecord.storage import Storage, can_copy_on_server, open_storage, parse_location
from seqrecord.version import CREATED_BY
from seqrecord.writing.bringing import bring, link_source
from seqrecord.writing.commits import Version, put_version, read_base, read_existing, tidy
from seqrecord.writing.destination import new_writer_id, writer_of
from seqrecord.writing.edit_files import next_number, put_edits, removed_if_unnamed
from seqrecord.writing.encoding_anew import (
    check_mergeable,
    difference,
    encode_episode,
    encoder_of,
)
from seqrecord.writing.merge_leftovers import merges, put_merge_note, taken_over
from seqrecord.writing.small_files import put_file
from seqrecord.writing.statistics import merged, stored_statistics
from seqrecord.writing.undoing import own_sizes

__all__ = ["MergeReport", "merge_datasets"]

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class MergeReport:
    """What a merge has made, or with `dry_run` would make; sizes in bytes."""

    num_episodes: int
    num_frames: int
    num_record_files: int
    linked_bytes: int  # of record files of which no second copy is made
    copied_bytes: int
    server_bytes: int = 0  # of those copied, that do not come through this machine
    encoded_frames: int = 0  # of datasets that store features otherwise than the first
    encoded: tuple[str, ...] = ()  # which datasets these are, which features, and why


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
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Make a dataset of all episodes of several ones, which stay as they are.

    Record files are hard-linked where they lie on the destination's disk, for they never change;
    elsewhere, and without `link`, they are copied: by the service where source and destination lie
    in one bucket or container, else through this machine. A dataset that has the same features as
    the first one, but stores them otherwise (codec, group, order), is encoded anew as that; the
    report says which and why. Splits of one name are
    one split. Statistics are those of all together, where each of the datasets has some. Episodes
    come in the order of the ordinals that they were written with. With `dry_run` all is checked and
    nothing written.

    `sources` and `destination` are local paths or URLs, and `storage_options` are for the
    filesystems that serve them; local paths take none beside URLs.

    Raises `NotFoundError` where a source is no dataset, `SchemaError` where features differ in more
    than how they are stored (dtype, shape, kind, unit, or that one has it), or would lose data when
    they are encoded anew, `DestinationError` where two of them have an episode of one key, or
    the same record file, and where the destination is not empty. What a merge of the same that was
    killed has left there is used, or passed over; `clean` removes it later.
    """
    with ExitStack() as stack:
        every = (*sources, destination)
        local = [parse_location(location).protocol == "file" for location in every]
        storages = [
            open_storage(location, None if is_local and not all(local) else storage_options)
            for location, is_local in zip(every, local, strict=True)
        ]
        for storage in storages:
            stack.callback(storage.close)
        *opened, made = storages
        parts = [_open(storage) for storage in opened]
        _check(parts, made)
        there = _there(parts, made)
        first = parts[0].manifest.schema
        same = [part for part in parts if part.manifest.schema == first]
        others = [part for part in parts if part.manifest.schema != first]
        encoded = tuple(difference(p.storage.url, p.manifest.schema, first) for p in others)
        files = [(part, file) for part in same for file in part.manifest.record_files]
        linked = [
            link and link_source(part.storage, made, file.path) is not None for part, file in files
        ]
        sent = [
            not is_linked and can_copy_on_server(part.storage, made)
            for (part, _), is_linked in zip(files, linked, strict=True)
        ]
        for text in encoded:
            _logger.warning("%s", text)
        num_files = len(files) if dry_run else _merge(same, others, made, there, link)
        return MergeReport(
            sum(part.manifest.num_episodes for part in parts),
            sum(part.manifest.num_frames for part in parts),
            num_files,
            sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if is_),
            sum(file.size for (_, file), is_ in zip(files, linked, strict=True) if not is_),
            sum(file.size for (_, file), is_ in zip(files, sent, strict=True) if is_),
            sum(part.manifest.num_frames for part in others),
            encoded,
        )


def _open(storage: Storage) -> _Part:
    there = read_existing(storage)
    index = load_index(storage, there.manifest)
    return _Part(storage, there.manifest, index, there.footers)


def _check(parts: Sequence[_Part], made: Storage) -> None:
    if not parts:
        raise DestinationError("nothing to merge", file=made.url, expected="at least one dataset")
    if read_base(made).manifest is not None:
        raise DestinationError("not empty", file=made.url, expected="a place without a dataset")
    first, keys, ids = parts[0], dict[str, str](), dict[str, str]()
    for part in parts:
        url = part.storage.url
        schemas = first.manifest.schema, part.manifest.schema
        check_mergeable(*schemas, first.storage.url, url)
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


def _there(parts: Sequence[_Part], made: Storage) -> dict[str, str]:
    """Paths of record files that a merge which was killed has brought already, by file id."""
    first = parts[0].manifest.schema
    same = [part.manifest for part in parts if part.manifest.schema == first]
    wanted = {file.file_id: file for manifest in same for file in manifest.record_files}
    return taken_over(made, wanted)


def _merge(
    same: Sequence[_Part],
    others: Sequence[_Part],
    made: Storage,
    there: Mapping[str, str],
    link: bool,
) -> int:
    """Write the dataset; returns how many record files it has. `others` are encoded anew.

    `there` are the paths of record files that need not be brought, by file id.
    """
    base = read_base(made)
    parts = [*same, *others]
    writer = new_writer_id()
    with _undone(made, writer) as written:
        note = put_merge_note(made, writer)
        written.append(note)
        # Before the record files: whatever is made of a merge that was killed, nothing deleted
        # comes back.
        edits = _bring_edits(same, made, writer, written)
        record_files, footers = [], {}
        for part in same:
            for file in part.manifest.record_files:
                brought = replace(file, path=there.get(file.file_id, ""))
                if not brought.path:
                    brought = bring(part.storage, made, file, link, writer, written)
                record_files.append(brought)
                footers[brought.path] = part.footers[file.path]
        new, split = _encode(same[0].manifest.schema, others, made, writer, written)
        for path, footer in new.items():
            record_files.append(RecordFile(path, made.size(path), footer.file_id))
            footers[path] = footer
        edits = (*edits, *put_edits(made, split, len(edits)))
        written += [file.path for file in edits]
        names = tuple(dict.fromkeys(name for part in parts for name in part.manifest.splits))
        left_out = [uid for part in same for uid in part.manifest.left_out]
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
        statistics = merged([stored_statistics(part.storage, part.manifest) for part in parts])
        with removed_if_unnamed(made, edits):
            _check_there(made, record_files)
            put_version(made, base, version, CREATED_BY, statistics)
    tidy(made, [note])
    return len(record_files)


def _check_there(made: Storage, files: Sequence[RecordFile]) -> None:
    """`DestinationError` unless all files are there: one that was taken over may be gone."""
    sizes = record_sizes(made)
    for file in files:
        if sizes.get(file.path) != file.size:
            raise DestinationError(
                "a record file is gone since the merge began; nothing is committed",
                file=f"{made.url}/{file.path}",
                expected=file.size,
                got=sizes.get(file.path),
            )


def _encode(
    schema: Schema, parts: Sequence[_Part], made: Storage, writer: str, written: list[str]
) -> tuple[dict[str, Footer], list[Edit]]:
    """Write the episodes of datasets under another schema; the footers, and what split they are in.

    They have new uids, and the keys and metadata that edits have given them.
    """
    splits: dict[str, list[str]] = {}
    try:
        for part in parts:
            reader = SeqRecordReader(part.storage, part.manifest, part.index)
            known = complete_episodes(list(part.footers.items()), part.manifest.schema)
            with encoder_of(schema, made, writer) as files:
                for number, episode in enumerate(reader.episodes.values()):
                    said = replace(
                        known[episode.uid],
                        key=episode.key,
                        uid=writer + secrets.token_hex(8),
                        metadata=encode_metadata(episode.metadata),
                    )
                    encode_episode(files, episode, said)
                    if (split := int(part.index.split[number])) != NO_SPLIT:
                        splits.setdefault(part.manifest.splits[split], []).append(said.uid)
    finally:
        sizes = own_sizes(made, writer)
        written += sizes
        written += [u.path for u in made.unfinished(RECORDS) if writer_of(u.path) == writer]
    return read_footers(made, sizes), [Split(name, tuple(uids)) for name, uids in splits.items()]


@contextmanager
def _undone(storage: Storage, writer: str) -> Iterator[list[str]]:
    """If the block raises, remove the files that it names.

    Unless a manifest is there then, which may name them, or another merge, which may use them.
    """
    written: list[str] = []
    try:
        yield written
    except BaseException:
        if read_base(storage, accept_damaged=True).tag is None and merges(storage) <= {writer}:
            tidy(storage, written)
        raise


def _bring_edits(
    parts: Sequence[_Part], made: Storage, writer: str, written: list[str]
) -> tuple[IndexFile, ...]:
    """Copies of the files of edits, in names that ascend, and come after those that are there."""
    files: list[IndexFile] = []
    first = next_number(made)
    for part in parts:
        for file in part.manifest.edits:
            path = f"{EDITS}/{first + len(files):08d}-{writer}.json"
            written.append(path)
            data, _ = part.storage.read_whole(file.path, file.size)
            files.append(put_file(made, path, data))
    return tuple(files)
