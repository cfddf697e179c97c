"""The group of a feature whose frames are in files of an original, one file each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from seqrecord.errors import FrameError, SourceError
from seqrecord.in_place.limits import check_size
from seqrecord.in_place.references import checksum_of_files, parts_of
from seqrecord.store.format.references import MAX_NAMES, FrameReference
from seqrecord.store.schema import Schema
from seqrecord.store.storage.local import modified_ns, new_since
from seqrecord.store.writing.chunking import MAX_REFERENCED_BYTES, ChunkGroup, StoredChunk


class ReferenceGroup(ChunkGroup):
    """Frames of a feature, each a whole file of an original.

    A chunk refers to files of one folder; `externals` has the folders' numbers, see
    `ReferenceKind`. With `checksums`, the files are read for their CRC32C.
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
        [self._name] = self.schema
        self._externals, self._checksums = externals, checksums
        self._new_since = cache(new_since)  # an earlier time includes more files

    def clear(self) -> None:
        self._paths: list[Path | None] = []
        self._max_frames = self._length.frames or 1

    def rows_left(self, columns: Mapping[str, object], rows: range) -> int:  # noqa: ARG002
        return min(self._max_frames - len(self._paths), len(rows))

    def add(self, columns: Mapping[str, Any], rows: range) -> None:
        column = columns.get(self._name)
        frames = [None] * len(rows) if column is None else column[rows.start : rows.stop]
        self._paths += [None if frame is None else Path(frame.file) for frame in frames]

    def chunks(self, *, with_tail: bool = False) -> Iterator[StoredChunk]:
        while len(self._paths) >= self._max_frames or (with_tail and self._paths):
            yield from self._cut(self._paths[: self._max_frames])
            del self._paths[: self._max_frames]

    def _cut(self, paths: Sequence[Path | None]) -> Iterator[StoredChunk]:
        """Chunks of these frames: one, unless their folders differ or a file repeats."""
        begin, folder, seen_paths = 0, None, set[Path]()
        for at, path in enumerate(paths):
            if path is None:
                continue
            if path in seen_paths or path.parent != (folder or path.parent):
                yield self._chunk_of(paths[begin:at])
                begin, seen_paths = at, set()
            folder = path.parent
            seen_paths.add(path)
        yield self._chunk_of(paths[begin:])

    def _chunk_of(self, paths: Sequence[Path | None]) -> StoredChunk:
        page, external = b"", 0
        if present_paths := [path for path in paths if path is not None]:
            reference = self._reference(present_paths)
            page, external = reference.encode(), reference.length
        return self._chunk([[path is not None for path in paths]], [page], external=external)

    def _reference(self, paths: Sequence[Path]) -> FrameReference:
        folder = str(paths[0].parent)
        sizes, parts = parts_of(folder, [path.name for path in paths])
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        check_size(
            "file of a frame read in place",
            sizes[largest],
            MAX_REFERENCED_BYTES,
            file=str(paths[largest]),
            feature=self._name,
        )
        if (place := self._externals.get(folder)) is None:
            raise SourceError("frame in a file that the source does not list", file=str(paths[0]))
        reference = FrameReference.of_files(place, sizes, parts)
        if reference.length > MAX_REFERENCED_BYTES or len(reference.extradata) > MAX_NAMES:
            raise FrameError(
                "chunk refers to too many bytes; write smaller chunks",
                feature=self._name,
                expected=f"at most {MAX_REFERENCED_BYTES} bytes, and {MAX_NAMES} of names",
                got=f"{reference.length} bytes, and {len(reference.extradata)} of names",
            )
        times = [time for part in parts if (time := modified_ns(part.identity)) is not None]
        if self._checksums or (times and max(times) >= self._new_since(folder)):
            reference = replace(reference, crc32c=checksum_of_files(map(str, paths)) or 1)
        return reference
