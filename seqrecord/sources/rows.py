"""Rows of large arrays in files, read in blocks that hold whole chunks of the file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.schema import MAX_FRAME_BYTES

__all__ = ["first_line", "read_rows"]

_BLOCK_BYTES = 8 << 20  # read at once, unless a chunk of the file is larger
_CHUNK_BYTES = 64 << 20  # a chunk that is larger is read piece by piece


def read_rows(array: Any, path: Path, start: int, stop: int) -> Iterator[Any]:
    """Rows `start` up to `stop` of an array of h5py or zarr, each chunk decompressed once.

    It has `shape`, `dtype`, `name` and `chunks`, which is `None` where its values lie as one run.
    Raises `SourceError` for what cannot be read or decompressed.
    """
    row_bytes = max(1, array.dtype.itemsize * math.prod(array.shape[1:]))
    if row_bytes > MAX_FRAME_BYTES:  # whatever a file claims is not allocated
        raise SourceError(
            f"rows of {array.name} that are too large",
            file=str(path),
            expected=f"at most {MAX_FRAME_BYTES} bytes",
            got=f"{row_bytes} bytes",
        )
    block = max(1, _BLOCK_BYTES // row_bytes)
    if array.chunks is not None:
        chunk = int(array.chunks[0])
        block = block - block % chunk or min(chunk, max(1, _CHUNK_BYTES // row_bytes))
    first = start
    while first < stop:
        last = min(first - first % block + block, stop)
        try:
            rows = array[first:last]
        except Exception as error:  # the libraries, and each codec, raise about any kind
            raise SourceError(
                f"{array.name}[{first}:{last}] cannot be read",
                file=str(path),
                got=first_line(error),
            ) from error
        yield from rows
        first = last


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
