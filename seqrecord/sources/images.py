"""Checked reading of PNG and JPEG files: whole, of the right kind, and at their full depth.

Pillow decodes them. It would turn 16-bit colour PNGs into 8 bits and say nothing, so imagecodecs,
an optional extra, decodes those.
"""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.images import ImageHeader
from seqrecord.errors import SourceError
from seqrecord.forks import PerProcess
from seqrecord.schema import MAX_FRAME_BYTES, CodecConfig
from seqrecord.sources.files import open_file, read_bytes, unreadable

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "IMAGE_FORMATS",
    "decode_image",
    "encoded_header",
    "image_header",
    "kept_codec",
    "load_imagecodecs",
    "read_image_file",
]

IMAGE_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
"""Image format by file name ending, lower case."""

_PNG_SIGNATURE_BYTES = 8
_PNG_COLOURS = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_CHANNELS: dict[str, tuple[int, ...]] = {
    "1": (),
    "L": (),
    "P": (),
    "I": (),
    "I;16": (),
    "I;16B": (),
    "LA": (2,),
    "RGB": (3,),
    "RGBA": (4,),
}


def image_header(path: Path) -> ImageHeader:
    """The header alone: the pixels are neither read nor checked."""
    try:
        with open_file(path) as stream:
            return _header(stream, path)[0]
    except OSError as error:
        raise unreadable(path, error) from error


def kept_codec(header: ImageHeader) -> tuple[CodecConfig, ...]:
    """The codec that keeps images like this one encoded; empty if they cannot be kept."""
    if header.mode != "RGB" or header.dtype != np.uint8:
        return ()
    return ({"id": "seqrecord.image", "format": header.format},)


def read_image_file(path: Path) -> bytes:
    """The encoded image as it is."""
    return read_bytes(path, MAX_FRAME_BYTES)


def encoded_header(
    data: bytes,
    path: Path,
    format: str | None = None,  # noqa: A002 - as Pillow calls it
) -> ImageHeader:
    """As `image_header`, of bytes that were read from `path`, which are of `format` if given."""
    return _header(io.BytesIO(data), path, format)[0]


def decode_image(
    data: bytes,
    path: Path,
    mode: str | None = None,
    size: tuple[int, int] | None = None,
    format: str | None = None,  # noqa: A002 - as Pillow calls it
) -> npt.NDArray[Any]:
    """The pixels of an image that was read from `path`, of the dtypes uint8, uint16 or, for bilevel
    images, bool: [H, W] or [H, W, C].

    A palette image gives its indices. `mode` (`L`, `RGB`, `RGBA`, as Pillow names them) and `size`
    (H, W) are demanded where given. `format` is `png` or `jpeg`, by default the one that the name
    says. Raises `SourceError` for what is cut or damaged anywhere, or is of another mode or size.
    """
    header, image = _header(io.BytesIO(data), path, format)
    if mode is not None and header.mode != mode:
        raise SourceError(
            "an image of the wrong kind", file=str(path), expected=mode, got=header.mode
        )
    if size is not None and header.shape[:2] != size:
        raise SourceError(
            "wrong shape",
            file=str(path),
            expected=[*size, *header.shape[2:]],
            got=list(header.shape),
        )
    if header.format == "png":
        _check_png(data, path)
    try:
        if header.dtype == np.uint16 and len(header.shape) == 3:
            array = load_imagecodecs(path).png_decode(data)
        else:
            with _no_truncated_images():
                image.load()
            array = np.asarray(image)
    except SourceError:
        raise
    except Exception as error:  # Pillow and imagecodecs raise about any kind
        raise _undecodable(path, error) from error
    return np.ascontiguousarray(array, header.dtype).reshape(header.shape)


def load_imagecodecs(path: Path | None = None) -> Any:
    """The module imagecodecs; raises `SourceError` that says how to install it."""
    try:
        import imagecodecs
    except ImportError as error:
        raise SourceError(
            "16-bit colour PNGs (TartanAir V2's flow) need imagecodecs: pip install imagecodecs",
            file=None if path is None else str(path),
        ) from error
    return imagecodecs


def _header(
    stream: BinaryIO, path: Path, named: str | None = None
) -> tuple[ImageHeader, Image.Image]:
    """The checked header, and Pillow's image, whose pixels still lie in `stream`."""
    from PIL import Image  # here, since not all sources have images

    format_ = named or IMAGE_FORMATS.get(path.suffix.lower(), "png")
    head = stream.read(26)
    stream.seek(0)
    try:
        image = Image.open(stream, formats=(format_.upper(),))
    except Exception as error:
        raise _undecodable(path, error) from error
    mode = image.mode
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    if format_ == "png":  # signature, length and name of IHDR, width, height, bit depth, colour
        if len(head) < 26 or head[25] not in _PNG_COLOURS:
            raise SourceError("a PNG without a header", file=str(path))
        mode = _PNG_COLOURS[head[25]]
        if head[24] == 16:
            dtype = np.dtype(np.uint16)
        elif image.mode == "1":
            mode, dtype = "1", np.dtype(np.bool_)
    if mode not in _CHANNELS:
        raise SourceError(
            "an image of a kind that cannot be stored",
            file=str(path),
            expected="bilevel, grayscale, palette, RGB or RGBA",
            got=mode,
        )
    shape = (image.height, image.width, *_CHANNELS[mode])
    if image.height * image.width * 8 > MAX_FRAME_BYTES:
        raise SourceError(
            "an image that is too large",
            file=str(path),
            expected=f"at most {MAX_FRAME_BYTES // 8} pixels",
            got=list(shape),
        )
    return ImageHeader(format_, mode, dtype, shape), image


def _check_png(data: bytes, path: Path) -> None:
    """Every chunk is there and matches its CRC-32: Pillow doesn't look at that of the pixels."""
    position = _PNG_SIGNATURE_BYTES
    view = memoryview(data)
    while True:
        length = int.from_bytes(view[position : position + 4], "big")
        end = position + 12 + length
        if end > len(data):
            raise SourceError(
                "a truncated PNG",
                file=str(path),
                offset=position,
                expected=f"a chunk up to byte {end}",
                got=f"{len(data)} bytes",
            )
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise SourceError(
                "a damaged PNG: a chunk does not match its checksum",
                file=str(path),
                offset=position,
            )
        if bytes(view[position + 4 : position + 8]) == b"IEND":
            return
        position = end


_lenient_lock = PerProcess(threading.Lock)
_strict_users = 0
_lifted = False


@contextmanager
def _no_truncated_images() -> Iterator[None]:
    """Decode strictly even where a program has told Pillow to let truncated images pass.

    The switch is the whole process's: the first thread that decodes turns it off, and the last
    one turns it on again.
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


def _undecodable(path: Path, error: Exception) -> SourceError:
    text = str(error).splitlines() or [type(error).__name__]
    return SourceError("an image that cannot be decoded", file=str(path), got=text[0][:200])
