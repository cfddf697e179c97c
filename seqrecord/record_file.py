"""Writes record files: episodes in, chunks out, a footer at the end."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer, crc32c
from seqrecord.chunk_length import ChunkLength
from seqrecord.codecs import EncodedImage
from seqrecord.errors import ChecksumError, CodecError, DestinationError, FormatError, FrameError
from seqrecord.format import (
    MAX_EPISODE_FRAMES,
    MAX_FOOTER_BYTES,
    RECORDS,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
)
from seqrecord.format.pages import Blob, PageCodec, aligned, page_offsets
from seqrecord.format.rows import GAP_ROW, chunk_row
from seqrecord.ranges import ByteRange
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import Storage, Upload

__all__ = ["RECORDS", "RecordFileWriter", "new_writer_id", "writer_of"]

FULL_FOOTER_BYTES = MAX_FOOTER_BYTES // 2  # no chunk and no episode adds as much
FULL_FOOTER_EPISODES = 100_000  # whose JSON has as many values as a reader takes

_NAME = re.compile(r"\d{5,}-([0-9a-f]{16})[0-9a-f]{16}\.seqrec")

StoredFrame: TypeAlias = "Mapping[str, npt.ArrayLike | EncodedImage]"


def new_writer_id() -> str:
    """What a writer's files and episodes have in common and no other writer's: 64 random bits."""
    return secrets.token_hex(8)


def writer_of(path: str) -> str | None:
    """The id of the writer of a record file, if its name has one."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return match and match[1]


