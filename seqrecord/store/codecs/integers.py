"""Integer filters: bias for small signed numbers, green subtraction for colours."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from seqrecord.store.codecs.base import MAX_BUFFER_BYTES, Filter, UIntArray, thread_buffer


class Bias(Filter):
    """Adds 0x80 to every byte but the top one, as one integer addition: 0x00808080.

    Small differences of either sign then have a top byte of 0 and other bytes near 0x80. Their byte
    planes compress as well as those of zigzag numbers, and one subtraction decodes them in place
    of four operations.
    """

    codec_id = "seqrecord.bias"

    def encode(self, frame: UIntArray) -> UIntArray:
        out = np.array(frame, order="C", copy=True)
        np.add(out, _bias(out.dtype), out=out)
        return out

    def decode(self, frames: UIntArray, out: UIntArray) -> None:
        np.subtract(frames, _bias(out.dtype), out=out)


def _bias(dtype: np.dtype[Any]) -> np.unsignedinteger[Any]:
    value: np.unsignedinteger[Any] = dtype.type(int("80" * (dtype.itemsize - 1) or "0", 16))
    return value


class SubtractGreen(Filter):
    """Maps interleaved pixels [..., 3] to red minus green, green, blue minus green."""

    codec_id = "seqrecord.subtract_green"

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:  # noqa: ARG002
        """Raise `ValueError` unless the last axis has three channels."""
        if len(shape) < 1 or shape[-1] != 3:
            raise ValueError(f"pixels need a last axis of 3 channels, not {list(shape)}")

    def encode(self, frame: UIntArray) -> UIntArray:
        out = np.array(frame, order="C", copy=True)
        out[..., 0] -= out[..., 1]
        out[..., 2] -= out[..., 1]
        return out

    def decode(self, frames: UIntArray, out: UIntArray) -> None:
        if out is not frames:
            np.copyto(out, frames)
        flat = out.reshape(-1)
        # Per-channel operations have a stride of 3 and do not vectorize. Instead, the greens are
        # masked into a copy, which is added to contiguous memory, shifted by one channel each way.
        mask = _green_mask(flat.dtype)
        temporary = thread_buffer("band", min(mask.size, flat.size), flat.dtype)
        for start in range(0, flat.size, mask.size):
            band = flat[start : start + mask.size]
            green = temporary[: band.size]
            np.bitwise_and(band, mask[: band.size], out=green)
            np.add(band[:-1], green[1:], out=band[:-1])
            np.add(band[1:], green[:-1], out=band[1:])


@lru_cache
def _green_mask(dtype: np.dtype[Any]) -> UIntArray:
    """0, all ones, 0, 0, all ones, 0, … for a band of whole pixels."""
    pixel = np.array([0, np.iinfo(dtype).max, 0], dtype)
    mask = np.tile(pixel, MAX_BUFFER_BYTES // pixel.nbytes)
    mask.flags.writeable = False  # shared by all threads
    return mask
