"""Reads chunks: which bytes a feature's page is, checked, and the frames in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, CodecError, FormatError
from seqrecord.format.index import Index
from seqrecord.format.manifest import MANIFEST, Manifest
from seqrecord.format.pages import ALIGNMENT, PageCodec, page_offsets, table_bytes
from seqrecord.schema import Schema
from seqrecord.storage import Storage, forget_cached
from seqrecord.storage.ranges import ByteRange, coalesce

__all__ = ["Chunk", "ChunkReader", "Page"]

_NOTHING = memoryview(b"")
_UNCHECKED_BYTES = 64 << 20  # of a chunk: more is not asked for before the file is seen to hold it
_BLOCK_BYTES = 2 << 20  # read, then summed while the cache has it; less would be many calls
_MAX_READ_BYTES = 16 << 20  # one range of one request; a chunk's pages are merged up to it


@dataclass(frozen=True)
class Chunk:
    """Where a chunk lies and whose frames it holds: `[first_frame, first_frame + num_frames)`."""

    row: int
    episode: int
    first_frame: int
    num_frames: int
    path: str
    offset: int


@dataclass(frozen=True)
class Page:
    """A page's place in its record file, and its bytes once they are read."""

    feature: str
    chunk: Chunk
    start: int
    stop: int
    crc32c: int
    present: int  # validity bitmap: bit i is set where frame i of the chunk has the feature
    largest: int | None  # bytes of its largest frame, decoded; `None` for a fixed shape

    @property
    def num_present(self) -> int:
        return self.present.bit_count()

    def position(self, frame: int) -> int | None:
        """Position in the page of frame `frame` of the chunk, `None` if it lacks the feature."""
        if not self.present >> frame & 1:
            return None
        return (self.present & ((1 << frame) - 1)).bit_count()


