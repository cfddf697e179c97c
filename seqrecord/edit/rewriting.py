"""Frees what was deleted: record files of which a large share is dead are written anew without it.

Record files never change. What lives in them is copied page by page, neither decoded nor encoded,
into new record files; one commit names these in the place of the old ones. The old ones stay until
`clean` removes them, for a reader that has opened the dataset before may still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from seqrecord.edit.changes import read_existing
from seqrecord.errors import ChecksumError, ConflictError, located
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.manifest import Manifest
from seqrecord.format.pages import chunk_bytes
from seqrecord.reading.index_building import conformed
from seqrecord.reading.metadata import read_edits
from seqrecord.schema import Schema
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.ranges import ByteRange
from seqrecord.units import parse_size
from seqrecord.writing.chunking import StoredChunk, page_ranges, stored_chunk
from seqrecord.writing.committing import read_dataset
from seqrecord.writing.edit_files import gathered
from seqrecord.writing.own_files import new_writer_id
from seqrecord.writing.record_files import OpenFile
from seqrecord.writing.stored_schema import DEFAULT_RECORD_BYTES, check_sizes

__all__ = ["LEAST_DEAD", "RewriteProgress", "RewriteReport", "rewrite_files"]

LEAST_DEAD = 0.25  # of a record file's bytes, from which on it is worth to write the others anew

_READ_BYTES = 16 << 20  # at once, or one chunk
_COMMIT_BYTES = 64 << 30


@dataclass(frozen=True)
class RewriteReport:
    """Which record files were written anew, or with `dry_run` would be; sizes in bytes.

    `freed_bytes` are those of pages that were deleted or dropped: free once `clean` has removed
    the old files, `rewritten`. `copied_bytes` are those of all other pages in them, and `written`
    the new files.
    """

    rewritten: tuple[str, ...]
    written: tuple[str, ...]
    freed_bytes: int
    copied_bytes: int


@dataclass(frozen=True)
class RewriteProgress:
    """How far `rewrite_files` is: bytes that are copied, and those that will be in the end."""

    copied_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class _Plan:
    """What is dead in a record file, and what is copied: bytes of its chunks, with padding."""

    path: str
    dead: int
    living: int


def rewrite_files(
    location: str | PathLike[str],
    *,
    least_dead: float = LEAST_DEAD,
    record_bytes: int | str = DEFAULT_RECORD_BYTES,
    commit_bytes: int | str = _COMMIT_BYTES,
    dry_run: bool = False,
    progress: Callable[[RewriteProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RewriteReport:
    """Write record files anew without episodes that were deleted and features that were dropped.

    Those are rewritten of which such pages take at least the share `least_dead`, above 0 and up to
    1. All other pages are copied as they are, checked by their checksums, into new record files of
    about `record_bytes`; the dataset has the same episodes, frames, statistics and fingerprint as
    before. The new ones take the place of the old ones in one commit, or in several, whenever
    `commit_bytes` were copied; a kill loses what was copied since. The old ones stay until `clean`
    removes them, which is when they left the dataset long enough ago. So a reader that has opened
    the dataset reads on, and until then the dataset takes more room than before. Memory: the
    footers of all record files, and one chunk or 16 MiB. `progress` is called from this thread.
    With `dry_run` nothing is written.

    Raises `NotFoundError` where there is no dataset, `ChecksumError` for a page that is damaged,
    `ValueError` for another share or size, and `ConflictError` where another writer commits
    meanwhile. Then the dataset is as it was, but for what was committed before.
    """
    if not 0 < least_dead <= 1:
        raise ValueError(f"least_dead must be above 0 and at most 1, not {least_dead}")
    file_bytes, most_bytes = check_sizes(None, record_bytes), parse_size(commit_bytes)
    with closing(open_storage(location, storage_options)) as storage:
        _, manifest = read_dataset(storage)
        deleted = read_edits(storage, manifest.edits).deleted
        if not deleted and manifest.schema.kept == manifest.schema:
            return RewriteReport((), (), 0, 0)  # and no footer was read
        dataset = read_existing(storage)
        _, fitting = conformed(list(dataset.footers.items()), manifest.schema, dataset.footers)
        footers = dict(fitting)
        plans = [_plan(path, footer, manifest, deleted) for path, footer in footers.items()]
        plans = [p for p in plans if p.dead and p.dead >= least_dead * (p.dead + p.living)]
        total = sum(plan.living for plan in plans)
        copied, written = 0, list[str]()
        files = _CopiedFiles(storage, manifest.schema, file_bytes)
        try:
            for batch in gathered([] if dry_run else plans, lambda plan: plan.living, most_bytes):
                if dataset.manifest.commit != manifest.commit:
                    raise ConflictError(
                        "another writer committed meanwhile; what was rewritten before stays: try "
                        "again",
                        file=storage.url,
                    )
                for plan in batch:
                    chunks = _living(footers[plan.path], deleted, manifest.schema)
                    for some in gathered(chunks, lambda chunk: chunk.length, _READ_BYTES):
                        files.copy(plan.path, footers[plan.path], some)
                        copied += sum(chunk.length for chunk in some)
                        if progress is not None:
                            progress(RewriteProgress(copied, total))
                files.close()
                gone = {plan.path for plan in batch}
                manifest, new = dataset.commit(writer=files.writer, gone=gone)
                written += new
                if batch[-1] is not plans[-1]:
                    dataset = read_existing(storage)
        except BaseException:
            files.abort()
            raise
        if written and progress is not None:
            progress(RewriteProgress(total, total))  # with what pads the pages
        paths, dead = tuple(plan.path for plan in plans), sum(plan.dead for plan in plans)
        return RewriteReport(paths, tuple(written), dead, total)


def _plan(path: str, footer: Footer, manifest: Manifest, deleted: frozenset[str]) -> _Plan:
    gone = np.array([part.uid in deleted for part in footer.episodes], bool)
    dead = living = 0
    for rows, group in zip(footer.chunks, manifest.schema.groups, strict=False):
        before = rows["pages"]["length"]
        after = before.copy()
        after[gone[rows["episode"]]] = 0
        after[:, [spec.is_dropped for spec in group.values()]] = 0
        kept = int(chunk_bytes(after, group).sum())
        dead += int(chunk_bytes(before, group).sum()) - kept
        living += kept
    return _Plan(path, dead, living)


@dataclass(frozen=True)
class _Chunk:
    """A chunk that is copied; `pages` are where its pages lie, of no length where dropped."""

    part: EpisodePart
    group: int
    number: int
    pages: Sequence[ByteRange]

    @property
    def length(self) -> int:
        return sum(page.length for page in self.pages)


def _living(footer: Footer, deleted: frozenset[str], schema: Schema) -> Iterator[_Chunk]:
    """The chunks of episodes that were not deleted, one after the other as they lie in the file."""
    dropped = [[spec.is_dropped for spec in group.values()] for group in schema.groups]
    for at, part in enumerate(footer.episodes):
        if part.uid in deleted:
            continue
        found = []
        for group, rows in enumerate(footer.chunks):
            first, stop = np.searchsorted(rows["episode"], [at, at + 1]).tolist()
            offsets = rows["offset"][first:stop].tolist()
            found += [(offset, group, number) for number, offset in enumerate(offsets, start=first)]
        for _, group, number in sorted(found):
            pages = zip(page_ranges(footer.chunks[group][number]), dropped[group], strict=True)
            left = [ByteRange(page.start, page.start) if gone else page for page, gone in pages]
            yield _Chunk(part, group, number, left)


class _CopiedFiles:
    """Puts chunks into record files of about `record_bytes`, one after the other.

    An episode of which several files hold a part goes into one file where its chunks follow each
    other there, and else stays in parts. Nothing of a file that is not finished can be recovered:
    it is a copy.
    """

    def __init__(self, storage: Storage, schema: Schema, record_bytes: int) -> None:
        self.writer = new_writer_id()
        self._storage = storage
        self._schema = schema
        self._record_bytes = record_bytes
        self._file: OpenFile | None = None
        self._uids: set[str] = set()  # of the open file
        self._part: EpisodePart | None = None  # the last one
        self._ends: dict[int, int] = {}  # by group, where the next chunk of that episode begins

    def copy(self, path: str, footer: Footer, chunks: Sequence[_Chunk]) -> None:
        """Copy chunks of a record file, which are read at once."""
        wanted = [page for chunk in chunks for page in chunk.pages if page.length]
        buffers = [memoryview(bytearray(page.length)) for page in wanted]
        self._storage.read_ranges(path, wanted, buffers)
        found = dict(zip(wanted, buffers, strict=True))
        for chunk in chunks:
            pages = [found.get(page, b"") for page in chunk.pages]
            with located(ChecksumError, file=f"{self._storage.url}/{path}", episode=chunk.part.key):
                stored = stored_chunk(footer, self._schema, chunk.group, chunk.number, pages)
            self._add(chunk.part, stored)

    def _add(self, part: EpisodePart, chunk: StoredChunk) -> None:
        """Add a chunk of an episode, of which another file says `part`."""
        if self._file is not None and (
            self._file.is_full(self._record_bytes)
            or not self._fits(part, chunk.group, chunk.first_frame)
        ):
            self.close()
        if self._file is None:
            self._file = OpenFile(self._storage, self._schema, self.writer, part.ordinal)
        if part.uid not in self._uids:
            self._ends = {}
        elif part != self._part:
            self._file.say(part)
        self._uids.add(part.uid)
        self._part = part
        self._file.add(part, chunk)
        self._ends[chunk.group] = chunk.first_frame + chunk.num_frames

    def close(self) -> None:
        """Finish the open file."""
        if self._file is not None and self._file.finish():
            self._file.upload.commit()
        self._file, self._part = None, None
        self._uids, self._ends = set(), {}

    def abort(self) -> None:
        """Leave nothing of the open file."""
        if self._file is not None:
            self._file.upload.abort()
            self._file = None

    def _fits(self, part: EpisodePart, group: int, first_frame: int) -> bool:
        """Whether a chunk may stand in the open file, beside what is there of its episode.

        Only one part may tell the episode's length, and the chunks of a group follow each other.
        """
        if part.uid not in self._uids:
            return True
        last = self._part
        if last is None or last.uid != part.uid:
            return False
        return (last == part or last.num_frames is None) and self._ends.get(
            group, first_frame
        ) == first_frame
