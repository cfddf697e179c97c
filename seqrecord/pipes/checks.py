"""Checks of arguments, of the table `clips` too: errors name the argument, what was expected, and
what came."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.chosen import ChosenClips
from seqrecord.clip_transforms import is_probability
from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.integers import check_integer
from seqrecord.text import repr_of
from seqrecord.units import parse_size

__all__ = [
    "ClipList",
    "are_names",
    "check",
    "check_clip_list",
    "check_dilation",
    "check_flag",
    "check_names",
    "check_rank",
    "check_reverse",
    "check_size",
    "read_clip_list",
]

_MOST_RANKS = 1 << 31  # exclusive


def check_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Both as integers. Raises `ClipError` for numbers that make no sense."""
    try:
        count = check_integer("world_size", world_size)
        number = 0 if rank is None and count == 1 else check_integer("rank", rank)
    except ClipError:
        number, count = 0, 0
    if not 0 <= number < count < _MOST_RANKS:
        raise ClipError(
            "rank and world_size make no sense",
            expected="both, with 0 <= rank < world_size; or world_size=1 alone, for the whole "
            "epoch; or neither, to find them",
            got=f"rank={repr_of(rank)} world_size={repr_of(world_size)}",
        )
    return number, count


def check(name: str, value: object, is_right: bool, expected: str) -> None:
    """Raise `ClipError` for an argument that is not right."""
    if not is_right:
        raise ClipError(f"{name} is not what it should be", expected=expected, got=repr_of(value))


def check_flag(name: str, value: object, is_right: bool = False) -> None:
    """Raise `ClipError` for an argument that is neither right nor a bool."""
    check(name, value, is_right or isinstance(value, (bool, np.bool_)), "True or False")


def check_size(name: str, value: Any) -> None:
    """Raise `ClipError` for an argument that says no number of bytes."""
    try:
        parse_size(value)
    except ValueError as error:
        raise ClipError(
            f"{name}: {error}", expected='bytes, or text such as "2GiB"', got=repr_of(value)
        ) from None


def check_names(name: str, value: object, expected: str = "a list of names") -> None:
    """Raise `ClipError` for an argument that is neither `None` nor a collection of `str`."""
    if isinstance(value, str):
        raise ClipError(f"{name} is a list of names", expected=[value], got=value)
    check(name, value, value is None or are_names(value), expected)


def are_names(value: object) -> bool:
    """Whether an argument is a collection of `str`."""
    is_list = isinstance(value, Collection) and not _is_scalar(value)
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]


def check_dilation(value: Any) -> int | tuple[int, ...]:
    """A dilation, or several in ascending order. Raises `ClipError` for what is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)) or _is_scalar(value):
        return _dilation(value)
    several = tuple(sorted(_dilation(one) for one in value))
    if not several or len(set(several)) < len(several):
        raise ClipError(
            "dilation has the same number twice, or none at all",
            expected="a number of frames, or several such as (1, 2, 4)",
            got=repr_of(value),
        )
    return several if len(several) > 1 else several[0]


def _dilation(value: Any) -> int:
    return check_integer("dilation", value, least=1, expected="an integer, or several")


def check_reverse(value: Any) -> float:
    """A probability. Raises `ClipError` for what is none."""
    if not is_probability(value):
        raise ClipError("reverse is not a probability", expected="0 to 1", got=repr_of(value))
    return float(value)


def _is_scalar(value: object) -> bool:
    """Whether this is an array without dimensions, which is no collection though it says so."""
    return getattr(value, "ndim", 1) == 0


ClipList: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, or a table of Arrow, pandas, Polars or another that Arrow can read."""

_COLUMNS = ("episode", "start", "weight")
_EXPECTED = "the columns episode (keys), start (frames) and, if wanted, weight"
_MOST_TIMES = 1 << 20  # of one clip in an epoch


def check_clip_list(clips: object) -> None:
    """Raise `ClipError` for what is no table at all, whatever is in its columns."""
    if not (isinstance(clips, Mapping) or _is_table(clips)):
        raise ClipError(
            "clips is not a table",
            expected=f"a dict of columns, or an Arrow or pandas table, with {_EXPECTED}",
            got=repr_of(clips, 100),
        )


