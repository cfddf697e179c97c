"""Rewrites record files without deleted or trimmed data, and removes files that no manifest names.

Pages of remaining data are copied, without decoding, into new record files, and one commit replaces
the old files. They remain until `clean` removes them, for readers that opened the dataset before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, ConflictError, located
from seqrecord.store.format.edits import Edits
from seqrecord.store.format.footer import RECORDS, EpisodePart, Footer
from seqrecord.store.format.manifest import (
    EDITS,
    FILE_PATH,
    INDEX,
    KEPT_VERSIONS,
    VERSIONS,
    Manifest,
    version_path,
)
from seqrecord.store.format.pages import chunk_bytes
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES
from seqrecord.store.reading.index_building import declared_rates, matching_footers
from seqrecord.store.reading.metadata import read_edits, record_sizes
from seqrecord.store.reading.versions import kept_versions
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage, worth_rereading
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.text import counted, first_of
from seqrecord.store.units import Progress, check, check_integer, is_number, parse_size
from seqrecord.store.writing.chunking import StoredChunk, page_ranges, stored_chunk
from seqrecord.store.writing.committing import (
    Base,
    RetiredFiles,
    SmallFiles,
    commit,
    is_retired_note,
    new_writer_id,
    put_file,
    read_dataset,
    recorded,
    retired_files,
    writer_of,
)
from seqrecord.store.writing.edit_files import batched
from seqrecord.store.writing.record_files import ChunkWriter
from seqrecord.store.writing.stored_schema import check_sizes
from seqrecord.tools.edit.changes import closing_or_aborting, naming_originals, read_existing

MIN_UNUSED = 0.25  # share of a record file's bytes that makes a rewrite worth it

_CLOCK = re.compile(rf"{RECORDS}/[0-9a-f]{{16}}\.clock")
_VERSION = re.compile(rf"{VERSIONS}/[0-9a-f]{{32}}\.json")
_READ_BYTES = 16 << 20  # per read, or one chunk
_COMMIT_BYTES = 64 << 30

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class RewriteReport:
    """Paths of record files that were rewritten, or would be with `dry_run`; sizes in bytes.

    `freed_bytes` are pages of deleted episodes, trimmed frames and dropped features: free once
    `clean` has removed the old files, `rewritten`. `copied_bytes` are all other pages in these
    files, and `written` the new files.
    """

    rewritten: tuple[str, ...]
    written: tuple[str, ...]
    freed_bytes: int
    copied_bytes: int


@recorded
def rewrite_files(
    location: str | PathLike[str],
    *,
    min_unused: float = MIN_UNUSED,
    max_file_size: int | str | None = None,
    commit_bytes: int | str = _COMMIT_BYTES,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RewriteReport:
    """Rewrite record files without deleted episodes, trimmed frames and dropped features.

    A record file is rewritten if deleted data takes at least the share `min_unused` of its bytes.
    Of trimmed episodes, chunks without remaining frames are deleted.
    Other pages are copied, after a check of their checksums. Episodes, frames, statistics and
    fingerprint of the dataset do not change. Old files remain until `clean` removes them, some time
    after they left the dataset: open readers continue, and until then the dataset takes more space.
    Memory: the footers of all record files, and one chunk or 16 MiB.

    Args:
        location: local path or URL of the dataset.
        min_unused: above 0, at most 1.
        max_file_size: as for `SeqRecordWriter`.
        commit_bytes: bytes to copy between commits, as a number or text such as "64GiB". A kill
            loses copies since the last commit.
        dry_run: write nothing.
        progress: called from this thread.
        storage_options: for the filesystem that serves a URL.

    Raises `NotFoundError` if there is no dataset, `ChecksumError` for a damaged page, `ClipError`
    for an invalid share or size, and `ConflictError` if another writer commits meanwhile. Earlier
    commits of the call are kept.

    Example:
        from seqrecord import edit

        report = edit.rewrite_files("records/", dry_run=True)
        print(report.freed_bytes, "bytes in", len(report.rewritten), "files")
    """
    is_share = is_number(min_unused) and 0 < min_unused <= 1
    check("min_unused", min_unused, is_share, "a share above 0 and at most 1")
    file_bytes, commit_limit = check_sizes(None, max_file_size), parse_size(commit_bytes)
    with closing(open_storage(location, storage_options)) as storage:
        with naming_originals(storage):
            _, manifest = read_dataset(storage)
        edits = read_edits(storage, manifest.edits)
        if not (edits.deleted or edits.frames) and manifest.schema.active == manifest.schema:
            return RewriteReport((), (), 0, 0)  # without reading footers
        dataset = read_existing(storage)
        manifest = dataset.manifest
        edits = read_edits(storage, manifest.edits)
        _, matching_pairs = matching_footers(
            list(dataset.footers.items()), manifest.schema, dataset.footers
        )
        footers = dict(matching_pairs)
        sizes = {
            path: _dead_and_live_bytes(footer, manifest.schema, edits)
            for path, footer in footers.items()
        }
        live_bytes = {
            path: live
            for path, (dead, live) in sizes.items()
            if dead >= max(1, min_unused * (dead + live))
        }
        total = sum(live_bytes.values())
        new_files, writer = list[str](), new_writer_id()
        rates = declared_rates(footers.values())
        copies = _FileCopies(storage, manifest.schema, edits, rates, total, progress)
        for batch in batched([] if dry_run else live_bytes, live_bytes.__getitem__, commit_limit):
            if dataset.manifest.commit != manifest.commit:
                raise ConflictError(
                    "another writer committed meanwhile; files rewritten before stay: try again",
                    file=storage.url,
                )
            # Without notes: nothing of an unfinished file is recovered, as it is a copy.
            files = ChunkWriter(
                *(storage, manifest.schema), writer=writer, max_file_size=file_bytes, notes=False
            )
            with closing_or_aborting(files):
                for path in batch:
                    copies.copy(path, footers[path], files)
            manifest, new_paths = dataset.commit(writer=writer, replaced_files=batch)
            new_files += new_paths
            if batch[-1] != [*live_bytes][-1]:
                dataset = read_existing(storage)
        if new_files:
            copies.report(total)  # with padding
        freed_bytes = sum(sizes[path][0] for path in live_bytes)
        return RewriteReport(tuple(live_bytes), tuple(new_files), freed_bytes, total)


def _dead_and_live_bytes(footer: Footer, schema: Schema, edits: Edits) -> tuple[int, int]:
    """Bytes of deleted and remaining chunks in a record file, with padding."""
    dead = live = 0
    chunk_tables = zip(footer.chunks, _live_masks(footer, edits), strict=True)
    for (rows, is_live), group in zip(chunk_tables, schema.groups, strict=False):
        stored_lengths = rows["pages"]["length"]
        live_lengths = stored_lengths.copy()
        live_lengths[~is_live] = 0
        live_lengths[:, [spec.is_dropped for spec in group.values()]] = 0
        live_bytes = int(chunk_bytes(live_lengths, group).sum())
        dead += int(chunk_bytes(stored_lengths, group).sum()) - live_bytes
        live += live_bytes
    return dead, live


@dataclass(frozen=True)
class _Chunk:
    """A chunk to copy; `pages` are the byte ranges of its pages, empty for dropped features."""

    part: EpisodePart
    group: int
    number: int
    pages: Sequence[ByteRange]

    @property
    def length(self) -> int:
        return sum(page.length for page in self.pages)


def _live_masks(footer: Footer, edits: Edits) -> list[npt.NDArray[np.bool_]]:
    """For each group, which chunks have frames of the dataset: bool [chunks].

    A part with an episode's length keeps a chunk, since record files must state the length.
    """
    full_span = 0, MAX_EPISODE_FRAMES
    spans = [
        (0, 0) if part.uid in edits.deleted else edits.frames.get(part.uid, full_span)
        for part in footer.episodes
    ]
    start, stop = np.array(spans, np.int64).T
    group_masks, has_chunk = [], np.zeros(len(spans), bool)
    for rows in footer.chunks:
        first_frame, episode = rows["first_frame"].astype(np.int64), rows["episode"]
        is_live = (first_frame < stop[episode]) & (
            first_frame + rows["num_frames"] > start[episode]
        )
        has_chunk[episode[is_live]] = True
        group_masks.append(is_live)
    for number, part in enumerate(footer.episodes):
        if not has_chunk[number] and part.num_frames is not None and part.uid not in edits.deleted:
            group = next(n for n, rows in enumerate(footer.chunks) if number in rows["episode"])
            group_masks[group][np.searchsorted(footer.chunks[group]["episode"], number)] = True
    return group_masks


def _live_chunks(footer: Footer, edits: Edits, schema: Schema) -> Iterator[_Chunk]:
    """Chunks with frames of the dataset, in file order, episode by episode."""
    dropped = [[spec.is_dropped for spec in group.values()] for group in schema.groups]
    is_live = _live_masks(footer, edits)
    for part_number, part in enumerate(footer.episodes):
        chunks = []
        for group, rows in enumerate(footer.chunks):
            begin, stop = np.searchsorted(rows["episode"], [part_number, part_number + 1]).tolist()
            numbers = (begin + np.flatnonzero(is_live[group][begin:stop])).tolist()
            chunks += [(int(rows["offset"][number]), group, number) for number in numbers]
        for _, group, number in sorted(chunks):
            pages = zip(page_ranges(footer.chunks[group][number]), dropped[group], strict=True)
            kept_pages = [
                ByteRange(page.start, page.start) if is_gone else page for page, is_gone in pages
            ]
            yield _Chunk(part, group, number, kept_pages)


@dataclass
class _FileCopies:
    """Copies of chunks in new record files; reports `num_bytes` of `total` to `progress`.

    `rates` are `declared_rates`.
    """

    storage: Storage
    schema: Schema
    edits: Edits
    rates: Mapping[str, float]
    total: int
    progress: Callable[[Progress], None] | None
    num_bytes: int = 0

    def copy(self, path: str, footer: Footer, files: ChunkWriter) -> None:
        """Copy the chunks with frames of the dataset from a record file into new files."""
        chunks = _live_chunks(footer, self.edits, self.schema)
        for read_batch in batched(chunks, lambda chunk: chunk.length, _READ_BYTES):
            chunk_copies = self.read(path, footer, read_batch)
            for part, copies_of_part in groupby(chunk_copies, itemgetter(0)):
                files.copy(
                    part,
                    (chunk for _, chunk in copies_of_part),
                    declared_fps=self.rates.get(part.uid),
                )
            self.report(self.num_bytes + sum(chunk.length for chunk in read_batch))

    def read(
        self, path: str, footer: Footer, chunks: Sequence[_Chunk]
    ) -> list[tuple[EpisodePart, StoredChunk]]:
        """Read chunks of a record file together, and check them.

        A damaged read is repeated once.
        """
        ranges = [page for chunk in chunks for page in chunk.pages if page.length]

        def read() -> list[tuple[EpisodePart, StoredChunk]]:
            buffers = [memoryview(bytearray(page.length)) for page in ranges]
            self.storage.read_ranges(path, ranges, buffers)
            buffer_of, chunk_copies = dict(zip(ranges, buffers, strict=True)), []
            for chunk in chunks:
                pages = [buffer_of.get(page, b"") for page in chunk.pages]
                url, uid = f"{self.storage.url}/{path}", chunk.part.uid
                key = self.edits.keys.get(uid, chunk.part.key)
                with located(ChecksumError, file=url, episode=key):
                    stored = stored_chunk(footer, self.schema, chunk.group, chunk.number, pages)
                chunk_copies.append((chunk.part, stored))
            return chunk_copies

        try:
            return read()
        except ChecksumError:
            # A read, not the file, may be damaged: cheaper than to end a rewrite of hours.
            # tests/tools/test_rewriting.py::test_page_damaged_in_one_read_only_is_copied
            if not worth_rereading(self.storage, path, ranges):
                raise
            return read()

    def report(self, num_bytes: int) -> None:
        """Set the number of copied bytes."""
        self.num_bytes = num_bytes
        if self.progress is not None:
            self.progress(Progress(num_bytes, self.total))


@recorded
def clean(
    location: str | PathLike[str],
    *,
    older_than: float,
    keep_versions: int = 0,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Remove files that the manifest does not name; returns their paths, sorted.

    These are record files, also unfinished ones, tables of the index, and edits.

    Episodes of interrupted writers are lost: run `mode="resume"` before to keep them. A writer that
    is running meanwhile is refused at its commit: before any removal, a commit lists the removed
    files, so that no resume recovers them. Lists of external files are kept, since a running writer
    may refer to one.

    The age of a file is relative to the storage's clock, read from a small file that is written and
    removed. Files from the future are kept, with a warning.

    Args:
        location: local path or URL of the dataset.
        older_than: seconds. Files are kept if their writer wrote anything since then, or if they
            left the dataset since then, for open readers.
        keep_versions: keep files of the last versions before the current one, as many as this, at
            most `KEPT_VERSIONS`. A version with the content of a later one does not count.
        dry_run: remove nothing.
        storage_options: for the filesystem that serves a URL.

    Raises `ClipError` for an invalid `keep_versions` or `older_than`, `NotFoundError` if there is
    no dataset, `ConflictError` if a writer commits at this moment, and `CommitUnknownError` if the
    outcome of the commit is unknown; then nothing is removed.

    Example:
        from seqrecord import edit

        print(edit.clean("records/", older_than=24 * 3600, dry_run=True))
    """
    check("older_than", older_than, is_number(older_than), "a number of seconds")
    check_integer("keep_versions", keep_versions, least=0, most=KEPT_VERSIONS)
    with closing(open_storage(location, storage_options)) as storage:
        with naming_originals(storage):
            base, manifest = read_dataset(storage)
        notes = retired_files(storage)
        files = list(
            _unnamed_files(
                storage, [manifest, *_earlier_versions(storage, manifest, keep_versions)]
            )
        )
        sizes = record_sizes(storage)
        # The storage's clock, after the listings: a file written meanwhile is not too old.
        now = _time_of(storage)
        _warn_of_future(storage, files, now)
        deadline = min(now, now - older_than)
        old_files = _removable_files(manifest, files, deadline, notes)
        old_paths = {file.path for file in old_files}
        present_paths = {*base.files, *sizes} - old_paths
        old_notes = [
            n.path for n in notes if n.modified <= deadline and present_paths.isdisjoint(n.files)
        ]
        if not dry_run:
            if old_files:
                _mark_removed(storage, base, manifest, old_paths)
            for file in old_files:
                file.remove()
            for path in old_notes:
                storage.remove(path)
        return sorted({*old_paths, *old_notes})


