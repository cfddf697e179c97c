"""Reads chunks: which bytes a feature's page is, and whether they are those that were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, CodecError, FormatError
from seqrecord.format.index import Index
from seqrecord.format.manifest import MANIFEST
from seqrecord.format.pages import ALIGNMENT, num_slices, page_offsets, slice_sums, table_bytes
from seqrecord.reading.page import Chunk, Page, PageDecoder
from seqrecord.reading.raw_frames import RawFrames
from seqrecord.schema import Schema
from seqrecord.storage import Storage, forget_cached
from seqrecord.storage.ranges import ByteRange, coalesce

__all__ = ["Chunk", "ChunkReader", "Page"]

_NOTHING = memoryview(b"")
_UNCHECKED_BYTES = 64 << 20  # of a chunk: more is not asked for before the file is seen to hold it
_MAX_READ_BYTES = 16 << 20  # one range of one request; a chunk's pages are merged up to it


class ChunkReader(PageDecoder):
    """Reads and decodes pages of the chosen features. Safe to use from many threads at once.

    With `verify` every page is checked against its CRC32C when it is read.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Index,
        features: Schema,
        *,
        verify: bool = True,
    ) -> None:
        super().__init__(storage.url, index, features)
        self.verify = verify
        self._storage = storage
        self.is_local = storage.local_path(MANIFEST) is not None  # or else requests are slow
        self.paths = paths  # of the record files
        self._lengths: dict[str, int] = {}  # of record files, where it was looked at
        self._has_gaps: dict[int, bool] = {}  # by group, likewise
        numbers = {spec.group for spec in features.values()}
        self.raw = {
            n: RawFrames(
                storage, self.paths, index, n, features, verify=verify, is_local=self.is_local
            )
            for n in numbers
        }
        """What reads frames of the raw features of each group."""

    def has_gaps(self, group: int) -> bool:
        """Whether any frame lacks a chosen feature of a group."""
        if (found := self._has_gaps.get(group)) is None:
            table = self._index.groups[group]
            columns = [table.schema.position(n) for n in self.features if n in table.schema]
            found = bool(np.isin(table.gaps["feature"], table.features[columns]).any())
            self._has_gaps[group] = found
        return found

    def chunk_at(self, group: int, row: int, episode: int | None = None) -> Chunk:
        """The chunk at a row of a group's chunk table, which is one of `episode`."""
        table = self._index.groups[group]
        if episode is None:
            episode = table.episode_of(row)
        first, frames = int(table.first_frame[row]), int(table.num_frames[row])
        path = self.paths[int(table.file[row])]
        return Chunk(group, row, episode, first, frames, path, int(table.offset[row]))

    def pages(self, chunk: Chunk) -> list[Page]:
        """The pages of the chosen features of the chunk's group, in their order."""
        table, found = self._index.groups[chunk.group], {}
        lengths = table.page_length[chunk.row].tolist()
        starts = (chunk.offset + page_offsets(table.page_length[chunk.row])).tolist()
        sums = starts[-1]  # of the slices of raw pages, which lie behind the pages
        if sums - chunk.offset > _UNCHECKED_BYTES:
            self._check_length(chunk, sums)
        variable = 0
        for column, (name, spec) in enumerate(table.schema.items()):
            if name in self.features:
                largest = None if spec.is_fixed else int(table.largest_frame[chunk.row, variable])
                found[name] = Page(
                    feature=name,
                    chunk=chunk,
                    start=starts[column],
                    stop=starts[column] + lengths[column],
                    crc32c=int(table.page_crc32c[chunk.row, column]),
                    present=table.present(chunk.row, int(table.features[column])),
                    largest=largest,
                    sums=sums if spec.is_raw else None,
                )
            variable += not spec.is_fixed
            if spec.is_raw:
                sums += 4 * num_slices(spec, lengths[column] // spec.nbytes)
        return [found[name] for name in self.features if name in found]

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

    def read(
        self, pages: Sequence[Page], allocate: Callable[[int], memoryview] | None = None
    ) -> list[memoryview]:
        """The bytes of pages of one record file.

        Pages that lie together are read together, with the padding between them, in one call to
        the storage, into memory from `allocate`. Raises `ChecksumError` for a page that does not
        match its checksum.
        """
        if not pages:
            return []
        ranges = [ByteRange(page.start, page.stop) for page in pages]
        data = [_NOTHING] * len(pages)
        merged = coalesce(ranges, max_gap=ALIGNMENT - 1, max_length=_MAX_READ_BYTES)
        buffers = [(allocate or _fresh)(whole.length) for whole, _ in merged]
        for (whole, members), buffer in zip(merged, buffers, strict=True):
            for i in members:
                start, stop = ranges[i]
                data[i] = buffer[start - whole.start : stop - whole.start]
        path = pages[0].chunk.path
        self._storage.read_ranges(path, [whole for whole, _ in merged], buffers)
        if self.verify:
            for page, item in zip(pages, data, strict=True):
                self._verify(page, item)
        return [item.toreadonly() for item in data]

    def check_slices(self, page: Page, data: memoryview) -> None:
        """Raise `ChecksumError` unless the sums of a raw page's slices are those of its data."""
        assert page.sums is not None, "not a raw page"
        actual = slice_sums(self.features[page.feature], data)
        stored = np.empty_like(actual)
        item = ByteRange(page.sums, page.sums + stored.nbytes)
        self._storage.read_ranges(page.chunk.path, [item], [stored.view(np.uint8).data])
        if not np.array_equal(stored, actual):
            at = int(np.argmin(stored == actual))
            error = ChecksumError(
                "the checksums of a page's slices do not match it",
                offset=page.sums - page.start + 4 * at,
                expected=f"CRC32C {int(actual[at]):08x}",
                got=f"{int(stored[at]):08x}",
            )
            raise self._located(page, error)

    def read_frame(self, page: Page, frame: int) -> npt.NDArray[Any]:
        """One frame of a page that is neither raw nor video, read alone; nothing is checked."""
        codec, spec = self._codecs[page.feature], self.features[page.feature]
        count, position = page.num_present, page.position(frame)
        assert position is not None, "the frame lacks the feature"
        try:
            size = table_bytes(spec, count)
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

    def _verify(self, page: Page, data: memoryview) -> None:
        actual, place = crc32c(data), ByteRange(page.start, page.stop)
        # A cache may hold the page as it was damaged on its way: then it is read anew.
        if actual != page.crc32c and forget_cached(self._storage, page.chunk.path, [place]):
            self._storage.read_ranges(page.chunk.path, [place], [data])
            actual = crc32c(data)
        if actual != page.crc32c:
            error = ChecksumError(
                "a page does not match its checksum",
                expected=f"CRC32C {page.crc32c:08x}",
                got=f"{actual:08x}",
            )
            raise self._located(page, error)


def _fresh(length: int) -> memoryview:
    return np.empty(length, np.uint8).data
