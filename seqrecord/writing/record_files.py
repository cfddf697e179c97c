"""The record files of one writer: the open one, one that is held back, one that is committed."""

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
from seqrecord.format.footer import (
    MAX_FOOTER_BYTES,
    RECORDS,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
)
from seqrecord.format.lags import Lags, with_lags
from seqrecord.format.pages import ALIGNMENT
from seqrecord.format.rows import GAP_ROW, chunk_row, gap_rows
from seqrecord.format.text import truncated_metadata
from seqrecord.processes.threads import ThreadPool
from seqrecord.schema import Schema
from seqrecord.storage import Storage, Upload, unwanted_if
from seqrecord.writing.chunking import StoredChunk

LEAVE_SECONDS = 5.0  # that a writer which gives up waits for a commit

FULL_FOOTER_BYTES = MAX_FOOTER_BYTES // 2  # no chunk and no episode adds as much
FULL_FOOTER_EPISODES = 100_000  # whose JSON has as many values as a reader takes
_VALUES = 7  # of an episode without lags
_LAG_BYTES = 600  # of a timestamp's name and lags in a footer, at most

_POLL_SECONDS = 0.25
_JOINED_BYTES = 64 << 10  # bytes of a chunk that are written at once; to copy more takes longer

EpisodeLags: TypeAlias = "tuple[tuple[str, Lags], ...]"
"""Those of an episode's timestamps, by feature."""

_Self = TypeVar("_Self", bound="ChunkWriter")


