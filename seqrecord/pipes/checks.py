"""Checks of arguments: errors name the argument, what was expected, and what came."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from seqrecord.clip_transforms import is_probability
from seqrecord.errors import ClipError
from seqrecord.integers import check_integer
from seqrecord.text import repr_of
from seqrecord.units import parse_size

__all__ = [
    "are_names",
    "check",
    "check_dilation",
    "check_flag",
    "check_names",
    "check_rank",
    "check_reverse",
    "check_size",
]

_MOST_RANKS = 1 << 31  # exclusive


def check_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Both as integers. Raises `ClipError` for numbers that make no sense."""
    try:
        count = check_integer("world_size", world_size)
        number = 0 if rank is None and count == 1 else check_integer("rank", rank)
    except ClipError:
        number, count = 0, 0
    if not 0 <= number < count < _MOST_RANKS:
        raise ClipError(
            "rank and world_size make no sense",
            expected="both, with 0 <= rank < world_size; or world_size=1 alone, for the whole "
            "epoch; or neither, to find them",
            got=f"rank={repr_of(rank)} world_size={repr_of(world_size)}",
        )
    return number, count


def check(name: str, value: object, is_right: bool, expected: str) -> None:
    """Raise `ClipError` for an argument that is not right."""
    if not is_right:
        raise ClipError(f"{name} is not what it should be", expected=expected, got=repr_of(value))


def check_flag(name: str, value: object, is_right: bool = False) -> None:
    """Raise `ClipError` for an argument that is neither right nor a bool."""
    check(name, value, is_right or isinstance(value, (bool, np.bool_)), "True or False")


def check_size(name: str, value: Any) -> None:
    """Raise `ClipError` for an argument that says no number of bytes."""
    try:
        parse_size(value)
    except ValueError as error:
        raise ClipError(
            f"{name}: {error}", expected='bytes, or text such as "2GiB"', got=repr_of(value)
        ) from None


def check_names(name: str, value: object, expected: str = "a list of names") -> None:
    """Raise `ClipError` for an argument that is neither `None` nor a collection of `str`."""
    if isinstance(value, str):
        raise ClipError(f"{name} is a list of names", expected=[value], got=value)
    check(name, value, value is None or are_names(value), expected)


def are_names(value: object) -> bool:
    """Whether an argument is a collection of `str`."""
    is_list = isinstance(value, Collection) and not _is_scalar(value)
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]


def check_dilation(value: Any) -> int | tuple[int, ...]:
    """A dilation, or several in ascending order. Raises `ClipError` for what is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)) or _is_scalar(value):
        return _dilation(value)
    several = tuple(sorted(_dilation(one) for one in value))
    if not several or len(set(several)) < len(several):
        raise ClipError(
            "dilation has the same number twice, or none at all",
            expected="a number of frames, or several such as (1, 2, 4)",
            got=repr_of(value),
        )
    return several if len(several) > 1 else several[0]


def _dilation(value: Any) -> int:
    return check_integer("dilation", value, least=1, expected="an integer, or several")


def check_reverse(value: Any) -> float:
    """A probability. Raises `ClipError` for what is none."""
    if not is_probability(value):
        raise ClipError("reverse is not a probability", expected="0 to 1", got=repr_of(value))
    return float(value)


def _is_scalar(value: object) -> bool:
    """Whether this is an array without dimensions, which is no collection though it says so."""
    return getattr(value, "ndim", 1) == 0
