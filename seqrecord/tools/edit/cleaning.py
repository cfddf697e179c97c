"""Rewrites record files without deleted or trimmed data, and removes files that no manifest names.

Pages of remaining data are copied, without decoding, into new record files, and one commit replaces
the old files. These stay until `clean` removes them, for readers that opened the dataset before.
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
from seqrecord.store.reading.index_building import matching_footers
from seqrecord.store.reading.metadata import read_edits, record_sizes
from seqrecord.store.reading.versions import kept_versions
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage, worth_rereading
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.text import counted, first_of
from seqrecord.store.units import Progress, parse_size
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
from seqrecord.tools.edit.changes import originals_named, read_existing

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

    A record file is rewritten if deleted data takes a share of at least `min_unused` of its bytes.
    Of trimmed episodes, chunks without remaining frames are deleted.
    Other pages are copied, after a check of their checksums. Episodes, frames, statistics and
    fingerprint of the dataset stay the same. Old files stay until `clean` removes them, some time
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

    Raises `NotFoundError` if there is no dataset, `ChecksumError` for a damaged page, `ValueError`
    for an invalid share or size, and `ConflictError` if another writer commits meanwhile. Earlier
    commits of the call are kept.

    Example:
        from seqrecord import edit

        report = edit.rewrite_files("records/", dry_run=True)
        print(report.freed_bytes, "bytes in", len(report.rewritten), "files")
    """
    if not 0 < min_unused <= 1:
        raise ValueError(f"min_unused must be above 0 and at most 1, not {min_unused}")
    file_bytes, most_bytes = check_sizes(None, max_file_size), parse_size(commit_bytes)
    with closing(open_storage(location, storage_options)) as storage:
        with originals_named(storage):
            _, manifest = read_dataset(storage)
        edits = read_edits(storage, manifest.edits)
        if not (edits.deleted or edits.frames) and manifest.schema.active == manifest.schema:
            return RewriteReport((), (), 0, 0)  # without reading footers
        dataset = read_existing(storage)
        manifest = dataset.manifest
        edits = read_edits(storage, manifest.edits)
        _, fitting = matching_footers(
            list(dataset.footers.items()), manifest.schema, dataset.footers
        )
        footers = dict(fitting)
        plans = {
            path: (dead, live)
            for path, footer in footers.items()
            for dead, live in [_unused(footer, manifest.schema, edits)]
            if dead and dead >= min_unused * (dead + live)
        }
        total = sum(live for _, live in plans.values())
        copied, written, writer = 0, list[str](), new_writer_id()

        def count(nbytes: int) -> None:
            nonlocal copied
            copied += nbytes
            if progress is not None:
                progress(Progress(copied, total))

        for batch in batched([] if dry_run else plans, lambda path: plans[path][1], most_bytes):
            if dataset.manifest.commit != manifest.commit:
                raise ConflictError(
                    "another writer committed meanwhile; files rewritten before stay: try again",
                    file=storage.url,
                )
            # Without notes: nothing of an unfinished file is recovered, as it is a copy.
            files = ChunkWriter(
                *(storage, manifest.schema), writer=writer, max_file_size=file_bytes, notes=False
            )
            try:
                for path in batch:
                    chunks = _live_chunks(footers[path], edits, manifest.schema)
                    for some in batched(chunks, lambda chunk: chunk.length, _READ_BYTES):
                        stored = _read(storage, path, footers[path], manifest.schema, some)
                        for part, of_part in groupby(stored, itemgetter(0)):
                            files.copy(part, (chunk for _, chunk in of_part))
                        count(sum(chunk.length for chunk in some))
                files.close()
            except BaseException:
                files.abort()
                raise
            manifest, new = dataset.commit(writer=writer, gone=batch)
            written += new
            if batch[-1] != [*plans][-1]:
                dataset = read_existing(storage)
        if written and progress is not None:
            progress(Progress(total, total))  # with padding
        freed = sum(dead for dead, _ in plans.values())
        return RewriteReport(tuple(plans), tuple(written), freed, total)