def read_clip_list(
    clips: ClipList,
    keys: pa.StringArray,
    num_frames: IntArray,
    *,
    reach: IntArray,
    url: str,
) -> ChosenClips:
    """The clips that a table names; `keys` and `num_frames` are of all episodes.

    `reach`, int64[E, 2], is how many frames before and behind a clip's start its episode must have.

    Raises `ClipError`, which says the row, for columns that are missing, unknown or of another
    type, an episode that is not there, a start at which no clip lies in its episode, and
    a weight below 0.
    """
    table = _table(clips, url)
    named = table["episode"]
    episode = _found(named, keys, url)
    start = _starts(table["start"], num_frames[episode], named, reach[episode], url)
    weight = _weights(table["weight"], url) if "weight" in table else None
    if not len(episode):
        raise ClipError("clips has no rows", file=url, expected="at least one clip", got="none")
    return ChosenClips.of(episode, start, weight)


def _is_table(clips: object) -> bool:
    return hasattr(clips, "__arrow_c_stream__")


def _table(clips: Any, url: str) -> dict[str, pa.Array]:
    """Its columns, each one array without nulls."""
    try:
        if isinstance(clips, Mapping):
            columns = {str(name): _one(column) for name, column in clips.items()}
        else:
            table = pa.table(clips)
            columns = dict(zip(table.column_names, map(_one, table.columns), strict=True))
            if len(columns) < table.num_columns:
                raise ValueError("a column is there twice")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ClipError(f"clips is no table: {error}", file=url, expected=_EXPECTED) from error
    columns.pop("__index_level_0__", None)  # of a pandas table that is a part of another
    wrong = [name for name in columns if name not in _COLUMNS]
    lengths = {len(column) for column in columns.values()}
    if wrong or not {"episode", "start"} <= columns.keys() or len(lengths) > 1:
        said = ", ".join(f"{name} [{len(column)}]" for name, column in columns.items())
        lacking = [name for name in _COLUMNS[:2] if name not in columns]
        problem = "clips has columns of different lengths"
        if wrong or lacking:
            problem = f"clips {'has a column that is not known' if wrong else 'lacks a column'}"
            problem += f": {', '.join(wrong or lacking)[:100]}"
        raise ClipError(problem, file=url, expected=_EXPECTED, got=said[:200])
    for name, column in columns.items():
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise ClipError(f"clips has no {name} in row {row}", file=url, expected="a value")
    return columns


def _one(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return pa.array(column)


def _found(named: pa.Array, keys: pa.StringArray, url: str) -> IntArray:
    """The episodes of these keys."""
    kind = named.type.value_type if pa.types.is_dictionary(named.type) else named.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or not len(named)):
        raise ClipError(
            "clips has no keys in the column episode", file=url, expected="text", got=str(kind)
        )
    rows = pc.index_in(named.cast(pa.string()), value_set=keys)
    if rows.null_count:
        row = int(np.flatnonzero(rows.is_null().to_numpy(zero_copy_only=False))[0])
        raise ClipError(
            f"clips names an episode that is not there, in row {row}",
            file=url,
            expected="a key of the dataset",
            got=repr_of(named[row].as_py()),
        )
    return np.asarray(rows.to_numpy(zero_copy_only=False), np.int64)


def _starts(
    column: pa.Array, num_frames: IntArray, named: pa.Array, reach: IntArray, url: str
) -> IntArray:
    if not (pa.types.is_integer(column.type) or not len(column)):
        raise ClipError(
            "clips has no frames in the column start",
            file=url,
            expected="integers",
            got=str(column.type),
        )
    numbers = column.to_numpy(zero_copy_only=False)
    lasts = num_frames - 1 - reach[:, 1]
    wrong = np.flatnonzero((numbers < reach[:, 0]) | (numbers > np.maximum(lasts, -1)))
    if len(wrong):
        row = int(wrong[0])
        last, first = int(lasts[row]), int(reach[row, 0])
        least = int(reach[row].sum()) + 1
        raise ClipError(
            f"clips has a start at which no clip lies in its episode, in row {row}",
            file=url,
            episode=named[row].as_py(),
            expected=f"{first} to {last}"
            if last >= first
            else f"an episode of at least {least} frames",
            got=int(numbers[row]),
        )
    return np.asarray(numbers, np.int64)


def _weights(column: pa.Array, url: str) -> npt.NDArray[np.float64]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or not len(column)):
        raise ClipError(
            "clips has no numbers in the column weight", file=url, expected="numbers", got=str(kind)
        )
    weight = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    wrong = np.flatnonzero(~((weight >= 0) & (weight <= _MOST_TIMES)))
    if len(wrong):
        row = int(wrong[0])
        raise ClipError(
            f"clips has a weight that makes no sense, in row {row}",
            file=url,
            expected=f"0 to {_MOST_TIMES}",
            got=float(weight[row]),
        )
    return weight
