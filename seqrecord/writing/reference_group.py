"""The group of a feature whose frames stay in original files, each encoded alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from seqrecord.errors import FrameError, SourceError
from seqrecord.format.pages import Blob, PageCodec
from seqrecord.format.references import MAX_NAMES, FolderFile, Reference, ReferencedFile
from seqrecord.originals.references import checksum_of_files, parts_of, place_of
from seqrecord.schema import Schema
from seqrecord.storage import modified_ns, new_since
from seqrecord.writing.chunking import MAX_REFERENCED_BYTES, ChunkLength, StoredChunk

_Placed = tuple["ReferencedFile | Blob", str, str]

_MOST_SPAN = 1 << 32  # bytes from a chunk's first frame to its last one


class ReferenceGroup:
    """Frames of a feature that wait for the next chunk, for one episode after the other.

    Frames are byte ranges of files, or whole files in folders; `externals` has their numbers, see
    `VideoGroup`. A chunk refers to one such file or folder, or contains frames without a file, such
    as fill values of a missing Zarr chunk. With `checksums`, referenced bytes are read for their
    CRC32C.
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
        self._new_since = cache(new_since)  # an earlier time includes more files
        self._chunk_length = ChunkLength(self.schema)
        self.begin(None)

    def begin(self, chunk_frames: int | None) -> None:
        """Start the next episode; `ChunkLength` chooses a length for `None`."""
        self._chunk_length.begin(chunk_frames)
        self._length = self._chunk_length.frames or 1
        self._written = 0  # frames of the episode in chunks
        self.clear()

    def clear(self) -> None:
        """Drop the frames that are not in a chunk yet."""
        self._frames: list[_Placed | None] = []

    def fix_length(self) -> None:
        """Do nothing: `begin` fixes the length of chunks."""

    def rows_left(self, columns: Mapping[str, object], rows: range) -> int:  # noqa: ARG002
        """Number of these rows up to the row that ends a chunk, at most all."""
        return min(self._length - len(self._frames), len(rows))

    def add(self, columns: Mapping[str, Any], rows: range) -> None:
        """Add these rows of a block as the episode's next frames."""
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
        """Take the full chunks; with `rest`, also chunks of the remaining frames."""
        while len(self._frames) >= self._length or (rest and self._frames):
            yield from self._taken(self._frames[: self._length])
            del self._frames[: self._length]

    def _taken(self, frames: Sequence[_Placed | None]) -> Iterator[StoredChunk]:
        """Chunks of these frames: one, unless their files differ or their ranges are far apart."""
        begin = 0
        for at in range(1, len(frames) + 1):
            if at == len(frames) or self._is_cut(frames[begin:at], frames[at]):
                yield self._chunk(frames[begin:at])
                begin = at

    @staticmethod
    def _is_cut(before: Sequence[_Placed | None], frame: _Placed | None) -> bool:
        """Whether a frame starts a new chunk after the frames before it."""
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
            raise SourceError("frame in a file that the source does not list", file=files[0].file)
        parts: Sequence[FolderFile] = ()
        if files[0].stop is None:
            sizes, parts = parts_of(places[0], names)
            found = Reference.of_frames(number, [], sizes, parts)
        else:
            starts = [file.start for file in files]
            sizes = [file.stop - file.start for file in files]
            if min(sizes) < 1:
                raise SourceError("empty file", file=files[0].file, offset=min(starts))
            found = Reference.of_frames(number, starts, sizes)
        if found.length > MAX_REFERENCED_BYTES or len(found.extradata) > MAX_NAMES:
            raise FrameError(
                "chunk refers to too many bytes; write smaller chunks",
                feature=self.name,
                expected=f"at most {MAX_REFERENCED_BYTES} bytes, and {MAX_NAMES} of names",
                got=f"{found.length} bytes, and {len(found.extradata)} of names",
            )
        times = [time for part in parts if (time := modified_ns(part.identity)) is not None]
        if self._checksums or (times and max(times) >= self._new_since(places[0])):
            found = replace(found, crc32c=checksum_of_files(files) or 1)
        return found
