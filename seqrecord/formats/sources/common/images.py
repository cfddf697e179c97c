"""Checked reading of image files, and decoding of raw pixels in messages.

Pillow decodes files of most formats. It would silently convert 16-bit colour PNGs and TIFFs to 8
bits, swap the bytes of compressed big-endian TIFFs, and drop or change their extra channels, so
imagecodecs, an optional extra, decodes these. The first bytes identify PNG and JPEG; other
formats also need their file name ending, or in containers a longer signature. Raw encodings have
ROS's names, `sensor_msgs/image_encodings.hpp`, which Foxglove's schemas share.
"""

from __future__ import annotations

import io
import math
import re
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seqrecord.errors import MissingPackageError, SourceError, located
from seqrecord.formats.sources.common.array_files import array_header
from seqrecord.formats.sources.common.netpbm import (
    NETPBM,
    NETPBM_HEADER_BYTES,
    NETPBM_MAGIC,
    decode_netpbm,
    netpbm_header,
)
from seqrecord.formats.sources.common.orientation import applied_orientation
from seqrecord.formats.sources.common.palettes import has_indices
from seqrecord.in_place.file_types import type_of
from seqrecord.in_place.files import first_line, opened, read_bytes, size_of, unreadable
from seqrecord.in_place.limits import check_image_size, check_size
from seqrecord.store.codecs.exif import (
    OPPOSITE,
    check_single,
    check_upright,
    orientation_of,
    turned,
)
from seqrecord.store.codecs.images import IMAGE, ImageHeader, probe
from seqrecord.store.codecs.images import image_format as format_of
from seqrecord.store.lazy import import_extra
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.schema import MAX_FRAME_BYTES, CodecConfig, FeatureSpec

if TYPE_CHECKING:
    from PIL import Image


IMAGE_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
"""Format of images that can be kept encoded, by file name ending in lower case."""

_REFERABLE = {"png", "jpeg", "npy"}

DECODED_FORMATS = {
    **dict.fromkeys((".pbm", ".pgm", ".ppm", ".pnm"), NETPBM),
    **dict.fromkeys((".tif", ".tiff"), "tiff"),
    ".webp": "webp",
    ".bmp": "bmp",
}
"""Format of images that are always decoded, by file name ending in lower case."""

IMAGE_ENDINGS = frozenset((*IMAGE_FORMATS, *DECODED_FORMATS))
"""File name endings of all image files, in lower case."""

_SIGNATURES: dict[str, tuple[bytes, ...]] = {
    NETPBM: NETPBM_MAGIC,
    "tiff": (b"II*\0", b"MM\0*"),
    "webp": (b"RIFF",),
    "bmp": (b"BM",),
}

EMBEDDED_FORMATS = "PNG, JPEG, WebP, BMP, TIFF or Netpbm"
"""Formats of images without a file name, for errors."""

_EMBEDDED = {
    "tiff": re.compile(rb"II\*\0|MM\0\*"),
    "webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    # "BM" alone begins other bytes too: two reserved numbers are 0, and the next header has one of
    # a few sizes. https://learn.microsoft.com/en-us/windows/win32/gdi/bitmap-storage
    "bmp": re.compile(rb"BM.{4}\0{4}.{4}[\x0c\x28\x34\x38\x40\x6c\x7c]\0{3}", re.DOTALL),
    NETPBM: re.compile(rb"P[1-6][\s#]"),
}
_FOREIGN = {
    "AVIF": re.compile(rb".{4}ftypavi[fs]", re.DOTALL),
    "HEIF": re.compile(rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL),
    "JPEG XL": re.compile(rb"\xff\x0a|\0{3}\x0cJXL "),
    "JPEG 2000": re.compile(rb"\0{3}\x0cjP  |\xff\x4f\xff\x51"),
    "QOI": re.compile(rb"qoif"),
    "OpenEXR": re.compile(rb"v/1\x01"),
}
_PNG_SIGNATURE_BYTES = 8
_MIN_ARRAY_BYTES = 4096
_FREE_BYTES = 64 << 20  # of an image's file: compressed pixels, profiles and previews
# Tags of TIFF.
_TIFF_COLUMNS, _TIFF_ROWS, _TIFF_BITS, _TIFF_COMPRESSION, _TIFF_CHANNELS = 256, 257, 258, 259, 277
_TIFF_PLANES, _TIFF_EXTRA, _TIFF_SAMPLES = 284, 338, 339
_TIFF_IS_PREMULTIPLIED = 1  # an extra channel, alpha that the colours contain
_TIFF_HAS_PLANES = 2  # a plane for each channel
_TIFF_BIG_ENDIAN = b"MM"
_TIFF_KINDS = {1: "u", 2: "i", 3: "f"}
_JPEG_ENDS = (b"\xff\xda", b"\xff\xd9")  # of the header, and of the image
_MAX_JUNK = 1 << 16  # bytes; cameras pad segments by a few
_PNG_COLOURS = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_DTYPES: dict[str, type[Any]] = {"1": np.bool_}  # of Pillow's modes; others are uint8
_CHANNELS: dict[str, tuple[int, ...]] = {
    "1": (),
    "L": (),
    "P": (),
    "I": (),
    "I;16": (),
    "I;16B": (),
    "F": (),
    "LA": (2,),
    "RGB": (3,),
    "RGBA": (4,),
}

