"""The record files of one writer: the open file, a full one held back, and one being committed."""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError, SeqRecordError
from seqrecord.store.format.footer import (
    MAX_FOOTER_BYTES,
    RECORDS,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
)
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.format.rows import GAP_ROW, chunk_row, gap_rows
from seqrecord.store.format.text import mark_truncated
from seqrecord.store.format.time_spans import TimeSpans, timestamp_features
from seqrecord.store.processes.threads import ThreadPool
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage, Upload, upload_limits_of
from seqrecord.store.storage.ranges import unwanted_if
from seqrecord.store.writing.chunking import StoredChunk, page_ranges, stored_chunk
from seqrecord.store.writing.page_digests import PageDigests

# A storage that hangs must not keep a stopped program. `unwanted_if` ends the thread's requests
# (test_background_commit.py::test_an_interrupted_close_does_not_wait_for_a_hanging_storage); a
# client that does not notice is left after this time.
LEAVE_SECONDS = 5.0  # that a failed writer waits for a commit

FULL_FOOTER_BYTES = MAX_FOOTER_BYTES // 2  # the rest is more than any chunk or episode adds
FULL_FOOTER_EPISODES = 100_000  # readers limit the number of values in the footer's JSON
_LOCAL_FILE_BYTES = 1 << 30
_VALUES = 7  # in JSON, per episode without time spans
_TIME_SPAN_BYTES = 600  # of a timestamp's name and time spans in a footer, at most

_POLL_SECONDS = 0.25
_JOINED_BYTES = 64 << 10  # pages of smaller chunks are joined for one write; copying more is slower

FeatureTimeSpans: TypeAlias = "tuple[tuple[str, TimeSpans], ...]"
"""Time spans of an episode's timestamps, by feature."""

_Self = TypeVar("_Self", bound="ChunkWriter")


def file_bytes_on(storage: Storage, max_file_size: int | None) -> int:
    """Bytes at which a record file on a storage is full; `None` is the storage's default."""
    if max_file_size is not None:
        return max_file_size
    limits = upload_limits_of(storage)
    return _LOCAL_FILE_BYTES if limits is None else limits.file_bytes


