"""Checked reading of `.flo`, PFM and OpenEXR files: pixels that are floating-point numbers.

`.flo` is Middlebury's flow, https://vision.middlebury.edu/flow/code/flow-code/README.txt. PFM is
https://netpbm.sourceforge.net/doc/pfm.html. OpenEXR files are read by the library OpenEXR, an
optional extra. A header is compared with the file's size before anything is allocated.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, StorageError
from seqrecord.lazy import required
from seqrecord.schema import MAX_FRAME_BYTES
from seqrecord.sources.embedded import first_line
from seqrecord.sources.files import (
    check_array,
    on_disk,
    open_file,
    read_values,
    size_of,
    unreadable,
)

__all__ = ["RASTER_ENDINGS", "RasterHeader", "raster_header", "read_raster"]

_FLO_MAGIC = b"PIEH"  # the float 202021.25
_PFM = re.compile(rb"(PF|Pf)\s+(\d{1,9})\s+(\d{1,9})\s+(-?[\d.]+(?:[eE][+-]?\d+)?)\s")
_PFM_HEADER = 128  # bytes that a PFM's header may take
_EXR_MAGIC = b"\x76\x2f\x31\x01"
_EXR_HEADER = 1 << 16  # bytes that an OpenEXR's attributes may take
_EXR_UNREAD = 0x18  # flags: deep data, several parts
_EXR_COLOURS = (("R", "G", "B"), ("R", "G", "B", "A"))
_EXR_DTYPES = {"uint": "<u4", "half": "<f2", "float": "<f4"}  # in the order of their numbers


@dataclass(frozen=True)
class RasterHeader:
    """What a file declares: `shape` is [H, W] or [H, W, C], `offset` where a flo's or PFM's values
    begin, in rows from the bottom up if `is_flipped`. `channels` are an EXR's, in their order.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    is_flipped: bool = False
    channels: tuple[str, ...] = ()


def raster_header(path: Path) -> RasterHeader:
    """The header, which agrees with the file's size; raises `SourceError` otherwise."""
    try:
        header = _HEADERS[path.suffix.lower()](path)
    except OSError as error:
        raise unreadable(path, error) from error
    nbytes = header.dtype.itemsize * math.prod(header.shape)
    if 0 in header.shape or nbytes > MAX_FRAME_BYTES:
        raise SourceError(
            "an image of an impossible size",
            file=str(path),
            expected=f"1 to {MAX_FRAME_BYTES} bytes of pixels",
            got=list(header.shape),
        )
    if header.offset and size_of(path) != header.offset + nbytes:
        raise SourceError(
            "an image whose size is not what its header declares",
            file=str(path),
            expected=f"{header.offset + nbytes} bytes for {list(header.shape)}",
            got=f"{size_of(path)} bytes",
        )
    return header


def read_raster(path: Path) -> npt.NDArray[Any]:
    """The pixels, rows from the top down.

    `.flo`: float32 [H, W, 2], pixels to the right and down; unknown flow is above 1e9, as stored.
    PFM: float32 [H, W] or [H, W, 3], as stored: the header's scale is not applied. OpenEXR:
    float16, float32 or uint32, [H, W] of one channel, [H, W, 3] or [H, W, 4] of R, G, B and A.

    Raises `SourceError` for a file that cannot be read, is cut, or holds anything else.
    """
    header = raster_header(path)
    if header.channels:
        return _read_exr(path, header)
    count = math.prod(header.shape)
    try:
        with open_file(path) as stream:
            stream.seek(header.offset)
            values = read_values(stream, header.dtype, count)
    except OSError as error:
        raise unreadable(path, error) from error
    if values.size != count:  # cut since the header was checked
        raise SourceError("a truncated image", file=str(path), expected=count, got=values.size)
    pixels = values.reshape(header.shape)
    rows = pixels[::-1] if header.is_flipped else pixels
    return np.ascontiguousarray(rows, header.dtype.newbyteorder("<"))


def _flo_header(path: Path) -> RasterHeader:
    with open_file(path) as stream:
        head = stream.read(12)
    if len(head) < 12 or head[:4] != _FLO_MAGIC:
        raise SourceError("not a .flo file", file=str(path), expected="PIEH", got=repr(head[:4]))
    width, height = (int.from_bytes(head[i : i + 4], "little", signed=True) for i in (4, 8))
    return RasterHeader(np.dtype("<f4"), (max(height, 0), max(width, 0), 2), 12)