@dataclass(frozen=True)
class _UnneededFile:
    path: str
    modified: float
    remove: Callable[[], None]


def _time_of(storage: Storage) -> float:
    """The storage's time in seconds since 1970: the time of a file written and removed here."""
    path = f"{RECORDS}/{new_writer_id()}.clock"
    try:
        put_file(storage, path, b"seqrecord clean reads the time of this file\n")
        for file in storage.files(RECORDS):
            if file.path == path:
                return file.modified
    finally:
        storage.remove(path)
    raise ConflictError(
        "another clean is running; nothing was removed: try again", file=storage.url
    )


def _warn_of_future(storage: Storage, files: Sequence[_UnneededFile], now: float) -> None:
    if future_files := [file for file in files if file.modified > now]:
        _logger.warning(
            "%s: kept %s from the future of the storage's clock: %s",
            *(storage.url, counted(len(future_files), "file")),
            first_of(
                [f"{file.path} ({file.modified - now:,.0f} s after)" for file in future_files], 3
            ),
        )


def _removable_files(
    manifest: Manifest,
    files: Sequence[_UnneededFile],
    deadline: float,
    notes: Sequence[RetiredFiles],
) -> list[_UnneededFile]:
    """Unnamed files to remove: old files of writers without newer files, and files marked before.

    Files that left the dataset after `deadline`, by the notes, are kept.
    """
    recent_paths = {path for note in notes if note.modified > deadline for path in note.files}
    last_times: dict[str, float] = {}
    for file in files:
        writer = writer_of(file.path) or file.path
        last_times[writer] = max(file.modified, last_times.get(writer, file.modified))
    return [
        file
        for file in files
        if file.path in manifest.removed
        or (
            last_times[writer_of(file.path) or file.path] <= deadline
            and file.path not in recent_paths
        )
    ]


