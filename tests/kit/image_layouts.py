"""Image files of every layout of TIFF and PNG, with their names and values."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.tiff_files import DEFLATE, LZW, PACKBITS, RAW, tiff_file

Array = npt.NDArray[Any]
Read = Iterator[tuple[str, bytes, Array]]

RNG = np.random.default_rng(0)


def pixels_of(dtype: str, *shape: int, most: int | None = None) -> Array:
    if dtype[0] == "f":
        return RNG.uniform(-9, 9, shape).astype(dtype)
    limits = np.iinfo(dtype)
    end = limits.max if most is None else most
    return RNG.integers(limits.min if most is None else 0, end, shape, dtype, endpoint=True)


def tiff_layouts() -> Read:
    """Each with a name: all pairs of layouts that TIFF allows."""
    dtypes = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8")
    for order, compression, dtype in itertools.product("<>", (RAW, LZW, DEFLATE, PACKBITS), dtypes):
        kinds = [1, 3 if dtype[0] == "f" else 2] if compression in (LZW, DEFLATE) else [1]
        for predictor, channels, form in itertools.product(kinds, (1, 2, 3, 4), range(4)):
            pixels = pixels_of(dtype, 5, 7, *((channels,) if channels > 1 else ()))
            has_planes = form == 1
            if has_planes and channels == 1:
                continue
            rows, tile = (2 if form == 2 else None), (16 if form == 3 else None)
            name = f"{order}{dtype} {compression=} {predictor=} {channels=} {form=}"
            data = tiff_file(
                pixels,
                order,
                compression=compression,
                predictor=predictor,
                has_planes=has_planes,
                rows=rows,
                tile=tile,
            )
            yield name, data, pixels
    for order, dtype, compression in itertools.product("<>", ("u1", "u2"), (RAW, DEFLATE)):
        for extra, channels in itertools.product((0, 1, 2), (2, 4)):
            pixels = pixels_of(dtype, 5, 7, channels)
            data = tiff_file(pixels, order, compression=compression, t338=[extra])
            yield f"{order}{dtype} {compression=} {extra=} {channels=}", data, pixels
    for order, dtype, compression, has_planes in itertools.product(
        "<>", ("u1", "u2"), (RAW, LZW, DEFLATE), (False, True)
    ):
        pixels = pixels_of(dtype, 5, 7, 4)
        data = tiff_file(pixels, order, compression=compression, has_planes=has_planes, t338=[])
        yield f"{order}{dtype} {compression=} {has_planes=} without extra", data, pixels


def png(pixels: Array, bits: int, colour: int, *more: tuple[bytes, bytes]) -> bytes:
    height, width = pixels.shape[:2]
    values = pixels.astype(">u2" if bits == 16 else "u1")
    rows = [row.tobytes() for row in values]
    if bits < 8:
        spread = np.unpackbits(values.reshape(height, width, 1), axis=2)[..., 8 - bits :]
        rows = [np.packbits(row.reshape(-1)).tobytes() for row in spread]
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    found = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), *more, (b"IDAT", body), (b"IEND", b"")):
        found += struct.pack(">I", len(data)) + name + data
        found += struct.pack(">I", zlib.crc32(name + data))
    return found


def png_layouts() -> Read:
    """All colour types and depths, with a transparent colour and without; few bits are scaled."""
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    channels = {0: (), 2: (3,), 3: (), 4: (2,), 6: (4,)}
    for colour, bits in [(n, bits) for n, depth in depths.items() for bits in depth]:
        dtype = "u2" if bits == 16 else "u1"
        pixels = pixels_of(dtype, 5, 7, *channels[colour], most=2**bits - 1)
        want = pixels
        if colour == 0 and bits < 8:
            want = pixels == 1 if bits == 1 else pixels * np.uint8(255 // (2**bits - 1))
        colours = pixels_of("u1", 2**bits, 3)
        palette = [(b"PLTE", colours.tobytes())] if colour == 3 else []
        want = colours[pixels] if colour == 3 else want
        transparent = {0: struct.pack(">H", 1), 2: struct.pack(">HHH", 1, 2, 3), 3: bytes(2**bits)}
        yield f"{colour=} {bits=}", png(pixels, bits, colour, *palette), want
        if colour in transparent:
            more = [*palette, (b"tRNS", transparent[colour])]
            if colour == 3:  # the alpha of each colour; of other images it is one colour
                want = np.dstack([want, np.zeros_like(pixels)])
            yield f"{colour=} {bits=} tRNS", png(pixels, bits, colour, *more), want