def _pfm_header(path: Path) -> RasterHeader:
    with open_file(path) as stream:
        found = _PFM.match(stream.read(_PFM_HEADER))
    scale = float(found[4]) if found and found[4].count(b".") < 2 else 0.0
    if found is None or scale == 0 or not math.isfinite(scale):
        raise SourceError(
            "not a PFM file", file=str(path), expected="PF or Pf, width, height, scale"
        )
    size = (int(found[3]), int(found[2]))
    shape = (*size, 3) if found[1] == b"PF" else size
    dtype: np.dtype[Any] = np.dtype("<f4" if scale < 0 else ">f4")
    return RasterHeader(dtype, shape, found.end(), is_flipped=True)


def _exr_header(path: Path) -> RasterHeader:
    """From the attributes; https://openexr.com/en/latest/OpenEXRFileLayout.html."""
    with open_file(path) as stream:
        data = stream.read(_EXR_HEADER)
    flags = int.from_bytes(data[4:8], "little") >> 8
    if data[:4] != _EXR_MAGIC or flags & _EXR_UNREAD:
        raise SourceError(
            "not an OpenEXR file of one flat image",
            file=str(path),
            expected="neither deep nor of several parts",
            got=repr(data[:8]),
        )
    try:
        attributes = _exr_attributes(data)
        left, top, right, bottom = struct.unpack("<4i", attributes["dataWindow"])
        found = dict(_exr_channels(attributes["channels"]))
    except (ValueError, LookupError, struct.error) as error:
        raise SourceError("a damaged OpenEXR header", file=str(path)) from error
    names = next((c for c in _EXR_COLOURS if found.keys() == set(c)), tuple(found))
    kinds = set(found.values())
    if len(kinds) != 1 or (len(names) > 1 and names not in _EXR_COLOURS):
        raise SourceError(
            "OpenEXR channels that are not one image",
            file=str(path),
            expected="one channel, or R, G, B and perhaps A, of one kind and not subsampled",
            got=", ".join(f"{name} ({kind})" for name, kind in found.items())[:200],
        )
    (dtype,) = kinds
    if dtype not in _EXR_DTYPES:
        raise SourceError("subsampled OpenEXR channels", file=str(path), got=dtype)
    size = (max(0, bottom - top + 1), max(0, right - left + 1))
    shape = (*size, len(names)) if len(names) > 1 else size
    return RasterHeader(np.dtype(_EXR_DTYPES[dtype]), shape, channels=names)


def _exr_attributes(data: bytes) -> dict[str, bytes]:
    """Values by name: each is name, type, size and value."""
    found = {}
    position = 8
    while data[position] != 0:
        end_of_name = data.index(b"\0", position)
        end_of_type = data.index(b"\0", end_of_name + 1)
        (size,) = struct.unpack_from("<I", data, end_of_type + 1)
        begin = end_of_type + 5
        if begin + size >= len(data):
            raise ValueError("cut")
        found[data[position:end_of_name].decode("latin-1")] = data[begin : begin + size]
        position = begin + size
    return found


def _exr_channels(data: bytes) -> Iterator[tuple[str, str]]:
    """Name and kind of each channel; a subsampled one's kind says so."""
    position = 0
    while data[position] != 0:
        end = data.index(b"\0", position)
        kind, _, across, down = struct.unpack_from("<4i", data, end + 1)
        name = dict(enumerate(_EXR_DTYPES)).get(kind, f"kind {kind}")
        sampled = name if (across, down) == (1, 1) else f"{name}, every {across} by {down}"
        yield data[position:end].decode("latin-1"), sampled
        position = end + 17


def _read_exr(path: Path, header: RasterHeader) -> npt.NDArray[Any]:
    said = "OpenEXR images are read by OpenEXR, the extra `exr`: pip install OpenEXR"
    exr = required("OpenEXR", said)
    try:
        with on_disk(path) as file:
            found = exr.File(str(file), separate_channels=True).channels()
            planes = [np.asarray(found[name].pixels) for name in header.channels]
    except StorageError:  # it cannot be copied
        raise
    except Exception as error:  # the library raises about any kind
        raise SourceError(
            "an OpenEXR file that cannot be decoded", file=str(path), got=first_line(error)
        ) from error
    for plane in planes:
        check_array(plane.dtype, plane.shape, header.dtype, header.shape[:2], path)
    return np.ascontiguousarray(np.stack(planes, axis=-1)).reshape(header.shape)


_HEADERS: dict[str, Callable[[Path], RasterHeader]] = {
    ".flo": _flo_header,
    ".pfm": _pfm_header,
    ".exr": _exr_header,
}

RASTER_ENDINGS = frozenset(_HEADERS)
"""File name endings, lower case."""
