"""Chunks: their length in frames, frames that wait for the next chunk, copies of stored chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError
from seqrecord.store.checksum import Buffer, combined_crc32c, crc32c
from seqrecord.store.format.footer import Footer
from seqrecord.store.format.page_kinds import Blob, EncodedColumn, page_kind
from seqrecord.store.format.pages import page_offsets, slice_sums, slice_table
from seqrecord.store.format.rows import chunk_row, features_of, present_frames
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.writing.page_digests import PageDigests

CHUNK_BYTES = 48 << 20  # decoded; a chunk is the unit of reading, so it bounds readers' memory
CHUNK_FRAMES = 32  # at most

MAX_REFERENCED_BYTES = 1 << 28  # bytes of the file range to which a page refers, gaps included

SMALL_FRAME_BYTES = 4096  # of a feature; larger frames are not small
SMALL_CHUNK_BYTES = 1 << 20  # decoded, of a group of small features
SMALL_CHUNK_FRAMES = 1024

_LARGE_SLICE = 1 << 16  # bytes; combining checksums of such slices is faster than a second pass


def is_small(spec: FeatureSpec) -> bool:
    """Whether a feature belongs in long chunks: text, or a fixed shape below 4096 bytes per
    frame."""
    kind = spec.value_kind
    nbytes = 0 if kind.are_short else kind.constant_nbytes(spec)
    return nbytes is not None and nbytes < SMALL_FRAME_BYTES


class ChunkLength:
    """Number of frames per chunk of one group, for one episode after the other.

    The length is the `chunk_frames` that `begin` got, or a power of two chosen by the frame size,
    and at most what the kinds of pages allow. Chunks of small features (see `is_small`) have up to
    1024 frames and 1 MiB of decoded data; all other chunks have up to 32 frames and 48 MiB.

    `frames` is `None` until the length is fixed. If all shapes are fixed, `begin` fixes it. If a
    shape varies, the episode's first frames fix it, as many as fit into one chunk: the largest of
    them counts. Later frames, and so later chunks, may be larger.
    """

    def __init__(self, group: Schema) -> None:
        self._max_frames, self._max_bytes = CHUNK_FRAMES, CHUNK_BYTES
        if all(map(is_small, group.values())):
            self._max_frames, self._max_bytes = SMALL_CHUNK_FRAMES, SMALL_CHUNK_BYTES
        self._kind_limit = min(page_kind(spec).max_chunk_frames for spec in group.values())
        self._max_frames = min(self._max_frames, self._kind_limit)
        self._variable = group.variable
        self._fixed_bytes = sum(s.value_kind.constant_nbytes(s) or 0 for s in group.values())
        self.begin(None)

    def begin(self, chunk_frames: int | None) -> None:
        """Start the next episode, with `chunk_frames` frames per chunk."""
        self._num_seen = self._bytes = self._max_frame_bytes = 0
        self.frames = None if chunk_frames is None else min(chunk_frames, self._kind_limit)
        if chunk_frames is None and not self._variable:
            self.frames = self._length_for(self._fixed_bytes)

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        """Number of these rows, the episode's next frames, up to the row that fixes the length.

        All rows if none does.
        """
        num_seen, sizes = self._num_seen, self._sizes(columns, rows)
        enough = self._bytes + np.cumsum(sizes) >= self._max_bytes
        enough[self._max_frames - num_seen - 1 :] = True
        return int(np.argmax(enough)) + 1 if enough.any() else len(rows)

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        """Count these rows of a block as the episode's next frames; only the last may fix the
        length."""
        sizes = self._sizes(columns, rows)
        self._num_seen += len(rows)
        self._bytes += int(sizes.sum())
        self._max_frame_bytes = max(self._max_frame_bytes, int(sizes.max()))
        if self._num_seen == self._max_frames or self._bytes >= self._max_bytes:
            self.fix_length()

    def _sizes(self, columns: Mapping[str, EncodedColumn], rows: range) -> npt.NDArray[np.int64]:
        """Decoded bytes in these rows of a block: int64 [rows]."""
        sizes = np.full(len(rows), self._fixed_bytes, np.int64)
        for spec in self._variable:
            blobs = columns.get(spec.name, ())
            if not isinstance(blobs, memoryview) and blobs:
                sizes += _decoded_bytes(spec, blobs[rows.start : rows.stop])
        return sizes

    def fix_length(self) -> int:
        """Fix the length by the frames so far."""
        if self.frames is None:
            self.frames = self._length_for(self._max_frame_bytes)
        return self.frames

    def _length_for(self, frame_bytes: int) -> int:
        num_frames = max(1, min(self._max_frames, self._max_bytes // max(1, frame_bytes)))
        return 1 << (num_frames.bit_length() - 1)


def _decoded_bytes(spec: FeatureSpec, blobs: Sequence[Blob]) -> npt.NDArray[np.int64]:
    """Decoded bytes of each blob: int64 [blobs]."""
    shapes = [blob.shape for blob in blobs]
    if shapes and shapes.count(shapes[0]) == len(shapes):  # common for texts
        return np.full(len(shapes), math.prod(shapes[0]) * spec.dtype.itemsize)
    sizes = (math.prod(shape) for shape in shapes)
    return np.fromiter(sizes, np.int64, len(shapes)) * spec.dtype.itemsize


@dataclass(frozen=True)
class StoredChunk:
    """A chunk as record files store it.

    `row` is its row of the chunk table, [1], without episode and offset, and without digests if
    these are in `digests`. `gaps` has the presence of
    each feature that some frames lack: bool [frames] by position in the schema. `parts` are the
    pages of the group's features, followed by the tables of slice checksums.
    """

    group: int
    row: npt.NDArray[Any]
    gaps: Mapping[int, npt.NDArray[np.bool_]]
    parts: Sequence[Buffer]
    digests: PageDigests | None = None

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
        places: Sequence[int],
        frames: range,
        gaps: Mapping[int, npt.NDArray[np.bool_]],
        pages: Sequence[Buffer],
        largest: Sequence[int] = (),
        external: int = 0,
    ) -> StoredChunk:
        """Make a chunk of group `number`, with the `frames` of the episode.

        `places` are the positions of the group's features in the dataset's schema. `largest` has
        the bytes of the largest frame for each feature of a variable shape. `external` is the
        number of bytes in another file to which the page refers.
        """
        digests = PageDigests(zip(pages, map(gaps.get, places), strict=True), len(frames))
        sums = [_checksums(spec, page) for spec, page in zip(group.values(), pages, strict=True)]
        page_rows = [
            (len(page), of_page, 0) for page, (of_page, _) in zip(pages, sums, strict=True)
        ]
        row = (0, len(frames), frames.start, external, 0, page_rows, largest)
        dtype = chunk_row(len(group), len(largest))
        slices = b"".join(of_slices for _, of_slices in sums)
        return cls(number, np.array([row], dtype), gaps, (*pages, slices), digests)


def _checksums(spec: FeatureSpec, page: Buffer) -> tuple[int, bytes]:
    """CRC32C of a page, and the encoded CRC32Cs of its slices if it has some."""
    if not (kind := page_kind(spec)).in_slices:
        return crc32c(page), b""
    size = kind.slice_bytes(spec)
    sums = slice_sums(page, size)
    if size < _LARGE_SLICE or not page:
        return crc32c(page), sums.tobytes()
    last_bytes = len(page) - (len(sums) - 1) * size
    return combined_crc32c(sums.tolist(), size, last_bytes), sums.tobytes()


class ChunkGroup:
    """Frames of a group that wait for the next chunk, for one episode after the other."""

    keeps_video = False
    """Whether frames may come encoded, by `keep`."""

    encodes = True
    """Whether its columns have blobs; false for values as they are, of which none are counted."""

    def __init__(self, schema: Schema, number: int) -> None:
        self.number = number
        self.schema = schema.group(number)
        self.num_kept: int | None = None  # frames of the episode that came encoded, `None` if none
        self._places = [schema.position(name) for name in self.schema]
        self._length = ChunkLength(self.schema)

    def begin(self, chunk_frames: int | None) -> None:
        """Start the next episode; `ChunkLength` chooses a length for `None`."""
        self._length.begin(chunk_frames)
        self._num_written = 0  # frames of the episode in chunks
        self.num_kept = None
        self.clear()

    def clear(self) -> None:
        """Drop the frames that are not in a chunk yet."""
        raise NotImplementedError

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        """Number of these rows up to the row that may end a chunk, at most all."""
        raise NotImplementedError

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        """Add these rows of a block as the episode's next frames; at most `rows_left`."""
        raise NotImplementedError

    def chunks(self, *, with_tail: bool = False) -> Iterator[StoredChunk]:
        """Take the full chunks; with `with_tail`, also chunks of the remaining frames."""
        raise NotImplementedError

    def keep(self, video: Any) -> None:
        """Add frames of a source's video in their encoding, if the group `keeps_video`."""
        raise NotImplementedError

    def fix_length(self) -> None:
        """Fix the chunk length at the end of the episode."""
        self._length.fix_length()

    def _chunk(
        self,
        present: Sequence[Sequence[bool]],
        pages: Sequence[Buffer],
        largest: Sequence[int] = (),
        external: int = 0,
    ) -> StoredChunk:
        """The episode's next chunk; `present` has for each feature which frames have it."""
        frames = range(self._num_written, self._num_written + len(present[0]))
        self._num_written = frames.stop
        gaps = {
            place: np.array(has, np.bool_)
            for place, has in zip(self._places, present, strict=True)
            if not all(has)
        }
        return StoredChunk.of(
            *(self.number, self.schema, self._places, frames, gaps, pages, largest, external)
        )


