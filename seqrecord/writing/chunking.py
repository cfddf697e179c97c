"""Chunks: how many frames each has, frames that are in none yet, chunks of other record files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer, combined_crc32c, crc32c
from seqrecord.errors import ChecksumError
from seqrecord.format import Footer
from seqrecord.format.pages import (
    Blob,
    PageCodec,
    page_offsets,
    slice_frames,
    slice_sums,
    slice_table,
)
from seqrecord.format.rows import chunk_row, features_of, present_frames
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage.ranges import ByteRange

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_FRAMES",
    "MOST_EXTERNAL",
    "SMALL_CHUNK_BYTES",
    "SMALL_CHUNK_FRAMES",
    "SMALL_FRAME_BYTES",
    "ChunkLength",
    "FrameGroup",
    "StoredChunk",
    "is_small",
    "page_ranges",
    "stored_chunk",
]

CHUNK_BYTES = 48 << 20  # decoded; a chunk is the unit of reading, so it bounds readers' memory
CHUNK_FRAMES = 32  # at most, however small the frames

MOST_EXTERNAL = 1 << 28  # bytes of files that a page refers to, with what lies between

SMALL_FRAME_BYTES = 4096  # of a feature; from there on it is not small
SMALL_CHUNK_BYTES = 1 << 20  # decoded, of a group of small features
SMALL_CHUNK_FRAMES = 1024

_LARGE_SLICE = 1 << 16  # bytes; then joining the sums of slices takes less than summing once more


def is_small(spec: FeatureSpec) -> bool:
    """Whether a feature belongs in long chunks: text, or a fixed shape below 4096 bytes a frame."""
    return spec.value == "text" or (spec.is_fixed and spec.nbytes < SMALL_FRAME_BYTES)


class ChunkLength:
    """Frames a chunk of one group and episode: `given`, or a power of two by the frames' size.

    Chunks of a group hold 32 frames, or fewer that take 48 MiB together, decoded; those of a group
    of small features (see `is_small`) 1024 frames, or fewer that take 1 MiB.

    `frames` is `None` until the size is known. Where all shapes are fixed it is known at once. A
    feature of a variable shape is judged by the episode's first frames, the largest of them: as
    many as a chunk may hold. Frames that come later may be larger, and so then are chunks.
    """

    def __init__(self, group: Schema, given: int | None = None) -> None:
        self._max_frames, self._max_bytes = CHUNK_FRAMES, CHUNK_BYTES
        if all(map(is_small, group.values())):
            self._max_frames, self._max_bytes = SMALL_CHUNK_FRAMES, SMALL_CHUNK_BYTES
        self._variable = group.variable
        self._fixed_bytes = sum(spec.nbytes for spec in group.values() if spec.is_fixed)
        self._seen = self._bytes = self._largest = 0
        self.frames = given
        if given is None and not self._variable:
            self.frames = self._fitting(self._fixed_bytes)

    def add(self, blobs: Mapping[str, Blob]) -> None:
        """The episode's next frame: what it has of the group's features."""
        nbytes = self._fixed_bytes + sum(
            math.prod(blobs[spec.name].shape) * spec.dtype.itemsize
            for spec in self._variable
            if spec.name in blobs
        )
        self._seen += 1
        self._bytes += nbytes
        self._largest = max(self._largest, nbytes)
        if self._seen == self._max_frames or self._bytes >= self._max_bytes:
            self.settle()

    def settle(self) -> int:
        """No more frames are to be waited for."""
        if self.frames is None:
            self.frames = self._fitting(self._largest)
        return self.frames

    def _fitting(self, frame_bytes: int) -> int:
        fitting = max(1, min(self._max_frames, self._max_bytes // max(1, frame_bytes)))
        return 1 << (fitting.bit_length() - 1)


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

    @property
    def first_frame(self) -> int:
        return int(self.row["first_frame"][0])

    @property
    def num_frames(self) -> int:
        return int(self.row["num_frames"][0])

    @classmethod
    def of(
        cls,
        number: int,
        group: Schema,
        frames: range,
        gaps: Mapping[int, npt.NDArray[np.bool_]],
        pages: Sequence[bytes],
        largest: Sequence[int] = (),
        external: int = 0,
    ) -> StoredChunk:
        """A new chunk of these frames of the episode.

        `largest` are the bytes of the largest frame of each feature of a variable shape, `external`
        those of another file that the page refers to.
        """
        sums = [_checksums(spec, page) for spec, page in zip(group.values(), pages, strict=True)]
        row = np.zeros(1, chunk_row(len(group), len(group.variable)))
        row["num_frames"], row["first_frame"] = len(frames), frames.start
        row["pages"]["length"] = [len(page) for page in pages]
        row["pages"]["crc32c"] = [of_page for of_page, _ in sums]
        row["largest"], row["external"] = largest, external
        return cls(number, row, gaps, (*pages, b"".join(of_slices for _, of_slices in sums)))


def _checksums(spec: FeatureSpec, page: bytes) -> tuple[int, bytes]:
    """Of the page, and of its slices where it has any."""
    if not spec.is_raw:
        return crc32c(page), b""
    sums = slice_sums(spec, page)
    size = slice_frames(spec) * spec.nbytes
    if size < _LARGE_SLICE or not page:
        return crc32c(page), sums.tobytes()
    last = len(page) - (len(sums) - 1) * size
    return combined_crc32c(sums.tolist(), size, last), sums.tobytes()


class FrameGroup:
    """The encoded frames of a group that is not video, of one episode after the other."""

    def __init__(self, schema: Schema, number: int) -> None:
        self.number = number
        self.schema = schema.group(number)
        self._places = {name: schema.position(name) for name in self.schema}
        self._codecs = {name: PageCodec(spec) for name, spec in self.schema.items()}
        self._length = ChunkLength(self.schema)
        self._frames: list[dict[str, Blob]] = []
        self._written = 0  # frames of the episode in chunks

    def begin(self, chunk_frames: int | None) -> None:
        """The next episode; see `ChunkLength` for `None`."""
        self._length = ChunkLength(self.schema, chunk_frames)
        self._frames, self._written = [], 0

    def add(self, blobs: dict[str, Blob]) -> None:
        """The episode's next frame: what it has of the group's features."""
        self._frames.append(blobs)
        if self._length.frames is None:
            self._length.add(blobs)

    def chunks(self, *, rest: bool = False) -> Iterator[StoredChunk]:
        """The chunks that are full; with `rest` also one of the frames that are left, if any."""
        while (length := self._length.frames) is not None and len(self._frames) >= length:
            yield self._take(length)
        if rest and self._frames:
            yield self._take(len(self._frames))

    def settle(self) -> None:
        """The episode ends: nothing more tells how long its chunks should be."""
        self._length.settle()

    def clear(self) -> None:
        """Forget the frames that are in no chunk."""
        self._frames = []

    def _take(self, length: int) -> StoredChunk:
        frames = self._frames[:length]
        del self._frames[:length]
        found = {name: [f[name] for f in frames if name in f] for name in self.schema}
        gaps = {
            self._places[name]: np.array([name in frame for frame in frames], bool)
            for name, blobs in found.items()
            if len(blobs) < length
        }
        pages = [self._codecs[name].join(blobs) for name, blobs in found.items()]
        largest = [
            max((math.prod(blob.shape) for blob in found[spec.name]), default=0)
            * spec.dtype.itemsize
            for spec in self.schema.variable
        ]
        span = range(self._written, self._written + length)
        self._written = span.stop
        return StoredChunk.of(self.number, self.schema, span, gaps, pages, largest)


def page_ranges(row: npt.NDArray[Any]) -> list[ByteRange]:
    """Where the pages of a chunk lie in its file, one for each feature of its group."""
    lengths = row["pages"]["length"]
    starts = int(row["offset"]) + page_offsets(lengths)[:-1]
    return [
        ByteRange(start, start + length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def stored_chunk(
    footer: Footer, schema: Schema, group: int, number: int, pages: Sequence[Buffer]
) -> StoredChunk:
    """Chunk `number` of a group of a record file, with these bytes of its pages.

    Of features that `schema`, which continues the footer's, has dropped nothing is left: their
    pages are empty, and all frames lack them; their bytes do not count. Raises `ChecksumError`,
    with the offset, for a page that is not as it was written.
    """
    row = footer.chunks[group][number : number + 1].copy()
    num_frames = int(row["num_frames"][0])
    specs, places = schema.group(group), features_of(schema)[group].tolist()
    gaps = footer.gaps[group]
    gaps = gaps[slice(*np.searchsorted(gaps["chunk"], [number, number + 1]))]
    missing = {
        feature: present_frames(gaps[gaps["feature"] == feature], num_frames)
        for feature in np.unique(gaps["feature"]).tolist()
    }
    said = row["pages"][0]
    kept: list[Buffer] = []
    for column, (spec, page, item) in enumerate(
        zip(specs.values(), pages, page_ranges(row[0]), strict=True)
    ):
        if spec.is_dropped:
            said[column] = (0, crc32c(b""))
            missing[places[column]] = np.zeros(num_frames, np.bool_)
            kept.append(b"")
        elif (actual := crc32c(page)) != (stored := int(said["crc32c"][column])):
            raise ChecksumError(
                "a page does not match its checksum",
                offset=item.start,
                feature=spec.name,
                expected=f"CRC32C {stored:08x}",
                got=f"{actual:08x}",
            )
        else:
            kept.append(page)
    for column, spec in enumerate(specs.variable):
        if spec.is_dropped:
            row["largest"][0, column] = 0
    missing = dict(sorted(missing.items()))
    return StoredChunk(group, row, missing, (*kept, slice_table(specs, kept)))
