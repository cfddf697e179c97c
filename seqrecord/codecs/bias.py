"""Signed integers moved so that small ones of either sign share their top byte."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from seqrecord.codecs.base import Codec, Parameters, UIntArray, output, register_codec


class Bias(Codec):  # type: ignore[misc]
    """Adds 0x80 to every byte of an integer but the top one, as a single number: 0x00808080.

    Small differences of either sign then have a top byte of 0 and others near 0x80, so their byte
    planes compress as after `Zigzag`, and one subtraction undoes it instead of four operations.
    """

    codec_id = "seqrecord.bias"
    parameters: ClassVar[Parameters] = {}

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Any array will do."""

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array of the sums."""
        out = np.array(buf, order="C", copy=True)
        np.add(out, _bias(out.dtype), out=out)
        return out

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """The inverse into `out`, which may be `buf` itself."""
        out = output(buf, out)
        np.subtract(out, _bias(out.dtype), out=out)
        return out


register_codec(Bias)


def _bias(dtype: np.dtype[Any]) -> np.unsignedinteger[Any]:
    value: np.unsignedinteger[Any] = dtype.type(int("80" * (dtype.itemsize - 1) or "0", 16))
    return value
