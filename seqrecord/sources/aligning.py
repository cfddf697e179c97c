"""Which message of a topic belongs to each time of a clock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENTS", "NONE", "align"]

ALIGNMENTS = ("nearest", "last")
NONE = -1
"""In place of a message where none is within the tolerance."""


def align(
    clock: npt.NDArray[np.int64], times: npt.NDArray[np.int64], how: str, tolerance: int
) -> npt.NDArray[np.int64]:
    """For each time of `clock` [N] the position of its message in `times` [M], or `NONE`.

    Both are in ascending order and in one unit, and so is `tolerance`, which is inclusive.

    ::

        times       a    b         c
        clock     |    |    |    |    |
        last      -    a    b    b    c      the last one that is not later
        nearest   a    b    b    c    c      the earlier one of two that are as near

    Of several messages of one time it is any one, but the same in every call.
    """
    if not len(times):
        return np.full(len(clock), NONE, np.int64)
    before = np.searchsorted(times, clock, side="right") - 1
    far = np.iinfo(np.int64).max
    age = np.where(before >= 0, clock - times[np.maximum(before, 0)], far)
    found, distance = before, age
    if how == "nearest":
        after = before + 1
        inside = after < len(times)
        ahead = np.where(inside, times[np.where(inside, after, 0)] - clock, far)
        found = np.where(ahead < age, after, before)
        distance = np.minimum(age, ahead)
    return np.where(distance <= tolerance, found, NONE)