class FrameGroup(ChunkGroup):
    """Encoded frames of features that share chunks: a column for each."""

    def __init__(self, schema: Schema, number: int) -> None:
        super().__init__(schema, number)
        self._columns = {
            name: (kind := page_kind(spec)).column(kind.codec(spec))
            for name, spec in self.schema.items()
        }

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        if self._length.frames is None:
            return self._length.rows_left(columns, rows)
        return min(self._length.frames - self._num_frames, len(rows))

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        expected = self._length.frames or CHUNK_FRAMES
        for name in self.schema:
            column = columns.get(name)
            self._present[name] += [column is not None] * len(rows)
            if column is not None:
                self._columns[name].add(column, rows, expected)
        self._num_frames += len(rows)
        if self._length.frames is None:
            self._length.add(columns, rows)

    def chunks(self, *, with_tail: bool = False) -> Iterator[StoredChunk]:
        """As `ChunkGroup.chunks`. Raw pages are valid until frames are added after another one."""
        while (length := self._length.frames) is not None and self._num_frames >= length:
            yield self._take(length)
        if with_tail and self._num_frames:
            yield self._take(self._num_frames)

    def clear(self) -> None:
        self._num_frames = 0
        for column in self._columns.values():
            column.clear()
        self._present: dict[str, list[bool]] = {name: [] for name in self.schema}

    def _take(self, length: int) -> StoredChunk:
        pages: list[Buffer] = []
        present: list[list[bool]] = []
        variable: dict[str, Sequence[Blob]] = {spec.name: () for spec in self.schema.variable}
        for name in self.schema:
            present.append(self._present[name][:length])
            count = sum(present[-1])
            del self._present[name][:length]
            page, blobs = self._columns[name].take(count)
            pages.append(page)
            if name in variable:
                variable[name] = blobs
        max_sizes = [
            int(_decoded_bytes(self.schema[name], blobs).max(initial=0))
            for name, blobs in variable.items()
        ]
        self._num_frames -= length
        return self._chunk(present, pages, max_sizes)