def _earlier_versions(storage: Storage, manifest: Manifest, count: int) -> Iterator[Manifest]:
    """The last `count` versions before this one with different content.

    Versions with equal content follow without their record files: a rewrite has replaced these, but
    only they may have statistics.
    """
    contents = {(manifest.fingerprint, manifest.edits)}
    for earlier, _ in kept_versions(storage, manifest) if count else ():
        content = earlier.fingerprint, earlier.edits
        if content in contents:
            yield replace(earlier, record_files=())
        elif len(contents) <= count:
            contents.add(content)
            yield earlier


def _unnamed_files(storage: Storage, manifests: Sequence[Manifest]) -> Iterator[_UnneededFile]:
    """Files that none of these manifests names; the first manifest is the current one."""
    named_paths = {file.path for manifest in manifests for file in manifest.record_files}
    named_paths |= {file.path for manifest in manifests for file in manifest.small_files}
    commits = manifests[0].commit, *manifests[0].earlier_commits[:KEPT_VERSIONS]
    named_paths.update(map(version_path, commits))
    for folder in (RECORDS, INDEX, EDITS, VERSIONS):
        for upload in storage.unfinished(folder):  # also of finished files
            if _is_ours(upload.path) or is_retired_note(upload.path):
                yield _UnneededFile(upload.path, upload.modified, upload.remove)
        for file in storage.files(folder):
            if file.path not in named_paths and _is_ours(file.path):
                yield _UnneededFile(file.path, file.modified, partial(storage.remove, file.path))


def _is_ours(path: str) -> bool:
    """Whether a writer of this package gave a file its name."""
    if FILE_PATH.fullmatch(path):
        return writer_of(path) is not None
    return any(pattern.fullmatch(path) for pattern in (_CLOCK, _VERSION))


def _mark_removed(storage: Storage, base: Base, manifest: Manifest, paths: Collection[str]) -> None:
    """Commit a manifest that lists the removed files, so that no writer can commit them."""
    unnamed_paths = {path for path in paths if path not in base.files and FILE_PATH.fullmatch(path)}
    removed_paths = unnamed_paths.union(manifest.removed)
    if removed_paths == set(manifest.removed):
        return
    try:
        new_manifest = replace(manifest, removed=tuple(sorted(removed_paths)))
        commit(SmallFiles(storage), base, new_manifest)
    except ConflictError as error:
        raise ConflictError(
            "another writer committed at this moment; nothing was removed: try again",
            file=storage.url,
        ) from error
