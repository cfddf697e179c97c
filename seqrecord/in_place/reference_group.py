"""The group of a feature whose frames are in original files, each encoded alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from seqrecord.errors import FrameError, SourceError
from seqrecord.in_place.references import checksum_of_files, parts_of, place_of
from seqrecord.store.format.encoded_pages import EncodedPages
from seqrecord.store.format.page_kinds import Blob
from seqrecord.store.format.references import (
    MAX_NAMES,
    FolderFile,
    FrameReference,
    ReferencedFile,
)
from seqrecord.store.schema import Schema
from seqrecord.store.storage.local import modified_ns, new_since
from seqrecord.store.writing.chunking import MAX_REFERENCED_BYTES, ChunkGroup, StoredChunk

_Placed = tuple["ReferencedFile | Blob", str, str]

_MAX_SPAN = 1 << 32  # bytes from a chunk's first frame to its last one


class ReferenceGroup(ChunkGroup):
    """Frames of a feature in files of an original.

    Frames are byte ranges of files, or whole files in folders; `externals` has their numbers, see
    `ReferenceKind`. A chunk refers to one such file or folder, or contains frames without a file,
    such as fill values of a missing Zarr chunk. With `checksums`, referenced bytes are read for
    their CRC32C.
    """

    encodes = False

    def __init__(
        self,
        schema: Schema,
        number: int,
        externals: Mapping[str, tuple[str, int]],
        *,
        checksums: bool,
    ) -> None:
        super().__init__(schema, number)
        [spec] = self.schema.values()
        self._codec = EncodedPages(spec)
        self._externals, self._checksums = externals, checksums
        self._new_since = cache(new_since)  # an earlier time includes more files

    def clear(self) -> None:
        self._frames: list[_Placed | None] = []
        self._max_frames = self._length.frames or 1

    def rows_left(self, columns: Mapping[str, object], rows: range) -> int:  # noqa: ARG002
        return min(self._max_frames - len(self._frames), len(rows))

    def add(self, columns: Mapping[str, Any], rows: range) -> None:
        column = columns.get(self._codec.spec.name)
        if column is None:
            self._frames += [None] * len(rows)
            return
        for frame in column[rows.start : rows.stop]:
            if isinstance(frame, ReferencedFile):
                self._frames.append((frame, *place_of(frame)))
            else:
                self._frames.append((self._codec.encode_frame(frame), "", ""))

    def chunks(self, *, with_tail: bool = False) -> Iterator[StoredChunk]:
        while len(self._frames) >= self._max_frames or (with_tail and self._frames):
            yield from self._cut(self._frames[: self._max_frames])
            del self._frames[: self._max_frames]

    def _cut(self, frames: Sequence[_Placed | None]) -> Iterator[StoredChunk]:
        """Chunks of these frames: one, unless their files differ or their ranges are far apart."""
        begin = 0
        for at in range(1, len(frames) + 1):
            if at == len(frames) or self._is_cut(frames[begin:at], frames[at]):
                yield self._chunk_of(frames[begin:at])
                begin = at

    @staticmethod
    def _is_cut(chunk: Sequence[_Placed | None], frame: _Placed | None) -> bool:
        """Whether a frame does not fit the chunk of the frames before it."""
        placed = [chunk_frame for chunk_frame in chunk if chunk_frame is not None]
        if frame is None or not placed:
            return False
        (first_file, place, _), (last_file, *_) = placed[0], placed[-1]
        file, new_place, name = frame
        if place != new_place or any(name and name == old_name for *_, old_name in placed):
            return True
        if isinstance(file, Blob) or isinstance(first_file, Blob) or isinstance(last_file, Blob):
            return False
        if file.stop is None or last_file.stop is None:
            return file.stop != last_file.stop
        return file.start < last_file.stop or file.stop - first_file.start >= _MAX_SPAN

    def _chunk_of(self, frames: Sequence[_Placed | None]) -> StoredChunk:
        placed = [frame for frame in frames if frame is not None]
        page, external = self._codec.join([f for f, *_ in placed if isinstance(f, Blob)]), 0
        referred = [(f, at, name) for f, at, name in placed if isinstance(f, ReferencedFile)]
        if referred:
            reference = self._reference(referred)
            page, external = reference.encode(), reference.length
        present = [frame is not None for frame in frames]
        return self._chunk([present], [page], external=external)

    def _reference(self, frames: Sequence[tuple[ReferencedFile, str, str]]) -> FrameReference:
        files, places, names = zip(*frames, strict=True)
        if (number := self._externals.get(places[0])) is None:
            raise SourceError("frame in a file that the source does not list", file=files[0].file)
        parts: Sequence[FolderFile] = ()
        if files[0].stop is None:
            sizes, parts = parts_of(places[0], names)
            reference = FrameReference.of_frames(number, [], sizes, parts)
        else:
            starts = [file.start for file in files]
            sizes = [file.stop - file.start for file in files]
            if min(sizes) < 1:
                raise SourceError("empty file", file=files[0].file, offset=min(starts))
            reference = FrameReference.of_frames(number, starts, sizes)
        if reference.length > MAX_REFERENCED_BYTES or len(reference.extradata) > MAX_NAMES:
            raise FrameError(
                "chunk refers to too many bytes; write smaller chunks",
                feature=self._codec.spec.name,
                expected=f"at most {MAX_REFERENCED_BYTES} bytes, and {MAX_NAMES} of names",
                got=f"{reference.length} bytes, and {len(reference.extradata)} of names",
            )
        times = [time for part in parts if (time := modified_ns(part.identity)) is not None]
        if self._checksums or (times and max(times) >= self._new_since(places[0])):
            reference = replace(reference, crc32c=checksum_of_files(files) or 1)
        return reference