class RecordFileWriter:
    """Writes episodes, one at a time, into record files of about `record_bytes`.

    Holds one file open. A file is finished (footer, sync, rename) when it is full and on `close`;
    an episode that does not fit goes on in the next. After each episode the file is worth keeping:
    a resume copies the episodes that had ended from what a kill leaves behind. `writer` is a
    `new_writer_id()`, which several of these may share.

    A failure to store anything breaks the writer, since what was stored before may be lost with it:
    the call raises the failure, every later one `DestinationError`. What is on the storage stays
    for a resume.
    """

    def __init__(self, storage: Storage, schema: Schema, *, writer: str, record_bytes: int) -> None:
        self.schema = schema
        self._storage = storage
        self._writer = writer
        self._record_bytes = record_bytes
        self._codecs = {name: PageCodec(spec) for name, spec in schema.items()}
        self._file: _OpenFile | None = None
        self._episode: EpisodePart | None = None
        self._num_frames = 0  # of the episode, those in finished chunks
        self._frames: list[Mapping[str, Blob]] = []  # and those after them, encoded
        self._length = ChunkLength(schema)
        self._failure: BaseException | None = None

    @property
    def doubtful(self) -> frozenset[str]:
        """Keys of the ended episodes that a failure may have lost; none while nothing failed."""
        if self._failure is None or self._file is None:
            return frozenset()
        return self._file.ended

    def check(self) -> None:
        """`DestinationError` if the writer is broken."""
        if (failure := self._failure) is None:
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
        self._episode = EpisodePart(key, uid, ordinal, 0, None, metadata)
        self._num_frames = 0

    def append(self, frame: StoredFrame) -> int:
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
        with self._storing(BaseException):
            self._file.complete(self._num_frames)
        self._episode = None

    def copy(self, piece: Footer, read: Callable[[ByteRange], memoryview]) -> None:
        """Copy the one episode of `piece`, or its last part, from where `read` finds its bytes.

        Checks every page. Raises `ChecksumError`, and forgets the copy, for one that is not as it
        was written.
        """
        self.check()
        assert self._episode is None, "the episode before has not ended"
        (part,) = piece.episodes
        self._episode = replace(part, num_frames=None)
        try:
            for number, row in enumerate(piece.chunks):
                bits = piece.gaps[piece.gaps["chunk"] == number]
                gaps = list(zip(bits["feature"].tolist(), bits["present"].tolist(), strict=True))
                self._store(self._episode, row.reshape(1), gaps, _checked_pages(row, read))
        except FormatError:
            self.drop()
            raise
        assert self._file is not None
        assert part.num_frames is not None, "not the last part"
        with self._storing(BaseException):
            self._file.complete(part.num_frames)
        self._episode = None

    def drop(self) -> None:
        """Forget the episode that has begun. What earlier files hold of it is never referenced."""
        episode, self._episode, self._frames = self._episode, None, []
        if episode is not None and self._file is not None and self._failure is None:
            with self._storing(BaseException):
                self._file.forget(episode)

    def close(self) -> None:
        """Finish the open file; an episode that has not ended is dropped."""
        self.drop()
        self.check()
        self._finish_file()

    def leave(self) -> None:
        """`close` after an error, which may be the failure that broke the writer."""
        if self._failure is None:
            self.close()

    def _write_full_chunks(self) -> None:
        while self._length.frames is not None and len(self._frames) >= self._length.frames:
            self._write_chunk(self._length.frames)

    def _write_chunk(self, num_frames: int) -> None:
        assert self._episode is not None
        episode = replace(self._episode, chunk_frames=self._length.settle())
        chunk = _Chunk(self.schema, self._frames[:num_frames])
        del self._frames[:num_frames]
        pages = [self._codecs[name].join(blobs) for name, blobs in chunk.blobs.items()]
        row = chunk.row(self.schema, self._num_frames, pages)
        self._store(episode, row, chunk.gaps, pages)
        self._num_frames += chunk.num_frames

    def _store(
        self,
        episode: EpisodePart,
        row: npt.NDArray[Any],
        gaps: Sequence[tuple[int, int]],
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

    def _finish_file(self) -> None:
        if self._file is not None:
            with self._storing(BaseException):
                self._file.finish()
            self._file = None

    @contextmanager
    def _storing(self, failures: type[BaseException]) -> Iterator[None]:
        """Remember the first of these failures."""
        try:
            yield
        except failures as error:
            self._failure = self._failure or error
            raise


class _Chunk:
    """Encoded frames by feature; `gaps` are (feature, validity bitmap) where frames lack it."""

    def __init__(self, schema: Schema, frames: Sequence[Mapping[str, Blob]]) -> None:
        self.num_frames = len(frames)
        self.blobs = {name: [f[name] for f in frames if name in f] for name in schema}
        present = [
            sum(1 << number for number, frame in enumerate(frames) if name in frame)
            for name in schema
        ]
        full = (1 << len(frames)) - 1
        self.gaps = [(feature, bits) for feature, bits in enumerate(present) if bits != full]

    def row(self, schema: Schema, first_frame: int, pages: Sequence[bytes]) -> npt.NDArray[Any]:
        """The chunk's row, [1], but for its place in a file."""
        row = np.zeros(1, chunk_row(len(schema), len(schema.variable)))
        row["num_frames"], row["first_frame"] = self.num_frames, first_frame
        row["pages"]["length"] = [len(page) for page in pages]
        row["pages"]["crc32c"] = [crc32c(page) for page in pages]
        row["largest"] = [self._largest(spec) for spec in schema.variable]
        return row

    def _largest(self, spec: FeatureSpec) -> int:
        """Bytes of the feature's largest frame."""
        sizes = [math.prod(blob.shape) for blob in self.blobs[spec.name]]
        return max(sizes, default=0) * spec.dtype.itemsize


class _OpenFile:
    """A record file being written, and its rows of the index so far."""

    def __init__(self, storage: Storage, schema: Schema, writer: str, ordinal: int) -> None:
        self._schema = schema
        self._file_id = writer + secrets.token_hex(8)
        self.upload: Upload = storage.create(f"{RECORDS}/{ordinal:05d}-{self._file_id}.seqrec")
        self.upload.write(encode_header(bytes.fromhex(self._file_id)))
        self._episodes: list[EpisodePart] = []
        self._chunks: list[npt.NDArray[Any]] = []
        self._gaps: list[tuple[int, int, int]] = []
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
        gaps: Sequence[tuple[int, int]],
        pages: Sequence[Buffer],
    ) -> None:
        """Write a chunk, of which `row` is the row but for its place here."""
        if not self._episodes or self._episodes[-1].uid != episode.uid:
            # In this order, since an interrupt may come between any two of them.
            self._first = (len(self._chunks), len(self._gaps))
            self._start = self.upload.tell()
            self._text_bytes += _text_bytes(episode)
            self._episodes.append(episode)
        self._gaps += [(len(self._chunks), feature, bits) for feature, bits in gaps]
        row = row.copy()
        row["episode"], row["offset"] = len(self._episodes) - 1, self.upload.tell()
        self._chunks.append(row)
        for page in pages:
            self.upload.write(page)
            _align(self.upload)

    def is_full(self, record_bytes: int) -> bool:
        """Whether the next chunk belongs in another file: of so many bytes, or for its footer."""
        row = chunk_row(len(self._schema), len(self._schema.variable)).itemsize
        footer = self._text_bytes + len(self._chunks) * row + len(self._gaps) * GAP_ROW.itemsize
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
        gaps = [(chunk - first, feature, bits) for chunk, feature, bits in self._gaps[first_gap:]]
        note = Footer(self._schema, self._file_id, (episode,), rows, np.array(gaps, GAP_ROW))
        self.upload.checkpoint(encode_footer(note))

    def forget(self, episode: EpisodePart) -> None:
        if not self._episodes or self._episodes[-1].uid != episode.uid:
            return
        first, first_gap = self._first
        self.upload.rewind(self._start)
        self._text_bytes -= _text_bytes(episode)
        del self._episodes[-1], self._chunks[first:], self._gaps[first_gap:]

    def finish(self) -> None:
        if not self._chunks:
            self.upload.abort()
            return
        gaps = np.array(self._gaps, GAP_ROW)
        chunks = np.concatenate(self._chunks)
        footer = Footer(self._schema, self._file_id, tuple(self._episodes), chunks, gaps)
        self.upload.write(encode_footer(footer))
        self.upload.commit()


def _checked_pages(
    row: npt.NDArray[Any], read: Callable[[ByteRange], memoryview]
) -> list[memoryview]:
    """The pages of a chunk. Raises `ChecksumError` for one that is not as it was written."""
    offsets = int(row["offset"]) + page_offsets(row["pages"]["length"])
    data = read(ByteRange(int(offsets[0]), int(offsets[-1])))
    pages = []
    for start, page in zip((offsets - offsets[0]).tolist(), row["pages"], strict=False):
        pages.append(data[start : start + int(page["length"])])
        if crc32c(pages[-1]) != page["crc32c"]:
            raise ChecksumError(
                "a page does not match its checksum", offset=int(offsets[0]) + start
            )
    return pages


def _text_bytes(episode: EpisodePart) -> int:
    """The most bytes of an episode in a footer's JSON, in which metadata is a string."""
    return 300 + len(json.dumps(episode.key)) + 2 * len(episode.metadata)


def _align(upload: Upload) -> None:
    if padding := aligned(upload.tell()) - upload.tell():
        upload.write(bytes(padding))
