"""Chunks: how many frames each has, frames that are in none yet, chunks of other record files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer, combined_crc32c, crc32c
from seqrecord.errors import ChecksumError
from seqrecord.format.footer import Footer
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

CHUNK_BYTES = 48 << 20  # decoded; a chunk is the unit of reading, so it bounds readers' memory
CHUNK_FRAMES = 32  # at most, however small the frames

MAX_REFERENCED_BYTES = 1 << 28  # bytes of files that a page refers to, with what lies between

SMALL_FRAME_BYTES = 4096  # of a feature; from there on it is not small
SMALL_CHUNK_BYTES = 1 << 20  # decoded, of a group of small features
SMALL_CHUNK_FRAMES = 1024

EncodedColumn: TypeAlias = "Sequence[Blob] | memoryview"
"""What a block's frames have of a feature: their blobs, or the bytes of all of one that is raw."""

_LARGE_SLICE = 1 << 16  # bytes; then joining the sums of slices takes less than summing once more


def is_small(spec: FeatureSpec) -> bool:
    """Whether a feature belongs in long chunks: text, or a fixed shape below 4096 bytes a frame."""
    return spec.value == "text" or (spec.is_fixed and spec.nbytes < SMALL_FRAME_BYTES)


class ChunkLength:
    """Frames a chunk of one group, of one episode after the other: those that `begin` was given, or
    a power of two by the frames' size.

    Chunks of a group hold 32 frames, or fewer that take 48 MiB together, decoded; those of a group
    of small features (see `is_small`) 1024 frames, or fewer that take 1 MiB.

    `frames` is `None` until the size is known. Where all shapes are fixed it is known at once. A
    feature of a variable shape is judged by the episode's first frames, the largest of them: as
    many as a chunk may hold. Frames that come later may be larger, and so then are chunks.
    """

    def __init__(self, group: Schema) -> None:
        self._max_frames, self._max_bytes = CHUNK_FRAMES, CHUNK_BYTES
        if all(map(is_small, group.values())):
            self._max_frames, self._max_bytes = SMALL_CHUNK_FRAMES, SMALL_CHUNK_BYTES
        self._variable = group.variable
        self._fixed_bytes = sum(spec.nbytes for spec in group.values() if spec.is_fixed)
        self.begin(None)

    def begin(self, given: int | None) -> None:
        """The next episode."""
        self._seen = self._bytes = self._largest = 0
        self.frames = given
        if given is None and not self._variable:
            self.frames = self._fitting(self._fixed_bytes)

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        """How many of these rows of a block, the episode's next ones, come up to the one that
        settles the length, or there are."""
        seen, sizes = self._seen, self._sizes(columns, rows)
        enough = self._bytes + np.cumsum(sizes) >= self._max_bytes
        enough[self._max_frames - seen - 1 :] = True
        return int(np.argmax(enough)) + 1 if enough.any() else len(rows)

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        """These rows of a block are the episode's next frames; at most the last one settles."""
        sizes = self._sizes(columns, rows)
        self._seen += len(rows)
        self._bytes += int(sizes.sum())
        self._largest = max(self._largest, int(sizes.max()))
        if self._seen == self._max_frames or self._bytes >= self._max_bytes:
            self.fix_length()

    def _sizes(self, columns: Mapping[str, EncodedColumn], rows: range) -> npt.NDArray[np.int64]:
        """The decoded bytes of these rows of a block: int64 [rows]."""
        sizes = np.full(len(rows), self._fixed_bytes, np.int64)
        for spec in self._variable:
            blobs = columns.get(spec.name, ())
            if not isinstance(blobs, memoryview) and blobs:
                sizes += _decoded_bytes(spec, blobs[rows.start : rows.stop])
        return sizes

    def fix_length(self) -> int:
        """No more frames are to be waited for."""
        if self.frames is None:
            self.frames = self._fitting(self._largest)
        return self.frames

    def _fitting(self, frame_bytes: int) -> int:
        fitting = max(1, min(self._max_frames, self._max_bytes // max(1, frame_bytes)))
        return 1 << (fitting.bit_length() - 1)


def _decoded_bytes(spec: FeatureSpec, blobs: Sequence[Blob]) -> npt.NDArray[np.int64]:
    """Of each frame: int64 [blobs]."""
    shapes = [blob.shape for blob in blobs]
    if shapes and shapes.count(shapes[0]) == len(shapes):  # as texts often are
        return np.full(len(shapes), math.prod(shapes[0]) * spec.dtype.itemsize)
    sizes = (math.prod(shape) for shape in shapes)
    return np.fromiter(sizes, np.int64, len(shapes)) * spec.dtype.itemsize


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
        pages: Sequence[Buffer],
        largest: Sequence[int] = (),
        external: int = 0,
    ) -> StoredChunk:
        """A new chunk of these frames of the episode.

        `largest` are the bytes of the largest frame of each feature of a variable shape, `external`
        those of another file that the page refers to.
        """
        sums = [_checksums(spec, page) for spec, page in zip(group.values(), pages, strict=True)]
        said = [(len(page), of_page) for page, (of_page, _) in zip(pages, sums, strict=True)]
        row = (0, len(frames), frames.start, external, 0, said, largest)
        dtype = chunk_row(len(group), len(largest))
        slices = b"".join(of_slices for _, of_slices in sums)
        return cls(number, np.array([row], dtype), gaps, (*pages, slices))


def _checksums(spec: FeatureSpec, page: Buffer) -> tuple[int, bytes]:
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
        self.begin(None)

    def begin(self, chunk_frames: int | None) -> None:
        """The next episode; see `ChunkLength` for `None`."""
        self._length.begin(chunk_frames)
        self.clear()
        self._written = 0  # frames of the episode in chunks

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        """How many of these rows of a block come up to the one that may end a chunk, or there
        are."""
        if self._length.frames is None:
            return self._length.rows_left(columns, rows)
        return min(self._length.frames - self._num_frames, len(rows))

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        """These rows of a block, no more than there is `room` for, are the episode's next frames:
        what they have of the group's features."""
        for name, spec in self.schema.items():
            column = columns.get(name)
            self._present[name] += [column is not None] * len(rows)
            if isinstance(column, memoryview):
                data = column[rows.start * spec.nbytes : rows.stop * spec.nbytes]
                self._blobs[name].append(Blob(data, ()))
            elif column is not None:
                self._blobs[name] += column[rows.start : rows.stop]
        self._num_frames += len(rows)
        if self._length.frames is None:
            self._length.add(columns, rows)

    def chunks(self, *, rest: bool = False) -> Iterator[StoredChunk]:
        """The chunks that are full; with `rest` also one of the frames that are left, if any."""
        while (length := self._length.frames) is not None and self._num_frames >= length:
            yield self._take(length)
        if rest and self._num_frames:
            yield self._take(self._num_frames)

    def fix_length(self) -> None:
        """The episode ends: nothing more tells how long its chunks should be."""
        self._length.fix_length()

    def clear(self) -> None:
        """Forget the frames that are in no chunk."""
        self._num_frames = 0
        self._blobs: dict[str, list[Blob]] = {name: [] for name in self.schema}
        self._present: dict[str, list[bool]] = {name: [] for name in self.schema}

    def _take(self, length: int) -> StoredChunk:
        found: dict[str, list[Blob]] = {}
        gaps: dict[int, npt.NDArray[np.bool_]] = {}
        for name, present in self._present.items():
            count = sum(present[:length])
            if count < length:
                gaps[self._places[name]] = np.array(present[:length], np.bool_)
            found[name] = self._front(name, count)
            del present[:length]
        self._num_frames -= length
        pages = [self._codecs[name].join(blobs) for name, blobs in found.items()]
        largest = [
            int(_decoded_bytes(spec, found[spec.name]).max(initial=0))
            for spec in self.schema.variable
        ]
        span = range(self._written, self._written + length)
        self._written = span.stop
        return StoredChunk.of(self.number, self.schema, span, gaps, pages, largest)

    def _front(self, name: str, count: int) -> list[Blob]:
        """Take the blobs of so many frames; a raw feature's may have several each."""
        spec, blobs = self.schema[name], self._blobs[name]
        if spec.is_raw:
            nbytes, count, of_frames = 0, 0, count * spec.nbytes
            while nbytes < of_frames:
                data = memoryview(blobs[count].data)
                if len(data) > of_frames - nbytes:
                    cut = of_frames - nbytes
                    blobs[count : count + 1] = [Blob(data[:cut], ()), Blob(data[cut:], ())]
                nbytes, count = nbytes + len(blobs[count].data), count + 1
        self._blobs[name] = blobs[count:]
        return blobs[:count]


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
            row["external"] = 0  # a page that refers is alone in its chunk
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
