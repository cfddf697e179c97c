"""Lists of numbers and names as text, a row a line, and how rows of two lists belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes

__all__ = ["associate", "check_rising", "nearest", "rows_of", "sample_bounds", "table"]

_MAX_BYTES = 1 << 30


def rows_of(path: Path, separators: str = "") -> list[tuple[int, list[str]]]:
    """The words of each line, with the line's number from 1; comments and empty lines are left out.

    Words are separated by blanks, and by `separators`. A comment begins with `#`.
    """
    try:
        text = read_bytes(path, _MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError("a list that is not text", file=str(path), offset=error.start) from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        for separator in separators:
            line = line.replace(separator, " ")
        words = line.split()
        if words and not words[0].startswith("#"):
            rows.append((number, words))
    return rows


def table(
    path: Path,
    rows: Sequence[tuple[int, Sequence[str]]],
    columns: int,
    parse: Callable[[str], Any] = float,
) -> npt.NDArray[Any]:
    """Rows of `columns` finite numbers each: [T, columns]; raises `SourceError` for other rows."""
    values = []
    for number, words in rows:
        try:
            row = [parse(word) for word in words[:columns]]
        except ValueError:
            row = []
        if len(row) != columns or not all(map(math.isfinite, row)):
            raise SourceError(
                f"a bad row in line {number}",
                file=str(path),
                expected=f"{columns} finite numbers",
                got=repr(" ".join(words)[:120]),
            )
        values.append(row)
    dtype = np.int64 if parse is int else np.float64
    try:
        return np.array(values, dtype).reshape(len(values), columns)
    except OverflowError as error:
        raise SourceError("a number that is too large", file=str(path)) from error


def check_rising(times: npt.NDArray[Any], path: Path) -> None:
    """Raises `SourceError` where a time is before the one above it."""
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        row = int(back[0])
        raise SourceError(
            "timestamps that go back",
            file=str(path),
            frame=row + 1,
            expected=f"{times[row]} or later",
            got=times[row + 1],
        )


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


def nearest(
    times: npt.NDArray[Any], others: npt.NDArray[Any], within: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The row of `others` nearest to each time, and whether it is at most `within` away.

    Both rise. Of two that are as near, the earlier one.
    """
    if not len(others):
        return np.zeros(len(times), np.int64), np.zeros(len(times), np.bool_)
    after = np.searchsorted(others, times).clip(1, max(1, len(others) - 1))
    if len(others) == 1:
        rows = np.zeros(len(times), np.int64)
    else:
        is_before = times - others[after - 1] <= others[after] - times
        rows = after - is_before
    return rows.astype(np.int64), np.abs(others[rows] - times) <= within


def sample_bounds(times: npt.NDArray[Any], samples: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where the samples of each frame begin and end: int64 [T + 1].

    Frame t has those from its own time up to the next frame's. The last frame has those of as long
    a time as the frame before it.
    """
    interval = times[-1] - times[-2] if len(times) > 1 else 0
    return np.searchsorted(samples, np.append(times, times[-1] + interval), "left").astype(np.int64)


def _last_of_equal(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.append(np.diff(times) > 0, True)[: len(times)])
