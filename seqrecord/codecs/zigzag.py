"""Signed integers as unsigned ones, small ones first."""

from __future__ import annotations

from typing import ClassVar

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


class Zigzag(Codec):  # type: ignore[misc]
    """Signed integers to unsigned ones, 0, -1, 1, -2, ... to 0, 1, 2, 3, ...

    Small differences of either sign then have zero bytes at the top.
    """

    codec_id = "seqrecord.zigzag"
    parameters: ClassVar[Parameters] = {}

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Any array will do."""

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array; the sign becomes the lowest bit."""
        signed = np.array(buf, order="C", copy=True).view(f"<i{buf.dtype.itemsize}")
        sign = np.right_shift(signed, 8 * buf.dtype.itemsize - 1)
        np.left_shift(signed, 1, out=signed)
        np.bitwise_xor(signed, sign, out=signed)
        return signed.view(buf.dtype)

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """The inverse into `out`, which may be `buf` itself."""
        out = output(buf, out)
        flat = out.reshape(-1)
        one = flat.dtype.type(1)
        step = MAX_BUFFER_BYTES // flat.dtype.itemsize
        temporary = thread_buffer("band", min(step, flat.size), flat.dtype)
        for start in range(0, flat.size, step):
            band = flat[start : start + step]
            sign = temporary[: band.size]
            np.bitwise_and(band, one, out=sign)
            np.negative(sign, out=sign)
            np.right_shift(band, one, out=band)
            np.bitwise_xor(band, sign, out=band)
        return out


register_codec(Zigzag)
