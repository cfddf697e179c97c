"""Lists of numbers and names as text, a row a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes

__all__ = ["check_rising", "rows_of", "table"]

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
