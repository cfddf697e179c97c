"""Frees what was deleted: record files of which a large share is dead are written anew without it.

Record files never change. What lives in them is copied page by page, neither decoded nor encoded,
into new record files; one commit names these in the place of the old ones. The old ones stay until
`clean` removes them, for a reader that has opened the dataset before may still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from seqrecord.errors import ChecksumError, ConflictError, FormatError, located
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import Manifest, RecordFile
from seqrecord.format.pages import chunk_bytes
from seqrecord.reading.index_building import conformed
from seqrecord.reading.metadata import read_edits, read_footers, record_sizes
from seqrecord.schema import Schema
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.ranges import ByteRange
from seqrecord.units import parse_size
from seqrecord.writing.chunking import page_ranges, stored_chunk
from seqrecord.writing.commits import put_version, rebuilt
from seqrecord.writing.committing import Base, read_base, read_indexed
from seqrecord.writing.copied_files import CopiedFiles
from seqrecord.writing.own_files import SmallFiles, new_writer_id, own_sizes
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
    sizes = check_sizes(None, record_bytes), parse_size(commit_bytes)
    with closing(open_storage(location, storage_options)) as storage:
        base, manifest, index = read_indexed(storage)
        footers, deleted = _dead(storage, manifest)
        plans = [_plan(path, footer, manifest, deleted) for path, footer in footers.items()]
        plans = [p for p in plans if p.dead and p.dead >= least_dead * (p.dead + p.living)]
        total = sum(plan.living for plan in plans)
        written: list[str] = []
        if plans and not dry_run:
            rewriter = _Rewriter(storage, base, manifest, index, footers, deleted, *sizes)

            def show(copied: int) -> None:
                if progress is not None:
                    progress(RewriteProgress(copied, total))

            written = rewriter.run(plans, show)
            show(total)  # with what pads the pages
        paths, dead = tuple(plan.path for plan in plans), sum(plan.dead for plan in plans)
        return RewriteReport(paths, tuple(written), dead, total)


def _dead(storage: Storage, manifest: Manifest) -> tuple[dict[str, Footer], frozenset[str]]:
    """The footers of a dataset's record files, and the uids of deleted episodes.

    No footers where nothing was deleted or dropped.
    """
    deleted = read_edits(storage, manifest.edits).deleted
    if not deleted and manifest.schema.kept == manifest.schema:
        return {}, deleted
    footers = read_footers(storage, {file.path: file.size for file in manifest.record_files})
    _, fitting = conformed(list(footers.items()), manifest.schema, footers)
    return dict(fitting), deleted


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


class _Rewriter:
    """Writes the record files of some plans anew, and commits."""

    def __init__(
        self,
        storage: Storage,
        base: Base,
        manifest: Manifest,
        index: Index,
        footers: dict[str, Footer],
        deleted: frozenset[str],
        record_bytes: int,
        commit_bytes: int,
    ) -> None:
        self._storage = storage
        self._base = base
        self._manifest = manifest
        self._index = index  # what it holds is what it held, whatever files it is of
        self._footers = footers
        self._deleted = deleted
        self._record_bytes = record_bytes
        self._commit_bytes = commit_bytes
        self._writer = new_writer_id()
        self._copied = 0

    def run(self, plans: Sequence[_Plan], show: Callable[[int], None]) -> list[str]:
        """Rewrite all of them; the paths of the new record files."""
        written: list[str] = []
        for number, some in enumerate(_batches(plans, self._commit_bytes)):
            if number:
                self._go_on()
            written += self._rewrite([plan.path for plan in some], show)
        return written

    def _go_on(self) -> None:
        """Begin again with what was just committed."""
        self._base = read_base(self._storage)
        found = self._base.manifest
        if found is None or found.commit != self._manifest.commit:
            raise ConflictError(
                "another writer committed meanwhile; what was rewritten before stays: try again",
                file=self._storage.url,
            )

    def _rewrite(self, paths: Sequence[str], show: Callable[[int], None]) -> list[str]:
        storage, schema = self._storage, self._manifest.schema
        files = CopiedFiles(storage, schema, self._writer, self._record_bytes)
        try:
            for path in paths:
                self._copy(path, files, show)
            files.close()
        except BaseException:
            files.abort()
            raise
        own = own_sizes(record_sizes(storage), self._writer)
        sizes = {path: size for path, size in own.items() if path not in self._base.files}
        self._commit(set(paths), sizes, read_footers(storage, sizes))
        return list(sizes)

    def _copy(self, path: str, files: CopiedFiles, show: Callable[[int], None]) -> None:
        """Copy all that lives in a record file, some chunks at once."""
        footer, schema = self._footers[path], self._manifest.schema
        shown = f"{self._storage.url}/{path}"
        for some in _reads(_living(footer, self._deleted), footer, schema):
            wanted = [page for chunk in some for page in chunk.pages if page.length]
            buffers = [memoryview(bytearray(page.length)) for page in wanted]
            self._storage.read_ranges(path, wanted, buffers)
            found = dict(zip(wanted, buffers, strict=True))
            for chunk in some:
                pages = [found.get(page, b"") for page in chunk.pages]
                with located(ChecksumError, file=shown, episode=chunk.part.key):
                    stored = stored_chunk(footer, schema, chunk.group, chunk.number, pages)
                files.add(chunk.part, stored)
                self._copied += chunk.length
            show(self._copied)

    def _commit(
        self, gone: set[str], sizes: Mapping[str, int], footers: Mapping[str, Footer]
    ) -> None:
        """Name the new record files in the place of those that are gone."""
        storage, base, manifest = self._storage, self._base, self._manifest
        kept = [file for file in manifest.record_files if file.path not in gone]
        new = [RecordFile(path, size, footers[path].file_id) for path, size in sizes.items()]
        changed = replace(manifest, record_files=(*kept, *new))
        every = {path: footer for path, footer in self._footers.items() if path not in gone}
        every |= footers
        lengths = {file.path: file.size for file in changed.record_files}
        version = rebuilt(storage, replace(base, manifest=changed), every, lengths)
        if not _is_same(version.index, self._index):
            raise FormatError(
                "the record files do not give the episodes of the index; see `seqrecord verify`",
                file=storage.url,
            )
        try:
            with SmallFiles(storage, self._writer) as own:
                self._manifest = put_version(own, base, version)
        except ConflictError as error:
            raise ConflictError(
                "another writer committed meanwhile; the files that were being rewritten stay as "
                "they are: try again",
                file=storage.url,
            ) from error
        self._footers = every


def _is_same(index: Index, before: Index) -> bool:
    return (
        index.fingerprint() == before.fingerprint()
        and np.array_equal(index.uids, before.uids)
        and np.array_equal(index.split, before.split)
    )


def _batches(plans: Sequence[_Plan], commit_bytes: int) -> Iterator[list[_Plan]]:
    """The plans, as many as are committed together."""
    some: list[_Plan] = []
    size = 0
    for plan in plans:
        some.append(plan)
        size += plan.living
        if size >= commit_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some


@dataclass(frozen=True)
class _Chunk:
    """A chunk that is copied; `pages` are where its pages lie, of no length where dropped."""

    part: EpisodePart
    group: int
    number: int
    pages: tuple[ByteRange, ...] = ()

    @property
    def length(self) -> int:
        return sum(page.length for page in self.pages)


def _living(footer: Footer, deleted: frozenset[str]) -> Iterator[_Chunk]:
    """The chunks of episodes that were not deleted, one after the other as they lie in the file."""
    for at, part in enumerate(footer.episodes):
        if part.uid in deleted:
            continue
        found = []
        for group, rows in enumerate(footer.chunks):
            first, stop = np.searchsorted(rows["episode"], [at, at + 1]).tolist()
            offsets = rows["offset"][first:stop].tolist()
            found += [(offset, group, number) for number, offset in enumerate(offsets, start=first)]
        for _, group, number in sorted(found):
            yield _Chunk(part, group, number)


def _reads(chunks: Iterator[_Chunk], footer: Footer, schema: Schema) -> Iterator[list[_Chunk]]:
    """The chunks with where their pages lie, as many as are read at once."""
    dropped = [[spec.is_dropped for spec in group.values()] for group in schema.groups]
    some: list[_Chunk] = []
    size = 0
    for chunk in chunks:
        pages = tuple(
            ByteRange(page.start, page.start) if is_gone else page
            for page, is_gone in zip(
                page_ranges(footer.chunks[chunk.group][chunk.number]),
                dropped[chunk.group],
                strict=True,
            )
        )
        placed = replace(chunk, pages=pages)
        if some and size + placed.length > _READ_BYTES:
            yield some
            some, size = [], 0
        some.append(placed)
        size += placed.length
    if some:
        yield some
