"""The argument `samples`: a table with an episode, a start or frames, and columns per sample.

Errors name the row, the expected and the actual value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frame_lists import FrameLists, with_last_repeated
from seqrecord.loader.clips.samples import Values, taken
from seqrecord.store.clips.frames import COPIES, MissingFrames
from seqrecord.store.clips.tables import MAX_SETTING, IntArray
from seqrecord.store.text import counted, repr_of

TableLike: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, a table of Arrow, pandas, Polars or any library that Arrow can read, or the
path of a Parquet file.
"""

_EXPECTED = (
    "a table, a dict of columns or the path of a Parquet file, with the columns episode (keys) and "
    "start (frame) or frames (lists of frames), or with episode alone for all of its clips"
)
_is_integer, _is_float = pa.types.is_integer, pa.types.is_floating


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(_is_integer(kind) or _is_float(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_one(kind) for is_one in types)


def _is_frame_list(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(_is_integer(kind.value_type) or kind.value_type == pa.null())


def _is_own(kind: pa.DataType) -> bool:
    value = kind.value_type if _is_list(kind) else kind
    return _is_text(kind) or _is_number(value) or bool(pa.types.is_boolean(value))


_RESERVED: dict[str, tuple[str, str, Callable[[pa.DataType], bool]]] = {
    "episode": ("keys", "text", _is_text),
    "start": ("frames", "integers", _is_integer),
    "frames": ("lists of frames", "lists of integers", _is_frame_list),
    "repeat": ("numbers", "numbers", _is_number),
    "dilation": ("dilations", "integers", _is_integer),
    "reverse": ("flags", "booleans", pa.types.is_boolean),
}
"""Per column: its content and its type in messages, and a check of the Arrow type."""

_OWN = "values for batches", "numbers, texts, or lists of numbers", _is_own


def column_names(samples: TableLike | None) -> frozenset[str]:
    """The names of the columns of a table, if there is one."""
    if samples is None:
        return frozenset()
    if isinstance(samples, (str, PathLike)):
        import pyarrow.parquet as pq  # a slow import

        return frozenset(_from_arrow(lambda: pq.read_schema(samples).names))
    if isinstance(samples, Mapping):
        return frozenset(map(str, samples))
    found = getattr(samples, "columns", None)
    if found is None or hasattr(samples, "schema"):  # not of pandas, which Arrow copies
        found = _from_arrow(lambda: pa.table(samples)).column_names
    return frozenset(map(str, found))


def read_samples(
    columns: Mapping[str, pa.Array], keys: pa.StringArray, num_frames: IntArray, reaches: IntArray
) -> tuple[IntArray, IntArray, dict[str, Values]]:
    """Check the columns of a table and return them as arrays, in the order of its rows.

    Returns episode rows, int64[n]; starts, int64[n], or frames, int64[n, T]; and the other columns.
    `keys` and `num_frames` describe all episodes. `reaches`, int64[E, 2], are the numbers of frames
    required before and after a start, with the lowest dilation of the table.

    Raises `ClipError` with the row for missing and mistyped columns, unknown episodes, clips
    outside their episode, lists of different lengths, and numbers out of range.
    """
    import pyarrow.compute as pc  # a slow import

    columns = dict(columns)
    names = columns.pop("episode")

    def check_rows(wrong: Any, problem: str, expected: Callable[[int], object], got: Any) -> None:
        for row in np.flatnonzero(wrong)[:1].tolist():
            (given,) = got[row : row + 1].tolist()
            raise ClipError(
                f"samples {problem}, in row {row}",
                episode=names[row].as_py(),
                expected=expected(row),
                got=repr_of(given, 100) if isinstance(given, (str, list)) else given,
            )

    def lists(name: str) -> tuple[npt.NDArray[Any], IntArray]:
        """A column of lists as an array [n, T], and their lengths. The last frame of a shorter list
        is repeated; other lists must have one length.
        """
        column = columns.pop(name)
        lengths = np.asarray(pc.list_value_length(column), np.int64)
        problem, length = f"has lists of different lengths in column {name}", int(lengths[0])
        check_rows(lengths == 0, f"has an empty list in column {name}", lambda _: "a list", lengths)
        flat = pc.list_flatten(column)
        if flat.null_count:
            raise ClipError(f"samples has nulls in the lists of column {name}", expected="numbers")
        if name != "frames":
            check_rows(lengths != length, problem, lambda _: length, lengths)
        place = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
        return np.asarray(flat)[(np.cumsum(lengths) - lengths)[:, None] + place], lengths

    episode = find_episodes(names, keys)
    last = num_frames[episode] - 1
    dilation: npt.NDArray[np.integer] = np.ones(1, np.int64)
    if "dilation" in columns:
        dilation, most = np.asarray(columns["dilation"]), MAX_SETTING - 1
        out_of_range = (dilation < 1) | (dilation > most)
        check_rows(out_of_range, "has an invalid dilation", lambda _: f"1 to {most}", dilation)
    if "frames" in columns:
        chosen, lengths = lists("frames")
        wrong = ((chosen < 0) | (chosen > last[:, None])).any(axis=1)
        problem = "has a frame outside its episode"
        check_rows(wrong, problem, lambda row: f"0 to {last[row]}", chosen)
        chosen = np.where(np.arange(chosen.shape[1]) < lengths[:, None], chosen, -1)
    else:
        reach = reaches[episode] // dilation.min() * dilation[:, None].astype(np.int64)
        chosen, (before, behind) = np.asarray(columns.pop("start")), reach.T
        last = last - behind
        check_rows(
            (chosen < before) | (chosen > np.maximum(last, -1)),
            "has a start without a complete clip in its episode",
            lambda row: (
                f"{before[row]} to {last[row]}"
                if last[row] >= before[row]
                else f"an episode with at least {before[row] + behind[row] + 1} frames"
            ),
            chosen,
        )
    own: dict[str, Values] = {}
    if "repeat" in columns:
        own["repeat"] = repeat = np.asarray(columns.pop("repeat"), np.float64)
        wrong = ~((repeat >= 0) & (repeat <= COPIES))
        check_rows(wrong, "has an invalid repeat", lambda _: f"0 to {COPIES}", repeat)
    for name, column in [*columns.items()]:
        if _is_text(column.type):
            own[name] = column.cast(pa.large_string())
        else:
            own[name] = lists(name)[0] if _is_list(column.type) else np.asarray(column)
    if "dilation" in own:
        own["dilation"] = dilation.astype(np.int64)
    return episode, chosen.astype(np.int64), own


def find_episodes(names: pa.Array, keys: pa.StringArray) -> IntArray:
    """The row of each key, int64[n]. Raises `ClipError` for no rows, and an unknown key."""
    import pyarrow.compute as pc  # a slow import

    if not len(names):
        raise ClipError("samples has no rows", expected="at least one sample", got="none")
    found = pc.index_in(names.cast(pa.string()), value_set=keys)
    episode = np.asarray(found.fill_null(-1), np.int64)
    for row in np.flatnonzero(episode < 0)[:1].tolist():
        key = names[row].as_py()
        problem, expected = f"samples has an unknown episode, in row {row}", "a key of the dataset"
        raise ClipError(problem, episode=key, expected=expected, got=repr_of(key, 100))
    return episode


def without_episodes(
    samples: TableLike, keys: Iterable[str]
) -> tuple[dict[str, pa.Array], set[str]]:
    """Remove the samples of these episodes; also returns which of the keys the table had."""
    import pyarrow.compute as pc  # a slow import

    columns = table_columns(samples, of_spans=True)
    names = columns["episode"].cast(pa.string())
    found = pc.is_in(names, value_set=pa.array(keys, pa.string()))
    kept = {name: column.filter(pc.invert(found)) for name, column in columns.items()}
    return kept, {*names.filter(found).to_pylist()}


def read_frame_lists(
    columns: Mapping[str, pa.Array],
    keys: pa.StringArray,
    num_frames: IntArray,
    missing: MissingFrames,
    selected: IntArray,
    most: int | None = None,
) -> tuple[IntArray, FrameLists, IntArray, dict[str, Values], int]:
    """Read a table of frame lists, restricted to `selected` episodes.

    `keys` and `num_frames` describe all episodes. Returns episode rows, int64[k]; the lists, in
    excerpts of at most `most` frames; of the complete samples the rows, int64[n], and the other
    columns; and the number of samples with a frame that lacks a feature.

    Raises `ClipError` for an invalid table, and if no sample remains.
    """
    reaches = np.zeros((len(num_frames), 2), np.int64)
    episode, frames, own = read_samples(columns, keys, num_frames, reaches)
    mine = np.isin(episode, selected)
    whole = mine.copy()
    if len(missing):
        filled = with_last_repeated(frames)
        whole &= ~missing.find(episode[:, None], filled)[0].any(axis=1)
    if not whole.any():
        raise ClipError(
            "no sample belongs to a selected episode and has all features",
            expected="samples with all features in all frames; or a subset of the features",
            got=f"{counted(len(episode), 'sample')}, {int(mine.sum())} in selected episodes",
        )
    excerpts, order = FrameLists.of(episode[whole], frames[whole], most)
    row = np.flatnonzero(whole)[order]
    own = {name: taken(column, row) for name, column in own.items()}
    return np.unique(episode[mine]), excerpts, row, own, int((mine & ~whole).sum())


def _from_arrow(read: Callable[[], Any]) -> Any:
    """The result of a function of Arrow; raises `ClipError`."""
    try:
        return read()
    except (pa.ArrowException, OSError, TypeError, ValueError, OverflowError) as error:
        raise ClipError(f"samples is not a table: {error}", expected=_EXPECTED) from error


def table_columns(samples: TableLike, *, of_spans: bool = False) -> dict[str, pa.Array]:
    """Columns of a table as contiguous arrays.

    Missing numbers of a user's column are NaN, and missing texts nulls. NaN counts as missing, as
    in pandas.

    Raises `ClipError` for missing and mistyped columns, for other missing values, and unless
    `of_spans` for a table of spans.
    """
    import pyarrow.compute as pc  # a slow import

    def read() -> dict[str, pa.Array]:
        if isinstance(samples, Path):
            import pyarrow.parquet as pq  # a slow import

            table = pq.read_table(samples)
        elif isinstance(samples, Mapping):
            table = pa.table({str(name): _column(column) for name, column in samples.items()})
        else:
            table = pa.table(samples)
        found = (column.combine_chunks() for column in table.columns)
        columns = dict(zip(table.column_names, found, strict=True))
        if len(columns) < table.num_columns:
            raise ValueError("duplicate column names")
        return columns

    columns: dict[str, pa.Array] = _from_arrow(read)
    columns.pop("__index_level_0__", None)  # index of a sliced pandas table
    _check_names(columns)
    if not of_spans and "start" in columns and (stops := {"stop", "end"} & columns.keys()):
        name = min(stops)
        raise ClipError(
            f"samples has start and {name}, and a loader takes one clip at start",
            expected="samples=seqrecord.samples.segments(table) for all clips inside each span; or "
            f"another name for {name}, for the clips at start",
            got=", ".join(columns)[:200],
        )
    for name, column in columns.items():
        content, expected, is_right = _RESERVED.get(name, _OWN)
        if pa.types.is_dictionary(column.type):
            column = columns[name] = column.cast(column.type.value_type)
        if str(column.type) == "string_view":  # of Polars; the type is younger than Arrow 15
            column = columns[name] = column.cast(pa.string())
        if len(column) and not is_right(column.type):
            problem = f"samples has no {content} in column {name}"
            raise ClipError(problem, expected=expected, got=str(column.type))
        if name not in _RESERVED and _is_float(column.type):
            columns[name] = pc.fill_null(column, pa.scalar(np.nan, column.type))
        elif not (name not in _RESERVED and _is_text(column.type)):
            for row in np.flatnonzero(column.is_null())[:1].tolist():
                expected = "a value; only numbers may be missing (NaN) in float columns, and texts"
                raise ClipError(f"samples has no {name} in row {row}", expected=expected)
    return columns


def _column(values: Any) -> Any:
    """Convert a 2-D array to Arrow lists, since Arrow accepts only 1-D arrays.

    NaN between texts is a missing text, as in pandas.
    """
    if getattr(values, "ndim", 1) != 2 or not len(values):
        if not isinstance(values, (list, tuple, np.ndarray)):
            return values
        try:
            return pa.array(values)
        except pa.ArrowException:
            return pa.array(values, from_pandas=True)
    rows = np.asarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _check_names(columns: Mapping[str, pa.Array]) -> None:
    """Raise `ClipError` for missing columns, and for columns that exclude each other."""
    of_starts = [name for name in ("start", "dilation", "reverse") if name in columns]
    wrong = [f"{name}, beside frames" for name in of_starts if "frames" in columns]
    needed = ["episode", *(["start"] if of_starts and "frames" not in columns else [])]
    lacking = [name for name in needed if name not in columns]
    for problem, names in (("has a column too many", wrong), ("lacks a column", lacking)):
        if names:
            raise ClipError(
                f"samples {problem}: {', '.join(names)[:100]}",
                expected=_EXPECTED,
                got=", ".join(columns)[:200],
            )
