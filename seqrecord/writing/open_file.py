"""One record file being written, and its commit by a thread."""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer
from seqrecord.format import (
    MAX_FOOTER_BYTES,
    RECORDS,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
)
from seqrecord.format.pages import aligned
from seqrecord.format.rows import GAP_ROW, chunk_row, gap_rows
from seqrecord.lags import Lags, with_lags
from seqrecord.schema import Schema
from seqrecord.storage import Storage, Upload, unwanted_if
from seqrecord.threads import ThreadPool

__all__ = ["FULL_FOOTER_BYTES", "FULL_FOOTER_EPISODES", "Commit", "OpenFile", "StoredChunk"]

FULL_FOOTER_BYTES = MAX_FOOTER_BYTES // 2  # no chunk and no episode adds as much
FULL_FOOTER_EPISODES = 100_000  # whose JSON has as many values as a reader takes
_VALUES = 7  # of an episode without lags
_LAG_BYTES = 600  # of a timestamp's name and lags in a footer, at most

_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class StoredChunk:
    """A chunk as it lies in a record file.

    `row` is its row, [1], but for episode and offset. `gaps` says by position in the schema which
    frames have a feature, bool [frames], where some lack it. `parts` are the pages of the group's
    features and then the tables of slice checksums.
    """

    group: int
    row: npt.NDArray[Any]
    gaps: Mapping[int, npt.NDArray[np.bool_]]
    parts: Sequence[Buffer]


@dataclass(frozen=True)
class _Mark:
    """How far the file is: bytes, and rows by group."""

    offset: int
    chunks: tuple[int, ...]
    gaps: tuple[int, ...]


