"""Samples: the table of an epoch, as runs of clips with columns. Integers, without I/O.

Columns are arrays, or functions that compute the values for a batch of clips: so the default
table with built-in columns has no array per clip. A sample keeps its number, a row of the first
table, where rows are left out::

    episode     start       row         goal
    0           0 to 99     0 to 99     a function of episode, start and sample
    0           140 to 160  100 to 120
    2           0 to 30     121 to 151
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import MOST_COPIES, ClipKeys
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.text import repr_of
from seqrecord.store.units import check, check_integer

Values: TypeAlias = npt.NDArray[Any] | pa.Array
"""A value for each row: an array [n, …], or texts."""


@dataclass(frozen=True, eq=False)
class ComputedValues:
    """Values that are computed for the clips of a batch: dtype and shape of one, or texts."""

    of: Callable[[ClipKeys], Values]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()


Column: TypeAlias = Values | ComputedValues
"""Values of the first table's rows, or computed ones."""

OF_CLIPS = ("dilation", "reverse")
"""Columns that change the frames of a clip."""

_NAMING = ("episode", "start", "frames")


class SampleEpisodes(Protocol):
    """The episodes of a dataset, for functions of samples."""

    @property
    def keys(self) -> pa.StringArray:
        """Key of each episode."""

    @property
    def num_frames(self) -> IntArray:
        """Length of each episode."""

    @property
    def num_rows(self) -> int | None:
        """The rows of the user's table; `None` without one."""

    def stored_frames(self, clips: ClipKeys) -> tuple[IntArray, IntArray]:
        """Rows of the index and first frames of clips."""

    def from_row(self, row: int) -> SampleEpisodes:
        """The same episodes for a table that begins at a row."""

    def extent(self, clips: ClipKeys, samples: Samples) -> tuple[IntArray, IntArray]:
        """First and last frames that clips of a table use, inside their episodes."""

    def complete(
        self, dilations: Sequence[int]
    ) -> Sequence[Callable[[ClipKeys], npt.NDArray[np.bool_]]]:
        """Functions, one for each dilation, that return which clips are complete with it, in their
        episode or segment, bool [n].
        """

    def digest(self, samples: Samples) -> str:
        """A hash of all rows and columns of a table."""

    def metadata(self, name: str, episodes: IntArray) -> list[Any]:
        """A metadata entry of episodes."""

    def stored_name(self, name: str, *, has_metadata: bool = False) -> str:
        """Name of a feature in the record files; other names are unchanged, and so are those of
        metadata entries with `has_metadata`.
        """

    def values(
        self, feature: str, episode: IntArray, frame: IntArray, *, segments: bool = False
    ) -> npt.NDArray[Any]:
        """The values of a text or number in frames, int64 [n] each; or numbers of the segments of
        equal values.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """The table of an epoch: a row per sample, by episode and start.

    Functions of `samples=` receive one and return one. Methods return new tables; arrays have a
    value for each row, in order.

    Example:
        def moving(samples, epoch, rng):
            return samples.filter(samples["start"] % 2 == epoch % 2)

        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=moving, batch_size=2)
    """

    clips: ClipTable
    episodes: SampleEpisodes
    columns: Mapping[str, Column] = field(default_factory=dict)
    listed: IntArray | None = None  # row of a user's table, of each row of the first table
    episode_order: IntArray | None = None  # … of each episode, if a user's table has no starts
    segment: IntArray | None = None  # row of a table of segments, of each row in `listed`

    @classmethod
    def of(
        cls,
        clips: ClipTable,
        episodes: SampleEpisodes,
        episode: IntArray,
        start: IntArray,
        columns: Mapping[str, Values],
        listed: IntArray | None = None,
    ) -> Samples:
        """A user's table, sorted; `clips` has its settings. `listed` are its rows, if some lack."""
        order = np.lexsort((start, episode))
        row = np.arange(len(order))
        clips = clips.with_runs(episode[order], start[order], np.ones_like(row), row * MOST_COPIES)
        columns = {name: taken(column, order) for name, column in columns.items()}
        return cls(clips, episodes, columns, order if listed is None else listed[order])

    def __len__(self) -> int:
        return self.clips.num_clips

    def __repr__(self) -> str:
        return f"Samples({len(self)} rows; {', '.join(self.names)})"

    @property
    def num_frames(self) -> IntArray:
        """Length of each row's episode, int64 [rows]."""
        return self.episodes.num_frames[self.episodes.stored_frames(self.keys)[0]]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Any:
        """A column: `episode` (keys), `start`, or another one. Texts are an array of objects."""
        argument: Any = name
        if not isinstance(argument, str) or name not in self.names:
            expected, got = ", ".join(self.names), repr_of(name, 100)
            raise ClipError("samples has no such column", expected=expected, got=got)
        if name in ("episode", "start"):
            episode, start = self.episodes.stored_frames(self.keys)
            if name == "start":
                return start
            found, row = np.unique(episode, return_inverse=True)
            return np.array(self.episodes.keys.take(pa.array(found)).to_pylist(), object)[row]
        values = self.values(name, self.keys)
        return np.array(values, object) if isinstance(values, list) else values

    def metadata(self, name: str) -> npt.NDArray[Any]:
        """A metadata entry of each row's episode, an array of objects; `None` where it lacks."""
        check("metadata of samples", name, isinstance(name, str), "a name")
        episodes, row = np.unique(self.episodes.stored_frames(self.keys)[0], return_inverse=True)
        found = np.empty(len(episodes), object)
        found[:] = self.episodes.metadata(name, episodes)
        return found[row]

    def feature(self, name: str) -> npt.NDArray[Any]:
        """A text or number at the frame `start` of each row, [rows]. The feature is read once.

        Texts are an array of objects. Raises `ClipError` for a feature of another shape, or that
        some frames lack.
        """
        check("feature of samples", name, isinstance(name, str), "a name")
        return self.episodes.values(name, *self.episodes.stored_frames(self.keys))

    def with_columns(self, **columns: Any) -> Samples:
        """Add or replace columns: arrays [rows] or [rows, length], or lists of texts.

        Batches have them, except `repeat`, a row's mean number of occurrences in an epoch.
        Raises `ClipError` for other types or lengths, and for columns that name frames.
        """
        added: dict[str, Column] = {}
        row = self.keys.row
        is_whole = not len(row) or len(row) == int(row[-1]) + 1
        for name, given in columns.items():
            values = _checked_column(name, given, len(row))
            if not is_whole:  # values of rows that were left out are of no use
                place = np.zeros(int(row[-1]) + 1, np.int64)
                place[row] = np.arange(len(row))
                values = taken(values, place)
            added[name] = values
        return replace(self, columns={**self.columns, **added})

    def filter(self, mask: Any) -> Samples:
        """The rows of a mask, bool [rows]."""
        mask = _as_array("filter has no flag for each row", mask, f"bool [{len(self)}]")
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            expected, got = f"bool [{len(self)}]", f"{mask.dtype} {[*mask.shape]}"
            raise ClipError("filter has no flag for each row", expected=expected, got=got)
        change = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        bounds = np.union1d(change, self.clips.offsets)
        begin = bounds[mask[bounds]]
        end = np.append(bounds, len(mask))[1:][mask[bounds]]
        run = np.searchsorted(self.clips.offsets, begin, side="right") - 1
        before = self.clips.offsets[run]
        return replace(self, clips=self.clips.pieces(run, begin - before, end - before))

    def take(self, rows: Any) -> Samples:
        """The rows with these numbers, int [n], in ascending order.

        A column `repeat` gives a row several times; a number that is twice there raises
        `ClipError`.
        """
        rows = _as_array("take has no row numbers", rows, "int [n]")
        mask = np.zeros(len(self), np.bool_)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
            got = f"{rows.dtype} {[*rows.shape]}"
            raise ClipError("take has no row numbers", expected="int [n]", got=got)
        rows = np.sort(rows.astype(np.int64))
        if len(rows) and not 0 <= rows[0] <= rows[-1] < len(self):
            expected, got = f"0 to {len(self) - 1}", f"{rows[0]} to {rows[-1]}"
            raise ClipError("take has a row that samples lacks", expected=expected, got=got)
        if (again := np.flatnonzero(np.diff(rows) == 0)).size:
            expected = "each row once; with_columns(repeat=…) repeats rows"
            raise ClipError("take has a row twice", expected=expected, got=int(rows[again[0]]))
        mask[rows] = True
        return self.filter(mask)

    def head(self, count: int = 5) -> dict[str, list[Any]]:
        """The values of each column in the first rows."""
        count = check_integer("count of head", count, least=0)
        few = self.take(np.arange(min(count, len(self))))
        return {name: few[name].tolist() for name in self.names}

    # ---- for built-in functions and loaders

    @property
    def keys(self) -> ClipKeys:
        """All rows as clips."""
        return self.clips.locate(np.arange(len(self)))

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the columns in batches."""
        return tuple(name for name in self.columns if name not in (*OF_CLIPS, "repeat"))

    @property
    def repeat(self) -> npt.NDArray[np.float64] | None:
        """How often each row occurs in an epoch, on average; `None`: each comes once."""
        if "repeat" not in self.columns:
            return None
        found: Any = self.values("repeat", self.keys)
        return None if (found == 1).all() else found

    @property
    def rows_listed(self) -> IntArray:
        """Row of each sample in the user's table, int64 [rows], or in the first table."""
        row = self.keys.row
        return row if self.listed is None else self.listed[row]

    def rows_in_table(self, clips: ClipKeys) -> IntArray:
        """Rows of clips in the user's table, or in the first one, for errors; int64 [n]."""
        if self.episode_order is not None:
            return self.episode_order[clips.episode]
        row = clips.row if self.listed is None else self.listed[clips.row]
        return row if self.segment is None else self.segment[row]

    def values(self, name: str, clips: ClipKeys) -> npt.NDArray[Any] | list[str]:
        """Values of a column for clips: an array [n, …], or texts."""
        column = self.columns[name]
        found = column.of(clips) if isinstance(column, ComputedValues) else taken(column, clips.row)
        return found if isinstance(found, np.ndarray) else found.to_pylist()

    def dilation(self, clips: ClipKeys, default: int) -> IntArray:
        """The dilation of clips, int64 [n]: of their column, or the loader's `default`."""
        if "dilation" not in self.columns:
            return np.full(len(clips.start), default)
        return np.asarray(self.values("dilation", clips))

    def value_form(self, name: str) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Dtype and shape of a column's value; `None` for texts."""
        return value_form(self.columns[name])

    def computed(
        self, name: str, dtype: type, function: Callable[[ClipKeys], npt.NDArray[Any]]
    ) -> Samples:
        """Add a column of numbers that a function computes for the clips of a batch."""
        column = ComputedValues(function, np.dtype(dtype))
        return replace(self, columns={**self.columns, name: column})

    def of_runs(self, begin: int, end: int) -> Samples:
        """The samples of some runs as a table of their own, with rows from 0."""
        clips, run = self.clips, np.arange(begin, end)
        first = int(clips.first_sample[begin])
        stop = int(clips.first_sample[end - 1] + clips.count[end - 1] * clips.sample_step)

        def shifted(column: Column) -> Column:
            if isinstance(column, ComputedValues):
                of = column.of
                return replace(column, of=lambda k: of(k._replace(sample=k.sample + first)))
            return column[first // MOST_COPIES : stop // MOST_COPIES]

        part = clips.pieces(run, np.zeros_like(run), clips.count[run])
        part = replace(part, samples=part.first_sample - first)
        columns = {name: shifted(column) for name, column in self.columns.items()}
        episodes = self.episodes.from_row(first // MOST_COPIES)
        listed = None if self.listed is None else self.listed[first // MOST_COPIES :]
        return replace(self, clips=part, episodes=episodes, columns=columns, listed=listed)

    def every(self, stride: int, phase: int = 0) -> Samples:
        """The samples that start at `phase` plus a multiple of `stride`."""
        clips = self.clips.with_stride(stride, phase)
        if not self.columns and self.listed is None:  # no value depends on the numbers
            clips = replace(clips, samples=None, sample_step=MOST_COPIES)
        return replace(self, clips=clips)

    def repeated(self, times: IntArray) -> ClipTable:
        """The clips of the samples, each repeated `times`, int64 [rows]."""
        row, copy = ragged_arange(times)
        keys = self.clips.locate(row)
        columns = keys.episode, keys.start, np.ones_like(row), keys.sample + copy
        return self.clips.with_runs(*columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return ("episode", "start", *self.columns)


def empty_clips(spec: ClipSpec, selected: IntArray, *, num_incomplete: int = 0) -> ClipTable:
    """A table without clips of these episodes; `num_incomplete` were left out."""
    none = np.zeros(0, np.int64)
    return ClipTable(spec, selected, none, none, none, num_incomplete=num_incomplete)


def value_form(column: Column) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Dtype and shape of a column's value; `None` for texts."""
    if isinstance(column, ComputedValues):
        return column.dtype, column.shape
    return (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else (None, ())


def taken(column: Values, chosen: IntArray) -> Values:
    """The values of chosen rows."""
    return column[chosen] if isinstance(column, np.ndarray) else column.take(pa.array(chosen))


def _as_array(problem: str, value: Any, expected: str) -> npt.NDArray[Any]:
    """A user's argument as an array. Raises `ClipError`."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:  # lists that differ in length, for example
        got = repr_of(value, 100)
        raise ClipError(problem, expected=expected, got=got) from error


def _checked_column(name: str, given: Any, count: int) -> Values:
    """The values of a column for `count` rows. Raises `ClipError`."""
    if name in (*_NAMING, *OF_CLIPS):
        expected = "filter or take for rows, dilate and reverse for frames; or a table"
        raise ClipError("with_columns does not replace this column", expected=expected, got=name)
    kinds = "iuf" if name == "repeat" else "biuf"
    try:
        values: Values = np.asarray(given)
        if values.dtype.kind in "OUT":
            values = pa.array(list(given), pa.large_string())
        elif values.dtype.kind not in kinds or values.dtype.itemsize > 8 or values.ndim > 2:
            raise TypeError(f"{values.dtype} {[*values.shape]}")
        else:  # a copy, which stays when the user's array changes; in the order of the machine
            values = values.astype(values.dtype.newbyteorder("="))
        if np.shape(given)[:1] != (count,):
            raise ValueError(f"{[*np.shape(given)]} for {count} rows")
    except (pa.ArrowException, TypeError, ValueError) as error:
        expected = "numbers" if name == "repeat" else "[rows] or [rows, length] numbers, or texts"
        problem = f"a function of samples returns another column {name}"
        raise ClipError(problem, expected=expected, got=str(error)[:200]) from error
    if name == "repeat":
        repeat = np.asarray(values, np.float64)
        for row in np.flatnonzero(~((repeat >= 0) & (repeat <= MOST_COPIES)))[:1].tolist():
            problem = f"samples has an invalid repeat, in row {row}"
            raise ClipError(problem, expected=f"0 to {MOST_COPIES}", got=float(repeat[row]))
        return repeat
    return values
