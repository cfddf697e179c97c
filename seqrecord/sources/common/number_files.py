"""Text files of numbers: tables with a row per frame, and matrices of one frame.

The separator (comma, semicolon or blanks) is detected per file, and all rows have the same number
of columns. Comment lines begin with `#`, `%` or `//`. One line of column names may come first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.originals.files import read_bytes

TEXT_ENDINGS = frozenset((".txt", ".csv", ".tsv"))
"""File name endings, in lower case."""

MAX_BYTES = 64 << 20
"""Maximum size of a file."""

_SAMPLES = 4
_MANY = 1 << 30
_BLANK = (0,)  # the shape of a file without characters
_POSES = frozenset(((3, 4), (4, 4)))
_COMMENTS = ("#", "%", "//")
_SEPARATORS = (",", ";", None)
_LARGEST = 1 << 53  # integers below are exact in float64
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)


@dataclass(frozen=True)
class NumberTable:
    """A file's rows as float64 [T, columns], and column names if the file has them.

    `exact` maps columns to int64 [T] for integers that float64 cannot represent, such as times in
    nanoseconds.
    """

    path: Path
    names: Sequence[str]
    values: npt.NDArray[np.float64]
    exact: Mapping[int, npt.NDArray[np.int64]]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table's parts by name.

        Part "" has all other columns: float64 [T, columns], or [T] if the file has one column. Each
        exact column is a part of its own, int64 [T]; its name is "" if the file has one column.
        """
        width = self.values.shape[1]
        parts: dict[str, npt.NDArray[Any]] = {}
        for place, values in self.exact.items():
            name = self.names[place] if self.names else "timestamp" if place == 0 else f"c{place}"
            parts["" if width == 1 else name] = values
        others = [place for place in range(width) if place not in self.exact]
        if others:
            parts[""] = self.values[:, 0] if width == 1 else self.values[:, others]
        return parts

    def matrix(self) -> npt.NDArray[np.float64]:
        """Return all numbers as float64: [R, C], [C] for one row, a scalar for one number."""
        if self.exact:
            raise SourceError("integers that float64 cannot represent", file=str(self.path))
        values = self.values
        found: npt.NDArray[np.float64] = values if len(values) > 1 else values.squeeze()
        return found