class OpenFile:
    """A record file being written, and its rows of the index so far."""

    def __init__(self, storage: Storage, schema: Schema, writer: str, ordinal: int) -> None:
        self._schema = schema
        self._file_id = writer + secrets.token_hex(8)
        self.upload: Upload = storage.create(f"{RECORDS}/{ordinal:05d}-{self._file_id}.seqrec")
        self.upload.write(encode_header(bytes.fromhex(self._file_id)))
        self._episodes: list[EpisodePart] = []
        self._chunks: list[list[npt.NDArray[Any]]] = [[] for _ in schema.groups]
        self._gaps: list[list[npt.NDArray[Any]]] = [[] for _ in schema.groups]
        self._row_dtypes = [chunk_row(len(g), len(g.variable)) for g in schema.groups]
        self._begun = self._noted = self._mark()  # where the last episode begins; the last note
        self._before = self._noted  # and the note before that
        self._num_lags = len(with_lags(schema))
        self._row_bytes = 0
        self._text_bytes = 0  # of the episodes in the footer

    @property
    def ended(self) -> frozenset[str]:
        """Keys of the episodes that end in this file, or did so if nothing more came."""
        return frozenset(part.key for part in self._episodes if part.num_frames is not None)

    def add(self, episode: EpisodePart, chunk: StoredChunk) -> None:
        """Write a chunk."""
        if not self.holds(episode):
            # In this order, since an interrupt may come between any two of them.
            self._begun = self._noted = self._before = self._mark()
            self._text_bytes += self._text_of(episode)
            self._episodes.append(episode)
        chunks, gaps = self._chunks[chunk.group], self._gaps[chunk.group]
        missing = [gap_rows(len(chunks), feature, has) for feature, has in chunk.gaps.items()]
        row = chunk.row.copy()
        row["episode"], row["offset"] = len(self._episodes) - 1, self.upload.tell()
        self._row_bytes += row.nbytes + sum(rows.nbytes for rows in missing)
        gaps += missing
        chunks.append(row)
        for part in chunk.parts:
            self.upload.write(part)
            _align(self.upload)

    def is_full(self, record_bytes: int) -> bool:
        """Whether the next chunk belongs in another file: of so many bytes, or for its footer."""
        return (
            self.upload.tell() >= record_bytes
            or self._text_bytes + self._row_bytes >= FULL_FOOTER_BYTES
            or len(self._episodes) * (_VALUES + self._values_of_lags)
            >= FULL_FOOTER_EPISODES * _VALUES
        )

    def complete(
        self, num_frames: int, metadata: str, lags: tuple[tuple[str, Lags], ...] = ()
    ) -> None:
        """What is here of the last episode is whole, or ends it: it has so many frames so far.

        Its chunks since the last such call go into a note. Where there are none and the metadata is
        other than there, so do those of the call before.
        """
        before = self._episodes[-1]
        episode = replace(before, num_frames=num_frames, metadata=metadata, lags=lags)
        self._episodes[-1] = episode
        if (mark := self._mark()) != self._noted:
            self._before, self._noted = self._noted, mark
        elif episode == before:
            return
        self.upload.checkpoint(encode_footer(self._footer([episode], self._before)))

    def say(self, episode: EpisodePart) -> None:
        """Say this of the episode, if there are chunks of it here.

        Without a number of frames: a later file has that, and this one alone holds none of it.
        """
        if self.holds(episode):
            self._episodes[-1] = episode

    def tells_of(self, episode: EpisodePart) -> bool:
        """Whether it says how many frames the episode has so far."""
        return self.holds(episode) and self._episodes[-1].num_frames is not None

    def forget(self, episode: EpisodePart, *, all_of_it: bool = False) -> None:
        """Take back the chunks of the episode; those before its last `complete` stay.

        With `all_of_it` none does: from then on a kill brings back nothing of it.
        """
        if not self.holds(episode):
            return
        is_kept = self._episodes[-1].num_frames is not None and not all_of_it
        back_to = self._noted if is_kept else self._begun
        self.upload.rewind(back_to.offset)
        if not is_kept:
            self._text_bytes -= self._text_of(episode)
            del self._episodes[-1]
        for rows, count in zip(
            (*self._chunks, *self._gaps), (*back_to.chunks, *back_to.gaps), strict=True
        ):
            self._row_bytes -= sum(row.nbytes for row in rows[count:])
            del rows[count:]

    def holds(self, episode: EpisodePart) -> bool:
        """Whether there are chunks of the episode here."""
        return bool(self._episodes) and self._episodes[-1].uid == episode.uid

    def finish(self) -> bool:
        """Write the footer; whether there is anything to commit."""
        if not self._episodes:
            self.upload.abort()
            return False
        start = _Mark(0, *((0,) * len(self._chunks),) * 2)
        self.upload.write(encode_footer(self._footer(self._episodes, start)))
        return True

    @property
    def _values_of_lags(self) -> int:
        return self._num_lags and self._num_lags + 1

    def _text_of(self, episode: EpisodePart) -> int:
        return _text_bytes(episode) + _LAG_BYTES * self._num_lags

    def _mark(self) -> _Mark:
        return _Mark(self.upload.tell(), tuple(map(len, self._chunks)), tuple(map(len, self._gaps)))

    def _footer(self, episodes: Sequence[EpisodePart], since: _Mark) -> Footer:
        """The rows from a mark on, of these episodes, the last that are here."""
        chunks = [
            _joined(rows[first:], dtype)
            for rows, first, dtype in zip(self._chunks, since.chunks, self._row_dtypes, strict=True)
        ]
        gaps = [
            _joined(rows[first:], GAP_ROW)
            for rows, first in zip(self._gaps, since.gaps, strict=True)
        ]
        for rows, missing, first in zip(chunks, gaps, since.chunks, strict=True):
            rows["episode"] -= len(self._episodes) - len(episodes)
            missing["chunk"] -= first
        return Footer(self._schema, self._file_id, tuple(episodes), tuple(chunks), tuple(gaps))


class Commit:
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


def _joined(rows: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A copy of the rows, joined."""
    return np.concatenate([np.empty(0, dtype), *rows])


def _text_bytes(episode: EpisodePart) -> int:
    """The most bytes of an episode in a footer's JSON, in which metadata is a string."""
    return 300 + len(json.dumps(episode.key)) + 2 * len(episode.metadata)


def _align(upload: Upload) -> None:
    if padding := aligned(upload.tell()) - upload.tell():
        upload.write(bytes(padding))
