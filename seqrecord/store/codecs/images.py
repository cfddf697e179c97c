"""Image codecs for single frames: PNG, JPEG and npy files stored unchanged, JPEG XL.

Input bytes are not trusted. Dimensions are checked before any pixel is decoded, Pillow tries only
the expected format, and its many exceptions become `ValueError`.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from seqrecord.store.bfloat16 import dtype_name
from seqrecord.store.codecs.exif import check_single, check_upright, orientation_of
from seqrecord.store.lazy import import_extra

if TYPE_CHECKING:
    from PIL import Image

IMAGE = "seqrecord.image"
"""Id of the codec configuration for images."""

FILES = ("png", "jpeg", "any", "npy")
"""Formats of files that are stored unchanged; `any` allows both PNG and JPEG."""

FORMATS = (*FILES, "jpegxl")
"""All values of the codec's `format`."""

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}
"""Format by first bytes of a file."""

_NPY = b"\x93NUMPY"
# Version 3 is for structured dtypes with Unicode field names, which frames cannot have.
_NPY_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
_JPEGXL_EFFORT = 3
_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "I;16": (), "I": ()}
# By PNG bit depth and colour type: lossless Pillow modes. Pillow would silently halve the depth of
# 16-bit colour.
_PNG_MODES = {(8, 0): {"L"}, (8, 2): {"RGB"}, (8, 6): {"RGBA"}, (16, 0): {"I;16", "I"}}
_JPEG_MODES = {"L", "RGB"}
_ERRORS = (
    *(OSError, SyntaxError, EOFError, MemoryError, RuntimeError),
    *(TypeError, KeyError, IndexError, AttributeError),
    *(ValueError, OverflowError, struct.error, zlib.error),
)
"""Exceptions of Pillow on damaged or foreign images."""


@dataclass(frozen=True)
class ImageHeader:
    """Header of an encoded image: `shape` is [H, W] for one channel, else [H, W, C].

    `mode` is Pillow's, such as `RGB`. `orientation` is EXIF's, 1 to 8: how viewers transform the
    stored pixels; 1 is upright. `shape` is that of the stored pixels. Pillow decodes other values
    than the stored ones if it `needs_imagecodecs`. `palette` is the mode of a palette's colours,
    `RGB` or `RGBA`; empty without a palette.
    """

    format: str
    mode: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    orientation: int = 1
    needs_imagecodecs: bool = False
    palette: str = ""


def probe(data: bytes | memoryview) -> ImageHeader:
    """Read the header of an image or npy file without decoding pixels.

    Supports uint8 [H, W] and [H, W, 3], and for PNG uint8 [H, W, 4] and uint16 [H, W]. An npy file
    may have any dtype and shape. Raises `ValueError` otherwise: for palettes, 16-bit colour, CMYK,
    and files with several pictures.
    """
    if data[: len(_NPY)] == _NPY:
        dtype, shape, _ = npy_header(io.BytesIO(data))
        return ImageHeader("npy", "npy", dtype, shape)
    name = image_format(data)
    with _open(data, name) as image:
        header = _header(image, data, name)
        return replace(header, orientation=orientation_of(image, io.BytesIO(data)))


def image_format(data: bytes | memoryview) -> str:
    """`png` or `jpeg`, from the first bytes of an image; raises `ValueError` otherwise."""
    for magic, name in SIGNATURES.items():
        if data[: len(magic)] == magic:
            return name
    raise ValueError("neither a PNG nor a JPEG image")


def decode_image_into(
    data: bytes | memoryview, name: str, out: npt.NDArray[Any], *, exif: str | None = None
) -> None:
    """Decode an image of format `name` into `out`, which must match exactly.

    Raises `ValueError` for another dtype or shape, and for an EXIF orientation other than upright
    unless `exif` is `ignore`.
    """
    if name == "npy":
        decode_npy_into(data, out)
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
            raise ValueError(f"cannot decode the {name} image: {error}") from error
        if exif is None:
            check_upright(orientation_of(image))
    if pixels.shape != out.shape:
        raise ValueError(f"the image decodes to {list(pixels.shape)}, expected {list(out.shape)}")
    np.copyto(out, pixels, casting="unsafe")  # 16-bit grey is int32 in older Pillow


def encode_image(frame: npt.NDArray[Any], name: str, quality: int | None = None) -> bytes:
    """Encode a C-contiguous frame; JPEG needs `quality`, 1 to 100, other formats are lossless.

    Format `any` encodes as PNG.

    Raises `ValueError` for a dtype or shape that the format does not support, and
    `MissingPackageError` for JPEG XL without imagecodecs.
    """
    check_storable(frame.dtype, frame.shape, name)
    file = io.BytesIO()
    if name == "npy":
        npy_format.write_array(file, frame, allow_pickle=False)
        return file.getvalue()
    if name == "jpegxl":
        encoded: bytes = _jpegxl().jpegxl_encode(
            frame, lossless=True, effort=_JPEGXL_EFFORT, numthreads=1
        )
        return encoded
    if name == "jpeg" and quality is None:
        raise ValueError("JPEG loses data: set a quality, for example jpeg:quality=90")
    options: dict[str, Any] = {"quality": quality} if name == "jpeg" else {"compress_level": 6}
    try:
        _pillow().fromarray(frame).save(file, "jpeg" if name == "jpeg" else "png", **options)
    except _ERRORS as error:
        raise ValueError(f"Pillow cannot encode this frame as {name}: {error}") from error
    return file.getvalue()


