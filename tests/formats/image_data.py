"""Image files of many formats, and images with EXIF orientations."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import OpenEXR
from PIL import Image, ImageOps

from tests.golden.make_rasters import FOLDER
from tests.golden.make_rasters import values as rasters
from tests.kit.datasets import noise

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
Read = Iterator[tuple[str, bytes, Array]]  # ending, bytes of the file, its values

NETPBM: list[tuple[str, str, tuple[int, ...], int]] = [
    *(("P5", "u1", (), 255), ("P5", "u2", (), 65535), ("P5", "u2", (), 4095), ("P5", "u1", (), 15)),
    *(("P6", "u1", (3,), 255), ("P6", "u2", (3,), 65535)),
    *(("P2", "u2", (), 10_000), ("P3", "u1", (3,), 255)),
]
TIFF = ("u1", "u2", "i2", "u4", "i4", "f4", "u1 3", "u2 3", "u1 4")
STORED: Pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)


def netpbm(kind: str, pixels: Array, most: int, comment: str = "") -> bytes:
    height, width = pixels.shape[:2]
    head = f"{kind}\n{comment}{width} {height}\n"
    if kind not in ("P1", "P4"):
        head += f"{comment}{most}\n"
    if kind in ("P1", "P2", "P3"):
        text = "\n".join(" ".join(map(str, row.ravel().tolist())) for row in pixels)
        return f"{head}{text}\n".encode()
    if kind == "P4":
        return head.encode() + np.packbits(pixels, axis=1).tobytes()
    return head.encode() + pixels.astype(">u2" if most > 255 else "u1").tobytes()


def netpbm_files() -> Read:
    """Not scaled: Pillow would turn 4095 into 65535, and 16-bit colour into 8 bits."""
    for kind, dtype, channels, most in NETPBM:
        pixels = (noise(5, 7, *channels, dtype=dtype).astype(np.int64) % (most + 1)).astype(dtype)
        for ending in (".pgm", ".PNM"):
            yield ending, netpbm(kind, pixels, most, "# made by hand\n"), pixels
    bits = noise(5, 9, dtype="u1") % 2
    for kind in ("P1", "P4"):
        yield ".pbm", netpbm(kind, bits, 1), bits == 1  # 1 is black ink


def tiff_files() -> Read:
    for dtype, *channels in map(str.split, TIFF):
        pixels = noise(5, 7, *map(int, channels), dtype=dtype)
        if dtype != "u4":  # Pillow reads no big-endian 32-bit files
            yield ".tiff", tiff(pixels, ">"), pixels
        data = tiff(pixels, "<")
        with suppress(NotImplementedError):  # old releases of imagecodecs only decode
            data = bytes(imagecodecs.tiff_encode(pixels))
        yield ".tiff", data, pixels


def colour_files(folder: Path) -> Read:
    for channels in ((3,), (4,), ()):
        pixels = noise(5, 7, *channels, dtype="u1")
        coloured = pixels if channels else np.stack([pixels] * 3, axis=-1)  # WebP is always RGB
        yield ".webp", saved(folder / "a.webp", pixels, lossless=True, exact=True), coloured
        if channels != (4,):  # Pillow writes no alpha
            yield ".bmp", saved(folder / "a.bmp", pixels), pixels


def raster_files(folder: Path) -> Read:
    """Files of OpenCV, Sintel and Pillow; the scale in a header is ignored."""
    flow, depth = rasters()[..., :2], rasters()[..., 0]
    yield ".flo", (FOLDER / "flow.flo").read_bytes(), flow
    yield ".pfm", (FOLDER / "depth.pfm").read_bytes(), depth
    yield ".pfm", (FOLDER / "normals.pfm").read_bytes(), rasters()
    big = rasters()[::-1, :, 2].astype(">f4").tobytes()
    yield ".PFM", b"Pf 7 5\n2.5e0\n" + big, rasters()[..., 2]
    yield ".dpt", b"PIEH\7\0\0\0\5\0\0\0" + depth.tobytes(), depth
    with suppress(OSError):  # before Pillow 10.3
        yield ".pfm", saved(folder / "a.pfm", np.ascontiguousarray(depth), format="PPM"), depth


def exr_files(folder: Path) -> Read:
    for dtype, channels in product(("<f2", "<f4", "<u4"), ("Z", "RGB", "RGBA")):
        pixels = np.arange(5 * 7 * len(channels)).reshape(5, 7, -1).astype(dtype)
        planes = {name: np.ascontiguousarray(pixels[..., i]) for i, name in enumerate(channels)}
        want = pixels if len(channels) > 1 else pixels[..., 0]
        yield ".exr", exr(folder / "a.exr", planes), want


def png_files(folder: Path) -> Read:
    for dtype, channels in product(("u1", "u2"), ((), (2,), (3,), (4,))):
        pixels = noise(5, 7, *channels, dtype=dtype)
        yield ".png", bytes(imagecodecs.png_encode(pixels)), pixels
    bits = noise(5, 9, dtype="u1") % 2 == 1
    yield ".png", saved(folder / "a.png", bits), bits


def tiff(pixels: Array, order: Any, **more: int) -> bytes:
    """One strip without compression; `more` are further tags by number, `t262=0`."""
    height, width, channels = (*pixels.shape, 1)[:3]
    data = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    sample = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    single = {256: width, 257: height, 259: 1, 262: 2 if channels > 1 else 1, 273: 8}
    single |= {277: channels, 278: height, 279: len(data)} | ({338: 2} if channels == 4 else {})
    tags = {tag: [value] for tag, value in single.items()}
    tags |= {258: [8 * pixels.dtype.itemsize] * channels, 339: [sample] * channels}
    tags |= {int(tag[1:]): [value] for tag, value in more.items()}
    place = 8 + len(data)
    entries, far, after = b"", b"", place + 2 + 12 * len(tags) + 4
    for tag, found in sorted(tags.items()):
        value = struct.pack(f"{order}{len(found)}H", *found)
        if len(value) > 4:
            value, far = struct.pack(f"{order}I", after + len(far)), far + value
        entries += struct.pack(f"{order}HHI", tag, 3, len(found)) + value.ljust(4, b"\0")
    directory = struct.pack(f"{order}H", len(tags)) + entries + b"\0\0\0\0"
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", place)
    return head + data + directory + far


def saved(path: Path, pixels: Array, **options: Any) -> bytes:
    Image.fromarray(pixels).save(path, **options)
    return path.read_bytes()


def exr(path: Path, channels: dict[str, Array], **more: Any) -> bytes:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **more}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))
    return path.read_bytes()


def encoded(
    orientation: int = 1, format_: str = "PNG", pixels: Pixels = STORED, **options: Any
) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    given = {"exif": exif, **({"quality": 95} if format_ == "JPEG" else {}), **options}
    Image.fromarray(pixels).save(stream, format_, **given)
    return stream.getvalue()


def shown(data: bytes) -> Pixels:
    """The pixels as viewers display them, by Pillow."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))


