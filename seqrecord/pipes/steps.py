"""The arguments `dilation` and `reverse`: what is drawn of the frames of each clip."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.pipes.checks import check_integer

__all__ = ["check_dilation", "check_reverse"]


def check_dilation(value: Any) -> int | tuple[int, ...]:
    """A dilation, or several in ascending order. Raises `ClipError` for what is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        return _integer(value)
    several = tuple(sorted(_integer(one) for one in value))
    if not several or len(set(several)) < len(several):
        raise ClipError(
            "dilation has the same number twice, or none at all",
            expected="a number of frames, or several such as (1, 2, 4)",
            got=repr(value)[:100],
        )
    return several if len(several) > 1 else several[0]


def check_reverse(value: Any) -> float:
    """A probability. Raises `ClipError` for what is none."""
    is_number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1):
        raise ClipError("reverse is not a probability", expected="0 to 1", got=repr(value)[:100])
    return float(value)


def _integer(value: Any) -> int:
    return check_integer("dilation", value, least=1, expected="an integer, or several")
