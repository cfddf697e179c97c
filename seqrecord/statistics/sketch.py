"""A sketch of numbers: moments, extremes and quantiles in little memory, which can be merged."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.json_object import JsonObject
from seqrecord.statistics.moments import Moments, moments_of
from seqrecord.text import repr_of

LEVEL_VALUES = 2048  # values that a level holds at most; at most half of them go a level up
_MAX_LEVELS = 53  # so that counts are exact as floats
_ROUNDING = 1e-6  # relative; what sums in another order may differ by
_COUNTS = ("count", "nan", "positive_infinity", "negative_infinity", "over", "under")
_KEYS = {*_COUNTS, "mean", "std", "min", "max", "levels"}


def sketch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype in which values of `dtype` are kept; `None` for complex ones.

    It holds every value exactly: bool becomes uint8 and float16 becomes float32.
    """
    if dtype.kind == "c":
        return None
    if dtype.str == "|b1":
        return np.dtype(np.uint8)
    return np.dtype(np.float32) if dtype.str == "<f2" else dtype


@dataclass(eq=False)
class Sketch(Moments):
    """Numbers that were seen: exact count, mean, deviation, extremes; quantiles within a bound.

    Quantiles may be of some of the numbers, which were drawn: of as many as `weight` says. NaN and
    infinities are counted, and are in nothing else. `mean` is 0 and `std` is 0 of nothing.

    Quantiles come from levels of values: a value of level h stands for 2**h numbers. A full level
    is sorted and every second value of it goes a level up, which moves the rank of any number by at
    most 2**h, up or down. `over` and `under` are the sums of these: so the rank that the sketch
    says is at most `over` too large and at most `under` too small, always. It is the sketch of
    Manku, Rajagopalan and Lindsay (1998) with levels as in Karnin, Lang and Liberty (2016), without
    their coin. The bound is about log2(n / 2048) / 8192 of n numbers: 0.2 % at 10**8.
    """

    dtype: np.dtype[Any]
    over: int = 0
    under: int = 0
    levels: list[npt.NDArray[Any]] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """Of how many numbers quantiles are: `count`, or fewer that were drawn."""
        return sum(len(level) << number for number, level in enumerate(self.levels))

    @property
    def rank_error(self) -> float:
        """The bound on a quantile's rank, as a share of `weight`."""
        return max(self.over, self.under) / self.weight if self.weight else 0.0

    def add(self, values: npt.NDArray[Any], *, in_place: bool = False) -> None:
        """Add numbers [n] of the sketch's dtype. The more at once, the smaller the error.

        With `in_place`, the array may be changed.
        """
        [moments] = moments_of(values[:, None])
        self.add_moments(moments)
        self.add_drawn(values, in_place=in_place)

    def add_drawn(self, values: npt.NDArray[Any], *, in_place: bool = False) -> None:
        """Add numbers of which `add_moments` adds the moments, or of some that they are drawn from.

        Not finite ones are left out.
        """
        if self.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
            values = values[finite]
        if len(values):
            self._add_level(0, _sorted(values, in_place=in_place))
            self._compact()

    def merge(self, other: Sketch) -> None:
        """Add what another sketch of the same dtype has seen. It is left as it is."""
        assert other.dtype == self.dtype, "sketches of two dtypes"
        self.add_moments(other)
        self.over += other.over
        self.under += other.under
        for number, level in enumerate(other.levels):
            self._add_level(number, level)
        self._compact()

    def copy(self) -> Sketch:
        """One that goes on alone. Arrays are shared, for none is ever changed."""
        return self.as_dtype(self.dtype)

    def as_dtype(self, dtype: np.dtype[Any]) -> Sketch:
        """A copy in another dtype."""
        levels = [level.astype(dtype, copy=False) for level in self.levels]
        ends = [None if end is None else dtype.type(end).item() for end in (self.min, self.max)]
        return replace(self, dtype=dtype, min=ends[0], max=ends[1], levels=levels)

    def quantiles(self, shares: Sequence[float]) -> npt.NDArray[np.float64]:
        """The numbers below which these shares of all lie: float64 [shares], NaN of nothing.

        Each is a number that was seen: for share q of n = `weight` numbers, at most `q * n + e`
        were smaller and at least `q * n - e` were smaller or equal, with `e = rank_error * n`.
        Raises `ValueError` for a share outside 0 to 1.
        """
        wanted = np.asarray(shares, np.float64)
        if not ((wanted >= 0) & (wanted <= 1)).all():
            raise ValueError(f"a quantile is of a share from 0 to 1, not {list(shares)}")
        if self.min is None or self.max is None or not self.weight:
            return np.full(wanted.shape, np.nan)
        values = np.concatenate(self.levels)
        weights = np.repeat(
            2.0 ** np.arange(len(self.levels)), [len(level) for level in self.levels]
        )
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        found = np.searchsorted(ranks, np.maximum(wanted * self.weight, 1))
        chosen = values[order[np.minimum(found, len(order) - 1)]].astype(np.float64)
        return np.where(
            wanted == 0, float(self.min), np.where(wanted == 1, float(self.max), chosen)
        )

    def to_json(self) -> dict[str, Any]:
        """The sketch as JSON; levels are their values' bytes, little-endian, in base64."""
        value = {key: getattr(self, key) for key in _KEYS - {"levels"}}
        levels = [base64.b64encode(level.tobytes()).decode() for level in self.levels]
        return {**dict(sorted(value.items())), "levels": levels}

    @classmethod
    def from_json(cls, value: object, dtype: np.dtype[Any]) -> Sketch:
        """Inverse of `to_json`; trusts nothing. Raises `FormatError`."""
        found = JsonObject(value, _KEYS, "a sketch")
        sketch = cls(
            dtype,
            **{key: found.integer(key, most=(1 << _MAX_LEVELS) - 1) for key in _COUNTS},
            mean=_real(found, "mean"),
            std=_real(found, "std"),
            levels=[_level(level, dtype) for level in found.list("levels", 0, _MAX_LEVELS)],
        )
        _check_count(sketch)
        if sketch.count:
            sketch.min, sketch.max = (_extreme(found, key, dtype) for key in ("min", "max"))
        elif found.value["min"] is not None or found.value["max"] is not None:
            got = (found.value["min"], found.value["max"])
            raise _bad("min or max", "null, for no numbers", got)
        _check_values(sketch)
        return sketch

    def _half(self, number: int) -> int:
        """Which of two values of a level goes up, 0 or 1, counting what that does to ranks."""
        if self.over <= self.under:
            self.over += 1 << number
            return 0
        self.under += 1 << number
        return 1

    def _add_level(self, number: int, values: npt.NDArray[Any]) -> None:
        """Add sorted values to a level, which is sorted."""
        while len(self.levels) <= number:
            self.levels.append(np.empty(0, self.dtype))
        level = self.levels[number]
        if len(level) and len(values):
            values = _sorted(np.concatenate([level, values]))
        if len(values):
            self.levels[number] = values

    def _compact(self) -> None:
        """Bring every level below `LEVEL_VALUES`, from the lowest up."""
        number = 0
        while number < len(self.levels):
            level = self.levels[number]
            if len(level) >= LEVEL_VALUES:
                even = len(level) // 2 * 2
                self.levels[number] = level[even:].copy()
                self._add_level(number + 1, level[self._half(number) : even : 2].copy())
            number += 1