_COLOURS = re.compile(r"(?:mono|bayer_(?:rggb|bggr|gbrg|grbg)|(rgba?|bgra?))(8|16)")
_PLAIN = re.compile(r"(8|16|32|64)([USF])C([1-4])")
_KINDS = {"U": "u", "S": "i", "F": "f"}


def image_header(path: Path) -> ImageHeader:
    """Read an image's header; the pixels are neither read nor checked."""
    with opened(path) as stream:
        return _header(stream, path)[0]


def read_image(path: Path) -> bytes:
    """Read a file of a frame.

    Raises `SourceError` for an image much larger than its pixels, and for a large npy file that
    differs from its header.
    """
    try:
        size = size_of(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if size > _FREE_BYTES:  # the header first: the file may be anything
        ending = path.suffix.lower()
        if ending in IMAGE_ENDINGS:
            header = image_header(path)
            limit = _FREE_BYTES + 2 * header.dtype.itemsize * math.prod(header.shape)
            check_size("image file", size, limit, file=str(path))
        elif ending == ".npy":
            array_header(path)
    return read_bytes(path)


def referable_codec(
    path: Path, endings: Collection[str], exif: str | None
) -> tuple[CodecConfig, ...]:
    """Return the codec for referenced files like that at `path`, whose names have these endings.

    Empty if no codec decodes them, and for arrays below 4 KiB. Each file is checked when it is
    read. Raises `SourceError` for an image with an EXIF orientation unless `exif` is `ignore`.
    """
    formats = {IMAGE_FORMATS.get(ending, ending[1:]) for ending in endings}
    if not formats <= _REFERABLE:
        return ()
    data = read_image(path)
    try:
        header = probe(data)
        if exif != "ignore":
            check_upright(header.orientation)
    except ValueError as error:
        if "EXIF" in str(error):
            raise SourceError(str(error), file=str(path)) from error
        return ()
    data_format = header.format
    if data_format == "npy" and len(data) < _MIN_ARRAY_BYTES:
        return ()
    if formats == {data_format}:
        return (kept_config(data_format, exif),)
    return (kept_config("any", exif),) if formats == {"png", "jpeg"} else ()


def kept_config(format_: str, exif: str | None) -> CodecConfig:
    """Return the codec of images that are not decoded."""
    is_image = format_ != "npy" and exif == "ignore"
    return {"id": IMAGE, "format": format_, **({"exif": "ignore"} if is_image else {})}


def passthrough_codec(
    header: ImageHeader, endings: Collection[str] = (), *, exif: str | None = None
) -> tuple[CodecConfig, ...]:
    """Return the codec that keeps images like this one encoded; empty if not possible.

    `endings` are the endings of all files, if available: some may be of the other format.
    """
    is_kept = header.format in IMAGE_FORMATS.values() and DECODED_FORMATS.keys().isdisjoint(endings)
    if header.mode != "RGB" or header.dtype != np.uint8 or not is_kept:
        return ()
    other_formats = {IMAGE_FORMATS[e] for e in endings if e in IMAGE_FORMATS} - {header.format}
    return (kept_config("any" if other_formats else header.format, exif),)


def passthrough_of_both(
    first_codec: tuple[CodecConfig, ...], second_codec: tuple[CodecConfig, ...]
) -> tuple[CodecConfig, ...]:
    """Merge a feature's codecs of two episodes; `any` for both PNG and JPEG images.

    Images that one of them does not keep encoded are decoded.
    """
    ids = [[config["id"] for config in codec] for codec in (first_codec, second_codec)]
    if first_codec != second_codec and ids == [[IMAGE], [IMAGE]]:
        formats = {config["format"] for config in (*first_codec, *second_codec)}
        return ({**first_codec[0], "format": "any"},) if formats <= {"png", "jpeg", "any"} else ()
    return () if ids == [[IMAGE], []] else first_codec


class UnsupportedImageError(SourceError):
    """An image of a format, or with pixels, that no reader supports; it need not be damaged."""


def embedded_format(data: bytes) -> str | None:
    """Return the format of an image without a file name from its first bytes; `None` for others."""
    with suppress(ValueError):
        return format_of(data)
    return _matching(_EMBEDDED, data)


def foreign_format(data: bytes) -> str | None:
    """Return the name of an image format without a reader from the first bytes; else `None`."""
    return _matching(_FOREIGN, data)


def _matching(signatures: Mapping[str, re.Pattern[bytes]], data: bytes) -> str | None:
    return next((name for name, magic in signatures.items() if magic.match(data)), None)


def image_format(data: bytes, path: Path) -> str:
    """Return an image's format from its first bytes: `png`, `jpeg` or that of the file name ending.

    In containers, whose name is not that of an image, it is one of `EMBEDDED_FORMATS`. Raises
    `SourceError` with `path` otherwise.
    """
    ending = path.suffix.lower()
    named_format = IMAGE_FORMATS.get(ending) or DECODED_FORMATS.get(ending)
    if data.startswith(_SIGNATURES.get(named_format or "", ())):
        return str(named_format)
    if named_format is None and (format_ := embedded_format(data)) is not None:
        return format_
    if named_format is None and (name := foreign_format(data)) is not None:
        raise UnsupportedImageError(
            "unsupported image format", file=str(path), expected=EMBEDDED_FORMATS, got=name
        )
    try:
        data_format = format_of(data)
    except ValueError as error:
        message = f"not a {named_format} image" if named_format in _SIGNATURES else str(error)
        if (kind := type_of(bytes(data[:64]), path.name) if data else "empty") is not None:
            message += f"; the file is {kind}"
        raise SourceError(message, file=str(path), got=repr(bytes(data[:8]))) from error
    if named_format not in (None, data_format):
        raise SourceError(
            "the image format differs from the file name's ending",
            file=str(path),
            expected=named_format,
            got=data_format,
        )
    return data_format


def encoded_header(data: bytes, path: Path) -> ImageHeader:
    """Like `image_header`, for bytes read from `path`."""
    with located(SourceError, file=str(path)):
        return _header(io.BytesIO(data), path)[0]


def decode_image(
    data: bytes, path: Path, spec: FeatureSpec | None = None, *, exif: str | None
) -> npt.NDArray[Any]:
    """Decode an image read from `path`: [H, W] or [H, W, C].

    dtype is uint8 or uint16, bool for bilevel images, and for TIFF also int8, int16, int32, uint32
    or float32. Images with a palette give colours, with alpha if it has some, unless the feature's
    values are indices, see `has_indices`. A transparent colour of other PNGs is ignored.

    Args:
        data: the whole file.
        path: named in errors.
        spec: the image's feature; `None` for an image whose pixels encode other values, as
            indices of a palette.
        exif: see `applied_orientation`.

    Raises `SourceError` for truncated or damaged data.
    """
    with located(SourceError, file=str(path)):
        header, image = _header(io.BytesIO(data), path)
        orientation, shape = applied_orientation(header, spec, path, exif), header.shape
        if header.format == "png":
            _check_png(data)
        try:
            if image is None:
                array = decode_netpbm(data)
            elif header.needs_imagecodecs:
                array = _by_imagecodecs(data, header, image)
            else:
                with _no_truncated_images():
                    image.load()
                if header.palette and _has_colours(spec):
                    image, shape = image.convert(header.palette), (*shape, len(header.palette))
                array = np.asarray(image)
                if header.format == "tiff":  # undo Pillow's turn
                    array = turned(array, OPPOSITE.get(header.orientation, header.orientation))
                if header.dtype == np.bool_:  # Pillow's bytes are 0 and 255
                    array = array.view(np.uint8) != 0
        except (SourceError, MissingPackageError):
            raise
        except Exception as error:  # Pillow and imagecodecs raise many types
            raise _undecodable(error) from error
        pixels = array.reshape(shape)
        return np.ascontiguousarray(turned(pixels, orientation), header.dtype)


def _has_colours(spec: FeatureSpec | None) -> bool:
    """Return whether a feature has the colours of palettes; no codec keeps such files."""
    return spec is not None and not spec.codec and not has_indices(spec.name, spec.kind)


def load_imagecodecs(path: Path | None = None) -> Any:
    """Import imagecodecs. Raises `MissingPackageError` if it is missing."""
    hint = (
        "16-bit colour images (TartanAir V2's flow) and some TIFFs (compressed big-endian, extra "
        "channels) need imagecodecs; pip install imagecodecs, or leave their features out "
        "(features=, --features)"
    )
    return import_extra("imagecodecs", hint, None if path is None else str(path))


def _header(stream: BinaryIO, path: Path) -> tuple[ImageHeader, Image.Image | None]:
    """Return the checked header and Pillow's unloaded image, which reads from `stream`.

    The image is `None` for Netpbm, which Pillow does not decode.
    """
    from PIL import Image, UnidentifiedImageError  # here, since not all sources have images

    head = stream.read(64)
    stream.seek(0)
    format_ = image_format(head, path)
    if format_ == NETPBM:
        header = netpbm_header(stream.read(NETPBM_HEADER_BYTES))[0]
        check_image_size(header.shape[:2], itemsize=8)
        return header, None
    if format_ == "jpeg":
        _check_segments(stream)
    elif format_ == "webp":  # Pillow reads the whole file for its header
        declared = int.from_bytes(head[4:8], "little")  # of RIFF, without the first 8 bytes
        limit = min(declared + _FREE_BYTES, MAX_FRAME_BYTES)
        check_size("image file", stream.seek(0, io.SEEK_END), limit)
        stream.seek(0)
    try:
        image = Image.open(stream, formats=(format_.upper(),))
    except UnidentifiedImageError as error:
        raise SourceError(
            "cannot decode the image",
            expected=f"an undamaged {format_} image with values and channels as in "
            "docs/reference/sources.md, Folders",
            got="a header that Pillow does not read",
        ) from error
    except Exception as error:
        raise _undecodable(error) from error
    mode = image.mode
    dtype: np.dtype[Any] = np.dtype(_DTYPES.get(mode, np.uint8))
    if format_ == "png":  # signature, length and name of IHDR, width, height, bit depth, colour
        if len(head) < 26 or head[25] not in _PNG_COLOURS:
            raise SourceError("PNG without a valid header")
        mode = _PNG_COLOURS[head[25]]
        if head[24] == 16:
            dtype = np.dtype(np.uint16)
        elif image.mode == "1":
            mode = "1"
    elif format_ == "tiff":
        dtype = _tiff_dtype(image)
    if mode not in _CHANNELS:
        raise UnsupportedImageError(
            "unsupported image mode",
            expected="bilevel, grayscale, palette, RGB or RGBA",
            got=mode,
        )
    shape = (image.height, image.width, *_CHANNELS[mode])
    needs_imagecodecs = dtype == np.uint16 and len(shape) == 3
    if format_ == "tiff":
        shape = _tiff_shape(image)
        needs_imagecodecs = _is_wrong_by_pillow(image, dtype, shape)
    check_image_size(shape[:2], itemsize=8)
    try:
        check_single(image)
    except ValueError as error:
        raise SourceError(str(error)) from error
    except Exception as error:  # broken pages
        raise _undecodable(error) from error
    orientation = orientation_of(image, stream)
    palette = "" if mode != "P" else "RGBA" if "transparency" in image.info else "RGB"
    return ImageHeader(format_, mode, dtype, shape, orientation, needs_imagecodecs, palette), image


def _check_segments(stream: BinaryIO) -> None:
    """Raise `SourceError` for a JPEG with much junk among its segments; rewinds `stream`.

    Pillow searches junk for the next segment byte by byte, which takes hours in the zeros of a cut
    or sparse file.
    """
    stream.seek(2)
    junk = 0
    while len(marker := stream.read(2)) == 2 and marker not in _JPEG_ENDS:
        if marker[0] == 0xFF and marker[1] not in (0, 0xFF):
            length = int.from_bytes(stream.read(2), "big")
            stream.seek(max(length - 2, 0), io.SEEK_CUR)
            continue
        stream.seek(-1, io.SEEK_CUR)
        junk += 1
        check_size("junk in the header of the JPEG", junk, _MAX_JUNK)
    stream.seek(0)


def _tiff_dtype(image: Any) -> np.dtype[Any]:
    """Return the dtype of the stored samples: Pillow's modes hide signs and 16-bit colour."""
    bits, kinds = ({*image.tag_v2.get(tag, (1,))} for tag in (_TIFF_BITS, _TIFF_SAMPLES))
    if image.mode == "1":
        return np.dtype(np.bool_)
    if image.mode == "P" and max(bits) <= 8:
        return np.dtype(np.uint8)
    kind, size = _TIFF_KINDS.get(min(kinds)), min(bits)
    if len(bits) > 1 or len(kinds) > 1 or kind is None or size not in (8, 16, 32):
        raise UnsupportedImageError(
            "unsupported TIFF samples",
            expected="8, 16 or 32 bits, equal in all channels",
            got=f"{sorted(bits)} bits",
        )
    return np.dtype(f"{kind}{size // 8}")


def _tiff_shape(image: Any) -> tuple[int, ...]:
    """Return the shape of the stored pixels: Pillow turns images, and drops extra channels."""
    tags = image.tag_v2
    channels = tags.get(_TIFF_CHANNELS, 1)
    return (tags[_TIFF_ROWS], tags[_TIFF_COLUMNS], *((channels,) if channels > 1 else ()))


def _is_wrong_by_pillow(image: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether Pillow would return other values than the stored ones, without an error.

    Found by a matrix of TIFFs that Pillow 13 and imagecodecs decode, see
    `tests/formats/test_image_files.py`.
    """
    tags = image.tag_v2
    if shape[2:] == _CHANNELS[image.mode]:
        is_compressed = tags.get(_TIFF_COMPRESSION, 1) != 1
        if not shape[2:]:
            # Pillow swaps what libtiff has swapped; its modes of 16 bits know the byte order.
            is_swapped = dtype.itemsize > 1 and not image.mode.startswith("I;16")
            return is_swapped and is_compressed and tags.prefix == _TIFF_BIG_ENDIAN
        has_planes = tags.get(_TIFF_PLANES) == _TIFF_HAS_PLANES
        is_grey_in_planes = shape[2] == 2 and has_planes
        # Pillow divides compressed planes by a fourth one that no tag describes.
        is_divided = shape[2] == 4 and has_planes and is_compressed and _TIFF_EXTRA not in tags
        is_premultiplied = _TIFF_IS_PREMULTIPLIED in tags.get(_TIFF_EXTRA, ())
        return dtype.itemsize > 1 or is_grey_in_planes or is_divided or is_premultiplied
    return True


def _by_imagecodecs(data: bytes, header: ImageHeader, image: Any) -> npt.NDArray[Any]:
    """Decode a PNG or TIFF. Raises `SourceError` for another dtype or shape than the header's."""
    array = np.asarray(getattr(load_imagecodecs(), f"{header.format}_decode")(data))
    if header.format == "tiff" and image.tag_v2.get(_TIFF_PLANES) == _TIFF_HAS_PLANES:
        array = np.moveaxis(array, 0, -1)
    if header.format == "png" and array.shape[2:] == (4,) and header.shape[2:] == (3,):
        array = array[..., :3]  # libpng makes alpha of a transparent colour
    if array.shape != header.shape or array.dtype != header.dtype:
        raise SourceError(
            "the image differs from its header",
            expected=f"{header.dtype} {list(header.shape)}",
            got=f"{array.dtype} {list(array.shape)}",
        )
    return array


def _check_png(data: bytes) -> None:
    """Check that every chunk exists and matches its CRC-32; Pillow skips that of the pixels."""
    position = _PNG_SIGNATURE_BYTES
    view = memoryview(data)
    while True:
        length = int.from_bytes(view[position : position + 4], "big")
        end = position + 12 + length
        if end > len(data):
            raise SourceError(
                "truncated PNG",
                offset=position,
                expected=f"a chunk up to byte {end}",
                got=f"{len(data)} bytes",
            )
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise SourceError("damaged PNG: checksum mismatch of a chunk", offset=position)
        if bytes(view[position + 4 : position + 8]) == b"IEND":
            return
        position = end


# Pillow's setting is global; two threads must not restore it for each other. See
# tests/formats/test_sources.py::test_threads_refuse_truncated_images_in_a_lenient_program.
_lenient_lock = PerProcess(threading.Lock)
_strict_users = 0
_lifted = False


@contextmanager
def _no_truncated_images() -> Iterator[None]:
    """Decode strictly, even if the program allows truncated images in Pillow.

    The setting is process-wide: the first decoding thread disables it, the last one restores it.
    """
    from PIL import ImageFile

    global _strict_users, _lifted
    with _lenient_lock.get():
        _strict_users += 1
        if ImageFile.LOAD_TRUNCATED_IMAGES:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            _lifted = True
    try:
        yield
    finally:
        with _lenient_lock.get():
            _strict_users -= 1
            if _strict_users == 0 and _lifted:
                ImageFile.LOAD_TRUNCATED_IMAGES = True
                _lifted = False


def _undecodable(error: Exception) -> SourceError:
    return SourceError("cannot decode the image", got=first_line(error))


class UnknownEncodingError(ValueError):
    """Pixels or packets are of a format that the source cannot read."""


def pixels(
    data: memoryview, *, height: int, width: int, encoding: str, step: int, big_endian: bool
) -> npt.NDArray[Any]:
    """Decode raw pixels, little-endian: [H, W] for one channel, else [H, W, C], RGB or RGBA.

    Bayer images are kept as mosaics. `step` is the bytes of a row, padding included. Raises
    `UnknownEncodingError`, and `ValueError` for sizes that do not match `data`.
    """
    dtype, channels = _layout(encoding)
    pixel = dtype.itemsize * channels
    if height < 1 or width < 1 or step < width * pixel or height * step > MAX_FRAME_BYTES:
        raise ValueError(f"invalid image size: {width}x{height} {encoding}, {step} bytes per row")
    if len(data) < height * step:
        raise ValueError(f"truncated image: {len(data)} bytes, expected {height} rows of {step}")
    rows = np.frombuffer(data, np.uint8, height * step).reshape(height, step)
    values: npt.NDArray[Any] = np.ascontiguousarray(rows[:, : width * pixel]).view(
        dtype.newbyteorder(">" if big_endian else "<")
    )
    values = values.astype(dtype, copy=False)
    if channels == 1:
        return values
    image: npt.NDArray[Any] = values.reshape(height, width, channels)
    if not encoding.startswith("bgr"):
        return image
    reversed_image = np.empty_like(image)
    reversed_image[..., :3] = image[..., 2::-1]
    reversed_image[..., 3:] = image[..., 3:]
    return reversed_image


def _layout(encoding: str) -> tuple[np.dtype[Any], int]:
    """Return dtype and channel count of a raw encoding."""
    if match := _COLOURS.fullmatch(encoding):
        return np.dtype(f"<u{int(match[2]) // 8}"), len(match[1]) if match[1] else 1
    match = _PLAIN.fullmatch(encoding)
    plain_dtype = f"<{_KINDS[match[2]]}{int(match[1]) // 8}" if match else ""
    if match is None or plain_dtype in ("<f1", "<u8", "<i8"):
        known_encodings = (
            "mono8, rgb8, bgr8, rgba8, bgra8, rgb16, …, bayer_rggb8, …, 8UC3, 16UC1, 32FC1, …"
        )
        problem = f"unknown image encoding {encoding[:50]!r}; expected {known_encodings}"
        raise UnknownEncodingError(problem)
    return np.dtype(plain_dtype), int(match[3])