class ChunkReader:
    """Reads and decodes pages of the chosen features. Safe to use from many threads at once.

    With `verify` every page is checked against its CRC32C when it is read.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        index: Index,
        features: Schema,
        *,
        verify: bool = True,
    ) -> None:
        self.features = features
        self.verify = verify
        self._storage = storage
        self.is_local = storage.local_path(MANIFEST) is not None  # or else requests are slow
        self._paths = [file.path for file in manifest.record_files]
        self._index = index
        self._lengths: dict[str, int] = {}  # of record files, where it was looked at
        self._columns = {name: index.schema.position(name) for name in features}
        self._variable = {spec.name: column for column, spec in enumerate(index.schema.variable)}
        self._codecs = {name: PageCodec(spec) for name, spec in features.items()}

    def chunk(self, episode: int, number: int) -> Chunk:
        """Chunk `number` of an episode, counted from its first."""
        index = self._index
        row = int(index.first_chunk[episode]) + number
        size = int(index.chunk_frames[episode])
        first = number * size
        frames = min(size, int(index.num_frames[episode]) - first)
        path = self._paths[int(index.file[row])]
        return Chunk(row, episode, first, frames, path, int(index.offset[row]))

    def chunk_at(self, row: int, episode: int) -> Chunk:
        """The chunk at a row of the chunk table, which is one of `episode`."""
        return self.chunk(episode, row - int(self._index.first_chunk[episode]))

    def path_of(self, chunk: Chunk) -> str:
        """The chunk's record file, as errors name it."""
        return f"{self._storage.url}/{chunk.path}"

    def pages(self, chunk: Chunk) -> list[Page]:
        """The pages of the chosen features, in their order."""
        lengths = self._index.page_length[chunk.row]
        offsets = page_offsets(lengths)
        if offsets[-1] > _UNCHECKED_BYTES:
            self._check_length(chunk, chunk.offset + int(offsets[-1]))
        return [
            Page(
                feature=name,
                chunk=chunk,
                start=chunk.offset + int(offsets[column]),
                stop=chunk.offset + int(offsets[column]) + int(lengths[column]),
                crc32c=int(self._index.page_crc32c[chunk.row, column]),
                present=self._index.present(chunk.row, column, chunk.num_frames),
                largest=self._largest(chunk, name),
            )
            for name, column in self._columns.items()
        ]

    def _check_length(self, chunk: Chunk, stop: int) -> None:
        """Raise `FormatError` for a chunk outside its file, before memory for it is asked for."""
        if self._lengths.get(chunk.path, 0) < stop:
            self._lengths[chunk.path] = self._storage.size(chunk.path)
        if (length := self._lengths[chunk.path]) < stop:
            raise FormatError(
                "a chunk outside its record file",
                file=self.path_of(chunk),
                offset=chunk.offset,
                expected=f"at least {stop} bytes",
                got=f"{length} bytes",
            )

    def _largest(self, chunk: Chunk, feature: str) -> int | None:
        column = self._variable.get(feature)
        return None if column is None else int(self._index.largest_frame[chunk.row, column])

    def read(
        self,
        pages: Sequence[Page],
        *,
        into: Mapping[str, Sequence[memoryview]] | None = None,
        allocate: Callable[[int], memoryview] | None = None,
    ) -> list[memoryview]:
        """The bytes of pages of one record file.

        Pages that lie together are read together, with the padding between them, in one call to
        the storage, into memory from `allocate`. Pages of the features in `into` are read straight
        into that memory instead, part after part; nothing is returned for them.
        Raises `ChecksumError` for a page that does not match its checksum.
        """
        if not pages:
            return []
        into = into or {}
        ranges = [ByteRange(page.start, page.stop) for page in pages]
        data = [_NOTHING] * len(pages)
        shared = [i for i, page in enumerate(pages) if page.feature not in into]
        merged = coalesce(
            [ranges[i] for i in shared], max_gap=ALIGNMENT - 1, max_length=_MAX_READ_BYTES
        )
        buffers = [(allocate or _fresh)(whole.length) for whole, _ in merged]
        for (whole, members), buffer in zip(merged, buffers, strict=True):
            for i in (shared[member] for member in members):
                start, stop = ranges[i]
                data[i] = buffer[start - whole.start : stop - whole.start]
        path = pages[0].chunk.path
        if merged:
            self._storage.read_ranges(path, [whole for whole, _ in merged], buffers)
            if self.verify:
                for i in shared:
                    self._verify(pages[i], crc32c(data[i]), [data[i]])
        for page in pages:
            if page.feature in into:
                self._read_straight(page, into[page.feature])
        return [item.toreadonly() for item in data]

    def _read_straight(self, page: Page, targets: Sequence[memoryview]) -> None:
        """Read a page into `targets`, which are as long as it is, and verify it.

        From a local disk that is done block by block: the processor's cache still holds a block
        when its checksum is taken, and memory is spared a reading.
        """
        assert sum(map(len, targets)) == page.stop - page.start, "the targets do not fit the page"
        block = _BLOCK_BYTES if self.verify and self.is_local else 0
        parts = [part for target in targets for part in _cut(target, block)]
        ends = list(accumulate(map(len, parts), initial=page.start))
        ranges = list(map(ByteRange, ends, ends[1:]))
        path, actual = page.chunk.path, 0
        if not block:
            self._storage.read_ranges(path, ranges, parts)
        for item, part in zip(ranges, parts, strict=True):
            if block:
                self._storage.read_ranges(path, [item], [part])
            if self.verify:
                actual = crc32c(part, start=actual)
        if self.verify:
            self._verify(page, actual, targets)

    def decode(
        self,
        page: Page,
        data: memoryview,
        frames: Sequence[int] | range,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into `out[i]`.

        All of them have the feature. Raises `FormatError` or `CodecError` that names file, offset,
        episode and feature.
        """
        positions: Sequence[int] | range = frames
        if page.num_present != page.chunk.num_frames:
            positions = [p for frame in frames if (p := page.position(frame)) is not None]
            assert len(positions) == len(frames), "a frame lacks the feature"
        try:
            self._codecs[page.feature].decode_into(data, page.num_present, out, positions)
        except (CodecError, FormatError) as error:
            raise self._located(page, error) from error.__cause__

    def decode_frame(
        self, pages: Sequence[Page], data: Sequence[memoryview], frame: int
    ) -> dict[str, npt.NDArray[Any]]:
        """One frame, counted from the chunk's first, as fresh arrays; it lacks none of the pages'
        features."""
        arrays = {}
        for page, item in zip(pages, data, strict=True):
            shape = self.shapes(page, item)[page.position(frame) or 0]
            arrays[page.feature] = np.empty(shape, self.features[page.feature].dtype)
            self.decode(page, item, [frame], [arrays[page.feature]])
        return arrays

    def shapes(self, page: Page, data: memoryview) -> list[tuple[int, ...]]:
        """Shapes of the frames in a page, in its order, as the index says of the largest."""
        try:
            shapes = self._codecs[page.feature].shapes(data, page.num_present)
            self._check_largest(page, shapes, is_whole=True)
        except FormatError as error:
            raise self._located(page, error) from error.__cause__
        return shapes

    def _check_largest(
        self, page: Page, shapes: Sequence[tuple[int, ...]], *, is_whole: bool
    ) -> None:
        """Raise `FormatError` for frames that are larger than memory was counted for."""
        if page.largest is None or not shapes:
            return
        found = max(map(math.prod, shapes)) * self.features[page.feature].dtype.itemsize
        if found > page.largest or (is_whole and found != page.largest):
            raise FormatError(
                "the largest frame of a page is not as large as the index says",
                expected=f"{page.largest} bytes",
                got=f"{found} bytes",
            )

    def read_frame(self, page: Page, frame: int) -> npt.NDArray[Any]:
        """One frame of a page, with as few bytes read as possible: its checksum is not compared."""
        codec, count = self._codecs[page.feature], page.num_present
        position = page.position(frame)
        assert position is not None, "the frame lacks the feature"
        spec = self.features[page.feature]
        try:
            size = 0 if spec.is_raw else table_bytes(spec, count)
            if size > page.stop - page.start:
                raise FormatError("a page is too short for its table", got=page.stop - page.start)
            table = self._read_part(page, 0, size)
            start, stop = codec.blob_range(count, position, table)
            if page.start + stop > page.stop:
                raise FormatError("a frame outside its page", offset=start, got=(start, stop))
            shape = codec.shape_of(count, position, table)
            self._check_largest(page, [shape], is_whole=False)
            out = np.empty(shape, spec.dtype)
            codec.decode_blob(self._read_part(page, start, stop), out)
        except (CodecError, FormatError) as error:
            raise self._located(page, error) from error.__cause__
        return out

    def _read_part(self, page: Page, start: int, stop: int) -> memoryview:
        data = np.empty(stop - start, np.uint8).data
        if stop > start:
            item = ByteRange(page.start + start, page.start + stop)
            self._storage.read_ranges(page.chunk.path, [item], [data])
        return data

    def _verify(self, page: Page, actual: int, data: Sequence[memoryview]) -> None:
        if actual != page.crc32c and self._read_again(page, data):
            actual = crc32c(*data)
        if actual != page.crc32c:
            error = ChecksumError(
                "a page does not match its checksum",
                expected=f"CRC32C {page.crc32c:08x}",
                got=f"{actual:08x}",
            )
            raise self._located(page, error)

    def _read_again(self, page: Page, data: Sequence[memoryview]) -> bool:
        """Whether a cache may hold the page as it was damaged on its way; then it is read anew."""
        storage, path = self._storage, page.chunk.path
        if not forget_cached(storage, path, [ByteRange(page.start, page.stop)]):
            return False
        ends = list(accumulate(map(len, data), initial=page.start))
        storage.read_ranges(path, list(map(ByteRange, ends, ends[1:])), data)
        return True

    def _located(self, page: Page, error: CodecError | FormatError) -> CodecError | FormatError:
        """The error with what is known of its place; offsets count from the file's start."""
        error.offset = page.start + (error.offset or 0)
        key = self._index.keys[page.chunk.episode].as_py()
        first, last = page.chunk.first_frame, page.chunk.first_frame + page.chunk.num_frames - 1
        error.located(
            file=self.path_of(page.chunk),
            episode=f"{key} (frames {first} to {last})",
            feature=page.feature,
        )
        return error


def _cut(target: memoryview, block: int) -> list[memoryview]:
    """The target in blocks of so many bytes, 0 for any."""
    return [target[at : at + block] for at in range(0, len(target), block)] if block else [target]


def _fresh(length: int) -> memoryview:
    return np.empty(length, np.uint8).data
