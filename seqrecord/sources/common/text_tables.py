"""Lists of numbers and names as text, a row a line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.common.files import read_bytes
from seqrecord.text import counted

MAX_TABLE_BYTES = 1 << 30
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")

_Rows: TypeAlias = Sequence[tuple[int, Sequence[str]]]
"""Lines' numbers and words."""


def rows_of(path: Path) -> list[tuple[int, list[str]]]:
    """The words of each line, with the line's number from 1; comments and empty lines are left out.

    A file with semicolons is separated by these, any other by commas, tabs and blanks. A comment
    begins with `#`. Raises `SourceError` for numbers with decimal commas.
    """
    try:
        text = read_bytes(path, MAX_TABLE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            "a list that is not text; convert it, as `iconv -f UTF-16 -t UTF-8 FILE` does",
            file=str(path),
            offset=error.start,
            expected="UTF-8",
            got=repr(error.object[error.start : error.start + 8]),
        ) from error
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    has_semicolons = any(";" in line for _, line in lines)
    rows = []
    for number, line in lines:
        words = line.split(";") if has_semicolons else line.split()
        for word in map(str.strip, words) if "," in line else ():
            if _DECIMAL_COMMA.fullmatch(word):
                raise SourceError(
                    f"a number with a decimal comma in line {number}; write decimal points, as "
                    "`sed -i 's/,/./g' FILE` does",
                    file=str(path),
                    expected="numbers such as 0.25",
                    got=word[:120],
                )
        if not has_semicolons and "," in line:
            # Each cell of a row of a CSV file is one word, also an empty cell.
            words = [
                word for cell in line.strip(" ,\t").split(",") for word in cell.split() or [""]
            ]
        rows.append((number, [word.strip() for word in words]))
    return rows


def table(
    path: Path, rows: _Rows, columns: int, parse: Callable[[str], Any] = float
) -> npt.NDArray[Any]:
    """Rows of exactly `columns` finite numbers each: [T, columns].

    Raises `SourceError` for other rows.
    """
    values = []
    for number, words in rows:
        try:
            row = [parse(word) for word in words]
        except ValueError:
            row = []
        if len(row) != columns or not all(map(math.isfinite, row)):
            raise SourceError(
                f"a bad row in line {number}",
                file=str(path),
                expected=counted(columns, "finite number"),
                got=f"{len(words)} columns: {' '.join(words)!r:.120}",
            )
        values.append(row)
    dtype = np.int64 if parse is int else np.float64
    try:
        return np.array(values, dtype).reshape(len(values), columns)
    except OverflowError as error:
        raise SourceError("a number that is too large", file=str(path)) from error


def timed_values(
    path: Path, columns: Collection[int], parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Rows of a time and numbers: times [T], which rise, and numbers [T, N], N one of `columns`.

    All rows have as many columns as the first one. `parse` makes a time: `int` makes int64, since
    float64 is too coarse for nanoseconds.
    """
    rows = rows_of(path)
    width = len(rows[0][1]) - 1 if rows else min(columns)
    if width not in columns:
        raise SourceError(
            f"a bad row in line {rows[0][0]}",
            file=str(path),
            expected=f"a timestamp and {' or '.join(map(str, columns))} numbers",
            got=f"{width + 1} columns: {' '.join(rows[0][1])!r:.120}",
        )
    times = _times(path, rows, parse)
    return times, table(path, [(number, words[1:]) for number, words in rows], width)


def timed_files(
    path: Path, folder: Path, parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], list[Path]]:
    """Rows of a time and the path of a file below `folder`: times [T], which rise, and the files.

    Raises `SourceError` for an empty list, and for a path that leads elsewhere.
    """
    rows = rows_of(path)
    if not rows:
        raise SourceError(
            "an empty list of images", file=str(path), expected="1 row or more", got="0 rows"
        )
    for number, words in rows:
        place = Path(words[1]) if len(words) == 2 else Path("..")
        if place.is_absolute() or ".." in place.parts:
            raise SourceError(
                f"a bad row in line {number}",
                file=str(path),
                expected="a timestamp and the path of a file in the sequence's folder",
                got=f"{len(words)} columns: {' '.join(words)!r:.120}",
            )
    return _times(path, rows, parse), [folder / words[1] for _, words in rows]


def check_matches(
    path: Path,
    matched: int,
    times: npt.NDArray[Any],
    frames: npt.NDArray[Any],
    within: str,
    unit: str,
    feature: str,
) -> None:
    """Raise `SourceError` for a table of which no row matches a frame, with both time ranges."""
    if matched:
        return
    raise SourceError(
        f"no row matches a frame; correct the timestamps, or leave {feature} out (--features)",
        file=str(path),
        expected=f"rows {within} of a frame; frames are from {frames[0]} to {frames[-1]} {unit}",
        got=f"{len(times)} rows from {times[0]} to {times[-1]} {unit}",
    )


def _times(path: Path, rows: _Rows, parse: Callable[[str], Any]) -> npt.NDArray[Any]:
    """The first column; raises `SourceError` where a time is before the one above it."""
    times = table(path, [(number, words[:1]) for number, words in rows], 1, parse)[:, 0]
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
