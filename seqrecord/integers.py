"""Integers that somebody has given: errors name the argument, what was expected, and what came."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.text import repr_of

__all__ = ["MOST", "SEED_LIMIT", "check_integer", "check_seed"]

MOST = (1 << 63) - 1
"""What an integer of the format can be, and more than any setting needs."""

SEED_LIMIT = 1 << 1024  # of a seed without its sign, exclusive


def check_integer(
    name: str,
    value: Any,
    *,
    least: int | None = None,
    most: int | None = None,
    expected: str = "an integer",
) -> int:
    """The integer that an argument is, from `least` to `most`. Raises `ClipError` for others."""
    try:
        if isinstance(value, (bool, np.bool_)):  # the latter is an index for numpy before 2
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


def check_seed(value: Any) -> int:
    """The seed that an argument is, which a state can hold. Raises `ClipError` for others."""
    seed = check_integer("seed", value)
    if not -SEED_LIMIT < seed < SEED_LIMIT:
        raise ClipError(
            "seed is too large", expected="an integer of at most 1024 bits", got=repr_of(seed)
        )
    return seed
