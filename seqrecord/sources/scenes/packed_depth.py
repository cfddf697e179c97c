"""Depth of ScanNet++'s iPhone recordings, in one compressed file: `depth.bin`.

Forms of the file, by `iphone.prepare_iphone_data`, https://github.com/scannetpp/scannetpp:

- frames, each after its compressed size, uint32 little-endian: a block of LZ4, uint16 millimetres,
  or raw DEFLATE, float32 metres. The sizes give the place of each frame.
- one stream of raw DEFLATE, float32 metres. A frame needs all frames before it.

Frame n is that of the image `frame_n`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.base import ERRORS
from seqrecord.codecs.compressors import Lz4
from seqrecord.errors import SourceError
from seqrecord.originals.files import opened
from seqrecord.sources.scenes.views import Pixels

METRIC_NOTE = "float32 metres become whole millimetres, rounded down as by ScanNet++'s toolbox"

_SIZE = (192, 256)
_PIXELS = _SIZE[0] * _SIZE[1]
_MOST_BYTES = 5 * _PIXELS  # of a compressed frame
_BLOCK = 1 << 16
_REMEDY = "download it again, or extract it to depth/ with ScanNet++'s toolbox"

_Depth = npt.NDArray[np.uint16]


def packed_depth(path: Path, count: int) -> tuple[dict[str, Pixels], bool]:
    """Return the depth of `count` frames by name, uint16 [192, 256] in mm, and whether it was in m.

    Reads the sizes and decodes the first frame. Raises `SourceError` for damaged sizes, and for
    another number of frames; one stream only raises it when its frames are read.
    """
    try:
        places = list(_places(path))
    except SourceError:
        stream = _Stream(path, count)
        with suppress(SourceError):
            stream.frame(0)
            return _named(path, [partial(stream.frame, i) for i in range(count)]), True
        raise
    if len(places) != count:
        raise _other_count(count, len(places), path)
    is_metric = bool(places) and _frame(path, *places[0])[1]
    return _named(path, [partial(_depth, path, *place) for place in places]), is_metric


def _named(path: Path, reads: Sequence[Callable[[], _Depth]]) -> dict[str, Pixels]:
    every = (Pixels(path, np.uint16, read, _SIZE) for read in reads)
    return {f"frame_{number:06}": pixels for number, pixels in enumerate(every)}


def _places(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each compressed frame."""
    with opened(path) as file:
        at, end = 0, file.seek(0, os.SEEK_END)
        while at < end:
            file.seek(at)
            size, most = int.from_bytes(file.read(4), "little"), min(_MOST_BYTES, end - at - 4)
            if not 0 < size <= most:
                raise SourceError(
                    f"damaged or truncated depth; {_REMEDY}",
                    offset=at,
                    expected=f"the size of a frame, at most {most}",
                    got=size,
                )
            yield at + 4, size
            at += 4 + size


def _depth(path: Path, start: int, size: int) -> _Depth:
    return _frame(path, start, size)[0]


def _frame(path: Path, start: int, size: int) -> tuple[_Depth, bool]:
    """Decode a frame; return also whether it was in metres."""
    with opened(path) as file:
        file.seek(start)
        data = file.read(size)
        depth = np.empty(_SIZE, np.uint16)
        sized = depth.nbytes.to_bytes(4, "little") + data  # as numcodecs has it
        with suppress(*ERRORS):
            Lz4().decode_into(memoryview(sized), depth.reshape(-1).view(np.uint8))
            return depth, False
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        with _undamaged(start):
            pixels = stream.decompress(data, 4 * _PIXELS + 1)
            return _millimetres(pixels), True


@dataclass
class _Stream:
    """One compressed stream of `count` frames; frames in their order are decoded once."""

    path: Path
    count: int
    _next: int = 0
    _at: int = 0
    _decoder: Any = None

    def frame(self, number: int) -> _Depth:
        if number < self._next or self._decoder is None:
            self._next, self._at = 0, 0
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        with opened(self.path) as file, _undamaged(self._at):
            file.seek(self._at)
            data = bytearray()
            while self._next <= number:
                data = self._read(file, 4 * _PIXELS)
                if not data:
                    raise _other_count(self.count, self._next, self.path)
                self._next += 1
            if self._next == self.count and self._read(file, 1):
                raise _other_count(self.count, "more", self.path)
            return _millimetres(data)

    def _read(self, file: BinaryIO, size: int) -> bytearray:
        """Decode the next `size` bytes, fewer at the end."""
        found = bytearray()
        while len(found) < size and not self._decoder.eof:
            data = self._decoder.unconsumed_tail
            if not data:
                data = file.read(_BLOCK)
                self._at += len(data)
            part = self._decoder.decompress(data, size - len(found))
            if not data and not part:
                raise ValueError("the stream has no end")
            found += part
        return found


def _millimetres(data: bytes | bytearray) -> _Depth:
    """Convert float32 metres; values that uint16 has not are 0, no depth."""
    if len(data) != 4 * _PIXELS:
        raise ValueError(f"{len(data)} bytes, expected {4 * _PIXELS}")
    depth = np.frombuffer(data, "<f4").reshape(_SIZE) * np.float32(1000)
    return np.where((depth >= 0) & (depth < 1 << 16), depth, 0).astype(np.uint16)


@contextmanager
def _undamaged(offset: int) -> Iterator[None]:
    try:
        yield
    except (zlib.error, ValueError) as error:
        raise SourceError(f"damaged depth; {_REMEDY}", offset=offset, got=str(error)) from error


def _other_count(expected: int, got: object, path: Path) -> SourceError:
    message = f"another number of frames of depth than of poses; {_REMEDY}"
    return SourceError(message, file=str(path), expected=expected, got=got)