class ChunkWriter:
    """Writes chunks of episodes, one after the other, into record files of about `max_file_size`.

    A full file is finished, and an episode continues in the next file. A thread commits a full file
    (sync and rename, or upload of the rest) while the next file is written, one at a time. With
    `notes`, a note after each episode lets a resume recover it from an unfinished file. `writer` is
    a `new_writer_id()`, which several writers of chunks may share.

    If a file is full in the middle of a flushed episode, it is held back until the next file has a
    flush. It is then finished without the episode's number of frames, so that only the open file
    completes the episode, and `discard` can take it back. Nothing waits for a commit meanwhile: the
    open file may grow to twice its size.

    On a storage with `upload_limits_of` a kill loses unfinished files, so notes are not written.
    There `store` ends the files, the first one in time after `began` (by default now), and an
    episode whose chunks are all in finished files repeats one of them, the smallest, in the open
    file where it ends or is discarded.

    An error of the storage breaks the writer, since earlier data may be lost with it. The call, or
    the next call after an error of the thread, raises the error; later calls raise
    `DestinationError`. Data on the storage is kept for a resume.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        writer: str,
        max_file_size: int | None = None,
        notes: bool = True,
        began: float | None = None,
    ) -> None:
        self.schema = schema
        self._storage = storage
        self._writer = writer
        self._max_file_size = file_bytes_on(storage, max_file_size)
        self._limits = upload_limits_of(storage)
        # Without notes, a kill loses the episodes of an unfinished file.
        self._has_notes = notes and self._limits is None
        if began is None and self._limits is not None:
            began = self._limits.clock()
        self._ended_at = began or 0.0  # time when the last file ended, by the clock of the limits
        # The last finished file with the episode's number of frames.
        self._stored_file: OpenFile | None = None
        self.failure: BaseException | None = None  # the first; afterwards nothing is stored
        self._file: OpenFile | None = None
        self._held_file: OpenFile | None = None  # the previous, full file, held back
        self._commit: _Commit | None = None  # of the file before
        self._is_over = threading.Event()
        weakref.finalize(self, _end, self._is_over, os.getpid())
        self._episode: EpisodePart | None = None
        self._flushed = 0  # number of flushed frames of the episode

    @property
    def at_risk(self) -> frozenset[str]:
        """Keys of ended episodes that a failure may have lost; empty without a failure."""
        if self.failure is None:
            return frozenset()
        files = (None if self._commit is None else self._commit.file, self._held_file, self._file)
        return frozenset(key for file in files if file is not None for key in file.ended_keys)

    def check(self) -> None:
        """Raise the thread's new error, or `DestinationError` if the writer is broken."""
        if (failure := self.failure) is None:
            if self._commit is not None and self._commit.is_done:
                self._wait_for_commit()
            return
        noun = "complete episodes" if self._limits is None else "episodes in stored record files"
        raise DestinationError(
            "this writer failed before, and writes and commits nothing more "
            f"({getattr(failure, 'message', None) or repr(failure)}); {noun} are kept: continue "
            "with resume (--resume)",
            file=getattr(failure, "file", None) or self._storage.url,
        ) from failure

    def begin_part(self, episode: EpisodePart) -> None:
        """Start chunks of an episode that may also have chunks in other files."""
        self.check()
        assert self._episode is None, "the episode before has not ended"
        if episode.num_frames is not None or episode.time_spans:
            episode = replace(episode, num_frames=None, time_spans=())
        self._episode, self._flushed, self._stored_file = episode, 0, None

    def add(self, chunk: StoredChunk) -> None:
        """Write a chunk into the open file, or into the next one."""
        assert self._episode is not None
        if not self._flushed and self.is_full:
            self._finish_file()
        # An interrupt does no harm here: `drop` removes the chunk.
        with self._storing(Exception):
            if self._file is None:
                ordinal = self._episode.ordinal
                self._file = OpenFile(self._storage, self.schema, self._writer, ordinal)
            self._file.add(self._episode, chunk)

    def flush_part(
        self, num_frames: int, time_spans: FeatureTimeSpans, *, is_regular: bool = True
    ) -> None:
        """Keep the first `num_frames` of the episode whatever happens, except `discard`, and a
        kill before `store`."""
        assert self._episode is not None
        metadata = mark_truncated(self._episode.metadata)
        self._complete(num_frames, metadata, time_spans, is_regular=is_regular)
        self._flushed = num_frames
        self._finish_held(only_if_free=True)

    def end_part(
        self, num_frames: int, time_spans: FeatureTimeSpans, *, is_regular: bool = True
    ) -> None:
        """End the episode: a kill does not lose it with notes, or once its last file is finished.
        Its fps is kept if it `is_regular`."""
        assert self._episode is not None
        self._complete(num_frames, self._episode.metadata, time_spans, is_regular=is_regular)
        self._episode = None

    def copy(
        self, episode: EpisodePart, chunks: Iterable[StoredChunk], *, declared_fps: float | None
    ) -> None:
        """Copy chunks of an episode; with `num_frames`, its last part ends with them.

        `declared_fps` is the episode's in `declared_rates`. If the copy continues in another file,
        the first file declares it, like any part without a number of frames. If `chunks` raises,
        call `drop` to remove the copy.
        """
        self.begin_part(replace(episode, fps=declared_fps))
        for chunk in chunks:
            if self._file is not None and not self._file.may_add(episode, chunk):
                self._finish_file()
            self.add(chunk)
        if episode.num_frames is None:
            self._episode = None
        else:
            is_regular = episode.fps is not None
            self.end_part(episode.num_frames, episode.time_spans, is_regular=is_regular)

    def store(self) -> bool:
        """Finish the files so far if it is time; returns whether a kill loses nothing flushed.

        True without `upload_limits_of`, because of notes. Otherwise a file with flushed frames or
        ended episodes is finished and sent if the limits allow it: this waits.
        """
        limits = self._limits
        if limits is None:
            return True
        files = [
            file for file in (self._held_file, self._file) if file is not None and file.has_episodes
        ]
        if files:
            nbytes = sum(file.upload.tell() for file in files)
            is_old = limits.clock() - self._ended_at >= limits.flush_seconds
            if not is_old and nbytes < limits.flush_bytes:
                return False
            self._finish_file()
        elif not self._is_free:
            return False
        self._wait_for_commit()
        if files:
            self._ended_at = limits.clock()  # again: sending may take longer than `flush_seconds`
            if self._episode is not None and files[-1].contains(self._episode):
                self._stored_file = files[-1]
        return True

    @property
    def is_full(self) -> bool:
        """Whether the next chunk starts a new file."""
        if self._file is None or not self._file.is_full(self._max_file_size):
            return False
        may_finish = not self._flushed or (self._held_file is None and self._is_free)
        return may_finish or self._file.is_full(2 * self._max_file_size)

    def hold_back(self) -> None:
        """Continue the episode, which was flushed just now, in a new file; see the class."""
        self._finish_held()
        if self._file is not None:
            self._file.settle()
        self._held_file, self._file = self._file, None

    def drop(self) -> bool:
        """Drop the current episode, except its flushed frames; returns whether there are any."""
        episode, self._episode = self._episode, None
        if episode is None or self.failure is not None:
            return False
        if self._file is not None:
            with self._storing(BaseException):
                self._file.rollback(episode)
        return self._flushed > 0

    def discard(self) -> None:
        """Drop the current episode and its flushed frames.

        Finished files with nothing else are kept until the writer's commit, because a resume may
        have added them to the dataset by now. If one of them has the episode's number of frames,
        another file with a mark is finished now.
        """
        episode = self._episode
        assert episode is not None, "no episode has begun"
        if self._commit is not None and self._commit.file.contains(episode):
            self._wait_for_commit()  # until then the notes of that file count
        with self._storing(BaseException):
            if self._held_file is not None and self._held_file.contains(episode):
                # In this order: without its first chunks, the others are never recovered
                # (test_flush.py::test_a_discarded_episode_is_nowhere_whatever_the_files).
                self._held_file.rollback(episode, all_of_it=True)
                if self._file is not None:
                    self._file.upload.abort()
                self._file, self._held_file = self._held_file, None
            elif self._file is not None:
                self._file.rollback(episode, all_of_it=True)
        if self._stored_file is not None:
            mark = replace(episode, num_frames=None, is_discarded=True)
            self._repeat_chunk(episode).complete(mark, note=False)
            self._finish_file()
            self._wait_for_commit()
        self._episode = None
        self._flushed = 0

    def close(self) -> None:
        """Finish the open file; an episode that has not ended is dropped."""
        try:
            self.drop()
            self.check()
            self._finish_file()
            self._wait_for_commit()
        finally:
            self._stop()

    def close_after_error(self) -> None:
        """Close after an error, possibly the failure that broke the writer."""
        if self.failure is None:
            self.close()
        else:
            self.abort(keep_ended=True)

    def abort(self, *, keep_ended: bool = False) -> None:
        """Remove unfinished files after an error; with `keep_ended`, only files without ended
        episodes."""
        for file in (self._held_file, self._file):
            if file is not None and not (keep_ended and file.ended_keys):
                with suppress(SeqRecordError):
                    file.upload.abort()
        self._stop()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Finish the files; also after an error or an interrupt, to keep ended episodes for a
        resume."""
        if error is None:
            self.close()
        else:
            with suppress(SeqRecordError):  # the first error is the cause
                self.close_after_error()

    def _stop(self) -> None:
        """Wait for the commit of the thread, but only for some seconds."""
        self._is_over.set()
        if self._commit is not None:
            self._commit.wait(LEAVE_SECONDS)

    def _complete(
        self, num_frames: int, metadata: str, time_spans: FeatureTimeSpans, *, is_regular: bool
    ) -> None:
        """Note the episode as it is now, after the commit of earlier files with parts of it."""
        assert self._episode is not None
        file = self._file
        if self._stored_file is not None and (file is None or not file.contains(self._episode)):
            file = self._repeat_chunk(self._episode)
        assert file is not None
        # Else the note of the end would refer to chunks in a file that a kill may lose
        # (test_recovery.py::test_an_episode_with_its_first_part_in_a_finished_file).
        # After a flush, notes of the earlier files cover all their chunks.
        commit = None if self._flushed or not self._has_notes else self._commit
        if commit is not None and commit.file.contains(self._episode):
            self._wait_for_commit()
        with self._storing(BaseException):
            # Parts without a number of frames keep the fps: it must be equal in all of them.
            fps = self._episode.fps if is_regular else None
            facts: dict[str, Any] = {"fps": fps, "metadata": metadata, "time_spans": time_spans}
            part = replace(self._episode, num_frames=num_frames, **facts)
            file.complete(part, note=self._has_notes)

    def _repeat_chunk(self, episode: EpisodePart) -> OpenFile:
        """Begin a part of an episode whose chunks are in finished files: a part needs a chunk."""
        assert self._stored_file is not None
        with self._storing(BaseException):
            chunk = self._stored_file.smallest_chunk(self._storage)
            if self._file is None:
                self._file = OpenFile(self._storage, self.schema, self._writer, episode.ordinal)
            self._file.add(episode, chunk)
        return self._file

    @property
    def _is_free(self) -> bool:
        """Whether no file is being committed."""
        return self._commit is None or self._commit.is_done

    def _finish_file(self) -> None:
        """Commit the open file, after all earlier files."""
        self._finish_held()
        if self._file is not None:
            self._finish(self._file)
            self._file = None

    def _finish_held(self, *, only_if_free: bool = False) -> None:
        """Commit the file that was held back, if there is one.

        With `only_if_free`, not if this would wait or if a kill might then lose flushed frames.
        """
        held_file, episode, file = self._held_file, self._episode, self._file
        if held_file is None:
            return
        is_noted = file is not None and episode is not None and file.has_num_frames(episode)
        if only_if_free and not (is_noted and self._is_free):
            return
        if is_noted and episode is not None:
            held_file.update(episode)
        self._finish(held_file)
        self._held_file = None

    def _finish(self, file: OpenFile) -> None:
        """Start to commit a file, after the previous commit."""
        self._wait_for_commit()
        with self._storing(BaseException):
            if file.finish():
                self._commit = _Commit(file, self._is_over)
        if self._limits is not None:
            self._ended_at = self._limits.clock()

    def _wait_for_commit(self) -> None:
        if self._commit is not None:
            self._commit.wait()  # an interrupt here does no harm
            with self._storing(BaseException):
                self._commit.check()
            self._commit = None

    @contextmanager
    def _storing(self, failures: type[BaseException]) -> Iterator[None]:
        """Remember the first of these failures."""
        try:
            yield
        except failures as error:
            self.failure = self.failure or error
            raise


@dataclass(frozen=True)
class _Mark:
    """A position in a file: bytes, and rows of each table."""

    offset: int
    rows: tuple[int, ...]


class OpenFile:
    """A record file being written, with its footer's rows so far."""

    def __init__(self, storage: Storage, schema: Schema, writer: str, ordinal: int) -> None:
        self._schema = schema
        self._file_id = writer + secrets.token_hex(8)
        self.upload: Upload = storage.create(f"{RECORDS}/{ordinal:05d}-{self._file_id}.seqrec")
        self.upload.write(encode_header(bytes.fromhex(self._file_id)))
        self._episodes: list[EpisodePart] = []
        self._uids: set[str] = set()  # of these episodes
        # Tables of the footer: chunks of each group, then gaps of each.
        self._dtypes = [chunk_row(len(group), len(group.variable)) for group in schema.groups]
        self._num_groups = len(self._dtypes)
        self._dtypes += [GAP_ROW] * self._num_groups
        self._rows: list[list[npt.NDArray[Any]]] = [[] for _ in self._dtypes]
        # The last row of a group, and its digests. Memory of a page is used again after the next.
        self._hashed: dict[int, tuple[npt.NDArray[Any], PageDigests]] = {}
        # Where the last episode begins, its next note, and its last note.
        self._episode_mark = self._next_note_mark = self._note_mark = self._mark()
        self._num_lags = len(timestamp_features(schema))
        self._values = _VALUES + (self._num_lags and self._num_lags + 1)  # per episode
        self._row_bytes = 0
        self._text_bytes = 0  # of the episodes in the footer

    @property
    def has_episodes(self) -> bool:
        """Whether this file has chunks."""
        return bool(self._episodes)

    @property
    def ended_keys(self) -> frozenset[str]:
        """Keys of the episodes that end in this file, or would if nothing more came."""
        return frozenset(part.key for part in self._episodes if part.num_frames is not None)

    def add(self, episode: EpisodePart, chunk: StoredChunk) -> None:
        """Write a chunk."""
        if not self.contains(episode):
            # In this order: an interrupt may come between any two lines.
            self._episode_mark = self._next_note_mark = self._note_mark = self._mark()
            self._text_bytes += self._text_of(episode)
            self._episodes.append(episode)
            self._uids.add(episode.uid)
        self.settle(chunk.group)
        chunks = self._rows[chunk.group]
        gaps = self._rows[self._num_groups + chunk.group]
        gap_tables = [gap_rows(len(chunks), feature, has) for feature, has in chunk.gaps.items()]
        row = chunk.row.copy()
        row["episode"], row["offset"] = len(self._episodes) - 1, self.upload.tell()
        self._row_bytes += row.nbytes + sum(rows.nbytes for rows in gap_tables)
        gaps += gap_tables
        chunks.append(row)
        if chunk.digests is not None:
            self._hashed[chunk.group] = row, chunk.digests
        parts = [piece for part in chunk.parts for piece in (part, bytes(-len(part) % ALIGNMENT))]
        if sum(map(len, parts)) <= _JOINED_BYTES:
            parts = [b"".join(parts)]
        for part in filter(len, parts):
            self.upload.write(part)

    def may_add(self, episode: EpisodePart, chunk: StoredChunk) -> bool:
        """Whether a copied chunk may follow the file's chunks.

        In a file, an episode's chunks are consecutive, its groups have no gaps in between, and its
        length, fps and time spans are unique.
        """
        if episode.uid not in self._uids:
            return True
        last_part = self._episodes[-1]
        if last_part.uid != episode.uid:
            return False
        if last_part.num_frames is not None and last_part != episode:
            return False
        for row in self._rows[chunk.group][-1:]:
            if row["episode"][0] == len(self._episodes) - 1:
                return bool(row["first_frame"][0] + row["num_frames"][0] == chunk.first_frame)
        return True

    def is_full(self, max_file_size: int) -> bool:
        """Whether the next chunk belongs in another file, by size or by size of the footer."""
        return (
            self.upload.tell() >= max_file_size
            or self._text_bytes + self._row_bytes >= FULL_FOOTER_BYTES
            or len(self._episodes) * self._values >= FULL_FOOTER_EPISODES * _VALUES
        )

    def complete(self, episode: EpisodePart, *, note: bool = True) -> None:
        """Set the number of frames so far of the last episode, and write a note of it.

        The note has the chunks since the previous call. Without new chunks, but with new metadata,
        it repeats the previous note's chunks.
        """
        previous_part, self._episodes[-1] = self._episodes[-1], episode
        if (mark := self._mark()) != self._next_note_mark:
            self._note_mark, self._next_note_mark = self._next_note_mark, mark
        elif episode == previous_part:
            return
        if note:
            self.upload.checkpoint(encode_footer(self._footer([episode], self._note_mark)))

    def update(self, episode: EpisodePart) -> None:
        """Replace the episode's row, if this file has chunks of it.

        A held-back file gets a row without a number of frames: a later file completes the episode.
        """
        if self.contains(episode):
            self._episodes[-1] = episode

    def has_num_frames(self, episode: EpisodePart) -> bool:
        """Whether this file has the episode's number of frames so far."""
        return self.contains(episode) and self._episodes[-1].num_frames is not None

    def rollback(self, episode: EpisodePart, *, all_of_it: bool = False) -> None:
        """Remove the episode's chunks since its last `complete`.

        With `all_of_it`, remove all its chunks: from then on a resume recovers nothing of it.
        """
        if not self.contains(episode):
            return
        is_kept = self._episodes[-1].num_frames is not None and not all_of_it
        back_to = self._next_note_mark if is_kept else self._episode_mark
        self.upload.rewind(back_to.offset)
        if not is_kept:
            self._text_bytes -= self._text_of(episode)
            self._uids.remove(self._episodes.pop().uid)
        for rows, count in zip(self._rows, back_to.rows, strict=True):
            self._row_bytes -= sum(row.nbytes for row in rows[count:])
            del rows[count:]

    def contains(self, episode: EpisodePart) -> bool:
        """Whether this file has chunks of the episode."""
        return bool(self._episodes) and self._episodes[-1].uid == episode.uid

    def finish(self) -> bool:
        """Write the footer; returns whether there is a file to commit."""
        if not self._episodes:
            self.upload.abort()
            return False
        start = _Mark(0, (0,) * len(self._rows))
        self.upload.write(encode_footer(self._footer(self._episodes, start)))
        return True

    def smallest_chunk(self, storage: Storage) -> StoredChunk:
        """Read the smallest chunk of the last episode, after the file's commit."""
        footer = self._footer(self._episodes, _Mark(0, (0,) * len(self._rows)))
        numbers = [
            (int(row["pages"]["length"].sum()), group, number)
            for group, rows in enumerate(footer.chunks)
            for number, row in enumerate(rows)
            if row["episode"] == len(self._episodes) - 1
        ]
        _, group, number = min(numbers)
        ranges = page_ranges(footer.chunks[group][number])
        pages = [memoryview(bytearray(item.length)) for item in ranges]
        storage.read_ranges(self.upload.path, ranges, pages)
        return stored_chunk(footer, self._schema, group, number, pages)

    def _text_of(self, episode: EpisodePart) -> int:
        """Upper bound on an episode's bytes in the footer's JSON, where metadata is a string."""
        nbytes = 300 + len(json.dumps(episode.key)) + 2 * len(episode.metadata)
        return nbytes + _TIME_SPAN_BYTES * self._num_lags

    def settle(self, *groups: int) -> None:
        """Wait for the digests in the last rows of these groups; default all."""
        for group in groups or [*self._hashed]:
            if (hashed := self._hashed.pop(group, None)) is not None:
                row, digests = hashed
                row["pages"]["digest"][0] = digests.result()

    def _mark(self) -> _Mark:
        return _Mark(self.upload.tell(), tuple(map(len, self._rows)))

    def _footer(self, episodes: Sequence[EpisodePart], since: _Mark) -> Footer:
        """Footer with the rows after a mark, for these episodes, the last in the file."""
        self.settle()
        tables = [
            np.frombuffer(bytearray().join(row.tobytes() for row in rows[start:]), dtype)
            for rows, start, dtype in zip(self._rows, since.rows, self._dtypes, strict=True)
        ]
        chunks, gaps = tables[: self._num_groups], tables[self._num_groups :]
        for rows, gap_table, start in zip(chunks, gaps, since.rows, strict=False):
            rows["episode"] -= len(self._episodes) - len(episodes)
            gap_table["chunk"] -= start
        return Footer(self._schema, self._file_id, tuple(episodes), tuple(chunks), tuple(gaps))


def _end(is_over: threading.Event, pid: int) -> None:
    if pid == os.getpid():  # in a fork the event's lock may be locked for ever
        is_over.set()


class _Commit:
    """A finished record file, committed by a thread of its own.

    After `is_over` is set, a failed commit is not retried.
    """

    def __init__(self, file: OpenFile, is_over: threading.Event) -> None:
        self.file = file
        self._thread = ThreadPool(1, "seqrecord-commit")
        self._future = self._thread.submit(copy_context().run, _commit, file.upload, is_over)
        self._thread.shutdown(wait=False)

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until the thread has ended, at most `seconds`."""
        end = time.monotonic() + seconds
        # Short waits: an interrupt just before a wait is noticed only after it
        # (test_background_commit.py::test_an_interrupt_while_waiting_for_a_commit_breaks_nothing).
        while not (finished := wait([self._future], _POLL_SECONDS).done) and time.monotonic() < end:
            pass
        if finished:
            self._thread.shutdown()

    def check(self) -> None:
        """Raise the thread's error."""
        self._future.result()


def _commit(upload: Upload, is_over: threading.Event) -> None:
    with unwanted_if(is_over.is_set):
        upload.commit()