def _unused(footer: Footer, schema: Schema, edits: Edits) -> tuple[int, int]:
    """Bytes of deleted and of remaining chunks in a record file, with padding."""
    dead = live = 0
    each = zip(footer.chunks, _live(footer, edits), strict=True)
    for (rows, is_live), group in zip(each, schema.groups, strict=False):
        before = rows["pages"]["length"]
        after = before.copy()
        after[~is_live] = 0
        after[:, [spec.is_dropped for spec in group.values()]] = 0
        kept = int(chunk_bytes(after, group).sum())
        dead += int(chunk_bytes(before, group).sum()) - kept
        live += kept
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


def _live(footer: Footer, edits: Edits) -> list[npt.NDArray[np.bool_]]:
    """For each group, which chunks have frames of the dataset: bool [chunks].

    A part with an episode's length keeps a chunk, since record files must state the length.
    """
    everything = 0, MAX_EPISODE_FRAMES
    spans = [
        (0, 0) if part.uid in edits.deleted else edits.frames.get(part.uid, everything)
        for part in footer.episodes
    ]
    start, stop = np.array(spans, np.int64).T
    found, kept = [], np.zeros(len(spans), bool)
    for rows in footer.chunks:
        first, episode = rows["first_frame"].astype(np.int64), rows["episode"]
        is_live = (first < stop[episode]) & (first + rows["num_frames"] > start[episode])
        kept[episode[is_live]] = True
        found.append(is_live)
    for at, part in enumerate(footer.episodes):
        if not kept[at] and part.num_frames is not None and part.uid not in edits.deleted:
            group = next(n for n, rows in enumerate(footer.chunks) if at in rows["episode"])
            found[group][np.searchsorted(footer.chunks[group]["episode"], at)] = True
    return found


def _live_chunks(footer: Footer, edits: Edits, schema: Schema) -> Iterator[_Chunk]:
    """Chunks with frames of the dataset, in file order, episode by episode."""
    dropped = [[spec.is_dropped for spec in group.values()] for group in schema.groups]
    is_live = _live(footer, edits)
    for at, part in enumerate(footer.episodes):
        found = []
        for group, rows in enumerate(footer.chunks):
            first, stop = np.searchsorted(rows["episode"], [at, at + 1]).tolist()
            numbers = (first + np.flatnonzero(is_live[group][first:stop])).tolist()
            found += [(int(rows["offset"][number]), group, number) for number in numbers]
        for _, group, number in sorted(found):
            pages = zip(page_ranges(footer.chunks[group][number]), dropped[group], strict=True)
            left = [ByteRange(page.start, page.start) if gone else page for page, gone in pages]
            yield _Chunk(part, group, number, left)


