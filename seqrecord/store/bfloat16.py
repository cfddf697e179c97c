"""Numbers of bfloat16, which NumPy lacks: words of 16 bits, the upper half of a float32.

::

    bfloat16    s eeeeeeee fffffff                      stored, and in the memory of loaders
    float32     s eeeeeeee fffffff 0000000000000000     what NumPy's users get, exactly

`BFLOAT16` is a dtype without arithmetic. So code that forgets the conversion raises, and never
computes with the words as integers.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FrameError

NAME = "bfloat16"

BFLOAT16: np.dtype[Any] = np.dtype([("bfloat16", "<u2")])
"""The dtype of bfloat16 features, and of arrays with their words.

Reading returns float32, and batches are `torch.bfloat16`.
"""

_LOW = np.uint32(0xFFFF)
_QUIET = np.uint32(0x0040_0000)  # the highest bit of the fraction, set in a usual NaN


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype's name, such as `uint8`."""
    return NAME if dtype == BFLOAT16 else str(dtype.name)


def dtype_code(dtype: np.dtype[Any]) -> str:
    """The dtype as schemas spell it, such as `|u1`."""
    return NAME if dtype == BFLOAT16 else dtype.str


def is_bfloat16(dtype: object) -> bool:
    """Whether this is bfloat16: `BFLOAT16`, its name, or the dtype of torch, ml_dtypes or JAX."""
    if isinstance(dtype, np.dtype):
        return dtype == BFLOAT16 or dtype.name == NAME
    return str(dtype) in (NAME, f"torch.{NAME}")


def numbers_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert words to float32, exactly; other arrays are returned unchanged."""
    if array.dtype != BFLOAT16:
        return array
    bits = array.view("<u2").astype("<u4")
    bits <<= 16
    return bits.view("<f4")


def as_array(value: Any) -> npt.NDArray[Any]:
    """Like `np.asarray`, but bfloat16 of torch, ml_dtypes or JAX becomes words."""
    if not is_bfloat16(getattr(value, "dtype", None)):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.view(torch.int16).numpy()  # which keeps the strides
    array = np.asarray(value)
    return array if array.dtype == BFLOAT16 else array.view("<u2").view(BFLOAT16)


def as_words(feature: str, value: Any) -> npt.NDArray[Any]:
    """Convert a value for a feature of bfloat16: words, or float32 that lose nothing.

    Arrays of other dtypes are returned unchanged. Raises `FrameError` for float32 that bfloat16
    would round.
    """
    array = as_array(value)
    if array.dtype.newbyteorder("<") != np.dtype("<f4"):
        return array
    bits = np.asarray(array, "<f4", order="C").view("<u4")
    if (bits & _LOW).any():
        bits = np.where(np.isnan(array), bits | _QUIET, bits) & ~np.where(np.isnan(array), _LOW, 0)
        if (is_rounded := (bits & _LOW) != 0).any():
            raise FrameError(
                "bfloat16 would round this float32; round it first, if that is intended",
                feature=feature,
                expected="float32 with the last 16 bits 0, or bfloat16: "
                "torch.from_numpy(value).bfloat16(), or value.astype(ml_dtypes.bfloat16)",
                got=repr(float(array[is_rounded].flat[0])),
            )
    return (bits >> 16).astype("<u2").view(BFLOAT16)
