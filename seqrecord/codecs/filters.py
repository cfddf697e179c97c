"""Reversible integer transforms that make frames easier to compress.

Each is a numcodecs codec that maps an array of unsigned integers to one of the same shape and
dtype, is exact modulo the integers' range, and is undone in place; docs/codecs.md defines the
bytes. Floats are filtered through their bit patterns, so NaN payloads and negative zeros survive.

Undoing is what a training run pays for, on every frame of every epoch, so that direction takes only
a few NumPy calls that each run over much memory. Few, because a call that releases the GIL must get
it back: beside a thread that computes in Python every call can wait for 5 ms.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from seqrecord.codecs.library import Codec, register_codec
from seqrecord.codecs.scratch import MAX_SCRATCH_BYTES, scratch
from seqrecord.codecs.sums import UIntArray, is_serial, sum_along

__all__ = ["Bias", "Delta", "SubtractGreen", "UIntArray", "Zigzag"]

_BAND_BYTES = MAX_SCRATCH_BYTES  # measured, smaller bands are no faster


class Delta(Codec):  # type: ignore[misc]  # numcodecs has no types
    """Each integer minus the one before it along `axis`; the first stays.

    An `axis` of `None` takes the whole array as one sequence in C order. `width` is the size in
    bytes of the integers that are subtracted: by default that of the array's elements, or a larger
    one that holds a whole number of neighbours on the last axis. Wider integers undo faster, and a
    borrow from one neighbour into the next costs next to nothing. With `restart`, the integers at
    its multiples stay too, so that the sums undo in one pass instead of two.
    """

    codec_id = "seqrecord.delta"

    def __init__(
        self, axis: int | None, width: int | None = None, restart: int | None = None
    ) -> None:
        self.axis = axis
        self.width = width
        self.restart = restart

    def get_config(self) -> dict[str, Any]:
        optional = {"width": self.width, "restart": self.restart}
        return {
            "id": self.codec_id,
            "axis": self.axis,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Raise `ValueError` unless arrays of this shape and element size can be filtered."""
        if self.axis is not None and not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"no axis {self.axis} in {len(shape)} dimensions")
        if self.width is not None and (
            self.width < itemsize or not shape or shape[-1] * itemsize % self.width != 0
        ):
            raise ValueError(
                f"{shape[-1:]} elements of {itemsize} bytes are not integers of {self.width} bytes"
            )

    def is_serial(self, shape: tuple[int, ...], itemsize: int) -> bool:
        """Whether undoing it waits for the adder and hardly for memory: see `sums`."""
        return is_serial(self._slab_shape(shape, itemsize), self.width or itemsize)

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array of the differences."""
        out = np.array(buf, order="C", copy=True)
        before, after = self._slabs(np.ascontiguousarray(buf)), self._slabs(out)
        np.subtract(before[:, 1:], before[:, :-1], out=after[:, 1:])
        if self.restart is not None:
            after[:, :: self.restart] = before[:, :: self.restart]
        return out

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """Running sums of `buf` into `out`, which may be `buf` itself."""
        if out is None:
            out = np.empty(buf.shape, buf.dtype)
        target = self._slabs(out)
        source = target if out is buf else self._slabs(np.ascontiguousarray(buf))
        sum_along(source, target, self.restart)
        return out

    def _slabs(self, array: UIntArray) -> UIntArray:
        """`array` [..., N, ...] as [outer, N, inner] of integers of `width` bytes, a view."""
        self.check(array.shape, array.dtype.itemsize)
        shape = self._slab_shape(array.shape, array.dtype.itemsize)
        if self.width is not None:
            array = array.view(f"<u{self.width}")
        return array.reshape(shape)

    def _slab_shape(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int, int]:
        if self.width is not None:
            shape = (*shape[:-1], shape[-1] * itemsize // self.width)
        if self.axis is None:
            return (1, math.prod(shape), 1)
        axis = self.axis % len(shape)
        return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


class Zigzag(Codec):  # type: ignore[misc]
    """Signed integers to unsigned ones, 0, -1, 1, -2, ... to 0, 1, 2, 3, ...

    Small differences of either sign then have zero bytes at the top.
    """

    codec_id = "seqrecord.zigzag"

    def get_config(self) -> dict[str, Any]:
        return {"id": self.codec_id}

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
        out = _output(buf, out)
        flat = out.reshape(-1)
        one = flat.dtype.type(1)
        step = _BAND_BYTES // flat.dtype.itemsize
        temporary = scratch("band", min(step, flat.size), flat.dtype)
        for start in range(0, flat.size, step):
            band = flat[start : start + step]
            sign = temporary[: band.size]
            np.bitwise_and(band, one, out=sign)
            np.negative(sign, out=sign)
            np.right_shift(band, one, out=band)
            np.bitwise_xor(band, sign, out=band)
        return out


class Bias(Codec):  # type: ignore[misc]
    """Adds 0x80 to every byte of an integer but the top one, as a single number: 0x00808080.

    Small differences of either sign then have a top byte of 0 and others near 0x80, so their byte
    planes compress as after `Zigzag`, and one subtraction undoes it instead of four operations.
    """

    codec_id = "seqrecord.bias"

    def get_config(self) -> dict[str, Any]:
        return {"id": self.codec_id}

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Any array will do."""

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array of the sums."""
        out = np.array(buf, order="C", copy=True)
        np.add(out, _bias(out.dtype), out=out)
        return out

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """The inverse into `out`, which may be `buf` itself."""
        out = _output(buf, out)
        np.subtract(out, _bias(out.dtype), out=out)
        return out


class SubtractGreen(Codec):  # type: ignore[misc]
    """Red minus green, green, blue minus green, of pixels [..., 3] that lie interleaved."""

    codec_id = "seqrecord.subtract_green"

    def get_config(self) -> dict[str, Any]:
        return {"id": self.codec_id}

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
        out = _output(buf, out)
        flat = out.reshape(-1)
        # Channel by channel the step in memory is 3 and nothing vectorizes. Instead the greens are
        # masked out into a copy and added to whole runs of memory, one channel up and one down.
        mask = _green_mask(flat.dtype)
        temporary = scratch("band", min(mask.size, flat.size), flat.dtype)
        for start in range(0, flat.size, mask.size):
            band = flat[start : start + mask.size]
            green = temporary[: band.size]
            np.bitwise_and(band, mask[: band.size], out=green)
            np.add(band[:-1], green[1:], out=band[:-1])
            np.add(band[1:], green[:-1], out=band[1:])
        return out


def _bias(dtype: np.dtype[Any]) -> np.unsignedinteger[Any]:
    value: np.unsignedinteger[Any] = dtype.type(int("80" * (dtype.itemsize - 1) or "0", 16))
    return value


def _output(buf: UIntArray, out: UIntArray | None) -> UIntArray:
    """`buf` itself if that is where the result goes, else `out` or a new array with its values."""
    if out is None:
        return np.array(buf, order="C", copy=True)
    if out is not buf:
        np.copyto(out, buf)
    return out


@lru_cache
def _green_mask(dtype: np.dtype[Any]) -> UIntArray:
    """0, all ones, 0, 0, all ones, 0, ... for a band of whole pixels."""
    pixel = np.array([0, np.iinfo(dtype).max, 0], dtype)
    mask = np.tile(pixel, _BAND_BYTES // pixel.nbytes)
    mask.flags.writeable = False  # all threads share it
    return mask


register_codec(Bias)
register_codec(Delta)
register_codec(Zigzag)
register_codec(SubtractGreen)
