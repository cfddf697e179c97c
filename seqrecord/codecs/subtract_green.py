"""Red and blue without the green that they share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from seqrecord.codecs.base import (
    MAX_BUFFER_BYTES,
    Codec,
    Parameters,
    UIntArray,
    output,
    register_codec,
    thread_buffer,
)


class SubtractGreen(Codec):  # type: ignore[misc]
    """Red minus green, green, blue minus green, of pixels [..., 3] that lie interleaved."""

    codec_id = "seqrecord.subtract_green"
    parameters: ClassVar[Parameters] = {}

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:  # noqa: ARG002
        """Raise `ValueError` unless the last axis is three channels."""
        if len(shape) < 1 or shape[-1] != 3:
            raise ValueError(f"pixels need a last axis of 3 channels, not {list(shape)}")

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array; `ValueError` if the last axis is not three channels."""
        self.check(buf.shape, buf.dtype.itemsize)
        out = np.array(buf, order="C", copy=True)
        out[..., 0] -= out[..., 1]
        out[..., 2] -= out[..., 1]
        return out

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """The inverse into `out`, which may be `buf` itself."""
        self.check(buf.shape, buf.dtype.itemsize)
        out = output(buf, out)
        flat = out.reshape(-1)
        # Channel by channel the step in memory is 3 and nothing vectorizes. Instead the greens are
        # masked out into a copy and added to whole runs of memory, one channel up and one down.
        mask = _green_mask(flat.dtype)
        temporary = thread_buffer("band", min(mask.size, flat.size), flat.dtype)
        for start in range(0, flat.size, mask.size):
            band = flat[start : start + mask.size]
            green = temporary[: band.size]
            np.bitwise_and(band, mask[: band.size], out=green)
            np.add(band[:-1], green[1:], out=band[:-1])
            np.add(band[1:], green[:-1], out=band[1:])
        return out


register_codec(SubtractGreen)


@lru_cache
def _green_mask(dtype: np.dtype[Any]) -> UIntArray:
    """0, all ones, 0, 0, all ones, 0, ... for a band of whole pixels."""
    pixel = np.array([0, np.iinfo(dtype).max, 0], dtype)
    mask = np.tile(pixel, MAX_BUFFER_BYTES // pixel.nbytes)
    mask.flags.writeable = False  # all threads share it
    return mask
