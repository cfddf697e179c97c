"""The group of a feature whose frames stay in files that are not ours, each encoded alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seqrecord.errors import FrameError, SourceError
from seqrecord.format.pages import Blob, PageCodec
from seqrecord.format.references import MAX_NAMES, Reference, ReferencedFile
from seqrecord.schema import Schema
from seqrecord.sources.common.references import checksum_of_files, parts_of, place_of
from seqrecord.writing.chunking import MAX_REFERENCED_BYTES, ChunkLength, StoredChunk

_Placed = tuple["ReferencedFile | Blob", str, str]

_MOST_SPAN = 1 << 32  # bytes of a file from the first frame of a chunk to the last one


class ReferenceGroup:
    """A feature's frames that are in no chunk yet, of one episode after the other.

    Frames lie in files, or are files in folders, that `externals` numbers, see `VideoGroup`. A
    chunk refers to one such file or folder, or holds frames that lie in none, such as fill values
    of a chunk that is not there. With `checksums` what it refers to is read.
    """

    def __init__(
        self,
        schema: Schema,
        number: int,
        externals: Mapping[str, tuple[str, int]],
        *,
        checksums: bool,
    ) -> None:
        self.number = number
        self.schema = schema.group(number)
        [self.name] = self.schema
        self._place = schema.position(self.name)
        self._codec = PageCodec(self.schema[self.name])
        self._externals, self._checksums = externals, checksums
        self._chunk_length = ChunkLength(self.schema)
        self.begin(None)

    def begin(self, chunk_frames: int | None) -> None:
        """The next episode; see `ChunkLength` for `None`."""
        self._chunk_length.begin(chunk_frames)
        self._length = self._chunk_length.frames or 1
        self._written = 0  # frames of the episode in chunks
        self.clear()

    def clear(self) -> None:
        """Forget the frames that are in no chunk."""
        self._frames: list[_Placed | None] = []

    def fix_length(self) -> None:
        """The episode ends."""

    def rows_left(self, columns: Mapping[str, object], rows: range) -> int:  # noqa: ARG002
        """How many of these rows of a block come up to the one that ends a chunk, or there are."""
        return min(self._length - len(self._frames), len(rows))

    def add(self, columns: Mapping[str, Any], rows: range) -> None:
        """These rows of a block are the episode's next frames: of the feature where they lie, or
        nothing."""
        found = columns.get(self.name)
        if found is None:
            self._frames += [None] * len(rows)
            return
        for item in found[rows.start : rows.stop]:
            if isinstance(item, ReferencedFile):
                self._frames.append((item, *place_of(item)))
            else:
                self._frames.append((self._codec.encode_frame(item), "", ""))

    def chunks(self, *, rest: bool = False) -> Iterator[StoredChunk]:
        """The chunks that are full; with `rest` also those of the frames that are left, if any."""
        while len(self._frames) >= self._length or (rest and self._frames):
            yield from self._taken(self._frames[: self._length])
            del self._frames[: self._length]

    def _taken(self, frames: Sequence[_Placed | None]) -> Iterator[StoredChunk]:
        """The chunks of these frames: one, unless they lie in several places, or too far apart."""
        begin = 0
        for at in range(1, len(frames) + 1):
            if at == len(frames) or self._is_cut(frames[begin:at], frames[at]):
                yield self._chunk(frames[begin:at])
                begin = at

    @staticmethod
    def _is_cut(before: Sequence[_Placed | None], frame: _Placed | None) -> bool:
        """Whether a frame is in another chunk than those before it."""
        there = [each for each in before if each is not None]
        if frame is None or not there:
            return False
        (first, place, _), (last, *_) = there[0], there[-1]
        file, other, name = frame
        if place != other or any(name and name == each[2] for each in there):
            return True
        if isinstance(file, Blob) or isinstance(first, Blob) or isinstance(last, Blob):
            return False
        if file.stop is None or last.stop is None:
            return file.stop != last.stop
        return file.start < last.stop or file.stop - first.start >= _MOST_SPAN

    def _chunk(self, frames: Sequence[_Placed | None]) -> StoredChunk:
        there = [frame for frame in frames if frame is not None]
        page, external = self._codec.join([f for f, *_ in there if isinstance(f, Blob)]), 0
        referred = [(f, at, name) for f, at, name in there if isinstance(f, ReferencedFile)]
        if referred:
            reference = self._reference(referred)
            page, external = reference.encode(), reference.length
        span = range(self._written, self._written + len(frames))
        self._written = span.stop
        present = np.array([frame is not None for frame in frames], bool)
        gaps = {} if present.all() else {self._place: present}
        return StoredChunk.of(*(self.number, self.schema, span, gaps, [page]), external=external)

    def _reference(self, frames: Sequence[tuple[ReferencedFile, str, str]]) -> Reference:
        files, places, names = zip(*frames, strict=True)
        if (number := self._externals.get(places[0])) is None:
            raise SourceError(
                "a frame in a file that the source does not tell of", file=files[0].file
            )
        if files[0].stop is None:
            sizes, parts = parts_of(places[0], names)
            found = Reference.of_frames(number, [], sizes, parts)
        else:
            starts = [file.start for file in files]
            sizes = [file.stop - file.start for file in files]
            if min(sizes) < 1:
                raise SourceError("an empty file", file=files[0].file, offset=min(starts))
            found = Reference.of_frames(number, starts, sizes)
        if found.length > MAX_REFERENCED_BYTES or len(found.extradata) > MAX_NAMES:
            raise FrameError(
                "a chunk that refers to too many bytes; write smaller chunks",
                feature=self.name,
                expected=f"at most {MAX_REFERENCED_BYTES} bytes, and {MAX_NAMES} of names",
                got=f"{found.length} bytes, and {len(found.extradata)} of names",
            )
        if self._checksums:
            found = replace(found, crc32c=checksum_of_files(files))
        return found
