"""The reader of text tables: rows of times, numbers and file names, and matrices of one frame.

Each line is a row, a comment or blank; any other line is an error with its number. Sources of known
formats state the columns of a row, and comments begin with `#`. Folders take any table of numbers,
comments also begin with `%` or `//`, and one line of column names is allowed at the top. A file has
one separator, the separator in most of its lines: semicolons, commas or blanks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.in_place.files import lines_of, opened, read_bytes, size_of
from seqrecord.in_place.limits import check_size
from seqrecord.store.text import counted

TEXT_ENDINGS = frozenset((".txt", ".csv", ".tsv"))
"""File name endings, in lower case."""

MAX_BYTES = 64 << 20
"""Maximum size of a file with any numbers."""

MAX_TABLE_BYTES = 1 << 30
"""Maximum size of a table in a known format."""

_SAMPLES = 4
_BLANK = (0,)  # the shape of a file without characters
_POSES = frozenset(((3, 4), (4, 4)))
_COMMENTS = ("#",)
_ANY_COMMENTS = ("#", "%", "//")
_LARGEST = 1 << 53  # integers below are exact in float64
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Rows:
    """Words of a table's lines, and the lines' numbers from 1; without comments and empty lines."""

    path: Path
    words: Sequence[Sequence[str]]
    lines: Sequence[int]
    separator: str | None = None

    def numbers(
        self, columns: int, first_word: int = 0, parse: Callable[[str], Any] = float
    ) -> npt.NDArray[Any]:
        """Parse exactly `columns` finite numbers per row, from word `first_word` on: [T, columns].

        `parse` converts words: `int` gives int64. Raises `SourceError` for other rows.
        """
        values, row = [], list[Any]()
        for words, line in zip(self.words, self.lines, strict=True):
            try:
                row = parse_numbers(words[first_word:], parse)
                is_right = len(row) == columns and all(map(math.isfinite, row))
            except (ValueError, OverflowError):  # an integer of hundreds of digits
                is_right = False
            if not is_right:
                raise self.invalid(line, words[first_word:], counted(columns, "finite number"))
            values.append(row)
        try:
            dtype = np.int64 if parse is int else np.float64
            return np.array(values, dtype).reshape(len(values), columns)
        except OverflowError as error:
            raise SourceError("number too large for int64", file=str(self.path)) from error

    def times(self, parse: Callable[[str], Any] = float) -> npt.NDArray[Any]:
        """Parse the first column. Raises `SourceError` if a time is before the previous one."""
        time_rows = Rows(self.path, [words[:1] for words in self.words], self.lines)
        times = time_rows.numbers(1, 0, parse)[:, 0]
        for row in np.flatnonzero(np.diff(times) < 0)[:1].tolist():
            raise SourceError(
                "timestamps are not ascending",
                file=str(self.path),
                frame=row + 1,
                expected=f"{times[row]} or later",
                got=times[row + 1],
            )
        return times

    def shown(self, words: Sequence[str]) -> str:
        """Return a row for an error."""
        return repr((self.separator or " ").join(words)[:80])

    def invalid(self, line: int, words: Sequence[str], expected: str) -> SourceError:
        """Return the error for a row of other columns."""
        return invalid_row(line, words, expected, file=str(self.path))


def parse_numbers(words: Sequence[str], parse: Callable[[str], Any] = float) -> list[Any]:
    """Convert words to numbers. Raises `ValueError` for other text.

    `1_000` and digits of other scripts are numbers in Python alone.
    """
    for word in words:
        if "_" in word or not word.isascii():
            raise ValueError(f"not a number: {word[:80]!r}")
    return [parse(word) for word in words]


def invalid_row(
    line: int, words: Sequence[str], expected: str, file: str | None = None
) -> SourceError:
    """Return the error for a line that is no row of its format."""
    got = f"{len(words)} columns: {' '.join(words)!r:.120}"
    return SourceError(f"invalid row in line {line}", file=file, expected=expected, got=got)


def text_lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line in a UTF-8 file, blank ones and comments included.

    For formats whose lines depend on those before, and for files too large for `read_rows`.
    """
    for number, line in enumerate(lines_of(file), 1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            got = repr(line[error.start : error.start + 8])
            raise SourceError(f"line {number} is not UTF-8 text", got=got) from error


def is_row(text: str) -> bool:
    """Return whether a line is neither blank nor a comment."""
    return bool(text) and not text.startswith(_COMMENTS)


@contextmanager
def row_of(line: int, text: str, expected: str) -> Iterator[None]:
    """Raise `SourceError` with the line's number if the block cannot parse the text of a row."""
    try:
        yield
    except (ValueError, IndexError, OverflowError) as error:
        raise invalid_row(line, text.split(), expected) from error


def read_rows(
    path: Path, limit: int = MAX_TABLE_BYTES, comments: tuple[str, ...] = _COMMENTS
) -> Rows:
    """Read a table of at most `limit` bytes. Raises `SourceError` for decimal commas."""
    with opened(path) as file:
        check_size("file", size_of(path), limit)
        lines = _lines(file, comments)
    separator = _separator(line for _, line in lines)
    for number, line in lines if separator else ():
        if decimal_comma := _decimal_comma(line):
            raise SourceError(
                f"decimal comma in line {number}; replace commas by points, e.g. "
                "`sed -i 's/,/./g' FILE`",
                file=str(path),
                expected="numbers such as 0.25",
                got=decimal_comma[:120],
            )
    words_of_lines = [_split(line, separator) for _, line in lines]
    if separator is None and len(lines) > 1:  # names between tabs may have blanks
        names = _split(lines[0][1], "\t")
        if len(names) == len(words_of_lines[1]):
            words_of_lines[0] = names
    return Rows(path, words_of_lines, [number for number, _ in lines], separator)


def _decimal_comma(line: str) -> str:
    """Return the first number with a decimal comma, if all words are numbers; else ""."""
    words = [word.strip() for word in line.split(";" if ";" in line else None)]
    decimal_commas = [word for word in words if _DECIMAL_COMMA.fullmatch(word)]
    are_numbers = all(word in decimal_commas or is_number(word) for word in words)
    return decimal_commas[0] if decimal_commas and len(words) > 1 and are_numbers else ""


def timed_values(
    path: Path, columns: Collection[int], parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Read rows of a time and numbers: ascending times [T] and numbers [T, N], N in `columns`.

    All rows have as many columns as the first one. `parse` converts a time: `int` gives int64,
    since float64 is too coarse for nanoseconds.
    """
    rows = read_rows(path)
    width = len(rows.words[0]) - 1 if rows.words else min(columns)
    if width not in columns:
        expected = f"a timestamp and {' or '.join(map(str, columns))} numbers"
        raise rows.invalid(rows.lines[0], rows.words[0], expected)
    numbers = rows.numbers(width, 1)  # first: a cut row is an error by its number, not by its time
    return rows.times(parse), numbers


def timed_files(
    path: Path, folder: Path, parse: Callable[[str], Any] = float
) -> tuple[npt.NDArray[Any], list[Path]]:
    """Read rows of a time and a file path: ascending times [T] and the files below `folder`.

    Raises `SourceError` for an empty list, and for a path that leads outside of `folder`.
    """
    rows = read_rows(path)
    if not rows.words:
        raise SourceError(
            "empty list of images", file=str(path), expected="1 row or more", got="0 rows"
        )
    for line, words in zip(rows.lines, rows.words, strict=True):
        place = Path(words[1]) if len(words) == 2 else Path("..")
        if place.is_absolute() or ".." in place.parts:
            expected = "a timestamp and a file path inside the sequence's folder"
            raise rows.invalid(line, words, expected)
    return rows.times(parse), [folder / words[1] for words in rows.words]


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
        exact column is a part of its own, int64 [T]; its name is "" if the file has one column. One
        without a name of its own is `timestamp`, or `c2` in place 2.
        """
        width = self.values.shape[1]
        parts: dict[str, npt.NDArray[Any]] = {}
        for place, values in self.exact.items():
            name = self.names[place] if self.names else ""
            if not name or name in parts:
                name = "timestamp" if place == 0 else f"c{place}"
            parts["" if width == 1 else name] = values
        plain_columns = [place for place in range(width) if place not in self.exact]
        if plain_columns:
            parts[""] = self.values[:, 0] if width == 1 else self.values[:, plain_columns]
        return parts

    @property
    def plain_names(self) -> list[str]:
        """The names of the columns in part "", if the file has names."""
        are_alone = len(self.names) == 1
        places = [place for place in range(len(self.names)) if are_alone or place not in self.exact]
        return [self.names[place] for place in places]

    def matrix(self) -> npt.NDArray[np.float64]:
        """Return all numbers as float64: [R, C], [C] for one row, a scalar for one number."""
        if self.exact:
            raise SourceError("integers that float64 cannot represent", file=str(self.path))
        values = self.values
        numbers: npt.NDArray[np.float64] = values if len(values) > 1 else values.squeeze()
        return numbers


def read_numbers(path: Path) -> NumberTable:
    """Read the file's rows. Raises `SourceError` if it is not a table of numbers."""
    table = read_rows(path, MAX_BYTES, _ANY_COMMENTS)
    rows = table.words
    has_names = len(rows) > 1 and _are_names(rows[0]) and len(rows[0]) == len(rows[1])
    names, rows = (rows[0], rows[1:]) if has_names else ((), rows)
    for words in rows:
        if not all(map(is_number, words)):
            raise _no_numbers(path, table.shown(words))
    if len({*map(len, rows)}) != 1:
        raise _no_numbers(path, "rows of different numbers of columns" if rows else "no rows")
    values = np.array([[float(word) for word in words] for words in rows], np.float64)
    exact: dict[int, npt.NDArray[np.int64]] = {}
    for place in np.flatnonzero((np.abs(values) >= _LARGEST).any(axis=0)).tolist():
        words = [row[place] for row in rows]
        if all(map(_INTEGER.fullmatch, words)):
            try:
                exact[place] = np.array([int(word) for word in words], np.int64)
            except OverflowError as error:
                raise SourceError("number too large for int64", file=str(path)) from error
    return NumberTable(path, names, values, exact)


def count_rows(path: Path) -> int:
    """Return the number of rows, column names included.

    Raises `SourceError` unless the last one is numeric.
    """
    rows = read_rows(path, MAX_BYTES, _ANY_COMMENTS)
    if not rows.words or not all(map(is_number, rows.words[-1])):
        raise _no_numbers(path, rows.shown(rows.words[-1]) if rows.words else "no rows")
    return len(rows.words)


def frames_shape(files: Sequence[Path]) -> tuple[int | None, ...]:
    """Return the shape of single-frame text files, from a sample of the files.

    [R, C], [C] for one row, [] for one number, and [None, C] for a varying number of rows,
    including 0. Pose matrices (3x4, 4x4) have a fixed shape; empty files are frames without a pose.
    Raises `SourceError` for files that are not numeric or differ in columns.
    """
    shape_of_file = {path: _frame_shape(path) for path in sampled(files)}
    shapes = {*shape_of_file.values()}
    filled_shapes = shapes - {_BLANK}
    if len(filled_shapes) == 1 and (len(shapes) == 1 or filled_shapes <= _POSES):
        return filled_shapes.pop()
    columns = {
        path: shape[-1] if shape else 1 for path, shape in shape_of_file.items() if shape != _BLANK
    }
    counts = Counter(columns.values())
    if not counts:
        raise _no_numbers(files[0], "no rows")
    usual_width = max(counts, key=lambda width: counts[width])
    if odd_files := [path for path, width in columns.items() if width != usual_width]:
        usual_file = next(path for path, width in columns.items() if width == usual_width)
        raise SourceError(
            "number of columns differs between files",
            file=str(odd_files[0]),
            expected=f"{usual_width} columns, as in {usual_file.name}",
            got=columns[odd_files[0]],
        )
    return None, usual_width


def is_numeric(files: Sequence[Path]) -> bool:
    """Return whether most files of a sample are numeric."""
    shapes = [_shape_or_none(path) for path in sampled(files)]
    filled_shapes = [shape for shape in shapes if shape != _BLANK]
    return 2 * sum(shape is not None for shape in filled_shapes) > len(filled_shapes)


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


def _lines(file: BinaryIO, comments: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return number and text of the lines with rows. Raises `SourceError` unless all are UTF-8."""
    rows: list[tuple[int, str]] = []
    number = offset = 0
    for data in lines_of(file):
        try:
            text = data.decode("utf-8" if offset else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(
                "the list is not UTF-8 text; convert it, e.g. `iconv -f UTF-16 -t UTF-8 FILE`",
                offset=offset + error.start,
                expected="UTF-8",
                got=repr(data[error.start : error.start + 8]),
            ) from error
        offset += len(data)
        for line in map(str.strip, text.splitlines()):  # it also ends lines as in old files
            number += 1
            if line and not line.startswith(comments):
                rows.append((number, line))
    return rows


def _separator(lines: Iterable[str]) -> str | None:
    """Return the separator of most lines; of two equally frequent ones that of the later line.

    Neither a line of names at the top nor a last line that is cut decides.
    """
    counts: Counter[str | None] = Counter()
    for line in lines:
        separator = next((candidate for candidate in (";", ",") if candidate in line), None)
        counts[separator] = counts.pop(separator, 0) + 1  # the latest one is the last key
    return max(reversed(counts), key=lambda key: counts[key], default=None)


def _split(line: str, separator: str | None) -> list[str]:
    words = [word.strip().strip('"') for word in line.split(separator)]
    return words[:-1] if len(words) > 1 and not words[-1] else words


def is_number(word: str) -> bool:
    """Return whether a word is a number, infinity and NaN included."""
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def _are_names(words: Sequence[str]) -> bool:
    """Return whether these are column names: none is a number, or all but the first are 0, 1, …"""
    numbers = [word for word in words if is_number(word)]
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