def check_storable(dtype: np.dtype[Any], shape: tuple[int | None, ...], name: str) -> None:
    """Raise `ValueError` unless frames of `dtype` and `shape` can be images of format `name`."""
    if name == "npy":
        return
    if len(shape) < 2 or shape[2:] not in _STORABLE[name].get(dtype, ()):
        raise ValueError(f"a {name} image cannot store {dtype_name(dtype)} {list(shape)}")


_GREY, _RGB, _RGBA = (), (3,), (4,)  # shapes of a pixel
_U1, _U2 = np.dtype(np.uint8), np.dtype(np.uint16)
_Pixels: TypeAlias = "dict[np.dtype[Any], tuple[tuple[int, ...], ...]]"
_PNG: _Pixels = {_U1: (_GREY, _RGB, _RGBA), _U2: (_GREY,)}
_JPEG: _Pixels = {_U1: (_GREY, _RGB)}
_JPEGXL: _Pixels = {_U1: (_GREY, _RGB, _RGBA), _U2: (_GREY, _RGB)}
_STORABLE = {"png": _PNG, "any": _PNG, "jpeg": _JPEG, "jpegxl": _JPEGXL}
"""Pixels that a format can store, by dtype."""


def _decode_jpegxl(data: bytes | memoryview, out: npt.NDArray[Any]) -> None:
    """Decode into `out`; the decoder compares dtype and dimensions before it decodes pixels."""
    library = _jpegxl()
    try:
        library.jpegxl_decode(data, keeporientation=True, numthreads=1, out=out)
    except Exception as error:  # imagecodecs has exception classes of its own
        raise ValueError(f"cannot decode the jpegxl image: {error}") from error


def _jpegxl() -> Any:
    message = "JPEG XL requires imagecodecs, the extra `images`: pip install imagecodecs"
    return import_extra("imagecodecs", message)


@cache
def _pillow() -> Any:
    """The module `PIL.Image`, imported at first use."""
    from PIL import Image

    return Image


@cache
def _readers() -> dict[str, Any]:
    """Pillow's file classes by format.

    `PIL.Image.open` would also apply a pixel limit that any library may change, and that is below
    the size limit of frames. Here, sizes are checked before decoding.
    """
    # Classes, not `open` (test_codecs.py::test_images_of_more_pixels_than_pillow_opens).
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
        # IHDR is the first chunk: bit depth and colour type follow width and height.
        modes = _PNG_MODES.get((data[24], data[25]), set()) if len(data) > 25 else set()
    else:
        modes = _JPEG_MODES
    check_single(image)
    if image.mode not in modes:
        raise ValueError(f"a {name} image of Pillow mode {image.mode} cannot be stored encoded")
    dtype = np.dtype("<u2" if image.mode.startswith("I") else "u1")
    shape = (image.height, image.width, *_CHANNELS[image.mode])
    return ImageHeader(name, image.mode, dtype, shape)


# npy files, NumPy's format with a Python literal as header; pickled objects are refused:
# https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html


def npy_header(stream: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """dtype, shape and whether the order is Fortran's; leaves the stream at the first value.

    Raises `ValueError` for an invalid header, and `OSError`.
    """
    try:
        shape, fortran_order, dtype = _NPY_HEADERS[npy_format.read_magic(stream)](stream)
    except (OSError, ValueError):
        raise
    except Exception as error:  # usually ValueError, but NumPy parses Python literals
        raise ValueError(str(error)) from error
    # NumPy accepts these in a header, and fails at them later.
    if not dtype.itemsize or any(isinstance(length, bool) for length in shape):
        raise ValueError(f"values of {dtype.itemsize} bytes, shape {shape}"[:200])
    return dtype, shape, fortran_order


def decode_npy_into(data: bytes | memoryview, out: npt.NDArray[Any]) -> None:
    """Decode an npy file of either byte order into `out`; raises `ValueError` on a mismatch."""
    view = memoryview(data)
    stream = io.BytesIO(view[:_MOST_HEADER])
    dtype, shape, fortran_order = npy_header(stream)
    if dtype.hasobject or dtype.newbyteorder("<") != out.dtype or shape != out.shape:
        raise ValueError(
            f"the array is {dtype} {list(shape)}, expected {out.dtype} {list(out.shape)}"[:200]
        )
    header_bytes = stream.tell()
    if len(view) - header_bytes != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an npy file of {len(view)} bytes does not match its header")
    values = np.frombuffer(view, dtype, offset=header_bytes).reshape(
        shape, order="F" if fortran_order else "C"
    )
    np.copyto(out, values)


_MOST_HEADER = 1 << 16
