"""Text lists of numbers and file names, one row per line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.originals.files import read_bytes
from seqrecord.text import counted

MAX_TABLE_BYTES = 1 << 30
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")

_Rows: TypeAlias = Sequence[tuple[int, Sequence[str]]]
"""Line numbers, and the words of each line."""


def rows_of(path: Path) -> list[tuple[int, list[str]]]:
    """Return line number (from 1) and words of each line, without comments and empty lines.

    Words are separated by semicolons if the file has any, else by commas, tabs and blanks. Comments
    begin with `#`. Raises `SourceError` for numbers with decimal commas.
    """
    try:
        text = read_bytes(path, MAX_TABLE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            "the list is not UTF-8 text; convert it, e.g. `iconv -f UTF-16 -t UTF-8 FILE`",
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
                    f"decimal comma in line {number}; replace commas by points, e.g. "
                    "`sed -i 's/,/./g' FILE`",
                    file=str(path),
                    expected="numbers such as 0.25",
                    got=word[:120],
                )
        if not has_semicolons and "," in line:
            # Each CSV cell is at least one word, even if it is empty.
            words = [
                word for cell in line.strip(" ,\t").split(",") for word in cell.split() or [""]
            ]
        rows.append((number, [word.strip() for word in words]))
    return rows


def table(
    path: Path, rows: _Rows, columns: int, parse: Callable[[str], Any] = float
) -> npt.NDArray[Any]:
    """Parse rows of exactly `columns` finite numbers each: [T, columns].

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
                f"invalid row in line {number}",
                file=str(path),
                expected=counted(columns, "finite number"),
                got=f"{len(words)} columns: {' '.join(words)!r:.120}",
            )
        values.append(row)
    dtype = np.int64 if parse is int else np.float64
    try:
        return np.array(values, dtype).reshape(len(values), columns)
    except OverflowError as error:
        raise SourceError("number too large for int64", file=str(path)) from error


def timed_values(
    path: Path, columns: Collection[int], parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Read rows of a time and numbers: ascending times [T] and numbers [T, N], N in `columns`.

    All rows have as many columns as the first one. `parse` converts a time: `int` gives int64,
    since float64 is too coarse for nanoseconds.
    """
    rows = rows_of(path)
    width = len(rows[0][1]) - 1 if rows else min(columns)
    if width not in columns:
        raise SourceError(
            f"invalid row in line {rows[0][0]}",
            file=str(path),
            expected=f"a timestamp and {' or '.join(map(str, columns))} numbers",
            got=f"{width + 1} columns: {' '.join(rows[0][1])!r:.120}",
        )
    times = _times(path, rows, parse)
    return times, table(path, [(number, words[1:]) for number, words in rows], width)


def timed_files(
    path: Path, folder: Path, parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], list[Path]]:
    """Read rows of a time and a file path: ascending times [T] and the files below `folder`.

    Raises `SourceError` for an empty list, and for a path that leads outside of `folder`.
    """
    rows = rows_of(path)
    if not rows:
        raise SourceError(
            "empty list of images", file=str(path), expected="1 row or more", got="0 rows"
        )
    for number, words in rows:
        place = Path(words[1]) if len(words) == 2 else Path("..")
        if place.is_absolute() or ".." in place.parts:
            raise SourceError(
                f"invalid row in line {number}",
                file=str(path),
                expected="a timestamp and a file path inside the sequence's folder",
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
    """Raise `SourceError` for a table without a row that matches a frame, with both time ranges."""
    if matched:
        return
    raise SourceError(
        f"no row matches a frame; correct the timestamps, or exclude {feature} (--features)",
        file=str(path),
        expected=f"rows {within} of a frame; frames from {frames[0]} to {frames[-1]} {unit}",
        got=f"{len(times)} rows from {times[0]} to {times[-1]} {unit}",
    )


def _times(path: Path, rows: _Rows, parse: Callable[[str], Any]) -> npt.NDArray[Any]:
    """Return the first column. Raises `SourceError` if a time is before the previous one."""
    times = table(path, [(number, words[:1]) for number, words in rows], 1, parse)[:, 0]
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        row = int(back[0])
        raise SourceError(
            "timestamps are not ascending",
            file=str(path),
            frame=row + 1,
            expected=f"{times[row]} or later",
            got=times[row + 1],
        )
    return times