def page_ranges(row: npt.NDArray[Any]) -> list[ByteRange]:
    """Byte ranges of a chunk's pages in its file, one for each feature of the group."""
    lengths = row["pages"]["length"]
    starts = int(row["offset"]) + page_offsets(lengths)[:-1]
    return [
        ByteRange(start, start + length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def stored_chunk(
    footer: Footer, schema: Schema, group: int, number: int, pages: Sequence[Buffer]
) -> StoredChunk:
    """Chunk `number` of a group in a record file, with its pages' bytes.

    Features that `schema` dropped become empty: no bytes, and absent from all frames. `schema`
    continues the schema of `footer`. Raises `ChecksumError`, with the offset, for a page that does
    not match its CRC32C.
    """
    row = footer.chunks[group][number : number + 1].copy()
    num_frames = int(row["num_frames"][0])
    specs, places = schema.group(group), features_of(schema)[group].tolist()
    gaps = footer.gaps[group]
    gaps = gaps[slice(*np.searchsorted(gaps["chunk"], [number, number + 1]))]
    presence = {
        feature: present_frames(gaps[gaps["feature"] == feature], num_frames)
        for feature in np.unique(gaps["feature"]).tolist()
    }
    page_rows = row["pages"][0]
    kept_pages: list[Buffer] = []
    for column, (spec, page, item) in enumerate(
        zip(specs.values(), pages, page_ranges(row[0]), strict=True)
    ):
        if spec.is_dropped:
            page_rows[column] = np.zeros((), page_rows.dtype)
            presence[places[column]] = np.zeros(num_frames, np.bool_)
            row["external"] = 0  # a reference is the only page of its chunk
            kept_pages.append(b"")
        elif (actual := crc32c(page)) != (checksum := int(page_rows["crc32c"][column])):
            raise ChecksumError(
                "page does not match its checksum",
                offset=item.start,
                feature=spec.name,
                expected=f"CRC32C {checksum:08x}",
                got=f"{actual:08x}",
            )
        else:
            kept_pages.append(page)
    for column, spec in enumerate(specs.variable):
        if spec.is_dropped:
            row["largest"][0, column] = 0
    presence = dict(sorted(presence.items()))
    return StoredChunk(group, row, presence, (*kept_pages, slice_table(specs, kept_pages)))
