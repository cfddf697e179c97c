"""Writes record files: episodes in, chunks out, a footer at the end."""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer
from seqrecord.errors import CodecError, DestinationError, FormatError, FrameError
from seqrecord.format import (
    MAX_EPISODE_FRAMES,
    MAX_FOOTER_BYTES,
    RECORDS,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
)
from seqrecord.format.pages import Blob, PageCodec, aligned, slice_table
from seqrecord.format.rows import GAP_ROW, chunk_row
from seqrecord.schema import Frame, Schema
from seqrecord.storage import Storage, Upload, unwanted_if
from seqrecord.threads import ThreadPool
from seqrecord.writing.chunking import ChunkLength, EncodedChunk

__all__ = ["RECORDS", "RecordFileWriter"]

FULL_FOOTER_BYTES = MAX_FOOTER_BYTES // 2  # no chunk and no episode adds as much
FULL_FOOTER_EPISODES = 100_000  # whose JSON has as many values as a reader takes
LEAVE_SECONDS = 5.0  # that a writer which gives up waits for a commit

_POLL_SECONDS = 0.25


class RecordFileWriter:
    """Writes episodes, one at a time, into record files of about `record_bytes`.

    A file is finished when it is full and on `close`; an episode that does not fit goes on in the
    next. While a thread commits a full file (sync and rename, or what is left to send), the next is
    written; not the one after that. After each episode the file is worth keeping: a resume copies
    the episodes that had ended from what a kill leaves behind. `writer` is a `new_writer_id()`,
    which several of these may share.

    A failure to store anything breaks the writer, since what was stored before may be lost with it:
    the call raises the failure, and where it was the thread's the next call does; every later one
    raises `DestinationError`. What is on the storage stays for a resume.
    """

    def __init__(self, storage: Storage, schema: Schema, *, writer: str, record_bytes: int) -> None:
        self.schema = schema
        self._storage = storage
        self._writer = writer
        self._record_bytes = record_bytes
        self._codecs = {name: PageCodec(spec) for name, spec in schema.items()}
        self._file: _OpenFile | None = None
        self._commit: _Commit | None = None  # of the file before
        self._is_over = threading.Event()
        weakref.finalize(self, self._is_over.set)
        self._episode: EpisodePart | None = None
        self._num_frames = 0  # of the episode, those in finished chunks
        self._frames: list[Mapping[str, Blob]] = []  # and those after them, encoded
        self._length = ChunkLength(schema)
        self._failure: BaseException | None = None

    @property
    def doubtful(self) -> frozenset[str]:
        """Keys of the ended episodes that a failure may have lost; none while nothing failed."""
        if self._failure is None:
            return frozenset()
        files = (None if self._commit is None else self._commit.file, self._file)
        return frozenset(key for file in files if file is not None for key in file.ended)

    def check(self) -> None:
        """`DestinationError` if the writer is broken; the failure itself where it is new."""
        if (failure := self._failure) is None:
            if self._commit is not None and self._commit.is_done:
                self._wait_for_commit()
            return
        raise DestinationError(
            "this writer failed before, and writes and commits nothing more "
            f"({getattr(failure, 'message', None) or repr(failure)}); what was whole is kept: go "
            "on with resume (--resume)",
            file=getattr(failure, "file", None) or self._storage.url,
        ) from failure

    def begin(self, key: str, *, ordinal: int, chunk_frames: int | None, metadata: str) -> None:
        """Start an episode; see `ChunkLength` for how `None` chooses its `chunk_frames`."""
        self.check()
        assert self._episode is None, "the episode before has not ended"
        uid = self._writer + secrets.token_hex(8)
        self._length = ChunkLength(self.schema, chunk_frames)
        self._episode = EpisodePart(key, uid, ordinal, None, None, metadata)
        self._num_frames = 0

    def append(self, frame: Frame) -> int:
        """Encode the episode's next frame. Returns the bytes that it takes.

        Raises `FrameError`, which names episode and frame, for one that does not fit the schema.
        """
        self.check()
        episode = self._episode
        assert episode is not None, "no episode has begun"
        number = self._num_frames + len(self._frames)
        if number == MAX_EPISODE_FRAMES:
            raise FrameError("an episode of too many frames", episode=episode.key)
        if unknown := [name for name in frame if name not in self.schema]:
            raise FrameError(
                "a feature that the dataset does not have; pass a schema that names it",
                episode=episode.key,
                frame=number,
                expected=f"some of {', '.join(self.schema)}",
                got=", ".join(unknown),
            )
        try:
            if not frame:
                raise FrameError("a frame without any feature")
            blobs = {name: self._codecs[name].encode_frame(item) for name, item in frame.items()}
        except (FrameError, CodecError) as error:
            raise error.located(episode=episode.key, frame=number) from error.__cause__
        self._frames.append(blobs)
        self._length.add({name: blob.shape for name, blob in blobs.items()})
        self._write_full_chunks()
        return sum(len(blob.data) for blob in blobs.values())

    def end(self) -> None:
        """Finish the episode: from here on a kill does not lose it."""
        self.check()
        episode = self._episode
        assert episode is not None, "no episode has begun"
        self._length.settle()
        self._write_full_chunks()
        if self._frames:
            self._write_chunk(len(self._frames))
        if self._file is None or not self._num_frames:
            raise FrameError("an episode without frames", episode=episode.key)
        self._complete(self._num_frames)

    def copy(self, piece: Footer, pages: Callable[[npt.NDArray[Any]], Sequence[Buffer]]) -> None:
        """Copy the one episode of `piece`, or its last part; `pages(row)` are those of a chunk.

        A `FormatError` of `pages` forgets the copy.
        """
        self.check()
        assert self._episode is None, "the episode before has not ended"
        (part,) = piece.episodes
        assert part.num_frames is not None, "not the last part"
        self._episode = replace(part, num_frames=None)
        try:
            (chunks,), (gaps,) = piece.chunks, piece.gaps
            for number, row in enumerate(chunks):
                some = gaps[gaps["chunk"] == number]
                some["chunk"] = 0
                self._store(self._episode, row.reshape(1), some, pages(row))
        except FormatError:
            self.drop()
            raise
        self._complete(part.num_frames)

    def drop(self) -> None:
        """Forget the episode that has begun. What earlier files hold of it is never referenced."""
        episode, self._episode, self._frames = self._episode, None, []
        if episode is not None and self._file is not None and self._failure is None:
            with self._storing(BaseException):
                self._file.forget(episode)

    def close(self) -> None:
        """Finish the open file; an episode that has not ended is dropped."""
        try:
            self.drop()
            self.check()
            self._finish_file()
            self._wait_for_commit()
        finally:
            self._end()

    def leave(self) -> None:
        """`close` after an error, which may be the failure that broke the writer."""
        if self._failure is None:
            self.close()
        else:
            self._end()

    def _write_full_chunks(self) -> None:
        while self._length.frames is not None and len(self._frames) >= self._length.frames:
            self._write_chunk(self._length.frames)

    def _write_chunk(self, num_frames: int) -> None:
        assert self._episode is not None
        chunk = EncodedChunk(self.schema, self._frames[:num_frames])
        del self._frames[:num_frames]
        pages = [self._codecs[name].join(blobs) for name, blobs in chunk.blobs.items()]
        row = chunk.row(self.schema, self._num_frames, pages)
        self._store(self._episode, row, chunk.gaps(self.schema), pages)
        self._num_frames += chunk.num_frames

    def _store(
        self,
        episode: EpisodePart,
        row: npt.NDArray[Any],
        gaps: npt.NDArray[Any],
        pages: Sequence[Buffer],
    ) -> None:
        """Add a chunk to the open file, or to the next one."""
        if self._file is not None and self._file.is_full(self._record_bytes):
            self._finish_file()
        # An interrupt breaks nothing here: `drop` takes back what was written.
        with self._storing(Exception):
            if self._file is None:
                self._file = _OpenFile(self._storage, self.schema, self._writer, episode.ordinal)
            self._file.add(episode, row, gaps, pages)

    def _complete(self, num_frames: int) -> None:
        """End the episode, when what earlier files hold of it is there too."""
        assert self._file is not None
        assert self._episode is not None
        if self._commit is not None and self._commit.file.holds(self._episode):
            self._wait_for_commit()
        with self._storing(BaseException):
            self._file.complete(num_frames)
        self._episode = None

    def _finish_file(self) -> None:
        """Have the open file committed, after the one before."""
        self._wait_for_commit()
        if self._file is not None:
            with self._storing(BaseException):
                if self._file.finish():
                    self._commit = _Commit(self._file, self._is_over)
                self._file = None

    def _wait_for_commit(self) -> None:
        if self._commit is not None:
            self._commit.wait()  # an interrupt breaks nothing here
            with self._storing(BaseException):
                self._commit.check()
            self._commit = None

    def _end(self) -> None:
        """Wait for what the thread is at, but not for a storage that hangs."""
        self._is_over.set()
        if self._commit is not None:
            self._commit.wait(LEAVE_SECONDS)

    @contextmanager
    def _storing(self, failures: type[BaseException]) -> Iterator[None]:
        """Remember the first of these failures."""
        try:
            yield
        except failures as error:
            self._failure = self._failure or error
            raise


