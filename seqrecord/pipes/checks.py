"""Checks that several modules need, and of the table `clips`: errors name the argument, what was
expected, and what came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError
from seqrecord.text import repr_of

__all__ = ["ClipList", "are_names", "check", "check_names", "read_clip_list", "refuse"]


def refuse(is_wrong: bool, problem: str, expected: object = None, got: object = None) -> None:
    """Raise `ClipError` for arguments that are wrong, or have no effect beside each other."""
    if is_wrong:
        raise ClipError(problem, expected=expected, got=got)


def check(name: str, value: Any, is_right: bool, expected: str) -> Any:
    """The argument. Raises `ClipError` for one that is not right."""
    if not is_right:  # a long list of names takes time to show
        raise ClipError(f"{name} is not valid", expected=expected, got=repr_of(value))
    return value


def check_names(name: str, value: Any, expected: str = "a list of names") -> Any:
    """`None`, or a collection of `str`."""
    refuse(isinstance(value, str), f"{name} is a list of names", [value], value)
    return check(name, value, value is None or are_names(value), expected)


def are_names(value: object) -> bool:
    """Whether an argument is a collection of `str`."""
    # An array without dimensions says that it is one, too.
    is_list = isinstance(value, Collection) and getattr(value, "ndim", 1) > 0
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]


ClipList: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, or a table of Arrow, pandas, Polars or another that Arrow can read."""

_COLUMNS: dict[str, tuple[str, str, Callable[[pa.DataType], bool]]] = {
    "episode": ("keys", "text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
    "start": ("frames", "integers", pa.types.is_integer),
    "weight": ("numbers", "numbers", lambda t: pa.types.is_integer(t) or pa.types.is_floating(t)),
}
"""Of each column what it has, what that is called in a table, and whether a type is that."""

_EXPECTED = "a table or dict of the columns episode (keys), start (frames) and, if wanted, weight"
_MOST_TIMES = 1 << 20  # of one clip in an epoch


def read_clip_list(
    clips: ClipList, keys: pa.StringArray, num_frames: IntArray, reach: IntArray
) -> ChosenClips:
    """The clips that a table names; `keys` and `num_frames` are of all episodes.

    `reach`, int64[E, 2], is how many frames before and behind a clip's start its episode must have.

    Raises `ClipError`, which says the row, for columns that are missing, unknown or of another
    type, an episode that is not there, a start at which no clip lies in its episode, and
    a weight below 0.
    """
    columns = _columns(clips)
    named = columns["episode"]

    def check_rows(wrong: Any, problem: str, expected: Callable[[int], str], got: Any) -> None:
        for row in np.flatnonzero(wrong)[:1].tolist():
            (given,) = got[row : row + 1].tolist()
            raise ClipError(
                f"clips {problem}, in row {row}",
                episode=named[row].as_py(),
                expected=expected(row),
                got=repr_of(given) if isinstance(given, str) else given,
            )

    found = pc.index_in(named.cast(pa.string()), value_set=keys)
    episode = np.asarray(found.fill_null(-1), np.int64)
    problem = "names an episode that is not there"
    check_rows(episode < 0, problem, lambda _: "a key of the dataset", np.asarray(named, object))
    start, (before, behind) = np.asarray(columns["start"]), reach[episode].T
    last = num_frames[episode] - 1 - behind
    check_rows(
        (start < before) | (start > np.maximum(last, -1)),
        "has a start at which no clip lies in its episode",
        lambda row: (
            f"{before[row]} to {last[row]}"
            if last[row] >= before[row]
            else f"an episode of at least {before[row] + behind[row] + 1} frames"
        ),
        start,
    )
    weight = None
    if "weight" in columns:
        weight = np.asarray(columns["weight"], np.float64)
        wrong = ~((weight >= 0) & (weight <= _MOST_TIMES))
        problem = "has a weight that makes no sense"
        check_rows(wrong, problem, lambda _: f"0 to {_MOST_TIMES}", weight)
    refuse(not len(episode), "clips has no rows", "at least one clip", "none")
    return ChosenClips.of(episode, np.asarray(start, np.int64), weight)


def _columns(clips: Any) -> dict[str, pa.Array]:
    """Those of a table, each one array without nulls."""
    try:
        if isinstance(clips, Mapping):
            clips = {str(name): column for name, column in clips.items()}
        table = pa.table(clips)
        found = (column.combine_chunks() for column in table.columns)
        columns = dict(zip(table.column_names, found, strict=True))
        if len(columns) < table.num_columns:
            raise ValueError("a column is there twice")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ClipError(f"clips is no table: {error}", expected=_EXPECTED) from error
    columns.pop("__index_level_0__", None)  # of a pandas table that is a part of another
    wrong = [name for name in columns if name not in _COLUMNS]
    lacking = wrong or [name for name in ("episode", "start") if name not in columns]
    problem = f"clips {'has a column that is not known' if wrong else 'lacks a column'}: "
    problem += ", ".join(lacking)[:100]
    refuse(bool(lacking), problem, _EXPECTED, ", ".join(columns)[:200])
    for name, column in columns.items():
        what, expected, is_right = _COLUMNS[name]
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        is_wrong = len(column) > 0 and not is_right(kind)
        refuse(is_wrong, f"clips has no {what} in the column {name}", expected, str(kind))
        for row in np.flatnonzero(column.is_null())[:1].tolist():
            raise ClipError(f"clips has no {name} in row {row}", expected="a value")
    return columns
