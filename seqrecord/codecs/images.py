"""Images of one frame: PNG, JPEG and npy files and numbers that a record keeps as they were, and
JPEG XL.

Nothing here trusts the bytes. Dimensions are compared with what the caller expects before any
pixel is decoded, Pillow is told the one format to try, and its many exceptions become `ValueError`.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.exif import check_single, check_upright, orientation_of
from seqrecord.codecs.npy import MAGIC, decode_npy_into, encode_npy, npy_header
from seqrecord.lazy import required

if TYPE_CHECKING:
    from PIL import Image

IMAGE = "seqrecord.image"
"""The id of their codec configuration."""

RAW: dict[str, Literal["<", ">"]] = {"raw": "<", "raw_big_endian": ">"}
"""Formats that are a frame's numbers and nothing else, in C order, and their byte orders."""

FILES = ("png", "jpeg", "any", "npy")
"""Formats of which files are kept as they are; of `any`, each is a PNG or a JPEG."""

FORMATS = (*FILES, "jpegxl", *RAW)
"""What images may be."""

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}
"""Format by first bytes."""

_JPEGXL_EFFORT = 3
_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "I;16": (), "I": ()}
# PNG's (bit depth, colour type) that Pillow decodes without loss, and the modes that it may use.
# It would quietly halve the depth of 16-bit colour.
_PNG_MODES = {(8, 0): {"L"}, (8, 2): {"RGB"}, (8, 6): {"RGBA"}, (16, 0): {"I;16", "I"}}
_JPEG_MODES = {"L", "RGB"}
_ERRORS = (
    *(OSError, SyntaxError, EOFError, MemoryError, RuntimeError),
    *(TypeError, KeyError, IndexError, AttributeError),
    *(ValueError, OverflowError, struct.error, zlib.error),
)
"""What Pillow raises on images that are none, or are damaged."""


@dataclass(frozen=True)
class ImageHeader:
    """What an encoded image declares: `shape` is [H, W] for one channel, else [H, W, C].

    `mode` is Pillow's name of the kind of pixels, as `RGB`. `orientation` is that of EXIF, 1 to 8:
    how viewers turn the stored pixels, of which `shape` is. 1 is upright.
    """

    format: str
    mode: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    orientation: int = 1


def probe(data: bytes | memoryview) -> ImageHeader:
    """Read an image's header without decoding its pixels.

    uint8 [H, W], [H, W, 3] or [H, W, 4] (PNG only), or uint16 [H, W] (PNG only). Raises
    `ValueError` for anything else: palettes, 16-bit colour, CMYK, files of several pictures. An npy
    file is of any dtype and shape.
    """
    if data[: len(MAGIC)] == MAGIC:
        dtype, shape, _ = npy_header(io.BytesIO(data))
        return ImageHeader("npy", "npy", dtype, shape)
    name = image_format(data)
    with _open(data, name) as image:
        header = _header(image, data, name)
        return replace(header, orientation=orientation_of(image, io.BytesIO(data)))


def image_format(data: bytes | memoryview) -> str:
    """`png` or `jpeg`, of an image's first bytes; `ValueError` for anything else."""
    for magic, name in SIGNATURES.items():
        if data[: len(magic)] == magic:
            return name
    raise ValueError("neither a PNG nor a JPEG image")


def decode_image_into(
    data: bytes | memoryview, name: str, out: npt.NDArray[Any], *, exif: str | None = None
) -> None:
    """Decode an image of format `name` into `out`; `ValueError` if it does not fit exactly, and for
    an EXIF orientation that is not upright, unless `exif` is `ignore`."""
    if name == "npy":
        decode_npy_into(data, out)
        return
    if name in RAW:
        if len(data) != out.nbytes:
            raise ValueError(f"numbers of {len(data)} bytes, expected {out.nbytes}")
        values = np.frombuffer(data, out.dtype.newbyteorder(RAW[name]))
        np.copyto(out, values.reshape(out.shape))
        return
    if name == "jpegxl":
        _decode_jpegxl(data, out)
        return
    name = image_format(data) if name == "any" else name
    with _open(data, name) as image:
        header = _header(image, data, name)
        if header.dtype != out.dtype or header.shape != out.shape:
            raise ValueError(
                f"the image is {header.dtype.name} {list(header.shape)}, "
                f"expected {out.dtype.name} {list(out.shape)}"
            )
        try:
            image.load()
            pixels = np.asarray(image)
        except _ERRORS as error:
            raise ValueError(f"the {name} image does not decode: {error}") from error
        if exif is None:
            check_upright(orientation_of(image))
    if pixels.shape != out.shape:
        raise ValueError(f"the image decodes to {list(pixels.shape)}, expected {list(out.shape)}")
    np.copyto(out, pixels, casting="unsafe")  # 16-bit grey is int32 in older Pillow


