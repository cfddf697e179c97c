"""Lists of numbers and names as text, a row a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes

_MAX_BYTES = 1 << 30

_Rows: TypeAlias = Sequence[tuple[int, Sequence[str]]]
"""Lines' numbers and words."""


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
    rows: _Rows,
    columns: int,
    parse: Callable[[str], Any] = float,
    *,
    exact: bool = False,
) -> npt.NDArray[Any]:
    """Rows of `columns` finite numbers each: [T, columns]; raises `SourceError` for other rows.

    What follows in a row does not count, unless it must be `exact`.
    """
    values = []
    for number, words in rows:
        try:
            row = [parse(word) for word in (words if exact else words[:columns])]
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


def timed_values(
    path: Path, columns: int, separators: str = "", parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Rows of a time and `columns` numbers: times [T], which rise, and numbers [T, columns].

    `parse` makes a time: `int` makes int64, for a float64 could not hold nanoseconds.
    """
    rows = rows_of(path, separators)
    times = _times(path, rows, parse)
    return times, table(path, [(number, words[1:]) for number, words in rows], columns)


def timed_files(
    path: Path, folder: Path, separators: str, parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], list[Path]]:
    """Rows of a time and the path of a file below `folder`: times [T], which rise, and the files.

    Raises `SourceError` for a path that leads elsewhere.
    """
    rows = rows_of(path, separators)
    for number, words in rows:
        place = Path(words[1]) if len(words) > 1 else Path("..")
        if place.is_absolute() or ".." in place.parts:
            raise SourceError(
                f"a bad row in line {number}",
                file=str(path),
                expected="a timestamp and the path of a file in the sequence's folder",
                got=repr(" ".join(words)[:120]),
            )
    return _times(path, rows, parse), [folder / words[1] for _, words in rows]


def _times(path: Path, rows: _Rows, parse: Callable[[str], Any]) -> npt.NDArray[Any]:
    """The first column; raises `SourceError` where a time is before the one above it."""
    times = table(path, rows, 1, parse)[:, 0]
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
    return times