def _sorted(values: npt.NDArray[Any], *, in_place: bool = False) -> npt.NDArray[Any]:
    if values.dtype == np.uint8:  # of which NumPy's sort takes ten times as long as of others
        return np.repeat(np.arange(256, dtype=np.uint8), np.bincount(values, minlength=256))
    if not in_place:
        return np.sort(values)
    values.sort()
    return values


def _level(text: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not isinstance(text, str) or len(text) > LEVEL_VALUES * dtype.itemsize * 2:
        raise _bad("level", f"base64 of less than {LEVEL_VALUES} values", repr_of(text, 50))
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error) as error:
        raise _bad("level", "base64", repr_of(text, 50)) from error
    if len(data) % dtype.itemsize or len(data) >= LEVEL_VALUES * dtype.itemsize:
        raise _bad("level", f"less than {LEVEL_VALUES} values of {dtype}", f"{len(data)} bytes")
    values = np.sort(np.frombuffer(data, dtype))
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise _bad("level", "finite values", "one that is not")
    return values


def _check_count(sketch: Sketch) -> None:
    if sketch.weight > sketch.count:
        raise _bad("count", f"{sketch.weight} or more, which its levels stand for", sketch.count)
    if max(sketch.over, sketch.under) > sketch.weight * _MAX_LEVELS:
        raise _bad("bound", "one that can have come", (sketch.over, sketch.under))


def _check_values(sketch: Sketch) -> None:
    """Raise `FormatError` for moments and values that numbers from `min` to `max` cannot have."""
    if sketch.min is None or sketch.max is None:
        if sketch.mean or sketch.std:
            raise _bad("mean or std", "0, for no numbers", (sketch.mean, sketch.std))
        return
    least, most = sketch.min, sketch.max
    if least > most or any(
        len(level) and (level.min() < least or level.max() > most) for level in sketch.levels
    ):
        raise _bad("min or max", "the bounds of all values", (least, most))
    slack = _ROUNDING * max(abs(float(least)), abs(float(most)))
    half = float(most) * 0.5 - float(least) * 0.5
    if not float(least) - slack <= sketch.mean <= float(most) + slack:
        raise _bad("mean", f"{least} to {most}", sketch.mean)
    if not 0 <= sketch.std <= half + slack:
        raise _bad("std", f"0 to {half}", sketch.std)


def _real(sketch: JsonObject, key: str) -> float:
    number = sketch.value[key]
    if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:
        raise _bad(key, "a finite number", number)
    return float(number)


def _extreme(sketch: JsonObject, key: str, dtype: np.dtype[Any]) -> float | int:
    """A value of the dtype, as Python's float or int."""
    value = sketch.value[key]
    if dtype.kind == "f":
        number = _real(sketch, key)
        with np.errstate(over="ignore"):
            exact = dtype.type(number).item() == number
        if exact:
            return number
    elif type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return value
    raise _bad(key, f"a value of {dtype}", value)


def _bad(what: str, expected: object, got: object) -> FormatError:
    return FormatError(f"a sketch has a bad {what}", expected=expected, got=str(got)[:100])
