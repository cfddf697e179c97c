"""verify: reads all of a dataset and collects everything that is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from seqrecord.chunks import ChunkReader, Page
from seqrecord.commits import record_sizes
from seqrecord.cores import usable_cores
from seqrecord.errors import (
    ChecksumError,
    FormatError,
    SeqRecordError,
    StorageError,
    TransientError,
)
from seqrecord.format import RECORDS, EpisodePart
from seqrecord.index import Index
from seqrecord.record_reading import read_footer
from seqrecord.storage import RequestThreads, Storage, open_storage, request_threads
from seqrecord.units import format_size
from seqrecord.verification.agreement import Parts, Unlisted, compare_footer
from seqrecord.verification.trust import Files, trusted_index
from seqrecord.wording import counted

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
    """What `verify` has read and found. `notes` are worth knowing and do no harm."""

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
    location: str | PathLike[str],
    *,
    deep: bool = False,
    num_threads: int | None = None,
    progress: Callable[[VerifyProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Read everything of a dataset and report all that is wrong.

    Checks manifest and index, each record file's header and footer and that they agree with them,
    and every page's checksum. A broken index is reported and replaced by what the record files
    say, so that their pages are checked all the same. Memory: the index, and a chunk per thread.

    Args:
        location: local path or URL.
        deep: decode every frame of every feature as well.
        num_threads: by default one for each core.
        progress: called from this thread, after every chunk.
        storage_options: for the filesystem that serves `location`.

    Raises `NotFoundError` where there is no dataset, and `StorageError` if its manifest cannot be
    read; what is wrong beyond that is in the report, in an order that does not depend on threads.
    """
    storage = open_storage(location, storage_options)
    try:
        num_threads = num_threads or usable_cores()
        with request_threads(num_threads, "verify") as threads:
            return _verify(storage, deep, _Pool(threads, num_threads, storage.url), progress)
    finally:
        storage.close()


def _verify(
    storage: Storage,
    deep: bool,
    pool: _Pool,
    progress: Callable[[VerifyProgress], None] | None,
) -> VerifyReport:
    files, index, problems = trusted_index(storage)
    notes = _notes(storage, files)
    state = _State(storage, files, index)
    unlisted, parts = Unlisted(files.left_out), Parts()
    for number, result in enumerate(pool.map(state.check_file, range(len(files.record_files)))):
        problems += result.problems
        path = files.record_files[number].path
        unlisted.add(path, result.unlisted, result.listed)
        clashes = parts.add(result.parts)
        problems += [error.located(file=f"{storage.url}/{path}") for error in clashes]
        if not result.readable:
            state.unreadable.add(number)
    problems += unlisted.problems(storage.url)
    total = 0 if index is None else int(index.page_length.sum(dtype=np.uint64))
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
        num_record_files=len(files.record_files) - len(state.unreadable),
        num_chunks=num_chunks,
        num_pages=num_pages,
        num_frames=num_frames,
        page_bytes=page_bytes,
        problems=tuple(problems),
        notes=tuple(notes),
    )


@dataclass
class _FileResult:
    problems: list[SeqRecordError] = field(default_factory=list)
    unlisted: list[Unlisted.Part] = field(default_factory=list)
    listed: Sequence[str] = ()
    parts: Sequence[EpisodePart] = ()
    readable: bool = True


@dataclass
class _ChunkResult:
    page_bytes: int
    num_pages: int
    num_frames: int = 0
    problems: list[SeqRecordError] = field(default_factory=list)


