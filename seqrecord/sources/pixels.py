"""Uncompressed images of messages: from rows of bytes to arrays, by the name of their encoding.

The names are those of ROS, `sensor_msgs/image_encodings.hpp`, which Foxglove's schemas share.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.schema import MAX_FRAME_BYTES

__all__ = ["pixels"]

_NAMED = {
    "rgb8": ("u1", 3),
    "bgr8": ("u1", 3),
    "rgba8": ("u1", 4),
    "bgra8": ("u1", 4),
    "rgb16": ("u2", 3),
    "bgr16": ("u2", 3),
    "mono8": ("u1", 1),
    "mono16": ("u2", 1),
}
_BAYER = re.compile(r"bayer_(?:rggb|bggr|gbrg|grbg)(8|16)")
_PLAIN = re.compile(r"(8|16|32|64)([USF])C([1-4])")
_KINDS = {"U": "u", "S": "i", "F": "f"}


def pixels(
    data: memoryview, *, height: int, width: int, encoding: str, step: int, big_endian: bool
) -> npt.NDArray[Any]:
    """[H, W] for one channel, else [H, W, C], in the order RGB or RGBA, little-endian.

    Bayer images stay mosaics. `step` is the size of a row in bytes, padding included. Raises
    `ValueError` for an encoding that is not known, and for sizes that do not fit `data`.
    """
    dtype, channels = _layout(encoding)
    pixel = dtype.itemsize * channels
    if height < 1 or width < 1 or step < width * pixel or height * step > MAX_FRAME_BYTES:
        raise ValueError(f"an image of {height} rows of {step} bytes and {width} {encoding} pixels")
    if len(data) < height * step:
        raise ValueError(f"an image of {len(data)} bytes, expected {height} rows of {step}")
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
    turned = np.empty_like(image)
    turned[..., :3] = image[..., 2::-1]
    turned[..., 3:] = image[..., 3:]
    return turned


def _layout(encoding: str) -> tuple[np.dtype[Any], int]:
    """dtype and number of channels."""
    if encoding in _NAMED:
        name, channels = _NAMED[encoding]
        return np.dtype(f"<{name}"), channels
    if match := _BAYER.fullmatch(encoding):
        return np.dtype(f"<u{int(match[1]) // 8}"), 1
    match = _PLAIN.fullmatch(encoding)
    plain = f"<{_KINDS[match[2]]}{int(match[1]) // 8}" if match else ""
    if match is None or plain in ("<f1", "<u8", "<i8"):
        known = ", ".join([*_NAMED, "bayer_rggb8, …", "8UC3, 16UC1, 32FC1, …"])
        raise ValueError(f"an image encoding that is not known: {encoding[:50]!r}; known: {known}")
    return np.dtype(plain), int(match[3])
