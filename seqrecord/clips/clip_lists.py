"""The argument `clips`: a table with an episode and a start, or frames, per clip.

Errors name the row, the expected and the actual value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.frame_lists import FrameLists
from seqrecord.clips.frames import MissingFrames
from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError
from seqrecord.text import counted, repr_of

ClipList: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, or a table of Arrow, pandas, Polars or any library that Arrow can read."""

_COLUMNS: dict[str, tuple[str, str, Callable[[pa.DataType], bool]]] = {
    "episode": ("keys", "text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
    "start": ("frames", "integers", pa.types.is_integer),
    "frames": ("lists of frames", "lists of integers", lambda kind: _is_list(kind)),
    "weight": ("numbers", "numbers", lambda t: pa.types.is_integer(t) or pa.types.is_floating(t)),
}
"""Per column: its content and its type in messages, and a check of the Arrow type."""

_EXPECTED = (
    "a table or dict with the columns episode (keys), start (frame) or frames (lists of frames) "
    "and optionally weight"
)
_MOST_TIMES = 1 << 20  # of one clip in an epoch


def lists_frames(clips: ClipList | None) -> bool:
    """Whether the table has a column `frames`."""
    if isinstance(clips, Mapping):
        return "frames" in clips
    return clips is not None and "frames" in _columns(clips)


def read_clip_list(
    clips: ClipList, keys: pa.StringArray, num_frames: IntArray, reaches: IntArray
) -> tuple[IntArray, IntArray, npt.NDArray[np.float64]]:
    """Check a table of clips and return its columns as arrays.

    Returns episode rows, int64[n]; starts, int64[n], or frames, int64[n, T]; and weights,
    float64[n]. `keys` and `num_frames` describe all episodes. `reaches`, int64[E, 2], are the
    numbers of frames required before and after a start.

    Raises `ClipError` with the row for missing, unknown and mistyped columns, unknown episodes,
    clips outside their episode, lists of different lengths, and negative weights.
    """
    import pyarrow.compute as pc  # a slow import

    columns = _columns(clips)
    names = columns["episode"]

    def check_rows(wrong: Any, problem: str, expected: Callable[[int], object], got: Any) -> None:
        for row in np.flatnonzero(wrong)[:1].tolist():
            (given,) = got[row : row + 1].tolist()
            raise ClipError(
                f"clips {problem}, in row {row}",
                episode=names[row].as_py(),
                expected=expected(row),
                got=repr_of(given, 100) if isinstance(given, (str, list)) else given,
            )

    if not len(names):
        raise ClipError("clips has no rows", expected="at least one clip", got="none")
    found = pc.index_in(names.cast(pa.string()), value_set=keys)
    episode = np.asarray(found.fill_null(-1), np.int64)
    problem = "has an unknown episode"
    check_rows(episode < 0, problem, lambda _: "a key of the dataset", np.asarray(names, object))
    last = num_frames[episode] - 1
    if "frames" in columns:
        lengths = np.asarray(pc.list_value_length(columns["frames"]), np.int64)
        problem, length = "has lists of frames of different lengths", int(lengths[0])
        check_rows(lengths != length, problem, lambda _: length, lengths)
        check_rows(lengths == 0, "has no frames", lambda _: "a list of frames", lengths)
        flat = pc.list_flatten(columns["frames"])
        if flat.null_count:
            raise ClipError("clips has nulls in the lists of the column frames", expected="frames")
        chosen = np.asarray(flat, np.int64).reshape(-1, length)
        wrong = ((chosen < 0) | (chosen > last[:, None])).any(axis=1)
        problem = "has a frame outside its episode"
        check_rows(wrong, problem, lambda row: f"0 to {last[row]}", chosen)
    else:
        chosen, (before, behind) = np.asarray(columns["start"]), reaches[episode].T
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
    weight = np.asarray(columns.get("weight", np.ones(len(names))), np.float64)
    wrong = ~((weight >= 0) & (weight <= _MOST_TIMES))
    check_rows(wrong, "has an invalid weight", lambda _: f"0 to {_MOST_TIMES}", weight)
    return episode, np.asarray(chosen, np.int64), weight


def without_episodes(clips: ClipList, keys: Iterable[str]) -> tuple[ClipList, set[str]]:
    """Remove the clips of these episodes; also returns which of the keys the table had."""
    import pyarrow.compute as pc  # a slow import

    columns = _columns(clips)
    names = columns["episode"].cast(pa.string())
    found = pc.is_in(names, value_set=pa.array(keys, pa.string()))
    kept = {name: column.filter(pc.invert(found)) for name, column in columns.items()}
    return kept, {*names.filter(found).to_pylist()}


def read_frame_lists(
    clips: ClipList,
    keys: pa.StringArray,
    num_frames: IntArray,
    missing: MissingFrames,
    selected: IntArray,
    most: int | None = None,
) -> tuple[IntArray, FrameLists, ChosenClips, int]:
    """Read a table of frame lists, restricted to `selected` episodes.

    `keys` and `num_frames` describe all episodes. Returns episode rows, int64[k]; the lists, in
    excerpts of at most `most` frames; the complete clips; and the number of clips with a frame that
    lacks a feature.

    Raises `ClipError` for an invalid table, and if no clip remains.
    """
    reaches = np.zeros((len(num_frames), 2), np.int64)
    episode, frames, weight = read_clip_list(clips, keys, num_frames, reaches)
    mine = np.isin(episode, selected)
    whole = mine.copy()
    if len(missing):
        whole &= ~missing.find(episode[:, None], frames)[0].any(axis=1)
    if not whole.any():
        raise ClipError(
            "no listed clip belongs to a selected episode and has all features",
            expected="clips with all features in all frames; or a subset of the features",
            got=f"{counted(len(episode), 'clip')}, {int(mine.sum())} in selected episodes",
        )
    excerpts, order = FrameLists.of(episode[whole], frames[whole], most)
    row = np.flatnonzero(whole)[order]
    chosen = ChosenClips(row, excerpts.excerpt, excerpts.start, weight[row])
    return np.unique(episode[mine]), excerpts, chosen, int((mine & ~whole).sum())


def _is_list(kind: pa.DataType) -> bool:
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_one(kind) for is_one in types):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type))