class _State:
    """What the threads share; only `unreadable` changes, between files and chunks."""

    def __init__(self, storage: Storage, files: Files, index: Index | None) -> None:
        self.unreadable: set[int] = set()
        self._storage = storage
        self._files = files
        self._index = index
        if index is not None:
            self._reader = ChunkReader(storage, files.manifest(index), index, index.schema)
            # Chunks in the order of the disk: by file, then by offset.
            self._order = np.lexsort((index.offset, index.file))
            sorted_files = index.file[self._order]
            count = len(files.record_files)
            self._bounds = np.searchsorted(sorted_files, np.arange(count + 1))

    def check_file(self, number: int) -> _FileResult:
        """Length, header and footer of a record file, and whether they are what is expected."""
        file, index = self._files.record_files[number], self._index
        shown = f"{self._storage.url}/{file.path}"
        result = _FileResult()
        try:
            size = self._storage.size(file.path)
        except SeqRecordError as error:
            return _FileResult([error], readable=False)
        if size != file.size:
            other = FormatError(
                "a record file of another length than the manifest says",
                file=shown,
                expected=f"{file.size} bytes",
                got=f"{size} bytes",
            )
            result.problems.append(other)
        try:
            footer = read_footer(self._storage, file.path)
        except SeqRecordError as error:
            result.problems.append(error)
            return result
        result.parts = footer.episodes
        if footer.file_id != file.file_id:
            other = FormatError(
                "another record file than the manifest names",
                file=shown,
                offset=0,
                expected=file.file_id,
                got=footer.file_id,
            )
            result.problems.append(other)
        if index is not None:
            rows = self._order[self._bounds[number] : self._bounds[number + 1]]
            found, result.unlisted = compare_footer(footer, index, rows)
            result.problems += [error.located(file=shown) for error in found]
            chunks = np.bincount(footer.chunks["episode"])
            missing = {part.episode.uid: part.num_chunks for part in result.unlisted}
            result.listed = [
                part.uid
                for part, count in zip(footer.episodes, chunks.tolist(), strict=True)
                if missing.get(part.uid, 0) < count
            ]
        return result

    def chunks(self) -> Iterator[int]:
        """Rows of all chunks that can be read, file by file."""
        for number in range(len(self._files.record_files) if self._index is not None else 0):
            if number not in self.unreadable:
                yield from self._order[self._bounds[number] : self._bounds[number + 1]].tolist()

    def read_chunk(self, row: int) -> _ChunkResult:
        """Every page against its checksum; shapes that vary against what the index counts on."""
        result, pages = self._read(row)
        for page, data in pages:
            if page.largest is not None:
                try:
                    self._reader.shapes(page, data)
                except SeqRecordError as error:
                    result.problems.append(error)
        return result

    def decode_chunk(self, row: int) -> _ChunkResult:
        """Every page against its checksum; every frame of those that match, decoded."""
        result, pages = self._read(row)
        for page, data in pages:
            result.num_frames += page.num_present
            result.problems += self._decode(page, data)
        return result

    def _read(self, row: int) -> tuple[_ChunkResult, list[tuple[Page, memoryview]]]:
        index = self._index
        assert index is not None
        episode = int(np.searchsorted(index.first_chunk, row, side="right")) - 1
        chunk = self._reader.chunk(episode, row - int(index.first_chunk[episode]))
        pages = [page for page in self._reader.pages(chunk) if page.num_present]
        result = _ChunkResult(sum(page.stop - page.start for page in pages), len(pages))
        try:
            return result, list(zip(pages, self._reader.read(pages), strict=True))
        except ChecksumError:
            pass  # one page is broken: read them one by one, for there may be more
        except SeqRecordError as error:
            result.problems.append(error.located(episode=index.keys[episode].as_py()))
            return result, []
        sound = []
        for page in pages:
            try:
                sound += [(page, data) for data in self._reader.read([page])]
            except SeqRecordError as error:
                result.problems.append(error)
        return result, sound

    def _decode(self, page: Page, data: memoryview) -> Iterator[SeqRecordError]:
        frames = [i for i in range(page.chunk.num_frames) if page.present >> i & 1]
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
            except SeqRecordError as error:
                yield error.located(frame=page.chunk.first_frame + frame)


class _Pool:
    """Runs tasks on threads with a bounded number of them under way."""

    def __init__(self, threads: RequestThreads, num_threads: int, url: str) -> None:
        self._threads = threads
        self._url = url
        self._window = 2 * num_threads + 1

    def map(self, task: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Results in the order of the items, which are taken as they are needed."""
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(self._threads.submit(self._url, task, item))
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