class ChunkWriter:
    """Puts the chunks of episodes, one after the other, into record files of about `max_file_size`.

    A file is finished when it is full and on `close`; an episode that does not fit goes on in the
    next. While a thread commits a full file (sync and rename, or what is left to send), the next is
    written; not the one after that. After each episode the file is worth keeping: a resume copies
    the episodes that had ended from what a kill leaves behind. `writer` is a `new_writer_id()`,
    which several of these may share.

    A file that is full amid an episode that was flushed is held back until the next one tells of a
    flush. It is finished without a number of frames of the episode, so that only the file being
    written says that the episode is there, and `discard` can take it back. Nothing waits for a
    commit then: meanwhile a file may grow to twice its size.

    A failure to store anything breaks the writer, since what was stored before may be lost with it:
    the call raises the failure, and where it was the thread's the next call does; every later one
    raises `DestinationError`. What is on the storage stays for a resume.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        writer: str,
        max_file_size: int,
        notes: bool = True,
    ) -> None:
        self.schema = schema
        self.storing_seconds = 0.0  # that the storage has taken so far
        self._storage = storage
        self._writer = writer
        self._max_file_size = max_file_size
        self._has_notes = notes  # or a kill loses the episodes of a file that is not finished
        self.failure: BaseException | None = None  # the first; from then on nothing is stored
        self._file: OpenFile | None = None
        self._held: OpenFile | None = None  # the file before, full, until the next has a flush
        self._commit: _Commit | None = None  # of the file before these
        self._is_over = threading.Event()
        weakref.finalize(self, _end, self._is_over, os.getpid())
        self._episode: EpisodePart | None = None
        self._flushed = 0  # the first frames of the episode, which stay whatever happens

    @property
    def at_risk(self) -> frozenset[str]:
        """Keys of the ended episodes that a failure may have lost; none while nothing failed."""
        if self.failure is None:
            return frozenset()
        files = (None if self._commit is None else self._commit.file, self._held, self._file)
        return frozenset(key for file in files if file is not None for key in file.ended)

    def check(self) -> None:
        """`DestinationError` if the writer is broken; the failure itself where it is new."""
        if (failure := self.failure) is None:
            if self._commit is not None and self._commit.is_done:
                self._wait_for_commit()
            return
        raise DestinationError(
            "this writer failed before, and writes and commits nothing more "
            f"({getattr(failure, 'message', None) or repr(failure)}); what was whole is kept: go "
            "on with resume (--resume)",
            file=getattr(failure, "file", None) or self._storage.url,
        ) from failure

    def begin_part(self, episode: EpisodePart) -> None:
        """Chunks of this episode follow, of which other files may have some."""
        self.check()
        assert self._episode is None, "the episode before has not ended"
        if episode.num_frames is not None or episode.lags:
            episode = replace(episode, num_frames=None, lags=())
        self._episode, self._flushed = episode, 0

    def add(self, chunk: StoredChunk) -> None:
        """Add a chunk to the open file, or to the next one."""
        assert self._episode is not None
        if not self._flushed and self.is_full:
            self._finish_file()
        # An interrupt breaks nothing here: `drop` takes back what was written.
        with self._storing(Exception):
            if self._file is None:
                ordinal = self._episode.ordinal
                self._file = OpenFile(self._storage, self.schema, self._writer, ordinal)
            self._file.add(self._episode, chunk)

    def flush_part(self, num_frames: int, lags: EpisodeLags, *, is_regular: bool = True) -> None:
        """So many frames of the episode are there, and stay whatever happens; but see `discard`."""
        assert self._episode is not None
        metadata = truncated_metadata(self._episode.metadata)
        self._complete(num_frames, metadata, lags, is_regular=is_regular)
        self._flushed = num_frames
        self._finish_held(only_if_free=True)

    def end_part(self, num_frames: int, lags: EpisodeLags, *, is_regular: bool = True) -> None:
        """The episode is there as a whole: from here on a kill does not lose it. It has no fps
        unless it `is_regular`."""
        assert self._episode is not None
        self._complete(num_frames, self._episode.metadata, lags, is_regular=is_regular)
        self._episode = None

    def copy(self, episode: EpisodePart, chunks: Iterable[StoredChunk]) -> None:
        """Copy an episode, or its last part, which ends with these chunks.

        After an error that `chunks` raises, `drop` forgets the copy.
        """
        self.begin_part(episode)
        assert episode.num_frames is not None, "not the last part"
        for chunk in chunks:
            self.add(chunk)
        self.end_part(episode.num_frames, episode.lags)

    @property
    def is_full(self) -> bool:
        """Whether the next chunk belongs in another file than the open one, if there is one."""
        if self._file is None or not self._file.is_full(self._max_file_size):
            return False
        may_finish = not self._flushed or (self._held is None and self._is_free)
        return may_finish or self._file.is_full(2 * self._max_file_size)

    def hold_back(self) -> None:
        """The rest of the episode, which was flushed just now, goes into the next file."""
        self._finish_held()
        self._held, self._file = self._file, None

    def drop(self) -> bool:
        """Forget the episode that has begun, but for what was flushed; whether anything was."""
        episode, self._episode = self._episode, None
        if episode is None or self.failure is not None:
            return False
        if self._file is not None:
            with self._storing(BaseException):
                self._file.rollback(episode)
        return self._flushed > 0

    def discard(self) -> None:
        """Forget the episode that has begun, and what was flushed of it.

        Finished files that hold nothing else stay: a resume may have named them by now. They go
        with the writer's commit.
        """
        episode = self._episode
        assert episode is not None, "no episode has begun"
        if self._commit is not None and self._commit.file.contains(episode):
            self._wait_for_commit()  # until then what is noted of that file counts
        with self._storing(BaseException):
            if self._held is not None and self._held.contains(episode):
                # In this order: without its first chunks the others are no episode.
                self._held.rollback(episode, all_of_it=True)
                if self._file is not None:
                    self._file.upload.abort()
                self._file, self._held = self._held, None
            elif self._file is not None:
                self._file.rollback(episode, all_of_it=True)
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
        """`close` after an error, which may be the failure that broke the writer."""
        if self.failure is None:
            self.close()
        else:
            self.abort(keep_ended=True)

    def abort(self, *, keep_ended: bool = False) -> None:
        """Give up after an error: unfinished files go, but those with episodes if `keep_ended`."""
        for file in (self._held, self._file):
            if file is not None and not (keep_ended and file.ended):
                with suppress(SeqRecordError):
                    file.upload.abort()
        self._stop()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Also after an error or an interrupt, episodes that have ended are kept for a resume."""
        if error is None:
            self.close()
        else:
            with suppress(SeqRecordError):  # the first error says more
                self.close_after_error()

    def _stop(self) -> None:
        """Wait for what the thread is at, but not for a storage that hangs."""
        self._is_over.set()
        if self._commit is not None:
            self._commit.wait(LEAVE_SECONDS)

    def _complete(
        self, num_frames: int, metadata: str, lags: EpisodeLags, *, is_regular: bool
    ) -> None:
        """Note the episode as it is now, when what earlier files hold of it is there too."""
        assert self._file is not None
        assert self._episode is not None
        # Where it was flushed, what is noted of the earlier files tells of all that they hold.
        commit = None if self._flushed else self._commit
        if commit is not None and commit.file.contains(self._episode):
            self._wait_for_commit()
        with self._storing(BaseException):
            fps = self._episode.fps if is_regular else None
            said: dict[str, Any] = {"fps": fps, "metadata": metadata, "lags": lags}
            part = replace(self._episode, num_frames=num_frames, **said)
            self._file.complete(part, note=self._has_notes)

    @property
    def _is_free(self) -> bool:
        """Whether no file is being committed."""
        return self._commit is None or self._commit.is_done

    def _finish_file(self) -> None:
        """Have the open file committed, after those before."""
        self._finish_held()
        if self._file is not None:
            self._finish(self._file)
            self._file = None

    def _finish_held(self, *, only_if_free: bool = False) -> None:
        """Have the file committed that was held back, if there is one.

        With `only_if_free`, unless that means to wait, or that a kill might lose what was flushed.
        """
        held, episode, file = self._held, self._episode, self._file
        if held is None:
            return
        is_told = file is not None and episode is not None and file.has_num_frames(episode)
        is_safe = is_told and file is not None and file.upload.is_durable
        if only_if_free and not (is_safe and self._is_free):
            return
        if is_told and episode is not None:
            held.update(episode)
        self._finish(held)
        self._held = None

    def _finish(self, file: OpenFile) -> None:
        """Have a file committed, after the one before."""
        self._wait_for_commit()
        with self._storing(BaseException):
            if file.finish():
                self._commit = _Commit(file, self._is_over)

    def _wait_for_commit(self) -> None:
        if self._commit is not None:
            self._commit.wait()  # an interrupt breaks nothing here
            with self._storing(BaseException):
                self._commit.check()
            self._commit = None

    @contextmanager
    def _storing(self, failures: type[BaseException]) -> Iterator[None]:
        """Remember the first of these failures, and how long it takes."""
        began = time.monotonic()
        try:
            yield
        except failures as error:
            self.failure = self.failure or error
            raise
        finally:
            self.storing_seconds += time.monotonic() - began