class _OpenFile:
    """A record file being written, and its rows of the index so far."""

    def __init__(self, storage: Storage, schema: Schema, writer: str, ordinal: int) -> None:
        self._schema = schema
        self._file_id = writer + secrets.token_hex(8)
        self.upload: Upload = storage.create(f"{RECORDS}/{ordinal:05d}-{self._file_id}.seqrec")
        self.upload.write(encode_header(bytes.fromhex(self._file_id)))
        self._episodes: list[EpisodePart] = []
        self._chunks: list[npt.NDArray[Any]] = []
        self._gaps: list[npt.NDArray[Any]] = []
        self._gap_bytes = 0
        self._first = (0, 0)  # where the last episode's chunks and gaps start
        self._start = 0  # and its bytes
        self._text_bytes = 0  # of the episodes in the footer

    @property
    def ended(self) -> frozenset[str]:
        """Keys of the episodes that have their end in this file."""
        return frozenset(part.key for part in self._episodes if part.num_frames is not None)

    def add(
        self,
        episode: EpisodePart,
        row: npt.NDArray[Any],
        gaps: npt.NDArray[Any],
        pages: Sequence[Buffer],
    ) -> None:
        """Write a chunk, of which `row` is the row but for its place here."""
        if not self.holds(episode):
            # In this order, since an interrupt may come between any two of them.
            self._first = (len(self._chunks), len(self._gaps))
            self._start = self.upload.tell()
            self._text_bytes += _text_bytes(episode)
            self._episodes.append(episode)
        if len(gaps):
            gaps = gaps.copy()
            gaps["chunk"] = len(self._chunks)
            self._gaps.append(gaps)
            self._gap_bytes += gaps.nbytes
        row = row.copy()
        row["episode"], row["offset"] = len(self._episodes) - 1, self.upload.tell()
        self._chunks.append(row)
        for page in (*pages, slice_table(self._schema, pages)):
            self.upload.write(page)
            _align(self.upload)

    def is_full(self, record_bytes: int) -> bool:
        """Whether the next chunk belongs in another file: of so many bytes, or for its footer."""
        row = chunk_row(len(self._schema), len(self._schema.variable)).itemsize
        footer = self._text_bytes + len(self._chunks) * row + self._gap_bytes
        return (
            self.upload.tell() >= record_bytes
            or footer >= FULL_FOOTER_BYTES
            or len(self._episodes) >= FULL_FOOTER_EPISODES
        )

    def complete(self, num_frames: int) -> None:
        episode = self._episodes[-1] = replace(self._episodes[-1], num_frames=num_frames)
        first, first_gap = self._first
        rows = np.concatenate(self._chunks[first:])
        rows["episode"] = 0
        gaps = np.concatenate([np.empty(0, GAP_ROW), *self._gaps[first_gap:]])
        gaps["chunk"] -= np.uint32(first)
        note = Footer(self._schema, self._file_id, (episode,), (rows,), (gaps,))
        self.upload.checkpoint(encode_footer(note))

    def forget(self, episode: EpisodePart) -> None:
        if not self.holds(episode):
            return
        first, first_gap = self._first
        self.upload.rewind(self._start)
        self._text_bytes -= _text_bytes(episode)
        del self._episodes[-1], self._chunks[first:], self._gaps[first_gap:]

    def holds(self, episode: EpisodePart) -> bool:
        """Whether there are chunks of the episode here."""
        return bool(self._episodes) and self._episodes[-1].uid == episode.uid

    def finish(self) -> bool:
        """Write the footer; whether there is anything to commit."""
        if not self._chunks:
            self.upload.abort()
            return False
        gaps = np.concatenate([np.empty(0, GAP_ROW), *self._gaps])
        chunks = np.concatenate(self._chunks)
        footer = Footer(self._schema, self._file_id, tuple(self._episodes), (chunks,), (gaps,))
        self.upload.write(encode_footer(footer))
        return True


class _Commit:
    """A finished record file that is committed, by a thread that ends with it.

    From `is_over` on it is not tried again.
    """

    def __init__(self, file: _OpenFile, is_over: threading.Event) -> None:
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


def _text_bytes(episode: EpisodePart) -> int:
    """The most bytes of an episode in a footer's JSON, in which metadata is a string."""
    return 300 + len(json.dumps(episode.key)) + 2 * len(episode.metadata)


def _align(upload: Upload) -> None:
    if padding := aligned(upload.tell()) - upload.tell():
        upload.write(bytes(padding))