def encode_image(
    frame: npt.NDArray[Any], name: str, quality: int | None = None, *, fast: bool = False
) -> bytes:
    """Encode a C-contiguous frame; JPEG needs a `quality` of 1 to 100, all else is lossless.

    Of `any` format it is a PNG. What is `fast` takes a part of the time, and more bytes.

    Raises `ValueError` for a dtype or shape that the format does not hold, and
    `MissingPackageError` for JPEG XL where imagecodecs is not installed.
    """
    check_storable(frame.dtype, frame.shape, name)
    if name == "npy":
        return encode_npy(frame)
    if name in RAW:
        return frame.astype(frame.dtype.newbyteorder(RAW[name])).tobytes()
    if name == "jpegxl":
        encoded: bytes = _jpegxl().jpegxl_encode(
            frame, lossless=True, effort=1 if fast else _JPEGXL_EFFORT, numthreads=1
        )
        return encoded
    if name == "jpeg" and quality is None:
        raise ValueError("encoding an array as JPEG loses data: name a quality, as jpeg:quality=90")
    level = 1 if fast else 6
    options: dict[str, Any] = {"quality": quality} if name == "jpeg" else {"compress_level": level}
    file = io.BytesIO()
    try:
        _pillow().fromarray(frame).save(file, "jpeg" if name == "jpeg" else "png", **options)
    except _ERRORS as error:
        raise ValueError(f"Pillow does not encode this frame as {name}: {error}") from error
    return file.getvalue()


def check_storable(dtype: np.dtype[Any], shape: tuple[int | None, ...], name: str) -> None:
    """Raise `ValueError` unless frames of `dtype` and `shape` can be images of format `name`."""
    grey, colour = len(shape) == 2, len(shape) == 3 and shape[-1] == 3
    rgba = len(shape) == 3 and shape[-1] == 4 and name != "jpeg"
    if name == "npy":
        return
    if name in RAW:
        if None in shape:
            raise ValueError("numbers without a header, of a shape that varies")
        return
    has_deep = grey if name != "jpegxl" else grey or colour  # 16 bits
    if (dtype == np.uint8 and (grey or colour or rgba)) or (
        dtype == np.uint16 and has_deep and name != "jpeg"
    ):
        return
    raise ValueError(f"a {name} image does not hold {dtype.name} {list(shape)}")


def _decode_jpegxl(data: bytes | memoryview, out: npt.NDArray[Any]) -> None:
    """The decoder compares dtype and dimensions with those of `out` before it decodes pixels."""
    library = _jpegxl()
    try:
        library.jpegxl_decode(data, keeporientation=True, numthreads=1, out=out)
    except Exception as error:  # it has errors of its own, beside those of Python
        raise ValueError(f"the jpegxl image does not decode: {error}") from error


def _jpegxl() -> Any:
    said = "JPEG XL is read and written by imagecodecs, the extra `images`: pip install imagecodecs"
    return required("imagecodecs", said)


@cache
def _pillow() -> Any:
    """`PIL.Image`, imported when an image is first read or written."""
    from PIL import Image

    return Image


@cache
def _readers() -> dict[str, Any]:
    """Pillow's reader of each format.

    `PIL.Image.open` also has a limit of pixels, which any library may change. It is below the
    limit of a frame, and here a frame's size is known before anything is decoded.
    """
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    return {"png": PngImageFile, "jpeg": JpegImageFile}


def _open(data: bytes | memoryview, name: str) -> Image.Image:
    try:
        image: Image.Image = _readers()[name](io.BytesIO(data))
        return image
    except _ERRORS as error:
        raise ValueError(f"not a {name} image: {error}") from error


def _header(image: Image.Image, data: bytes | memoryview, name: str) -> ImageHeader:
    if name == "png":
        # IHDR comes first, at a fixed place: depth and colour type follow width and height.
        modes = _PNG_MODES.get((data[24], data[25]), set()) if len(data) > 25 else set()
    else:
        modes = _JPEG_MODES
    check_single(image)
    if image.mode not in modes:
        raise ValueError(f"a {name} image of Pillow mode {image.mode} cannot be kept encoded")
    dtype = np.dtype("<u2" if image.mode.startswith("I") else "u1")
    shape = (image.height, image.width, *_CHANNELS[image.mode])
    return ImageHeader(name, image.mode, dtype, shape)