@dataclass(frozen=True)
class _Mark:
    """How far the file is: bytes, and rows of each table."""

    offset: int
    rows: tuple[int, ...]


class OpenFile:
    """A record file being written, and its rows of the index so far."""

    def __init__(self, storage: Storage, schema: Schema, writer: str, ordinal: int) -> None:
        self._schema = schema
        self._file_id = writer + secrets.token_hex(8)
        self.upload: Upload = storage.create(f"{RECORDS}/{ordinal:05d}-{self._file_id}.seqrec")
        self.upload.write(encode_header(bytes.fromhex(self._file_id)))
        self._episodes: list[EpisodePart] = []
        # Tables of the footer: chunks of each group, then gaps of each.
        self._dtypes = [chunk_row(len(group), len(group.variable)) for group in schema.groups]
        self._num_groups = len(self._dtypes)
        self._dtypes += [GAP_ROW] * self._num_groups
        self._rows: list[list[npt.NDArray[Any]]] = [[] for _ in self._dtypes]
        self._begun = self._noted = self._mark()  # where the last episode begins; the last note
        self._before = self._noted  # and the note before that
        self._num_lags = len(with_lags(schema))
        self._values = _VALUES + (self._num_lags and self._num_lags + 1)  # of an episode
        self._row_bytes = 0
        self._text_bytes = 0  # of the episodes in the footer

    @property
    def ended(self) -> frozenset[str]:
        """Keys of the episodes that end in this file, or did so if nothing more came."""
        return frozenset(part.key for part in self._episodes if part.num_frames is not None)

    def add(self, episode: EpisodePart, chunk: StoredChunk) -> None:
        """Write a chunk."""
        if not self.contains(episode):
            # In this order, since an interrupt may come between any two of them.
            self._begun = self._noted = self._before = self._mark()
            self._text_bytes += self._text_of(episode)
            self._episodes.append(episode)
        chunks = self._rows[chunk.group]
        gaps = self._rows[self._num_groups + chunk.group]
        missing = [gap_rows(len(chunks), feature, has) for feature, has in chunk.gaps.items()]
        row = chunk.row.copy()
        row["episode"], row["offset"] = len(self._episodes) - 1, self.upload.tell()
        self._row_bytes += row.nbytes + sum(rows.nbytes for rows in missing)
        gaps += missing
        chunks.append(row)
        parts = [each for part in chunk.parts for each in (part, bytes(-len(part) % ALIGNMENT))]
        if sum(map(len, parts)) <= _JOINED_BYTES:
            parts = [b"".join(parts)]
        for part in filter(len, parts):
            self.upload.write(part)

    def is_full(self, max_file_size: int) -> bool:
        """Whether the next chunk belongs in another file: of so many bytes, or for its footer."""
        return (
            self.upload.tell() >= max_file_size
            or self._text_bytes + self._row_bytes >= FULL_FOOTER_BYTES
            or len(self._episodes) * self._values >= FULL_FOOTER_EPISODES * _VALUES
        )

    def complete(self, episode: EpisodePart, *, note: bool = True) -> None:
        """What is here of the last episode is whole, or ends it: it has so many frames so far.

        Its chunks since the last such call go into a note. Where there are none and the metadata is
        other than there, so do those of the call before.
        """
        before, self._episodes[-1] = self._episodes[-1], episode
        if (mark := self._mark()) != self._noted:
            self._before, self._noted = self._noted, mark
        elif episode == before:
            return
        if note:
            self.upload.checkpoint(encode_footer(self._footer([episode], self._before)))

    def update(self, episode: EpisodePart) -> None:
        """Say this of the episode, if there are chunks of it here.

        Without a number of frames: a later file has that, and this one alone holds none of it.
        """
        if self.contains(episode):
            self._episodes[-1] = episode

    def has_num_frames(self, episode: EpisodePart) -> bool:
        """Whether it says how many frames the episode has so far."""
        return self.contains(episode) and self._episodes[-1].num_frames is not None

    def rollback(self, episode: EpisodePart, *, all_of_it: bool = False) -> None:
        """Take back the chunks of the episode; those before its last `complete` stay.

        With `all_of_it` none does: from then on a kill brings back nothing of it.
        """
        if not self.contains(episode):
            return
        is_kept = self._episodes[-1].num_frames is not None and not all_of_it
        back_to = self._noted if is_kept else self._begun
        self.upload.rewind(back_to.offset)
        if not is_kept:
            self._text_bytes -= self._text_of(episode)
            del self._episodes[-1]
        for rows, count in zip(self._rows, back_to.rows, strict=True):
            self._row_bytes -= sum(row.nbytes for row in rows[count:])
            del rows[count:]

    def contains(self, episode: EpisodePart) -> bool:
        """Whether there are chunks of the episode here."""
        return bool(self._episodes) and self._episodes[-1].uid == episode.uid

    def finish(self) -> bool:
        """Write the footer; whether there is anything to commit."""
        if not self._episodes:
            self.upload.abort()
            return False
        start = _Mark(0, (0,) * len(self._rows))
        self.upload.write(encode_footer(self._footer(self._episodes, start)))
        return True

    def _text_of(self, episode: EpisodePart) -> int:
        """The most bytes of an episode in a footer's JSON, in which metadata is a string."""
        named = 300 + len(json.dumps(episode.key)) + 2 * len(episode.metadata)
        return named + _LAG_BYTES * self._num_lags

    def _mark(self) -> _Mark:
        return _Mark(self.upload.tell(), tuple(map(len, self._rows)))

    def _footer(self, episodes: Sequence[EpisodePart], since: _Mark) -> Footer:
        """The rows from a mark on, of these episodes, the last that are here."""
        tables = [
            np.frombuffer(bytearray().join(row.tobytes() for row in rows[first:]), dtype)
            for rows, first, dtype in zip(self._rows, since.rows, self._dtypes, strict=True)
        ]
        chunks, gaps = tables[: self._num_groups], tables[self._num_groups :]
        for rows, missing, first in zip(chunks, gaps, since.rows, strict=False):
            rows["episode"] -= len(self._episodes) - len(episodes)
            missing["chunk"] -= first
        return Footer(self._schema, self._file_id, tuple(episodes), tuple(chunks), tuple(gaps))


def _end(is_over: threading.Event, pid: int) -> None:
    if pid == os.getpid():  # else a fork, in which the lock of the event may be held for ever
        is_over.set()


class _Commit:
    """A finished record file that is committed, by a thread that ends with it.

    From `is_over` on it is not tried again.
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
        """Until the thread has ended, or for so long."""
        end = time.monotonic() + seconds
        # An interrupt that comes just before a wait is noticed only after it.
        while not (done := wait([self._future], _POLL_SECONDS).done) and time.monotonic() < end:
            pass
        if done:
            self._thread.shutdown()

    def check(self) -> None:
        """Raise what it failed with."""
        self._future.result()


def _commit(upload: Upload, is_over: threading.Event) -> None:
    with unwanted_if(is_over.is_set):
        upload.commit()
