"""Fetches a chunk's pages: into memory as they are stored, or straight into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import ChunkBuffers
from seqrecord.engine.chunk_errors import ChunkErrors
from seqrecord.engine.direct import Direct, find_slices, parts_of, whole_pages
from seqrecord.engine.load_frames import LoadFrames, all_present
from seqrecord.engine.loads import Load
from seqrecord.format.pages import aligned
from seqrecord.reading.chunks import Chunk, ChunkReader, Page

__all__ = ["Fetched", "PageFetcher"]


@dataclass(frozen=True, eq=False)
class Fetched:
    """A chunk's pages as they are stored, but for those that were read straight into rows."""

    chunk: Chunk
    pages: Sequence[Page]  # also those
    data: Mapping[str, memoryview]  # by feature, in `buffer`
    buffer: npt.NDArray[np.uint8]
    nbytes: int  # that were read
    others: Sequence[Fetched] = ()  # chunks of other groups, for a transform of whole frames


class PageFetcher:
    """Reads pages into memory from `buffers`, from many threads at once."""

    def __init__(
        self, reader: ChunkReader, buffers: ChunkBuffers, frames: LoadFrames, errors: ChunkErrors
    ) -> None:
        self._reader = reader
        self._buffers = buffers
        self._frames = frames
        self._errors = errors

    def read(self, chunk: Chunk, pages: Sequence[Page], direct: Direct) -> Fetched:
        """Read pages of a chunk, what is in `direct` straight into rows; `release` the others."""
        in_part = {part.page.feature for part in direct.parts}
        whole = [page for page in pages if page.feature not in in_part]
        shared = [page for page in whole if page.feature not in direct.whole]
        buffer = self._buffers.acquire(sum(aligned(page.stop - page.start) for page in shared))
        used = 0

        def allocate(length: int) -> memoryview:
            nonlocal used
            used += length
            return buffer[used - length : used].data

        try:
            with self._errors.naming(chunk):
                data = self._reader.read(whole, into=direct.whole, allocate=allocate)
                nbytes = sum(page.stop - page.start for page in whole)
                nbytes += self._reader.read_parts(direct.parts)
        except BaseException:
            self._buffers.release(buffer)
            raise
        read = dict(zip((page.feature for page in whole), data, strict=True))
        for name in direct.features:
            read.pop(name, None)
        return Fetched(chunk, pages, read, buffer, nbytes)

    def release(self, fetched: Fetched) -> None:
        """Give back the memory of chunks that were read together."""
        for part in (fetched, *fetched.others):
            self._buffers.release(part.buffer)

    def direct(
        self, load: Load, chunk: Chunk, pages: Sequence[Page], places: Sequence[Place]
    ) -> Direct:
        """What of a load's chunk is read straight into the rows of its places; nothing without."""
        if not places:
            return Direct({}, ())
        features, is_local = self._reader.features, self._reader.is_local
        if load.count == chunk.num_frames:
            whole = whole_pages(pages, features, places, is_local=is_local)
            if whole:
                return Direct(whole, ())
        frames = self._frames.of(load)
        inside, parts = frames - chunk.first_frame, []
        for some in self._frames.alike(pages):
            slices = find_slices(places, all_present(chunk, some, frames))
            parts += parts_of(some, features, inside, slices, is_local=is_local)
        return Direct({}, parts)
