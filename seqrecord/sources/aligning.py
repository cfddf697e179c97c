"""Which rows of one list of times belong to those of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENTS", "NONE", "align", "associate", "sample_bounds"]

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


def associate(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], within: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of rows of two rising lists, as TUM's `associate.py` finds them.

    Of all pairs less than `within` seconds apart, the closest one is taken, then the closest one
    of what is left, and so on; where two are as close, the one that is earlier in `first`, then in
    `second`. Of equal times only the last row counts. Pairs come in the order of `first`.
    """
    one, other = _last_of_equal(first), _last_of_equal(second)
    low = np.searchsorted(second[other], first[one] - within, "left")
    high = np.searchsorted(second[other], first[one] + within, "right")
    candidates = [
        (abs(first[i] - second[j]), i, j)
        for i, start, stop in zip(one.tolist(), low.tolist(), high.tolist(), strict=True)
        for j in other[start:stop].tolist()
        if abs(first[i] - second[j]) < within
    ]
    taken: dict[int, int] = {}
    used: set[int] = set()
    for _, i, j in sorted(candidates):
        if i not in taken and j not in used:
            taken[i] = j
            used.add(j)
    pairs = np.array(sorted(taken.items()), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def sample_bounds(times: npt.NDArray[Any], samples: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where the samples of each frame begin and end: int64 [T + 1].

    Frame t has those from its own time up to the next frame's. The last frame has those of as long
    a time as the frame before it.
    """
    interval = times[-1] - times[-2] if len(times) > 1 else 0
    return np.searchsorted(samples, np.append(times, times[-1] + interval), "left").astype(np.int64)


def _last_of_equal(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.append(np.diff(times) > 0, True)[: len(times)])
