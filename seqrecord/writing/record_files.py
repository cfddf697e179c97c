"""The record files of one writer: the open one, one that is held back, one that is committed."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seqrecord.errors import DestinationError, SeqRecordError
from seqrecord.format import EpisodePart
from seqrecord.lags import Lags
from seqrecord.schema import Schema
from seqrecord.storage import Storage
from seqrecord.writing.open_file import Commit, OpenFile, StoredChunk

__all__ = ["LEAVE_SECONDS", "RecordFiles"]

LEAVE_SECONDS = 5.0  # that a writer which gives up waits for a commit


class RecordFiles:
    """Puts the chunks of episodes, one after the other, into record files of about `record_bytes`.

    A thread commits a full file while the next is written; not the one after that.

    A file that is full amid an episode that was flushed is held back until the next one tells of a
    flush. It is finished without a number of frames of the episode, so that only the file being
    written says that the episode is there, and `discard` can take it back. Nothing waits for a
    commit then: meanwhile a file may grow to twice its size.

    `failure` is the first of what went wrong; from then on nothing is stored.
    """

    def __init__(self, storage: Storage, schema: Schema, writer: str, record_bytes: int) -> None:
        self.failure: BaseException | None = None
        self.storing_seconds = 0.0  # that the storage has taken so far
        self._storage = storage
        self._schema = schema
        self._writer = writer
        self._record_bytes = record_bytes
        self._file: OpenFile | None = None
        self._held: OpenFile | None = None  # the file before, full, until the next has a flush
        self._commit: Commit | None = None  # of the file before these
        self._is_over = threading.Event()
        weakref.finalize(self, self._is_over.set)
        self._episode: EpisodePart | None = None
        self._is_flushed = False  # of the episode, what came first

    @property
    def doubtful(self) -> frozenset[str]:
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

    def begin(self, episode: EpisodePart) -> None:
        """Chunks of this episode follow."""
        self._episode, self._is_flushed = episode, False

    def add(self, chunk: StoredChunk) -> None:
        """Add a chunk to the open file, or to the next one."""
        assert self._episode is not None
        if not self._is_flushed and self.is_full:
            self._finish_file()
        # An interrupt breaks nothing here: `drop` takes back what was written.
        with self._storing(Exception):
            if self._file is None:
                ordinal = self._episode.ordinal
                self._file = OpenFile(self._storage, self._schema, self._writer, ordinal)
            self._file.add(self._episode, chunk)

    def flush(self, num_frames: int, metadata: str, lags: tuple[tuple[str, Lags], ...]) -> None:
        """So many frames of the episode are there, and stay whatever happens; but see `discard`."""
        self._complete(num_frames, metadata, lags)
        self._is_flushed = True
        self._finish_held(only_if_free=True)

    def end(self, num_frames: int, metadata: str, lags: tuple[tuple[str, Lags], ...]) -> None:
        """The episode is there as a whole."""
        self._complete(num_frames, metadata, lags)
        self._episode = None

    @property
    def is_full(self) -> bool:
        """Whether the next chunk belongs in another file than the open one, if there is one."""
        if self._file is None or not self._file.is_full(self._record_bytes):
            return False
        may_finish = not self._is_flushed or (self._held is None and self._is_free)
        return may_finish or self._file.is_full(2 * self._record_bytes)

    def hold(self) -> None:
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
                self._file.forget(episode)
        return self._is_flushed

    def discard(self) -> None:
        """Forget the episode that has begun, and what was flushed of it.

        Finished files that hold nothing else stay: a resume may have named them by now. They go
        with the writer's commit.
        """
        episode = self._episode
        assert episode is not None, "no episode has begun"
        if self._commit is not None and self._commit.file.holds(episode):
            self._wait_for_commit()  # until then what is noted of that file counts
        with self._storing(BaseException):
            if self._held is not None and self._held.holds(episode):
                # In this order: without its first chunks the others are no episode.
                self._held.forget(episode, all_of_it=True)
                if self._file is not None:
                    self._file.upload.abort()
                self._file, self._held = self._held, None
            elif self._file is not None:
                self._file.forget(episode, all_of_it=True)
        self._episode = None
        self._is_flushed = False

    def close(self) -> None:
        """Finish what is open."""
        self._finish_file()
        self._wait_for_commit()

    def abort(self) -> None:
        """Leave nothing of the files that are not finished."""
        files, self._held, self._file = (self._held, self._file), None, None
        for file in files:
            if file is not None:
                with suppress(SeqRecordError):
                    file.upload.abort()
        self.leave()

    def leave(self) -> None:
        """Wait for what the thread is at, but not for a storage that hangs."""
        self._is_over.set()
        if self._commit is not None:
            self._commit.wait(LEAVE_SECONDS)

    def _complete(self, num_frames: int, metadata: str, lags: tuple[tuple[str, Lags], ...]) -> None:
        """Note the episode as it is now, when what earlier files hold of it is there too."""
        assert self._file is not None
        assert self._episode is not None
        # Where it was flushed, what is noted of the earlier files tells of all that they hold.
        commit = None if self._is_flushed else self._commit
        if commit is not None and commit.file.holds(self._episode):
            self._wait_for_commit()
        with self._storing(BaseException):
            self._file.complete(num_frames, metadata, lags)

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
        is_told = file is not None and episode is not None and file.tells_of(episode)
        is_safe = is_told and file is not None and file.upload.is_durable
        if only_if_free and not (is_safe and self._is_free):
            return
        if is_told and episode is not None:
            held.say(episode)
        self._finish(held)
        self._held = None

    def _finish(self, file: OpenFile) -> None:
        """Have a file committed, after the one before."""
        self._wait_for_commit()
        with self._storing(BaseException):
            if file.finish():
                self._commit = Commit(file, self._is_over)

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
