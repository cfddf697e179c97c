"""EXIF orientation of image files, and detection of files with several pictures.

Input bytes are not trusted. Sources: CIPA DC-008 (EXIF), CIPA DC-007 (MPO, a JPEG with several
pictures), and the PNG specification, third edition: its chunk `eXIf` may follow the pixels.
"""

from __future__ import annotations

import io
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION, _PICTURES, _ENTRIES = 0x0112, 0xB001, 0xB002  # tags of EXIF and MPO
_STEPS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1)}
_STEPS[8] = (-1, 1)
OPPOSITE = {6: 8, 8: 6}
"""Inverse orientation, for orientations other than their own inverse."""

_XMP_ORIENTATION = re.compile(r"tiff:Orientation(?:=[\"']|>)([1-8])")
_VALUES = {1: "B", 3: "H", 4: "I"}  # `struct` format by EXIF type
_LARGE_THUMBNAILS = (0x010001, 0x010002)  # MPO types of previews


def orientation_of(image: Image.Image, file: BinaryIO | None = None) -> int:
    """EXIF orientation of an open image, 1 to 8; 1 if missing or invalid.

    In a PNG, EXIF may follow the pixels: load them first, or pass `file` to search it.
    """
    orientation = None
    if (tags := getattr(image, "tag_v2", None)) is not None:  # TIFF
        orientation = tags.get(_ORIENTATION)
    elif "exif" in image.info:
        orientation = _tag(image.info["exif"], _ORIENTATION)
    elif file is not None and image.format == "PNG":
        orientation = _tag(_exif_behind_pixels(file), _ORIENTATION)
    if orientation is None and "Raw profile type exif" in image.info:  # a PNG of ImageMagick
        with suppress(ValueError):
            text = str(image.info["Raw profile type exif"])
            orientation = _tag(bytes.fromhex("".join(text.split()[2:])), _ORIENTATION)
    if orientation is None and (xmp := image.info.get("xmp", image.info.get("XML:com.adobe.xmp"))):
        text = xmp.decode(errors="replace") if isinstance(xmp, bytes) else str(xmp)
        match = _XMP_ORIENTATION.search(text)
        orientation = int(match[1]) if match else None
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def check_single(image: Image.Image) -> None:
    """Raise `ValueError` for an image file with several pictures.

    Such files are APNG, animated WebP and GIF, multi-page TIFF, and MPO of stereo cameras and
    phones.
    """
    count = getattr(image, "n_frames", 1)
    if "mp" in image.info and b' hdrgm:Version="' not in image.info.get("xmp", b""):
        count = _pictures_of_mpo(image.info["mp"])
    if count > 1:
        raise ValueError(
            f"a file of {count} pictures, expected one: an animation, or several pages or views; "
            "store each picture in a file of its own"
        )


def turned(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """View of pixels [H, W] or [H, W, C], rotated and flipped as viewers display them."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _STEPS[orientation]
    return pixels[::rows, ::columns]


def turned_shape(shape: tuple[int, ...], orientation: int) -> tuple[int, ...]:
    """Shape that `turned` returns."""
    return (shape[1], shape[0], *shape[2:]) if orientation >= 5 else shape


def check_upright(orientation: int) -> None:
    """Raise `ValueError` unless `orientation` is 1 (upright)."""
    if orientation != 1:
        raise ValueError(
            f"an image of EXIF orientation {orientation}, expected 1: encoded images and images "
            "read in place are not rotated; convert the originals with exif=apply and without "
            "keep_encoded, or use the stored pixels with exif=ignore (--source-option)"
        )


def _tag(data: bytes, number: int) -> Any:
    """Number or bytes of a tag in the first directory of EXIF or MPO; `None` if absent."""
    data = data.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return None
    try:
        (offset,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, offset)
        entries = data[offset + 2 : offset + 2 + 12 * count]
        entries = entries[: len(entries) // 12 * 12]
        for tag, kind, length, value in struct.iter_unpack(f"{order}HHI4s", entries):
            if tag == number and kind in _VALUES:
                return struct.unpack_from(order + _VALUES[kind], value)[0]
            if tag == number and kind == 7:
                (offset,) = struct.unpack(f"{order}I", value)
                return order, data[offset : offset + length]
    except struct.error:
        pass
    return None


def _pictures_of_mpo(data: bytes) -> int:
    """Number of pictures in an MPO file (CIPA DC-007), without previews."""
    count, entries = _tag(data, _PICTURES), _tag(data, _ENTRIES)
    if not isinstance(count, int) or not isinstance(entries, tuple):
        return 1
    order, table = entries
    kinds = struct.iter_unpack(f"{order}I12x", table[: len(table) & ~15])
    return count - sum(kind & 0xFFFFFF in _LARGE_THUMBNAILS for (kind,) in kinds)


def _exif_behind_pixels(file: BinaryIO) -> bytes:
    """EXIF data of a PNG, wherever its chunk is."""
    file.seek(8)
    # names of chunks are letters: zeros after a cut PNG, as a full disk leaves them, would be a
    # chunk for each 12 bytes
    while len(head := file.read(8)) == 8 and head[4:].isalpha() and head[4:] != b"IEND":
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            return file.read(min(length, 1 << 16))
        file.seek(length + 4, io.SEEK_CUR)
    return b""
