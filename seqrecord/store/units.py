"""Checks and parsing of arguments: integers, seeds, flags, sizes in bytes, durations in seconds.

Errors name the argument, the expected values and the given value. `Progress` is what functions
report to a `progress` argument.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.text import repr_of

_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGTP", start=1):
    _UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power}

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

_FLAGS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)

_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)


@dataclass(frozen=True)
class Progress:
    """How far a function is, in the unit that it names. `total` includes bad episodes."""

    done: int
    total: int
    raw_bytes: int = 0
    """Decoded bytes of the frames so far; 0 if it counts none."""


def check_positions(numbers: Iterable[Any], count: int, noun: str) -> npt.NDArray[np.int64]:
    """Positions from 0 in a sequence of `count`, int64[n]; negative ones count from the end.

    Raises `IndexError` for others, and `TypeError` for values that are no integers.
    """
    try:
        positions = list(map(operator.index, numbers))
    except TypeError:
        wrong = next(number for number in numbers if not hasattr(number, "__index__"))
        problem = f"the number of a {noun} is not an integer"
        raise TypeError(f"{problem}; expected: an integer; got: {repr_of(wrong, 100)}") from None
    for position in positions:
        if not -count <= position < count:
            raise IndexError(f"{noun} {position} of {count}")
    return np.array(positions, np.int64) % max(count, 1)


def exact_rate(fps: float) -> Fraction:
    """Frames per second as a fraction, such as 30000/1001; or seconds per frame, such as 1/3600."""
    rate = Fraction(fps)
    return rate.limit_denominator(1001) if rate >= 1 else 1 / (1 / rate).limit_denominator(1001)


def parse_size(size: int | str) -> int:
    """Bytes of a size such as `2147483648`, `"2GiB"` or `"1.5 GB"`; rounds down.

    `KB` is 1000 bytes and `KiB` is 1024, as in IEC 80000-13. Raises `ValueError` if invalid.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f"not a size: {size[:50]!r}; write for example 2GiB or 500MB")
        return _check_limit(int(Fraction(match[1]) * _UNITS[match[2].upper()]))
    try:
        # NumPy before version 2 accepts `np.bool_` as an index.
        number = -1 if isinstance(size, (bool, np.bool_)) else operator.index(size)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(
            f"not a size: {repr_of(size, 50)}; write for example 2GiB, or bytes as an integer"
        )
    return _check_limit(number)


def _check_limit(size: int) -> int:
    if size >= 1 << 63:
        raise ValueError("not a size: no file and no memory has so many bytes")
    return size


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90`, `30m`, `12h`, `7d`. Raises `ValueError` if invalid."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"not a duration: {text[:50]!r}; write for example 7d, 12h or 30m")
    return float(Fraction(match[1]) * _SECONDS[match[2]])


def parse_flag(value: object) -> bool:
    """A bool, or its text from a command line: `true`, `False`, `yes`, `off`, `1`.

    Raises `ValueError` if invalid.
    """
    flag = _FLAGS.get(str(value).lower())
    if flag is None:
        raise ValueError(f"not a flag: {repr_of(value, 50)}; write true or false")
    return flag


def format_size(size: int) -> str:
    """A size with a binary unit: `1.4 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(value, 1) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


MAX_INT = (1 << 63) - 1
"""Largest int64: the maximum of integers in the format and in settings."""

SEED_LIMIT = 1 << 1024  # exclusive bound of a seed's absolute value


def is_integer(value: object) -> bool:
    """Whether `value` is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_integer(
    name: str,
    value: Any,
    *,
    least: int | None = None,
    most: int | None = None,
    expected: str = "an integer",
) -> int:
    """Convert an argument to an integer of `least` to `most` (inclusive), or raise `ClipError`."""
    try:
        if isinstance(value, (bool, np.bool_)):  # NumPy before 2 accepts np.bool_ as an index
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ClipError(
            f"{name} is not an integer", expected=expected, got=repr_of(value)
        ) from None
    if least is not None and number < least:
        raise ClipError(f"{name} is too small", expected=f"at least {least}", got=repr_of(number))
    if most is not None and number > most:
        raise ClipError(f"{name} is too large", expected=f"at most {most}", got=repr_of(number))
    return number


def check_flag(name: str, value: Any, expected: str = "True or False") -> bool:
    """Convert an argument, a bool of Python or NumPy, to Python's, or raise `ClipError`."""
    return bool(check(name, value, isinstance(value, (bool, np.bool_)), expected))


def check_amount(name: str, value: object) -> None:
    """Raise `ClipError` unless an argument is a finite number of at least 0."""
    if not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
        raise ClipError(f"{name} is not a finite number", expected=">= 0", got=repr_of(value, 100))


def check_size(name: str, value: Any) -> Any:
    """Returns a size as it was given; raises `ClipError` if it is invalid."""
    try:
        parse_size(value)
    except ValueError as error:
        expected = 'bytes, or text such as "2GiB"'
        raise ClipError(f"{name}: {error}", expected=expected, got=repr_of(value)) from None
    return value


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number of Python or NumPy, but not a bool."""
    is_real = isinstance(value, (int, float, np.integer, np.floating))
    # np.timedelta64 is a subclass of np.signedinteger.
    is_real = is_real and not isinstance(value, (bool, np.timedelta64))
    try:
        return is_real and math.isfinite(value)
    except OverflowError:  # a large integer
        return False


def is_probability(p: Any) -> bool:
    """Whether `p` is a number in [0, 1], of Python or NumPy."""
    return is_number(p) and bool(0 <= p <= 1)


def is_word(value: object, words: Collection[str]) -> bool:
    """Whether `value` is a text among `words`. An array, which `in` compares by values, is not."""
    return isinstance(value, str) and value in words


def check_seed(value: Any) -> int:
    """Check a seed, an integer of at most 1024 bits; raises `ClipError` otherwise."""
    seed = check_integer("seed", value)
    if not -SEED_LIMIT < seed < SEED_LIMIT:
        raise ClipError(
            "seed is too large", expected="an integer of at most 1024 bits", got=repr_of(seed)
        )
    return seed


def raise_if(is_wrong: bool, problem: str, expected: object = None, got: object = None) -> None:
    """Raise `ClipError` for arguments that are wrong or conflict."""
    if is_wrong:  # a long list takes time to show
        is_short = got is None or isinstance(got, (str, int, float))
        raise ClipError(problem, expected=expected, got=got if is_short else repr_of(got))


def check(name: str, value: Any, is_right: bool, expected: str) -> Any:
    """Return `value`; raise `ClipError` if it is not right."""
    if not is_right:  # a long list of names takes time to show
        raise ClipError(f"{name} is not valid", expected=expected, got=repr_of(value))
    return value


def check_names(name: str, value: Any) -> Any:
    """Return `None` or a collection of `str`; a list for an array, which has no truth value."""
    raise_if(isinstance(value, str), f"{name} is a list of names", [value], value)
    check(name, value, value is None or are_names(value), "a list of names")
    return list(value) if hasattr(value, "tolist") else value


def are_names(value: object) -> bool:
    """Whether a value is a collection of `str`."""
    # An array without dimensions is a Collection too.
    is_list = isinstance(value, Collection) and getattr(value, "ndim", 1) > 0
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]
