"""Count, mean, deviation and extremes of arrays, near memory bandwidth; scales to divide by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_BLOCK_ROWS, _BLOCK_COLUMNS = 256, 1536  # a block of 8-byte numbers fits into a core's cache
_REDUCTIONS = (np.minimum, np.maximum, np.add, np.add)  # of numbers, differences, their squares
_SMALL, _LARGE = 1e-140, 1e140  # magnitudes whose squares neither underflow nor overflow
_ULPS = 4  # deviation of equal numbers after sums, in units of the dtype's eps
_NARROW = 1e-4  # width between quantiles, relative to max - min

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(kw_only=True)
class Moments:
    """Moments of numbers; `mean` to `max` ignore NaN and infinities; 0 or `None` if empty."""

    count: int = 0  # of finite numbers
    nan: int = 0
    positive_infinity: int = 0
    negative_infinity: int = 0
    mean: float = 0.0
    std: float = 0.0  # of the population: divided by count
    min: float | int | None = None
    max: float | int | None = None

    def add_moments(self, addition: Moments) -> None:
        """Merge other moments by the update of Chan, Golub and LeVeque.

        Standard deviations replace sums of squares, so that nothing overflows.
        """
        self.nan += addition.nan
        self.positive_infinity += addition.positive_infinity
        self.negative_infinity += addition.negative_infinity
        if addition.min is None or addition.max is None:
            return
        total = self.count + addition.count
        own_share, added_share = self.count / total, addition.count / total
        mean_weight = math.sqrt(own_share * added_share)
        mean_distance = addition.mean * mean_weight - self.mean * mean_weight
        self.mean = self.mean * own_share + addition.mean * added_share
        self.std = math.hypot(
            self.std * math.sqrt(own_share), addition.std * math.sqrt(added_share), mean_distance
        )
        self.count = total
        self.min = addition.min if self.min is None else min(self.min, addition.min)
        self.max = addition.max if self.max is None else max(self.max, addition.max)
        if self.min == self.max:
            self.mean, self.std = float(self.min), 0.0  # exact, whatever the sums round to


def merge_moments(totals: Iterable[Moments], additions: Iterable[Moments]) -> None:
    """Merge the moments of each channel into `totals`, which has as many channels."""
    for total, addition in zip(totals, additions, strict=True):
        total.add_moments(addition)


def moments_of(pixels: npt.NDArray[Any]) -> list[Moments]:
    """Column moments of a C-contiguous array [n, C] with real numbers in native byte order.

    Sums of uint8 are exact. Sums of other dtypes are of differences to about the minimum. Needs
    memory for a few times `_BLOCK_ROWS * _BLOCK_COLUMNS` numbers.
    """
    channels = pixels.shape[1]
    if not pixels.size:
        return [Moments()] * channels
    columns: dict[int, list[Any]] = {}  # reduced blocks of each width, see `_REDUCTIONS`
    non_finite = np.zeros((3, channels), np.int64)  # NaN, inf, -inf
    shift = np.zeros(channels)
    is_exact = pixels.dtype == np.uint8  # float32 represents sums of 258 squares of uint8 exactly
    is_unset = np.full(channels, not is_exact)  # channels without a finite number so far
    # One buffer for all blocks: allocating takes longer than the arithmetic.
    most_values = max(_BLOCK_ROWS * _BLOCK_COLUMNS, channels)
    buffer = np.empty(min(pixels.size, most_values), np.float32 if is_exact else np.float64)
    with np.errstate(all="ignore"):
        for block in _blocks(pixels):
            low, high, finite, width = block.min(0), block.max(0), None, block.shape[1]
            if pixels.dtype.kind == "f" and not np.isfinite(low + high).all():
                finite = np.isfinite(block)
                masks = (np.isnan(block), block == np.inf, block == -np.inf)
                non_finite += [_by_channel(np.add, mask.sum(0), channels) for mask in masks]
                low = np.where(finite, block, np.inf).min(0)
                high = np.where(finite, block, -np.inf).max(0)
            if is_unset.any():
                # Differences to about the minimum: squares of large offsets would cancel
                # (tests/store/test_statistics.py::test_constants_and_large_offsets).
                minimum = _by_channel(np.minimum, low, channels)
                is_first = is_unset & np.isfinite(minimum)
                shift[is_first] = minimum[is_first]
                is_unset &= ~is_first
            numbers = buffer[: block.size].reshape(block.shape)
            if is_exact:
                np.copyto(numbers, block)
            else:
                np.subtract(block, np.tile(shift, width // channels), out=numbers)
            if finite is not None:
                numbers[~finite] = 0
            rows = [low, high, np.add.reduce(numbers, 0).astype(np.float64)]
            np.multiply(numbers, numbers, out=numbers)
            rows.append(np.add.reduce(numbers, 0).astype(np.float64))
            if width in columns:
                threes = zip(_REDUCTIONS, columns[width], rows, strict=True)
                rows = [reduce(total, row) for reduce, total, row in threes]
            columns[width] = rows
    lows, highs, *sums = (
        _by_channel(reduce, np.concatenate(blocks), channels)
        for reduce, *blocks in zip(_REDUCTIONS, *columns.values(), strict=True)
    )
    about = zip(pixels.T, non_finite.T, np.stack(sums, 1), shift.tolist(), lows, highs, strict=True)
    return [_channel_moments(*of_channel) for of_channel in about]


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
    scale, std, low, high = (np.asarray(numbers, np.float64) for numbers in (scale, std, low, high))
    is_constant = (low == high) | (std <= _ULPS * eps * np.maximum(abs(low), abs(high)))
    is_narrow = ~is_constant & (scale < _NARROW * (high / 2 - low / 2)) & are_quantiles
    return np.where((scale > 0) & ~is_constant & ~is_narrow, scale, 1.0), is_narrow


def _blocks(pixels: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The array as blocks [rows, columns] of whole pixels: reductions along long rows are fast."""
    count, channels = pixels.shape
    pixels_per_row = max(1, _BLOCK_COLUMNS // channels)
    num_in_rows = count // pixels_per_row * pixels_per_row
    rows = pixels[:num_in_rows].reshape(-1, pixels_per_row * channels)
    yield from (rows[i : i + _BLOCK_ROWS] for i in range(0, len(rows), _BLOCK_ROWS))
    if num_in_rows < count:
        yield pixels[num_in_rows:].reshape(1, -1)


def _by_channel(reduce: np.ufunc, row: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Reduce a row [pixels * C] to [C]."""
    pixels: Any = row.reshape(-1, channels)
    # float32 sums over rows would be inexact.
    dtype = np.float64 if reduce is np.add and row.dtype.kind == "f" else None
    reduced: npt.NDArray[Any] = reduce.reduce(pixels, 0, dtype=dtype)
    return reduced


def _channel_moments(
    column: npt.NDArray[Any],
    non_finite: npt.NDArray[np.int64],
    sums: npt.NDArray[np.float64],
    shift: float,
    minimum: Any,
    maximum: Any,
) -> Moments:
    names = ("nan", "positive_infinity", "negative_infinity")
    moments = Moments(**dict(zip(names, non_finite.tolist(), strict=True)))
    moments.count = count = len(column) - int(non_finite.sum())
    if not count:
        return moments
    low, high = minimum.item(), maximum.item()
    magnitude = max(abs(float(low)), abs(float(high)))
    if magnitude and not _SMALL < magnitude < _LARGE:  # squares overflowed or underflowed
        scaled = np.ascontiguousarray(column[np.isfinite(column), None]) / magnitude
        [scaled_moments] = moments_of(scaled)
        mean, std = scaled_moments.mean * magnitude, scaled_moments.std * magnitude
    else:
        mean = sums[0] / count
        variance = (count * sums[1] - sums[0] * sums[0]) / count / count
        mean, std = shift + mean, math.sqrt(max(0.0, variance))
    return replace(moments, mean=float(mean), std=float(std), min=low, max=high)