def read_numbers(path: Path) -> NumberTable:
    """Read the file's rows. Raises `SourceError` if it is not a table of numbers."""
    try:
        lines = _lines(read_bytes(path, MAX_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _no_numbers(path, f"byte {error.start} is not UTF-8") from error
    problems: list[tuple[int, str]] = []  # ranked by the count of numeric words
    for separator in _SEPARATORS:
        first = [_split(line, separator) for line in lines[:2]]
        has_names = len(first) > 1 and _are_names(first[0]) and len({*map(len, first)}) == 1
        rows = lines[has_names:]
        bad = next((line for line in rows if not _are_numbers(_split(line, separator))), None)
        if bad is not None:
            words = [word for line in lines[:_SAMPLES] for word in _split(line, separator)]
            problems.append((sum(_are_numbers([word]) for word in words), repr(bad[:80])))
        elif len(widths := {len(_split(line, separator)) for line in rows}) == 1:
            numbers = (float(word) for line in rows for word in _split(line, separator))
            values = np.fromiter(numbers, np.float64).reshape(len(rows), widths.pop())
            exact = _exact_columns(rows, separator, values, path)
            return NumberTable(path, first[0] if has_names else (), values, exact)
        elif rows:
            problems.append((_MANY, "rows of different numbers of columns"))
    problem = max(problems, key=lambda each: each[0])[1] if problems else "no rows"
    raise _no_numbers(path, problem)


def _exact_columns(
    rows: Sequence[str], separator: str | None, values: npt.NDArray[np.float64], path: Path
) -> dict[int, npt.NDArray[np.int64]]:
    """Return the integers of columns that float64 cannot represent."""
    exact: dict[int, npt.NDArray[np.int64]] = {}
    for place in np.flatnonzero((np.abs(values) >= _LARGEST).any(axis=0)).tolist():
        words = [_split(line, separator)[place] for line in rows]
        if all(map(_INTEGER.fullmatch, words)):
            try:
                exact[place] = np.array([int(word) for word in words], np.int64)
            except OverflowError as error:
                raise SourceError("number too large for int64", file=str(path)) from error
    return exact


def table_lines(path: Path, limit: int = MAX_BYTES) -> list[str]:
    """Return a file's lines without comments and empty lines, column names included.

    The file may have at most `limit` bytes.
    """
    return _lines(read_bytes(path, limit).decode("utf-8-sig", "replace"))


def count_rows(path: Path) -> int:
    """Return the number of `table_lines`. Raises `SourceError` unless the last one is numeric."""
    lines = table_lines(path)
    if not lines or not any(_are_numbers(_split(lines[-1], each)) for each in _SEPARATORS):
        raise _no_numbers(path, repr(lines[-1][:80]) if lines else "no rows")
    return len(lines)


def frames_shape(files: Sequence[Path]) -> tuple[int | None, ...]:
    """Return the shape of text files of one frame each, from a sample of the files.

    [R, C], [C] for one row, [] for one number, and [None, C] for a varying number of rows,
    including 0. Pose matrices (3x4, 4x4) have a fixed shape; empty files are frames without a pose.
    Raises `SourceError` for files that are not numeric or differ in columns.
    """
    found = {path: _frame_shape(path) for path in sampled(files)}
    shapes = {*found.values()}
    filled = shapes - {_BLANK}
    if len(filled) == 1 and (len(shapes) == 1 or filled <= _POSES):
        return filled.pop()
    columns = {path: shape[-1] if shape else 1 for path, shape in found.items() if shape != _BLANK}
    counts = Counter(columns.values())
    if not counts:
        raise _no_numbers(files[0], "no rows")
    most = max(counts, key=lambda width: counts[width])
    if odd := [path for path, width in columns.items() if width != most]:
        like = next(path for path, width in columns.items() if width == most)
        raise SourceError(
            "number of columns differs between files",
            file=str(odd[0]),
            expected=f"{most} columns, as in {like.name}",
            got=columns[odd[0]],
        )
    return None, most


def is_numeric(files: Sequence[Path]) -> bool:
    """Return whether most of a sample of the files are numeric."""
    found = [_shape_or_none(path) for path in sampled(files)]
    filled = [shape for shape in found if shape != _BLANK]
    return 2 * sum(shape is not None for shape in filled) > len(filled)


def _shape_or_none(path: Path) -> tuple[int, ...] | None:
    try:
        return _frame_shape(path)
    except SourceError:
        return None


def sampled(files: Sequence[Path]) -> list[Path]:
    """Return a sample of the files, evenly spread, with the first and the last one."""
    return [*dict.fromkeys(files[i * (len(files) - 1) // _SAMPLES] for i in range(_SAMPLES + 1))]


def _frame_shape(path: Path) -> tuple[int, ...]:
    return _BLANK if is_blank(path) else read_numbers(path).matrix().shape


def is_blank(path: Path) -> bool:
    """Return whether the file contains only blanks. Raises `SourceError` if it is unreadable."""
    return not read_bytes(path, MAX_BYTES).strip()


def _lines(text: str) -> list[str]:
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith(_COMMENTS)]


def _split(line: str, separator: str | None) -> list[str]:
    words = [word.strip().strip('"') for word in line.split(separator)]
    return words[:-1] if len(words) > 1 and not words[-1] else words


def _are_numbers(words: Sequence[str]) -> bool:
    try:
        for word in words:
            float(word)
    except ValueError:
        return False
    return not any("_" in word for word in words)


def _are_names(words: Sequence[str]) -> bool:
    """Return whether these are column names: none is a number, or all but the first are 0, 1, …"""
    numbers = [word for word in words if _are_numbers([word])]
    return not numbers or (
        numbers == [str(n) for n in range(len(words) - 1)] and numbers == list(words[1:])
    )


def _no_numbers(path: Path, got: str) -> SourceError:
    return SourceError(
        "not a table of numbers",
        file=str(path),
        expected="rows of equally many numbers, separated by comma, semicolon or blanks",
        got=got,
    )
