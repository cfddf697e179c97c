"""verify: reads all of a dataset and collects everything that is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from seqrecord.cores import usable_cores
from seqrecord.errors import (
    ChecksumError,
    FormatError,
    SeqRecordError,
    StorageError,
    TransientError,
)
from seqrecord.format import RECORDS, Footer
from seqrecord.format.index import Index
from seqrecord.format.manifest import RecordFile
from seqrecord.reading.chunks import ChunkReader, Page
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, refuse_ignored
from seqrecord.reading.record_footers import read_footer, record_sizes
from seqrecord.reading.verification.agreement import disagreements
from seqrecord.reading.verification.trust import Files, rebuilt_index, stored_index
from seqrecord.storage import RequestThreads, Storage, open_storage, request_threads
from seqrecord.text import counted
from seqrecord.units import format_size

__all__ = ["VerifyProgress", "VerifyReport", "verify"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class VerifyProgress:
    """How far `verify` is, in bytes of pages."""

    page_bytes: int
    total_bytes: int
    num_problems: int


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` has read and found. `notes` are no problems."""

    url: str
    deep: bool
    num_record_files: int
    num_chunks: int
    num_pages: int
    num_frames: int  # decoded, counted for each feature
    page_bytes: int
    problems: tuple[SeqRecordError, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all is as it was written."""
        return not self.problems

    def __str__(self) -> str:
        found = counted(len(self.problems), "problem") if self.problems else "no problem"
        decoded = f", {counted(self.num_frames, 'array')} decoded" if self.deep else ""
        pages = f"{counted(self.num_pages, 'page')} ({format_size(self.page_bytes)})"
        return (
            f"{self.url}: {found} found; {counted(self.num_record_files, 'record file')}, "
            f"{counted(self.num_chunks, 'chunk')}, {pages} checked{decoded}"
        )


def verify(
    dataset: DatasetLike,
    *,
    deep: bool = False,
    num_threads: int | None = None,
    progress: Callable[[VerifyProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Read everything of a dataset and report all that is wrong.

    Checks manifest and index, each record file's header and footer and that they agree with them,
    and the checksums of every page and of its slices. A broken index is reported and replaced by
    what the record files say, so that their pages are checked all the same. Memory: the index, the
    same index built from the record files, and a chunk per thread.

    Args:
        dataset: local path or URL, or an open dataset, of which what lies there now is read too,
            through its cache if it has one.
        deep: decode every frame of every feature as well.
        num_threads: by default one for each core.
        progress: called from this thread, after every chunk.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `NotFoundError` where there is no dataset, and `StorageError` if its manifest cannot be
    read; what is wrong beyond that is in the report, in an order that does not depend on threads.
    """
    if isinstance(dataset, SeqRecordReader):
        refuse_ignored("an open dataset", storage_options=storage_options)
        return _verify_on_threads(dataset.storage, deep, num_threads, progress)
    storage = open_storage(dataset, storage_options)
    try:
        return _verify_on_threads(storage, deep, num_threads, progress)
    finally:
        storage.close()


def _verify_on_threads(
    storage: Storage,
    deep: bool,
    num_threads: int | None,
    progress: Callable[[VerifyProgress], None] | None,
) -> VerifyReport:
    num_threads = num_threads or usable_cores()
    with request_threads(num_threads, "verify") as threads:
        return _verify(storage, deep, _Pool(threads, num_threads), progress)


def _verify(
    storage: Storage,
    deep: bool,
    pool: _Pool,
    progress: Callable[[VerifyProgress], None] | None,
) -> VerifyReport:
    files, index, problems = stored_index(storage)
    notes = _notes(storage, files)
    urls = [f"{storage.url}/{file.path}" for file in files.record_files]
    footers: list[Footer | None] = []
    gone: set[int] = set()
    for number, result in enumerate(
        pool.map(partial(_check_file, storage, index), files.record_files)
    ):
        problems += result.problems
        footers.append(result.footer)
        if not result.there:
            gone.add(number)
    try:
        rebuilt = rebuilt_index(storage, files, footers)
    except FormatError as error:
        # If footers are missing, no episode may be complete: the missing footers are the problem.
        if index is None or error.episode or None not in footers:
            problems.append(error)
    else:
        if index is None:
            index = rebuilt
        elif files.edits is not None:  # or nobody knows what was deleted
            problems += disagreements(index, rebuilt, footers, urls)
    del footers
    state = _State(storage, files, index, gone)
    groups = () if index is None else index.groups
    total = sum(int(group.page_length.sum(dtype=np.uint64)) for group in groups)
    page_bytes = num_frames = num_pages = num_chunks = 0
    check = state.decode_chunk if deep else state.read_chunk
    for chunk in pool.map(check, state.chunks()):
        problems += chunk.problems
        page_bytes += chunk.page_bytes
        num_frames += chunk.num_frames
        num_pages += chunk.num_pages
        num_chunks += 1
        if progress is not None:
            progress(VerifyProgress(page_bytes, total, len(problems)))
    return VerifyReport(
        url=storage.url,
        deep=deep,
        num_record_files=len(files.record_files) - len(gone),
        num_chunks=num_chunks,
        num_pages=num_pages,
        num_frames=num_frames,
        page_bytes=page_bytes,
        problems=tuple(problems),
        notes=tuple(notes),
    )


@dataclass
class _FileResult:
    """`footer` is `None` where it cannot be read, or belongs to no file of this dataset."""

    problems: list[SeqRecordError] = field(default_factory=list)
    footer: Footer | None = None
    there: bool = True


def _check_file(storage: Storage, index: Index | None, file: RecordFile) -> _FileResult:
    """Length, header and footer of a record file, and whether they are those of the manifest."""
    shown = f"{storage.url}/{file.path}"
    result = _FileResult()
    try:
        size = storage.size(file.path)
    except SeqRecordError as error:
        return _FileResult([error], there=False)
    if size != file.size:
        other = FormatError(
            "a record file of another length than the manifest says",
            file=shown,
            expected=f"{file.size} bytes",
            got=f"{size} bytes",
        )
        result.problems.append(other)
    try:
        footer = read_footer(storage, file.path)
    except SeqRecordError as error:
        result.problems.append(error)
        return result
    if file.file_id not in ("", footer.file_id):
        other = FormatError(
            "another record file than the manifest names",
            file=shown,
            offset=0,
            expected=file.file_id,
            got=footer.file_id,
        )
        result.problems.append(other)
        # It holds nothing of this dataset.
        none: dict[str, Any] = {
            "episodes": (),
            "chunks": tuple(rows[:0] for rows in footer.chunks),
            "gaps": tuple(rows[:0] for rows in footer.gaps),
        }
        footer = replace(footer, file_id=file.file_id, **none)
    if index is not None and not index.schema.continues(footer.schema):
        other = FormatError(
            "a record file of another schema",
            file=shown,
            expected=index.schema,
            got=footer.schema,
        )
        result.problems.append(other)
        return result
    result.footer = footer
    return result


@dataclass
class _ChunkResult:
    page_bytes: int
    num_pages: int
    num_frames: int = 0
    problems: list[SeqRecordError] = field(default_factory=list)


class _State:
    """What the threads share. Files of the numbers `gone` are not there."""

    def __init__(
        self, storage: Storage, files: Files, index: Index | None, gone: Container[int]
    ) -> None:
        self._index = index
        self._gone = gone
        if index is not None:
            self._reader = ChunkReader(storage, files.manifest(index), index, index.schema)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Group and row of all chunks that can be read, in the order of the disk."""
        groups = () if self._index is None else self._index.groups
        if not groups:
            return
        number = np.repeat(np.arange(len(groups)), [len(group.file) for group in groups])
        row = np.concatenate([np.arange(len(group.file)) for group in groups])
        file = np.concatenate([group.file for group in groups])
        offset = np.concatenate([group.offset for group in groups])
        for at in np.lexsort((offset, file)):
            if file[at] not in self._gone:
                yield int(number[at]), int(row[at])

    def read_chunk(self, place: tuple[int, int]) -> _ChunkResult:
        """Every page against its checksums; what a reader counts on or users are given, besides."""
        result, pages = self._read(place)
        for page, data in pages:
            if page.largest is not None:
                try:
                    self._reader.shapes(page, data)
                except SeqRecordError as error:
                    result.problems.append(error)
        return result

    def decode_chunk(self, place: tuple[int, int]) -> _ChunkResult:
        """Every page against its checksums; every frame of those that match, decoded."""
        result, pages = self._read(place)
        for page, data in pages:
            result.num_frames += page.num_present
            result.problems += self._decode(page, data)
        return result

    def _read(self, place: tuple[int, int]) -> tuple[_ChunkResult, list[tuple[Page, memoryview]]]:
        result, pages = self._read_pages(place)
        for page, data in pages:
            if page.sums is not None:
                try:
                    self._reader.check_slices(page, data)
                except SeqRecordError as error:
                    result.problems.append(error)
        return result, pages

    def _read_pages(
        self, place: tuple[int, int]
    ) -> tuple[_ChunkResult, list[tuple[Page, memoryview]]]:
        index = self._index
        assert index is not None
        chunk = self._reader.chunk_at(*place)
        episode = chunk.episode
        pages = [page for page in self._reader.pages(chunk) if page.num_present]
        result = _ChunkResult(sum(page.stop - page.start for page in pages), len(pages))
        try:
            return result, list(zip(pages, self._reader.read(pages), strict=True))
        except ChecksumError:
            pass  # one page is broken: read them one by one, for there may be more
        except SeqRecordError as error:
            result.problems.append(error.located(episode=index.key(episode)))
            return result, []
        sound = []
        for page in pages:
            try:
                sound += [(page, data) for data in self._reader.read([page])]
            except SeqRecordError as error:
                result.problems.append(error)
        return result, sound

    def _decode(self, page: Page, data: memoryview) -> Iterator[SeqRecordError]:
        held = page.chunk.num_frames
        frames = range(held) if page.present is None else np.flatnonzero(page.present).tolist()
        try:
            shapes = self._reader.shapes(page, data)
        except SeqRecordError as error:
            yield error
            return
        dtype = self._reader.features[page.feature].dtype
        out = np.empty(0, dtype)
        for frame, shape in zip(frames, shapes, strict=True):
            if out.shape != shape:
                out = np.empty(shape, dtype)
            try:
                self._reader.decode(page, data, [frame], [out])
                self._reader.value(page, out, frame)
            except SeqRecordError as error:
                yield error.located(frame=page.chunk.first_frame + frame)


class _Pool:
    """Runs tasks on threads with a bounded number of them under way."""

    def __init__(self, threads: RequestThreads, num_threads: int) -> None:
        self._threads = threads
        self._window = 2 * num_threads + 1

    def map(self, task: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Results in the order of the items, which are taken as they are needed."""
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(self._threads.submit(task, item))
            if len(pending) == self._window:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _notes(storage: Storage, files: Files) -> list[str]:
    listed = {file.path for file in files.record_files}
    try:
        cut = [upload.path for upload in storage.unfinished(RECORDS)]
        stray = [path for path in record_sizes(storage) if path not in listed]
    except TransientError:
        raise
    except StorageError as error:  # of a web server, and where listing is forbidden
        return [f"{storage.url}: what else lies there cannot be listed: {error.message}"]
    return [
        *(f"{storage.url}/{path}: not part of the dataset" for path in stray),
        *(f"{storage.url}/{path}: not finished, or left by an interrupted write" for path in cut),
    ]
