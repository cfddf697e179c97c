"""Depth of ScanNet++'s iPhone recordings, in one compressed file: `depth.bin`.

By `iphone.prepare_iphone_data`, https://github.com/scannetpp/scannetpp, it has frames, each after
its compressed size, uint32 little-endian: a block of LZ4, uint16 millimetres, or raw DEFLATE,
float32 metres. Frame n is that of the image `frame_n`. Files of one stream are refused.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.sequences import DecodedFile
from seqrecord.in_place.files import opened
from seqrecord.store.codecs.base import ERRORS
from seqrecord.store.codecs.compressors import Lz4

METRIC_NOTE = "float32 metres become whole millimetres, rounded down as by ScanNet++'s toolbox"

_SIZE = (192, 256)
_PIXELS = _SIZE[0] * _SIZE[1]
_MOST_BYTES = 5 * _PIXELS  # of a compressed frame
_REMEDY = "download it again, or extract it to depth/ with ScanNet++'s toolbox"

_Depth = npt.NDArray[np.uint16]


def packed_depth(path: Path, count: int) -> tuple[dict[str, DecodedFile], bool]:
    """Return the depth of `count` frames by name, uint16 [192, 256] in mm, and whether it was in m.

    Reads the sizes and decodes the first frame. Raises `SourceError` for damaged sizes, one stream,
    and another number of frames.
    """
    places = list(_places(path))
    if len(places) != count:
        raise SourceError(
            f"another number of frames of depth than of poses; {_REMEDY}",
            file=str(path),
            expected=count,
            got=len(places),
        )
    frames = {
        f"frame_{number:06}": DecodedFile(
            path, np.uint16, lambda: _SIZE, partial(_depth, path, *place)
        )
        for number, place in enumerate(places)
    }
    return frames, bool(places) and _frame(path, *places[0])[1]


def _places(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each compressed frame."""
    with opened(path) as file:
        at, end = 0, file.seek(0, os.SEEK_END)
        while at < end:
            file.seek(at)
            size, max_size = int.from_bytes(file.read(4), "little"), min(_MOST_BYTES, end - at - 4)
            if not 0 < size <= max_size:
                raise SourceError(
                    f"damaged or truncated depth; {_REMEDY}",
                    offset=at,
                    expected=f"the size of a frame, at most {max_size}",
                    got=size,
                )
            yield at + 4, size
            at += 4 + size


def _depth(path: Path, start: int, size: int, _exif: str | None) -> _Depth:
    return _frame(path, start, size)[0]


def _frame(path: Path, start: int, size: int) -> tuple[_Depth, bool]:
    """Decode a frame; return also whether it was in metres."""
    with opened(path) as file:
        file.seek(start)
        data = file.read(size)
        depth = np.empty(_SIZE, np.uint16)
        sized_data = depth.nbytes.to_bytes(4, "little") + data  # as numcodecs has it
        with suppress(*ERRORS):
            Lz4().decode_into(memoryview(sized_data), depth.reshape(-1).view(np.uint8))
            return depth, False
        try:
            stream = zlib.decompressobj(-zlib.MAX_WBITS)
            return _millimetres(stream.decompress(data, 4 * _PIXELS + 1)), True
        except (zlib.error, ValueError) as error:
            raise SourceError(f"damaged depth; {_REMEDY}", offset=start, got=str(error)) from error


def _millimetres(data: bytes) -> _Depth:
    """Convert float32 metres; values that uint16 has not are 0, no depth."""
    if len(data) != 4 * _PIXELS:
        raise ValueError(f"{len(data)} bytes, expected {4 * _PIXELS}")
    depth = np.frombuffer(data, "<f4").reshape(_SIZE) * np.float32(1000)
    return np.where((depth >= 0) & (depth < 1 << 16), depth, 0).astype(np.uint16)
