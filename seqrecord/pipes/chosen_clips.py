"""The table `clips`: which clips it names, by their starts or by their frames. Errors name its row,
what was expected, and what came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.checks import refuse
from seqrecord.reading.contents import Contents
from seqrecord.text import counted, repr_of

ClipList: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, or a table of Arrow, pandas, Polars or another that Arrow can read."""

_COLUMNS: dict[str, tuple[str, str, Callable[[pa.DataType], bool]]] = {
    "episode": ("keys", "text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
    "start": ("frames", "integers", pa.types.is_integer),
    "frames": ("lists of frames", "lists of integers", lambda kind: _is_list(kind)),
    "weight": ("numbers", "numbers", lambda t: pa.types.is_integer(t) or pa.types.is_floating(t)),
}
"""Of each column what it has, what that is called in a table, and whether a type is that."""

_EXPECTED = (
    "a table or dict of the columns episode (keys), start (frames) or frames (lists of these) and, "
    "if wanted, weight"
)
_MOST_TIMES = 1 << 20  # of one clip in an epoch


def lists_frames(clips: ClipList | None) -> bool:
    """Whether a table says which frames each clip has."""
    if isinstance(clips, Mapping):
        return "frames" in clips
    return clips is not None and "frames" in _columns(clips)


def read_clip_list(
    clips: ClipList, keys: pa.StringArray, num_frames: IntArray, reach: IntArray
) -> tuple[IntArray, IntArray, npt.NDArray[np.float64] | None]:
    """The clips that a table names: rows of their episodes, int64[n]; their starts, int64[n], or
    their frames, int64[n, T]; and their weights, if they have some.

    `keys` and `num_frames` are of all episodes. `reach`, int64[E, 2], is how many frames before and
    behind a clip's start its episode must have.

    Raises `ClipError`, which says the row, for columns that are missing, unknown or of another
    type, an episode that is not there, a start at which no clip lies in its episode, lists of
    frames of several lengths or of frames that are not there, and a weight below 0.
    """
    import pyarrow.compute as pc  # here, since it takes long to import

    columns = _columns(clips)
    named = columns["episode"]

    def check_rows(wrong: Any, problem: str, expected: Callable[[int], Any], got: Any) -> None:
        for row in np.flatnonzero(wrong)[:1].tolist():
            (given,) = got[row : row + 1].tolist()
            raise ClipError(
                f"clips {problem}, in row {row}",
                episode=named[row].as_py(),
                expected=expected(row),
                got=repr_of(given, 100) if isinstance(given, (str, list)) else given,
            )

    found = pc.index_in(named.cast(pa.string()), value_set=keys)
    episode = np.asarray(found.fill_null(-1), np.int64)
    problem = "names an episode that is not there"
    check_rows(episode < 0, problem, lambda _: "a key of the dataset", np.asarray(named, object))
    refuse(not len(episode), "clips has no rows", "at least one clip", "none")
    if "frames" in columns:
        lists = columns["frames"]
        lengths = np.asarray(pc.list_value_length(lists), np.int64)
        problem, length = "has lists of frames of several lengths", int(lengths[0])
        check_rows(lengths != length, problem, lambda _: length, lengths)
        check_rows(lengths == 0, "has no frames", lambda _: "a list of frames", lengths)
        flat = pc.list_flatten(lists)
        refuse(flat.null_count > 0, "clips has lists with nulls in the column frames", "frames")
        chosen = np.asarray(flat, np.int64).reshape(-1, length)
        wrong = (chosen < 0) | (chosen >= num_frames[episode][:, None])
        problem = "has a frame that its episode does not have"
        check_rows(
            wrong.any(axis=1), problem, lambda r: f"0 to {num_frames[episode[r]] - 1}", chosen
        )
    else:
        chosen, (before, behind) = np.asarray(columns["start"]), reach[episode].T
        last = num_frames[episode] - 1 - behind
        check_rows(
            (chosen < before) | (chosen > np.maximum(last, -1)),
            "has a start at which no clip lies in its episode",
            lambda row: (
                f"{before[row]} to {last[row]}"
                if last[row] >= before[row]
                else f"an episode of at least {before[row] + behind[row] + 1} frames"
            ),
            chosen,
        )
    weight = None
    if "weight" in columns:
        weight = np.asarray(columns["weight"], np.float64)
        wrong = ~((weight >= 0) & (weight <= _MOST_TIMES))
        problem = "has a weight that makes no sense"
        check_rows(wrong, problem, lambda _: f"0 to {_MOST_TIMES}", weight)
    return episode, np.asarray(chosen, np.int64), weight


@dataclass(frozen=True, eq=False)
class ListedClips:
    """The clips of a table that says which frames they have.

    `selected` are rows of their episodes, int64[k]. Those that lack nothing are `chosen`, of
    `excerpts`; `num_incomplete` others lack a feature in some frame.
    """

    selected: IntArray
    excerpts: Excerpts
    chosen: ChosenClips
    num_incomplete: int

    @classmethod
    def of(
        cls, clips: ClipList, contents: Contents, selected: IntArray, most: int | None = None
    ) -> ListedClips:
        """Those of `selected` episodes; excerpts have at most `most` frames.

        Raises `ClipError` for a table that is wrong, and where no clip is left.
        """
        num_frames, missing = contents.index.num_frames, contents.missing_frames()
        reach = np.zeros((len(num_frames), 2), np.int64)
        episode, frames, weight = read_clip_list(clips, contents.index.keys, num_frames, reach)
        mine = np.isin(episode, selected)
        whole = mine.copy()
        if len(missing):
            whole &= ~missing.find(episode[:, None], frames)[0].any(axis=1)
        if not whole.any():
            raise ClipError(
                "no listed clip is of a selected episode and has all features",
                expected="frames that lack no feature, or other features",
                got=f"{counted(len(episode), 'clip')}, {int(mine.sum())} of selected episodes",
            )
        excerpts, order = Excerpts.of(episode[whole], frames[whole], most)
        row = np.flatnonzero(whole)[order]
        weight = np.ones(len(row)) if weight is None else weight[row]
        chosen = ChosenClips(row, excerpts.excerpt, excerpts.start, weight)
        return cls(np.unique(episode[mine]), excerpts, chosen, int((mine & ~whole).sum()))


def _column(values: Any) -> Any:
    """What Arrow takes as a column; it takes no arrays of several dimensions."""
    if getattr(values, "ndim", 1) != 2 or not len(values):
        return values
    rows = np.asarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _is_list(kind: pa.DataType) -> bool:
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_one(kind) for is_one in types):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type))


def _columns(clips: Any) -> dict[str, pa.Array]:
    """Those of a table, each one array without nulls."""
    try:
        if isinstance(clips, Mapping):
            clips = {str(name): _column(column) for name, column in clips.items()}
        table = pa.table(clips)
        found = (column.combine_chunks() for column in table.columns)
        columns = dict(zip(table.column_names, found, strict=True))
        if len(columns) < table.num_columns:
            raise ValueError("a column is there twice")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ClipError(f"clips is no table: {error}", expected=_EXPECTED) from error
    columns.pop("__index_level_0__", None)  # of a pandas table that is a part of another
    wrong = [name for name in columns if name not in _COLUMNS]
    which = "frames" if "frames" in columns else "start"
    lacking = wrong or [name for name in ("episode", which) if name not in columns]
    if which == "frames" and "start" in columns:
        wrong = lacking = ["start, beside frames"]
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