def _columns(clips: Any) -> dict[str, pa.Array]:
    """Columns of a table as contiguous arrays without nulls."""
    try:
        if isinstance(clips, Mapping):
            clips = {str(name): _column(column) for name, column in clips.items()}
        table = pa.table(clips)
        found = (column.combine_chunks() for column in table.columns)
        columns = dict(zip(table.column_names, found, strict=True))
        if len(columns) < table.num_columns:
            raise ValueError("duplicate column names")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ClipError(f"clips is not a table: {error}", expected=_EXPECTED) from error
    columns.pop("__index_level_0__", None)  # index of a sliced pandas table
    _check_names(columns)
    for name, column in columns.items():
        content, expected, is_right = _COLUMNS[name]
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if len(column) and not is_right(kind):
            problem = f"clips has no {content} in column {name}"
            raise ClipError(problem, expected=expected, got=str(kind))
        for row in np.flatnonzero(column.is_null())[:1].tolist():
            raise ClipError(f"clips has no {name} in row {row}", expected="a value")
    return columns


def _column(values: Any) -> Any:
    """Convert a 2-D array to Arrow lists; Arrow accepts only 1-D arrays."""
    if getattr(values, "ndim", 1) != 2 or not len(values):
        return values
    rows = np.asarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _check_names(columns: Mapping[str, pa.Array]) -> None:
    """Raise `ClipError` for unknown and missing columns."""
    wrong = [name for name in columns if name not in _COLUMNS]
    if "frames" in columns and "start" in columns:
        wrong = ["start, beside frames"]
    needed = ("episode", "frames" if "frames" in columns else "start")
    lacking = [name for name in needed if name not in columns]
    for problem, names in (("has an unknown column", wrong), ("lacks a column", lacking)):
        if names:
            raise ClipError(
                f"clips {problem}: {', '.join(names)[:100]}",
                expected=_EXPECTED,
                got=", ".join(columns)[:200],
            )
