"""PNG as TartanAir's own files are, including what Pillow cannot write: 16-bit colour.

V1's images are Paeth-filtered and stored without compression. V2's files are what OpenCV writes by
default: sub-filtered, zlib level 1 with run lengths only. Decoding costs follow from that, so
benchmarks on generated files need the same.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["decode_png16", "encode_png"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPE = {1: 0, 3: 2, 4: 6}  # channels to grey, RGB, RGBA


def encode_png(
    pixels: npt.NDArray[Any], *, row_filter: Literal["sub", "paeth"], compress: bool
) -> bytes:
    """A PNG of uint8 or uint16 pixels: [H, W], [H, W, 3] (RGB) or [H, W, 4] (RGBA)."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    depth = pixels.dtype.itemsize
    stored = pixels.astype(">u2") if depth == 2 else pixels
    rows = np.ascontiguousarray(stored).view(np.uint8).reshape(height, -1)
    lines = np.empty((height, 1 + rows.shape[1]), np.uint8)
    step = channels * depth  # bytes to the pixel on the left
    if row_filter == "sub":
        lines[:, 0] = 1
        lines[:, 1 : 1 + step] = rows[:, :step]
        np.subtract(rows[:, step:], rows[:, :-step], out=lines[:, 1 + step :])
    else:
        lines[:, 0] = 4
        np.subtract(rows, _paeth(rows, step), out=lines[:, 1:])
    if compress:
        deflate = zlib.compressobj(1, zlib.DEFLATED, 15, 8, zlib.Z_RLE)
    else:
        deflate = zlib.compressobj(0)
    body = deflate.compress(lines.data) + deflate.flush()
    header = struct.pack(">IIBBBBB", width, height, 8 * depth, _COLOUR_TYPE[channels], 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def decode_png16(data: bytes) -> npt.NDArray[np.uint16]:
    """Inverse of `encode_png` for 16-bit RGB with the sub filter, which is how V2 stores flow."""
    position, packed, width, height = len(_SIGNATURE), b"", 0, 0
    while position < len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + size]
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", body)
            if rest != [16, 2, 0, 0, 0]:
                raise ValueError("not a 16-bit RGB PNG without interlacing")
        elif kind == b"IDAT":
            packed += body
        position += 12 + size
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 6 * width)
    if (lines[:, 0] != 1).any():
        raise ValueError("a row of the PNG is not sub-filtered")
    pixels = np.cumsum(lines[:, 1:].reshape(height, width, 6), axis=1, dtype=np.uint8)
    return pixels.view(">u2").astype(np.uint16)


def _paeth(rows: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.uint8]:
    """Each byte's prediction: whichever of left, up and corner is nearest to left + up - corner."""
    padded = np.zeros((rows.shape[0] + 1, rows.shape[1] + step), np.int16)
    padded[1:, step:] = rows
    left, up, corner = padded[1:, :-step], padded[:-1, step:], padded[:-1, :-step]
    to_left, to_up = up - corner, left - corner
    to_corner = np.abs(to_left + to_up)
    np.abs(to_left, out=to_left)
    np.abs(to_up, out=to_up)
    vertical = np.where(to_up <= to_corner, up, corner)
    use_left = (to_left <= to_up) & (to_left <= to_corner)
    return np.where(use_left, left, vertical).astype(np.uint8)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