def stored(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)))


def late_exif(data: bytes) -> bytes:
    """A PNG with EXIF after the pixels."""
    at = data.index(b"eXIf") - 4
    length = int.from_bytes(data[at : at + 4], "big") + 12
    end = data.rindex(b"IEND") - 4
    return data[:at] + data[at + length : end] + data[at : at + length] + data[end:]


def raw_profile(data: bytes) -> bytes:
    """A PNG as written by ImageMagick, with EXIF as text."""
    at = data.index(b"eXIf") - 4
    length = int.from_bytes(data[at : at + 4], "big")
    exif = b"Exif\0\0" + data[at + 8 : at + 8 + length]
    body = b"zTXtRaw profile type exif\0\0" + zlib.compress(
        b"\nexif\n%8d\n%s\n" % (len(exif), exif.hex().encode())
    )
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return data[:at] + chunk + data[at + length + 12 :]


def _chunk(name: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(name + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + name + data + crc


def huge_png(data: bytes) -> bytes:
    """The same PNG with a header of 60,000 by 60,000 pixels."""
    header = (60_000).to_bytes(4, "big") * 2 + data[24:29]
    return data[:8] + _chunk(b"IHDR", header) + data[33:]


def png_of_few_pixels(data: bytes) -> bytes:
    """A valid PNG except that its pixel data ends early."""
    return data[:33] + _chunk(b"IDAT", zlib.compress(b"\0" * 30)) + _chunk(b"IEND", b"")


def npy(header: str, values: bytes = b"") -> bytes:
    """An npy file with this header."""
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values
