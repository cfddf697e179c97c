"""Text files of numbers: tables with a row a frame, and matrices of one frame.

Separators (comma, semicolon, blanks) are determined per file, and every row has the same number of
columns. Lines of comments begin with `#`, `%` or `//`; one line of column names may come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes

TEXT_ENDINGS = frozenset((".txt", ".csv", ".tsv"))
"""File name endings, in lower case."""

MAX_BYTES = 64 << 20
"""Maximum size of a file."""

_SAMPLES = 4
_COMMENTS = ("#", "%", "//")
_SEPARATORS = (",", ";", None)
_LARGEST = 1 << 53  # integers up to here are exact in float64
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)


@dataclass(frozen=True)
class NumberTable:
    """A file's rows as float64 [T, columns], and the columns' names where it has some.

    `exact` are the integers of columns that float64 cannot represent, such as times in nanoseconds.
    """

    path: Path
    names: Sequence[str]
    values: npt.NDArray[np.float64]
    exact: Mapping[int, npt.NDArray[np.int64]]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Values by the name of a part: float64 [T] or [T, columns], whose part is "".

        Exact columns are a part of their own each: int64 [T]. If the file has one column, its part
        is "".
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
        """All numbers: float64 [R, C], [C] of one row, and a scalar of one number."""
        if self.exact:
            raise SourceError("integers that float64 cannot represent", file=str(self.path))
        values = self.values
        found: npt.NDArray[np.float64] = values if len(values) > 1 else values.squeeze()
        return found


def read_numbers(path: Path) -> NumberTable:
    """The file's rows; raises `SourceError` for text that is no table of numbers."""
    try:
        lines = _lines(read_bytes(path, MAX_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _no_numbers(path, f"byte {error.start} is no UTF-8") from error
    problem = "" if lines else "no rows"
    for separator in _SEPARATORS:
        first = [_split(line, separator) for line in lines[:2]]
        has_names = len(first) > 1 and not _are_numbers(first[0]) and len({*map(len, first)}) == 1
        rows = lines[has_names:]
        bad = next((line for line in rows if not _are_numbers(_split(line, separator))), None)
        if bad is not None:
            problem = problem or repr(bad[:80])
        elif len(widths := {len(_split(line, separator)) for line in rows}) == 1:
            numbers = (float(word) for line in rows for word in _split(line, separator))
            values = np.fromiter(numbers, np.float64).reshape(len(rows), widths.pop())
            exact = _exact_columns(rows, separator, values, path)
            return NumberTable(path, first[0] if has_names else (), values, exact)
        elif rows:
            problem = "rows of different numbers of columns"
    raise _no_numbers(path, problem)


def _exact_columns(
    rows: Sequence[str], separator: str | None, values: npt.NDArray[np.float64], path: Path
) -> dict[int, npt.NDArray[np.int64]]:
    """The integers of columns with some that float64 cannot represent."""
    exact: dict[int, npt.NDArray[np.int64]] = {}
    for place in np.flatnonzero((np.abs(values) > _LARGEST).any(axis=0)).tolist():
        words = [_split(line, separator)[place] for line in rows]
        if all(map(_INTEGER.fullmatch, words)):
            try:
                exact[place] = np.array([int(word) for word in words], np.int64)
            except OverflowError as error:
                raise SourceError("a number that is too large", file=str(path)) from error
    return exact


def count_rows(path: Path) -> int:
    """Lines of the file but for comments and empty ones, a line of column names among them.

    Raises `SourceError` unless the last one has numbers only.
    """
    lines = _lines(read_bytes(path, MAX_BYTES).decode("utf-8-sig", "replace"))
    if not lines or not any(_are_numbers(_split(lines[-1], each)) for each in _SEPARATORS):
        raise _no_numbers(path, repr(lines[-1][:80]) if lines else "no rows")
    return len(lines)


def frames_shape(files: Sequence[Path]) -> tuple[int | None, ...]:
    """The shape of the numbers in text files of one frame each, from some of them.

    [R, C], [C] of one row, or [] of one number; [None, C] if the number of rows varies, which may
    be 0. Raises `SourceError` for files that are no numbers, or of different numbers of columns.
    """
    places = dict.fromkeys(i * (len(files) - 1) // _SAMPLES for i in range(_SAMPLES + 1))
    shapes = {_frame_shape(files[place]) for place in places}
    if len(shapes) == 1 and shapes != {(0,)}:
        return shapes.pop()
    columns = {shape[-1] if shape else 1 for shape in shapes} - {0}
    if len(columns) != 1:
        raise _no_numbers(files[0], f"{sorted(columns)} columns in files of one feature")
    return None, columns.pop()


def is_numeric(files: Sequence[Path]) -> bool:
    """Whether files of one frame each are numbers, to judge by some of them."""
    try:
        frames_shape(files)
    except SourceError:
        return False
    return True


def _frame_shape(path: Path) -> tuple[int, ...]:
    return (0,) if is_blank(path) else read_numbers(path).matrix().shape


def is_blank(path: Path) -> bool:
    """Whether the file has no characters but blanks; raises `SourceError`."""
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


def _no_numbers(path: Path, got: str) -> SourceError:
    return SourceError(
        "not a table of numbers",
        file=str(path),
        expected="rows of as many numbers, separated by comma, semicolon or blanks",
        got=got,
    )
