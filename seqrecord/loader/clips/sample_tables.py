"""The argument `samples`: a table with an episode, a start or frames, and columns per sample.

Errors name the row, the expected and the actual value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frame_lists import FrameLists, with_last_repeated
from seqrecord.loader.clips.frames import MOST_COPIES, MissingFrames
from seqrecord.loader.clips.samples import Values, taken
from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.clip_spec import MAX_SETTING
from seqrecord.store.tables.arrow_tables import ArrowTable, TableLike, holds_lists, holds_text
from seqrecord.store.tables.grids import distinct
from seqrecord.store.tables.table_places import (
    INDEX,
    UNKNOWN,
    EpisodeNames,
    RowError,
    sample_places,
)
from seqrecord.store.text import counted, repr_of

_EXPECTED = (
    "a table, a dict of columns or the path of a Parquet or Arrow file, with the columns episode "
    "(keys or numbers) and start (frame) or frames (lists of frames), or with episode alone for "
    "all of its clips; or with episode_index, frame_index or index"
)
_is_integer, _is_float = pa.types.is_integer, pa.types.is_floating


def _is_number(kind: pa.DataType) -> bool:
    return bool(_is_integer(kind) or _is_float(kind))


def _is_frame_list(kind: pa.DataType) -> bool:
    return holds_lists(kind) and bool(_is_integer(kind.value_type) or kind.value_type == pa.null())


def _is_key(kind: pa.DataType) -> bool:
    return holds_text(kind) or bool(_is_integer(kind))


def _is_own(kind: pa.DataType) -> bool:
    value = kind.value_type if holds_lists(kind) else kind
    return holds_text(kind) or _is_number(value) or bool(pa.types.is_boolean(value))


_RESERVED: dict[str, tuple[str, str, Callable[[pa.DataType], bool]]] = {
    "episode": ("keys or numbers", "text or integers", _is_key),
    "start": ("frames", "integers", _is_integer),
    "frames": ("lists of frames", "lists of integers", _is_frame_list),
    "repeat": ("numbers", "numbers", _is_number),
    "dilation": ("dilations", "integers", _is_integer),
    "reverse": ("flags", "booleans", pa.types.is_boolean),
}
"""Per column: its content and its type in messages, and a check of the Arrow type."""

_SETTINGS = ("repeat", "dilation", "reverse")

_OWN = "values for batches", "numbers, texts, or lists of numbers", _is_own


def column_names(samples: TableLike | None) -> frozenset[str]:
    """A table's column names, if there is one.

    `episode` and `start` stand for columns of other names with the same meaning.
    """
    if samples is None:
        return frozenset()
    names = {*_from_arrow(lambda: ArrowTable.open(samples).schema.names)}
    places = sample_places(names)
    return frozenset(names - {*places.values()} | places.keys())


def sample_columns(
    samples: TableLike, names: EpisodeNames, *, of_spans: bool = False
) -> dict[str, pa.Array]:
    """Like `table_columns`, with the dataset's rows as `episode` and frames as `start`.

    Raises `ClipError`, also for no rows, an unknown episode and an invalid dilation.
    """
    columns = table_columns(samples, of_spans=of_spans)
    places = sample_places(columns)
    if not len(columns[places["episode"]]):
        raise ClipError("samples has no rows", expected="at least one sample", got="none")
    column = columns.pop(places["episode"])
    try:
        if places["episode"] == INDEX:
            episode, start = names.locate(column)
            columns["start"] = pa.array(start)
        else:
            episode = names.find(column, places["episode"])
            if "start" in places:
                columns["start"] = columns.pop(places["start"])
    except RowError as error:
        raise error.numbered(0) from None
    for row in np.flatnonzero(episode == UNKNOWN)[:1].tolist():
        key = column[row].as_py()
        problem, expected = f"samples has an unknown episode, in row {row}", "a key of the dataset"
        raise ClipError(problem, episode=str(key), expected=expected, got=repr_of(key, 100))
    if "dilation" in columns:
        dilation, most = np.asarray(columns["dilation"]), MAX_SETTING - 1
        for row in np.flatnonzero((dilation < 1) | (dilation > most))[:1].tolist():
            raise ClipError(
                f"samples has an invalid dilation, in row {row}",
                episode=names.keys[int(episode[row])].as_py(),
                expected=f"1 to {most}",
                got=int(dilation[row]),
            )
    return {"episode": pa.array(episode), **columns}


def read_samples(
    columns: Mapping[str, pa.Array],
    names: EpisodeNames,
    reaches: IntArray,
    table_row: IntArray | None = None,
) -> tuple[IntArray, IntArray, dict[str, Values]]:
    """Check the columns of a table and return them as arrays, in the order of its rows.

    `columns` comes from `sample_columns`, `names` describes all episodes. Returns episode rows,
    int64[n]; starts, int64[n], or frames, int64[n, T]; and the other columns. `reaches`, int64[E,
    2], are the numbers of frames required before and after a start, with the lowest dilation of the
    table. `table_row`, int64[n], are the rows of the user's table, for errors; default: 0, 1, …

    Raises `ClipError` with the row for clips outside their episode, lists of different lengths, and
    numbers out of range.
    """
    import pyarrow.compute as pc  # a slow import

    columns = dict(columns)
    episode = np.asarray(columns.pop("episode"), np.int64)

    def check_rows(wrong: Any, problem: str, expected: Callable[[int], object], got: Any) -> None:
        for row in np.flatnonzero(wrong)[:1].tolist():
            (given,) = got[row : row + 1].tolist()
            raise ClipError(
                f"samples {problem}, in row {row if table_row is None else table_row[row]}",
                episode=names.keys[int(episode[row])].as_py(),
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

    last = names.num_frames[episode] - 1
    dilation = np.ones(1, np.int64)
    if "dilation" in columns:
        dilation = np.asarray(columns["dilation"], np.int64)
    if "frames" in columns:
        chosen, lengths = lists("frames")
        wrong = ((chosen < 0) | (chosen > last[:, None])).any(axis=1)
        problem = "has a frame outside its episode"
        check_rows(wrong, problem, lambda row: f"0 to {last[row]}", chosen)
        chosen = np.where(np.arange(chosen.shape[1]) < lengths[:, None], chosen, -1)
    else:
        reach = reaches[episode] // dilation.min() * dilation[:, None]
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
        wrong = ~((repeat >= 0) & (repeat <= MOST_COPIES))
        check_rows(wrong, "has an invalid repeat", lambda _: f"0 to {MOST_COPIES}", repeat)
    for name, column in [*columns.items()]:
        if holds_text(column.type):
            own[name] = column.cast(pa.large_string())
        else:
            own[name] = lists(name)[0] if holds_lists(column.type) else np.asarray(column)
    if "dilation" in own:
        own["dilation"] = dilation
    return episode, chosen.astype(np.int64), own


def without_left_out(
    samples: TableLike, names: EpisodeNames
) -> tuple[dict[str, pa.Array], IntArray]:
    """Remove the samples of episodes that a dataset leaves out.

    Also returns the places of these episodes in `names.left_out`, int64 [n]. Raises `ClipError` for
    an invalid table.
    """
    columns = table_columns(samples, of_spans=True)
    name = sample_places(columns)["episode"]
    try:
        places = names.find_left_out(columns[name], name)
    except RowError as error:
        raise error.numbered(0) from None
    is_here = pa.array(places == UNKNOWN)
    return {name: column.filter(is_here) for name, column in columns.items()}, distinct(
        places[places != UNKNOWN]
    )


def read_frame_lists(
    columns: Mapping[str, pa.Array],
    names: EpisodeNames,
    missing: MissingFrames,
    selected: IntArray,
) -> tuple[IntArray, FrameLists, IntArray, dict[str, Values], int]:
    """Read a table of frame lists, restricted to `selected` episodes.

    `columns` and `names` are as for `read_samples`. Returns episode rows, int64[k]; the lists; of
    the complete samples the rows, int64[n], and the other columns; and the number of samples with a
    frame that lacks a feature.

    Raises `ClipError` for an invalid table, and if no sample remains.
    """
    reaches = np.zeros((len(names.num_frames), 2), np.int64)
    episode, frames, own = read_samples(columns, names, reaches)
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
    lists, order = FrameLists.of(episode[whole], frames[whole])
    row = np.flatnonzero(whole)[order]
    own = {name: taken(column, row) for name, column in own.items()}
    return distinct(episode[mine]), lists, row, own, int((mine & ~whole).sum())


def _from_arrow(read: Callable[[], Any]) -> Any:
    """The result of an Arrow function; raises `ClipError`."""
    try:
        return read()
    except (pa.ArrowException, OSError, TypeError, ValueError, OverflowError) as error:
        reason = error.message if isinstance(error, ClipError) else error
        raise ClipError(f"samples is not a table: {reason}", expected=_EXPECTED) from error


def table_columns(samples: TableLike, *, of_spans: bool = False) -> dict[str, pa.Array]:
    """Columns of a table as contiguous arrays.

    Missing numbers of a user's column are NaN, and missing texts nulls. NaN counts as missing, as
    in pandas.

    Raises `ClipError` for missing and mistyped columns, for other missing values, and unless
    `of_spans` for a table of spans.
    """

    def read() -> dict[str, pa.Array]:
        table = ArrowTable.open(samples).read()
        columns = (column.combine_chunks() for column in table.columns)
        return dict(zip(table.column_names, columns, strict=True))

    columns: dict[str, pa.Array] = _from_arrow(read)
    places = sample_places(columns)
    _check_names(columns, places)
    roles = {name: role for role, name in places.items()}
    if not of_spans and "start" in columns and (stops := {"stop", "end"} & columns.keys()):
        name = min(stops)
        raise ClipError(
            f"samples has start and {name}, and a loader takes one clip at start",
            expected="samples=seqrecord.samples.segments(table) for all clips inside each span; or "
            f"another name for {name}, for the clips at start",
            got=", ".join(columns)[:200],
        )
    for name, column in columns.items():
        role = roles.get(name, name if name in ("frames", *_SETTINGS) else "")
        content, expected, is_right = _RESERVED.get(role, _OWN)
        if len(column) and not is_right(column.type):
            problem = f"samples has no {content} in column {name}"
            raise ClipError(problem, expected=expected, got=str(column.type))
        if not role and _is_float(column.type) and column.null_count:
            columns[name] = pa.array(np.asarray(column))  # `fill_null` takes no float16
        elif role or not holds_text(column.type):
            for row in np.flatnonzero(column.is_null())[:1].tolist():
                expected = "a value; only numbers may be missing (NaN) in float columns, and texts"
                raise ClipError(f"samples has no {name} in row {row}", expected=expected)
    return columns


def _check_names(columns: Mapping[str, pa.Array], places: Mapping[str, str]) -> None:
    """Raise `ClipError` for missing columns, and for columns that exclude each other."""
    of_starts = [name for name in ("start", "dilation", "reverse") if name in columns]
    wrong = [f"{name}, beside frames" for name in of_starts if "frames" in columns]
    needed = ["episode", *(["start"] if of_starts and "frames" not in columns else [])]
    lacking = [name for name in needed if name not in places and name not in columns]
    for problem, names in (("has a column too many", wrong), ("lacks a column", lacking)):
        if names:
            raise ClipError(
                f"samples {problem}: {', '.join(names)[:100]}",
                expected=_EXPECTED,
                got=", ".join(columns)[:200],
            )
