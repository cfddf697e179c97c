"""Resizing of frames: linear interpolation with antialiasing, or nearest pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_CHANNELS = (1, 3, 4)  # numbers of uint8 channels that Pillow resizes together


def nearest_pixels(length: int, size: int) -> npt.NDArray[np.int64]:
    """Indices of the source pixels whose centres are nearest to those of `size` pixels: int64."""
    indices: npt.NDArray[np.int64] = (2 * np.arange(size) + 1) * length // (2 * size)
    return indices


def resize_into(frame: npt.NDArray[Any], out: npt.NDArray[Any], *, smooth: bool) -> None:
    """Resize `frame` [height, width, …] into `out`, C-contiguous, of the same dtype and channels.

    `smooth` interpolates linearly, with antialiasing along axes that shrink; it supports integers
    of up to 16 bits and floats of up to 32. Otherwise each pixel is the nearest source pixel.
    """
    (height, width), size = frame.shape[:2], out.shape[:2]
    if not smooth:
        rows, columns = nearest_pixels(height, size[0]), nearest_pixels(width, size[1])
        np.take(frame[rows], columns, axis=1, out=out, mode="clip")
        return
    pixels, target = frame.reshape(height, width, -1), out.reshape(*size, -1)
    channels = pixels.shape[2]
    if frame.dtype == np.uint8 and channels in _CHANNELS:
        target[...] = _resize_pixels(np.ascontiguousarray(pixels), size).reshape(target.shape)
        return
    for channel in range(channels):
        plane = _resize_pixels(pixels[..., channel].astype(np.float32), size)
        target[..., channel] = plane if frame.dtype.kind == "f" else np.rint(plane)


def _resize_pixels(pixels: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Interpolate pixels, uint8 [H, W, 1, 3 or 4] or float32 [H, W], to `size`."""
    from PIL import Image  # slow import

    if pixels.shape[2:] == (4,):  # as CMYK, or Pillow would premultiply by an alpha channel
        frame_size = pixels.shape[1], pixels.shape[0]
        image = Image.frombuffer("CMYK", frame_size, pixels, "raw", "CMYK", 0, 1)
    else:
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    resized = image.resize(size[::-1], Image.Resampling.BILINEAR, reducing_gap=1.0)
    return np.asarray(resized)
