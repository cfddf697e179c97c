"""Netpbm images (`.pbm`, `.pgm`, `.ppm`, `.pnm`), text or binary, samples as stored.

https://netpbm.sourceforge.net/doc/pgm.html. Pillow is not used: it scales samples to 255 or 65535,
and 16-bit colour to 8 bits.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.store.codecs.images import ImageHeader

# Own reader, since Pillow scales samples: tests/formats/test_image_files.py has
# test_datasets_have_the_values_of_the_files.
NETPBM = "netpbm"
"""Format name in `ImageHeader.format`."""

NETPBM_MAGIC = tuple(f"P{kind}".encode() for kind in range(1, 7))

NETPBM_HEADER_BYTES = 4096
"""Maximum size of a header with its comments."""

_GAP = rb"(?:\s|#[^\n]*\n)+"
_SIZE = rb"P[1-6]" + _GAP + rb"(\d{1,9})" + _GAP + rb"(\d{1,9})"
_BITMAP = re.compile(_SIZE + rb"\s")
_OTHERS = re.compile(_SIZE + _GAP + rb"(\d{1,6})\s")
_COMMENT = re.compile(rb"#[^\n]*")


def netpbm_header(data: bytes) -> tuple[ImageHeader, int, int]:
    """Return header, maximum sample value and offset of the samples, from a file's first bytes."""
    kind, is_bitmap = data[:2], data[:2] in (b"P1", b"P4")
    header_match = (_BITMAP if is_bitmap else _OTHERS).match(data)
    value = 0 if header_match is None else 1 if is_bitmap else int(header_match[3])
    if header_match is None or not 0 < value < 65536:
        expected = "P1 to P6, width, height, and a maximum value of 1 to 65535"
        raise SourceError("not a Netpbm image", expected=expected, got=value or repr(data[:16]))
    shape: tuple[int, ...] = (int(header_match[2]), int(header_match[1]))
    mode = "L"
    dtype: np.dtype[Any] = np.dtype(np.uint8 if value < 256 else np.uint16)
    if kind in (b"P3", b"P6"):
        mode, shape = "RGB", (*shape, 3)
    elif is_bitmap:
        mode, dtype = "1", np.dtype(np.bool_)
    return ImageHeader(NETPBM, mode, dtype, shape), value, header_match.end()


def decode_netpbm(data: bytes) -> npt.NDArray[Any]:
    """Decode to [H, W] or [H, W, 3]: uint8, uint16, or bool for bitmaps, where 1 is black."""
    header, max_value, offset = netpbm_header(data)
    kind, count = data[:2], math.prod(header.shape)
    if kind in (b"P1", b"P2", b"P3"):
        samples = _samples_of_text(_COMMENT.sub(b"", data[offset:]), count, is_bits=kind == b"P1")
    elif kind == b"P4":
        height, width = header.shape
        rows = _read_samples(data, offset, height * ((width + 7) // 8), np.dtype("u1"))
        samples = np.unpackbits(rows.reshape(height, -1), axis=1, count=width)
    else:
        samples = _read_samples(data, offset, count, header.dtype.newbyteorder(">"))
    if samples.max() > max_value:
        raise SourceError(
            "a sample exceeds the image's maximum value",
            expected=f"at most {max_value}",
            got=int(samples.max()),
        )
    return samples.astype(header.dtype).reshape(header.shape)


def _read_samples(data: bytes, offset: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    expected_bytes = count * dtype.itemsize
    if len(data) - offset != expected_bytes:
        raise SourceError(
            "the image's size differs from its header",
            expected=f"{expected_bytes} bytes of samples",
            got=f"{len(data) - offset} bytes",
        )
    return np.frombuffer(data, dtype, offset=offset)


def _samples_of_text(text: bytes, count: int, *, is_bits: bool) -> npt.NDArray[Any]:
    words = re.findall(rb"[01]", text) if is_bits else text.split()
    try:
        values = np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        values = np.empty(0, np.int64)
    if len(values) != count or values.min() < 0:
        raise SourceError(
            "invalid image samples",
            expected=f"{count} numbers",
            got=f"{len(words)} words",
        )
    return values
