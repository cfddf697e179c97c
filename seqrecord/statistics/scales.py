"""The scales of normalization: one rule for numbers that are too close together to divide by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_ULPS = 4  # deviation of equal numbers after sums, in units of the dtype's eps
_NARROW = 1e-4  # width between quantiles, relative to max - min

FloatArray: TypeAlias = npt.NDArray[np.float64]


def coarsest_eps(dtypes: Iterable[np.dtype[Any]]) -> float:
    """The largest eps of the dtypes; integers count as float64, in which they are summed."""
    return max(float(np.finfo(d if d.kind == "f" else np.float64).eps) for d in dtypes)


def usable_scales(
    scale: Any, std: Any, low: Any, high: Any, *, eps: float, are_quantiles: bool = False
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Scales to divide by, and which channels are narrow: float64 [C] and bool [C].

    1 replaces the scale of a channel that is constant, without numbers (NaN) or narrow. Constant:
    `low == high`, or `std` is at most 4 `eps` of the largest magnitude, as sums of equal numbers
    leave it. Narrow, if scales are half the distance of two quantiles: it is below 1e-4 of
    `high - low`, so that rare numbers would become thousands.
    """
    scale, std, low, high = (np.asarray(one, np.float64) for one in (scale, std, low, high))
    is_constant = (low == high) | (std <= _ULPS * eps * np.maximum(abs(low), abs(high)))
    is_narrow = ~is_constant & (scale < _NARROW * (high / 2 - low / 2)) & are_quantiles
    return np.where((scale > 0) & ~is_constant & ~is_narrow, scale, 1.0), is_narrow