def _read(
    storage: Storage, path: str, footer: Footer, schema: Schema, chunks: Sequence[_Chunk]
) -> list[tuple[EpisodePart, StoredChunk]]:
    """Read chunks of a record file together, and check them; a damaged read is repeated once."""
    wanted = [page for chunk in chunks for page in chunk.pages if page.length]

    def read() -> list[tuple[EpisodePart, StoredChunk]]:
        buffers = [memoryview(bytearray(page.length)) for page in wanted]
        storage.read_ranges(path, wanted, buffers)
        found, stored = dict(zip(wanted, buffers, strict=True)), []
        for chunk in chunks:
            pages = [found.get(page, b"") for page in chunk.pages]
            with located(ChecksumError, file=f"{storage.url}/{path}", episode=chunk.part.key):
                item = stored_chunk(footer, schema, chunk.group, chunk.number, pages)
            stored.append((chunk.part, item))
        return stored

    try:
        return read()
    except ChecksumError:
        if not worth_rereading(storage, path, wanted):
            raise
        return read()


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

    Raises `ValueError` for an invalid `keep_versions`, `NotFoundError` if there is no dataset,
    `ConflictError` if a writer commits at this moment, and `CommitUnknownError` if the outcome of
    the commit is unknown; then nothing is removed.

    Example:
        from seqrecord import edit

        print(edit.clean("records/", older_than=24 * 3600, dry_run=True))
    """
    if not 0 <= keep_versions <= KEPT_VERSIONS:
        raise ValueError(f"keep_versions must be from 0 to {KEPT_VERSIONS}, not {keep_versions}")
    with closing(open_storage(location, storage_options)) as storage:
        with originals_named(storage):
            base, manifest = read_dataset(storage)
        notes = retired_files(storage)
        items = list(_unnamed(storage, [manifest, *_earlier(storage, manifest, keep_versions)]))
        sizes = record_sizes(storage)
        now = _time_of(storage)  # after the listings
        _warn_of_future(storage, items, now)
        before = min(now, now - older_than)
        old = _old(manifest, items, before, notes)
        gone = {item.path for item in old}
        there = {*base.files, *sizes} - gone
        done = [n.path for n in notes if n.modified <= before and there.isdisjoint(n.files)]
        if not dry_run:
            if old:
                _mark_removed(storage, base, manifest, gone)
            for item in old:
                item.remove()
            for path in done:
                storage.remove(path)
        return sorted({*gone, *done})


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


def _warn_of_future(storage: Storage, items: Sequence[_UnneededFile], now: float) -> None:
    if late := [item for item in items if item.modified > now]:
        _logger.warning(
            "%s: kept %s from the future of the storage's clock: %s",
            *(storage.url, counted(len(late), "file")),
            first_of([f"{item.path} ({item.modified - now:,.0f} s after)" for item in late], 3),
        )


def _old(
    manifest: Manifest, items: Sequence[_UnneededFile], before: float, notes: Sequence[RetiredFiles]
) -> list[_UnneededFile]:
    """Unnamed files to remove: old files of writers without newer files, and files marked before.

    Files that left the dataset after `before`, by the notes, stay.
    """
    recent = {path for note in notes if note.modified > before for path in note.files}
    last: dict[str, float] = {}
    for item in items:
        writer = writer_of(item.path) or item.path
        last[writer] = max(item.modified, last.get(writer, item.modified))
    return [
        item
        for item in items
        if item.path in manifest.removed
        or (last[writer_of(item.path) or item.path] <= before and item.path not in recent)
    ]


def _earlier(storage: Storage, manifest: Manifest, count: int) -> Iterator[Manifest]:
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


def _unnamed(storage: Storage, manifests: Sequence[Manifest]) -> Iterator[_UnneededFile]:
    """Files that none of these manifests names; the first manifest is the current one."""
    named = {file.path for each in manifests for file in each.record_files}
    named |= {file.path for each in manifests for file in each.small_files}
    commits = manifests[0].commit, *manifests[0].earlier_commits[:KEPT_VERSIONS]
    named.update(map(version_path, commits))
    for folder in (RECORDS, INDEX, EDITS, VERSIONS):
        for upload in storage.unfinished(folder):  # also of finished files
            if _is_ours(upload.path) or is_retired_note(upload.path):
                yield _UnneededFile(upload.path, upload.modified, upload.remove)
        for file in storage.files(folder):
            if file.path not in named and _is_ours(file.path):
                yield _UnneededFile(file.path, file.modified, partial(storage.remove, file.path))


def _is_ours(path: str) -> bool:
    """Whether a writer of this package gave a file its name."""
    if FILE_PATH.fullmatch(path):
        return writer_of(path) is not None
    return any(pattern.fullmatch(path) for pattern in (_CLOCK, _VERSION))


def _mark_removed(storage: Storage, base: Base, manifest: Manifest, paths: Collection[str]) -> None:
    """Commit a manifest that lists the removed files, so that no writer can commit them."""
    unnamed = {path for path in paths if path not in base.files and FILE_PATH.fullmatch(path)}
    removed = unnamed.union(manifest.removed)
    if removed == set(manifest.removed):
        return
    try:
        changed = replace(manifest, removed=tuple(sorted(removed)))
        commit(SmallFiles(storage), base, changed)
    except ConflictError as error:
        raise ConflictError(
            "another writer committed at this moment; nothing was removed: try again",
            file=storage.url,
        ) from error
