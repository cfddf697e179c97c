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

    def add_moments(self, more: Moments) -> None:
        """Merge other moments by the update of Chan, Golub and LeVeque.

        Uses standard deviations in place of sums of squares, so that nothing overflows.
        """
        self.nan += more.nan
        self.positive_infinity += more.positive_infinity
        self.negative_infinity += more.negative_infinity
        if more.min is None or more.max is None:
            return
        total = self.count + more.count
        old, new = self.count / total, more.count / total
        apart = math.sqrt(old * new)
        between = more.mean * apart - self.mean * apart
        self.mean = self.mean * old + more.mean * new
        self.std = math.hypot(self.std * math.sqrt(old), more.std * math.sqrt(new), between)
        self.count = total
        self.min = more.min if self.min is None else min(self.min, more.min)
        self.max = more.max if self.max is None else max(self.max, more.max)
        if self.min == self.max:
            self.mean, self.std = float(self.min), 0.0  # exact, whatever the sums round to


def moments_of(pixels: npt.NDArray[Any]) -> list[Moments]:
    """Moments of each column of a C-contiguous array [n, C] of real numbers in native byte order.

    Sums of uint8 are exact. Sums of other dtypes are of differences to about the minimum. Needs
    memory for a few times `_BLOCK_ROWS * _BLOCK_COLUMNS` numbers.
    """
    channels = pixels.shape[1]
    if not pixels.size:
        return [Moments()] * channels
    columns: dict[int, list[Any]] = {}  # reduced blocks of each width, see `_REDUCTIONS`
    odd = np.zeros((3, channels), np.int64)  # NaN, inf, -inf
    shift = np.zeros(channels)
    is_exact = pixels.dtype == np.uint8  # float32 represents sums of 258 squares of uint8 exactly
    # One buffer for all blocks: allocating takes longer than the arithmetic.
    most_values = max(_BLOCK_ROWS * _BLOCK_COLUMNS, channels)
    buffer = np.empty(min(pixels.size, most_values), np.float32 if is_exact else np.float64)
    with np.errstate(all="ignore"):
        for block in _blocks(pixels):
            low, high, finite, width = block.min(0), block.max(0), None, block.shape[1]
            if pixels.dtype.kind == "f" and not np.isfinite(low + high).all():
                finite = np.isfinite(block)
                masks = (np.isnan(block), block == np.inf, block == -np.inf)
                odd += [_by_channel(np.add, mask.sum(0), channels) for mask in masks]
                low = np.where(finite, block, np.inf).min(0)
                high = np.where(finite, block, -np.inf).max(0)
            if not columns and not is_exact:
                least = _by_channel(np.minimum, low, channels)
                shift = np.where(np.isfinite(least), least, 0).astype(np.float64)
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
                rows = [reduce(before, row) for reduce, before, row in threes]
            columns[width] = rows
    lows, highs, *sums = (
        _by_channel(reduce, np.concatenate([rows[i] for rows in columns.values()]), channels)
        for i, reduce in enumerate(_REDUCTIONS)
    )
    about = zip(pixels.T, odd.T, np.stack(sums, 1), shift.tolist(), lows, highs, strict=True)
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
    scale, std, low, high = (np.asarray(one, np.float64) for one in (scale, std, low, high))
    is_constant = (low == high) | (std <= _ULPS * eps * np.maximum(abs(low), abs(high)))
    is_narrow = ~is_constant & (scale < _NARROW * (high / 2 - low / 2)) & are_quantiles
    return np.where((scale > 0) & ~is_constant & ~is_narrow, scale, 1.0), is_narrow


def _blocks(pixels: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The array as blocks [rows, columns] of whole pixels: reductions along long rows are fast."""
    count, channels = pixels.shape
    wide = max(1, _BLOCK_COLUMNS // channels)
    whole = count // wide * wide
    rows = pixels[:whole].reshape(-1, wide * channels)
    yield from (rows[i : i + _BLOCK_ROWS] for i in range(0, len(rows), _BLOCK_ROWS))
    if whole < count:
        yield pixels[whole:].reshape(1, -1)


def _by_channel(reduce: np.ufunc, row: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Reduce a row [pixels * C] to [C]."""
    wide: Any = row.reshape(-1, channels)
    # float32 sums over rows would be inexact.
    dtype = np.float64 if reduce is np.add and row.dtype.kind == "f" else None
    found: npt.NDArray[Any] = reduce.reduce(wide, 0, dtype=dtype)
    return found


def _channel_moments(
    column: npt.NDArray[Any],
    odd: npt.NDArray[np.int64],
    sums: npt.NDArray[np.float64],
    shift: float,
    least: Any,
    most: Any,
) -> Moments:
    names = ("nan", "positive_infinity", "negative_infinity")
    found = Moments(**dict(zip(names, odd.tolist(), strict=True)))
    found.count = count = len(column) - int(odd.sum())
    if not count:
        return found
    low, high = least.item(), most.item()
    largest = max(abs(float(low)), abs(float(high)))
    if largest and not _SMALL < largest < _LARGE:  # squares overflowed or underflowed
        scaled = np.ascontiguousarray(column[np.isfinite(column), None]) / largest
        [of_scaled] = moments_of(scaled)
        mean, std = of_scaled.mean * largest, of_scaled.std * largest
    else:
        mean = sums[0] / count
        variance = (count * sums[1] - sums[0] * sums[0]) / count / count
        mean, std = shift + mean, math.sqrt(max(0.0, variance))
    return replace(found, mean=float(mean), std=float(std), min=low, max=high)
