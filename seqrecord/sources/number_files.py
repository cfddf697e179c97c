"""Text files of numbers: tables with a row a frame, and matrices of one frame.

Separators (comma, semicolon, blanks) are determined per file, and every row has the same number of
columns. Lines of comments begin with `#`, `%` or `//`; one line of column names may come first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True)
class NumberTable:
    """Words of a file's rows, each of as many columns, and the columns' names where it has some."""

    path: Path
    names: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Values by the name of a part: float64 [T] or [T, columns], whose part is "".

        Integers that float64 cannot represent, such as times in nanoseconds, are a part of their
        own for each column: int64 [T]. If the file has one column, its part is "".
        """
        exact = [
            place for place, column in enumerate(zip(*self.rows, strict=True)) if _is_large(column)
        ]
        width = len(self.rows[0])
        parts: dict[str, npt.NDArray[Any]] = {}
        for place in exact:
            name = self.names[place] if self.names else "timestamp" if place == 0 else f"c{place}"
            try:
                values = np.array([int(row[place]) for row in self.rows], np.int64)
            except OverflowError as error:
                raise SourceError("a number that is too large", file=str(self.path)) from error
            parts["" if width == 1 else name] = values
        others = [place for place in range(width) if place not in exact]
        if others:
            found = np.array([[float(row[place]) for place in others] for row in self.rows])
            parts[""] = found[:, 0] if width == 1 else found
        return parts

    def matrix(self) -> npt.NDArray[np.float64]:
        """All numbers: float64 [R, C], [C] of one row, and a scalar of one number."""
        if any(map(_is_large, self.rows)):
            raise SourceError("integers that float64 cannot represent", file=str(self.path))
        values = np.array([[float(word) for word in row] for row in self.rows])
        return values if len(values) > 1 else values[0] if values.size > 1 else values[0, 0]


def read_numbers(path: Path) -> NumberTable:
    """The file's rows; raises `SourceError` for text that is no table of numbers."""
    try:
        text = read_bytes(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_numbers(path, f"byte {error.start} is no UTF-8") from error
    lines = _lines(text)
    if not lines:
        raise _no_numbers(path, "no rows")
    problem = ""
    for separator in _SEPARATORS:
        table = [_split(line, separator) for line in lines]
        names: tuple[str, ...] = ()
        if len(table) > 1 and not _are_numbers(table[0]) and len(table[0]) == len(table[1]):
            names, table = tuple(table[0]), table[1:]
        bad = next((row for row in table if not _are_numbers(row)), None)
        if bad is None and len({*map(len, table)}) == 1:
            return NumberTable(path, names, table)
        if bad is None:
            problem = "rows of different numbers of columns"
        problem = problem or repr(" ".join(bad or ())[:80])
    raise _no_numbers(path, problem)


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


def _is_large(words: Sequence[str]) -> bool:
    """Whether all words are integers, of which one is not exact in float64."""
    if not any(len(word) > 15 for word in words) or not all(map(_INTEGER.fullmatch, words)):
        return False
    return any(abs(int(word)) > _LARGEST for word in words)


def _no_numbers(path: Path, got: str) -> SourceError:
    return SourceError(
        "not a table of numbers",
        file=str(path),
        expected="rows of as many numbers, separated by comma, semicolon or blanks",
        got=got,
    )
