"""Small chunks of raw pages, read into rows in few steps: for each one Python's share counts."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import ChunkBuffers
from seqrecord.engine.direct import spares
from seqrecord.engine.loads import Load
from seqrecord.format.pages import aligned
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.raw_chunks import RawChunk, RawChunks

__all__ = ["load_raw"]


def load_raw(
    reader: ChunkReader,
    buffers: ChunkBuffers,
    raw: RawChunks,
    chunk: RawChunk,
    load: Load,
    place: Place,
    step: int,
) -> bool:
    """Read a chunk's pages and have a load's frames, `step` apart, in the rows of a place.

    Whether that was done. It is not where pages do not match their checksums, or should not be read
    whole: then what is in the rows means nothing. The place has all frames of the load, in rows
    that follow each other, but for where a ring begins anew.
    """
    assert len(place.frames) == load.count, "a place for some frames of a load"
    count, row = load.count, int(place.rows[0])
    inside = load.first - chunk.first_frame
    if count < chunk.num_frames:
        parts = count if step > 1 else 1
        wanted = [count * spec.nbytes for spec in raw.specs]
        if any(
            spares(*some, parts, is_local=True) for some in zip(chunk.lengths, wanted, strict=True)
        ):
            return False
    arrays: list[Any] = [place.target[spec.name] for spec in raw.specs]
    if count == chunk.num_frames and int(place.rows[-1]) - row == count - 1:
        rows = [array[row : row + count].reshape(-1).view(np.uint8).data for array in arrays]
        return reader.read_raw(chunk, rows)
    *starts, end = accumulate(map(aligned, chunk.lengths), initial=0)
    memory = buffers.acquire(end)
    try:
        pages = [memory[at : at + n] for at, n in zip(starts, chunk.lengths, strict=True)]
        if not reader.read_raw(chunk, [page.data for page in pages]):
            return False
        for spec, array, page in zip(raw.specs, arrays, pages, strict=True):
            frames = page.view(spec.dtype).reshape(chunk.num_frames, *array.shape[1:])
            chosen = frames[inside : inside + (count - 1) * step + 1 : step]
            first = int(place.rows.argmin())  # of the frames in the ring's first rows
            before = first or count
            array[row : row + before] = chosen[:before]
            if first:
                begin = int(place.rows[first])
                array[begin : begin + count - first] = chosen[first:]
    finally:
        buffers.release(memory)
    return True
