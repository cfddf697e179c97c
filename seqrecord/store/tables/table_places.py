"""Episodes and frames that the rows of a table name, for `samples=` and `join=`.

::

    episode              key as text, or number in the dataset; of an original, in the original
    episode_index        number; of a LeRobot dataset, LeRobot's
    frame, frame_index   frame of the episode
    start, stop (end)    frames [start, stop)
    index                frame, counted over all episodes in the order of their numbers
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.arrow_tables import holds_text
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.text import repr_of

EPISODE_NAMES = ("episode", "episode_index")
FRAME_NAMES = ("frame", "frame_index")
STOP_NAMES = ("stop", "end")
INDEX = "index"

UNKNOWN = -1
"""Row of an episode that a dataset lacks."""

_LEFT_OUT = UNKNOWN - 1  # code of the first episode that is left out; of others -3, -4, …

_EXPECTED = (
    "episode (key or number) or episode_index, with frame, frame_index, or start and stop (end); "
    "or index, the frame counted over all episodes"
)


class LeftOutEpisode(NamedTuple):
    """An episode of an original that a dataset leaves out; it keeps its number."""

    number: int
    key: str
    num_frames: int | None  # if known
    metadata: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class EpisodeNames:
    """Keys, numbers and lengths of a dataset's episodes, by which tables name them.

    `metadata` has JSON objects, where LeRobot datasets' numbers are an entry. `numbers` are the
    numbers of the episodes, by default 0, 1, …; `left_out` has the other ones.
    """

    keys: pa.StringArray
    num_frames: IntArray
    metadata: pa.StringArray
    numbers: IntArray | None = None
    left_out: Sequence[LeftOutEpisode] = ()

    @cached_property
    def rows(self) -> IntArray:
        """Row of the episode of each number, int64 [numbers]; below `UNKNOWN` if left out."""
        count = len(self.num_frames)
        rows = np.empty(count + len(self.left_out), np.int64)
        rows[np.arange(count) if self.numbers is None else self.numbers] = np.arange(count)
        for place, episode in enumerate(self.left_out):
            rows[episode.number] = _LEFT_OUT - place
        return rows

    @cached_property
    def lerobot_numbers(self) -> IntArray | None:
        """LeRobot's number of each episode, int64 [E]; `None` if no episode has one.

        They differ from the dataset's numbers where episodes were left out or deleted. Raises
        `ClipError` if several datasets were merged, so that numbers are ambiguous.
        """
        import pyarrow.compute as pc  # a slow import

        if not pc.any(pc.match_substring(self.metadata, '"episode_index"')).as_py():
            return None  # without parsing each entry
        numbers = [json.loads(text).get("episode_index") for text in self.metadata.to_pylist()]
        original_numbers = [n for n in numbers if type(n) is int and n.bit_length() < 64]
        if not original_numbers:
            return None
        if len({*original_numbers}) < len(numbers):
            raise ClipError(
                "episode_index is ambiguous: episodes of several originals were merged",
                expected="the column episode, with keys or with numbers in this dataset",
                got=f"{len({*original_numbers})} numbers of {len(numbers)} episodes",
            )
        return np.array(original_numbers, np.int64)

    def find(self, column: pa.Array, name: str) -> IntArray:
        """Return the row of each episode, int64 [n], `UNKNOWN` for episodes that are not here.

        `name` is the column's, one of `EPISODE_NAMES`. Raises `ClipError` for another type, and
        `RowError` for a number in the dataset that is out of range.
        """
        return np.maximum(self._codes(column, name), UNKNOWN)

    def locate(self, column: pa.Array) -> tuple[IntArray, IntArray]:
        """Return episode row, as `find`, and frame of each `index`, int64 [n] each.

        Raises `RowError` if an index is out of range, and `ClipError` if LeRobot's numbers have
        holes, or an episode is left out of which only its data would tell the length.
        """
        codes, frames = self._codes_of_index(column)
        return np.maximum(codes, UNKNOWN), frames

    def find_left_out(self, column: pa.Array, name: str) -> IntArray:
        """Return the place in `left_out` of each episode, int64 [n], `UNKNOWN` for others.

        `name` is the column's, one of `EPISODE_NAMES`, or `INDEX`. Errors as for `find` and
        `locate`.
        """
        is_index = name == INDEX
        codes = self._codes_of_index(column)[0] if is_index else self._codes(column, name)
        return np.maximum(_LEFT_OUT - codes, UNKNOWN)

    def _codes(self, column: pa.Array, name: str) -> IntArray:
        """Row of each episode, int64 [n], `UNKNOWN`, or the code of one that is left out."""
        import pyarrow.compute as pc  # a slow import

        left_out_codes = _LEFT_OUT - np.arange(len(self.left_out))
        if name == "episode" and holds_text(column.type):
            column = column.cast(self.keys.type)
            codes = np.full(len(column), UNKNOWN)
            if self.left_out:
                keys = pa.array([episode.key for episode in self.left_out], self.keys.type)
                places = pc.index_in(column, value_set=keys)
                is_left_out = np.asarray(places.is_valid())
                codes[is_left_out] = left_out_codes[np.asarray(places.drop_null())]
            rows = np.asarray(pc.index_in(column, value_set=self.keys).fill_null(UNKNOWN), np.int64)
            return np.where(rows == UNKNOWN, codes, rows)
        numbers = _integers(column, name, "keys or numbers" if name == "episode" else "numbers")
        if name != "episode" and (lerobot := self._lerobot_codes) is not None:
            original_numbers, codes = lerobot
            place = np.minimum(np.searchsorted(original_numbers, numbers), len(codes) - 1)
            return np.where(original_numbers[place] == numbers, codes[place], UNKNOWN)
        last = len(self.rows) - 1
        for row in np.flatnonzero((numbers < 0) | (numbers > last))[:1].tolist():
            raise _wrong(f"unknown number in column {name}", row, f"0 to {last}", numbers[row])
        return self.rows[numbers]

    def _codes_of_index(self, column: pa.Array) -> tuple[IntArray, IntArray]:
        """Codes of episodes as `_codes`, and frames, of each `index`."""
        numbers, order = _integers(column, INDEX, "frames"), self._order()
        if order is None:
            raise ClipError(
                "the column index is ambiguous: the dataset lacks some of LeRobot's episodes, or "
                "leaves out one of unknown length",
                expected="the columns episode or episode_index, and frame_index",
            )
        codes, lengths = order
        stops = np.cumsum(lengths)
        total = int(stops[-1])
        for row in np.flatnonzero((numbers < 0) | (numbers >= total))[:1].tolist():
            problem = f"frame outside of the dataset in column {INDEX}"
            raise _wrong(problem, row, f"0 to {total - 1}", numbers[row])
        place = np.searchsorted(stops, numbers, "right")
        return codes[place], numbers - (stops - lengths)[place]

    def indexes(self, episode: IntArray, frame: IntArray) -> IntArray | None:
        """Return the `index` of frames, int64 [n]; `None` if it is unknown, see `locate`."""
        if (order := self._order()) is None:
            return None
        codes, lengths = order
        is_here = codes > UNKNOWN
        begins = np.empty_like(self.num_frames)
        begins[codes[is_here]] = (np.cumsum(lengths) - lengths)[is_here]
        return begins[episode] + frame

    def _order(self) -> tuple[IntArray, IntArray] | None:
        """Codes and lengths of all episodes in the order of their numbers, int64 [numbers] each.

        `None` if LeRobot's numbers have holes, and if a length is unknown.
        """
        codes, lengths = self.rows, [episode.num_frames for episode in self.left_out]
        if None in lengths:
            return None
        if (lerobot := self._lerobot_codes) is not None:
            if not np.array_equal(lerobot[0], np.arange(len(codes))):
                return None
            codes = lerobot[1]
        by_code = np.array([*lengths[::-1], 0, *self.num_frames.tolist()], np.int64)  # ascending
        return codes, by_code[codes - UNKNOWN + len(lengths)]

    @cached_property
    def _lerobot_codes(self) -> tuple[IntArray, IntArray] | None:
        """LeRobot's numbers of all episodes that have one, ascending, and their codes, int64 [n]
        each; `None` if no episode has one.
        """
        if (numbers := self.lerobot_numbers) is None:
            return None
        codes = np.arange(len(numbers))
        for place, episode in enumerate(self.left_out):
            number = episode.metadata.get("episode_index")
            if type(number) is int and number.bit_length() < 64:
                numbers, codes = np.append(numbers, number), np.append(codes, _LEFT_OUT - place)
        order = np.argsort(numbers, kind="stable")
        return numbers[order], codes[order]


@dataclass(frozen=True, eq=False)
class TablePlaces:
    """Frames [start, stop) of an episode that each row of a table names, int64 [n] each.

    The episode is a row of the dataset, or `UNKNOWN`; then `stop` is 0 for a whole episode.
    """

    episode: IntArray
    start: IntArray
    stop: IntArray

    @classmethod
    def of(
        cls, columns: Mapping[str, pa.Array], episodes: EpisodeNames, first_row: int = 0
    ) -> TablePlaces:
        """Return the places of rows, given the columns that `place_names` returns.

        `first_row` is the number of the first row, for errors. Raises `ClipError` with the row for
        values that are null, out of range, or contradict each other.
        """
        try:
            places = _places(columns, episodes)
            places.check(episodes)
        except RowError as error:
            raise error.numbered(first_row) from None
        return places

    def check(self, episodes: EpisodeNames) -> None:
        """Raise `ClipError` for frames outside of a known episode."""
        limit = episodes.num_frames[self.episode]
        is_outside = (self.start < 0) | (self.stop <= self.start) | (self.stop > limit)
        for row in np.flatnonzero(is_outside & (self.episode != UNKNOWN))[:1].tolist():
            start, stop = int(self.start[row]), int(self.stop[row])
            is_frame = stop == start + 1
            raise _wrong(
                "frame outside of its episode" if is_frame else "frames outside of their episode",
                row,
                f"0 to {limit[row] - 1}" if is_frame else f"0 <= start < stop <= {limit[row]}",
                start if is_frame else f"start {start}, stop {stop}",
                episode=episodes.keys[self.episode[row]].as_py(),
            )


def place_names(names: Collection[str]) -> list[str]:
    """Return the column names that name places, of a table with these columns.

    Raises `ClipError` if they name no episode, or contradict each other.
    """
    places = (EPISODE_NAMES, (INDEX,), FRAME_NAMES, ("start",), STOP_NAMES)
    episodes, index, frames, starts, stops = (
        [name for name in place if name in names] for place in places
    )
    problem, is_span = "", bool(starts or stops)
    if not (episodes or index):
        problem = "the table names no episodes"
    elif is_span and not len(starts) == len(stops) == 1:
        problem = "a span needs start and one of stop and end"
    elif is_span and (frames or index):
        problem = "the table has columns for spans and for single frames"
    if problem:
        raise ClipError(problem, expected=_EXPECTED, got=", ".join(names)[:200])
    return [*episodes, *index, *frames, *starts, *stops]


def sample_places(names: Collection[str]) -> dict[str, str]:
    """Return the columns that name a sample's episode and start, by `episode` and `start`.

    Without such a column, the entry is absent. Other columns that could name a place are values.
    """
    episode = next((name for name in EPISODE_NAMES if name in names), None)
    if episode is None:
        is_index = INDEX in names and not {"start", "frames"} & {*names}
        return {"episode": INDEX, "start": INDEX} if is_index else {}
    starts = () if "frames" in names else ("start", *FRAME_NAMES)
    start = next((name for name in starts if name in names), None)
    return {"episode": episode} if start is None else {"episode": episode, "start": start}


def _places(columns: Mapping[str, pa.Array], episodes: EpisodeNames) -> TablePlaces:
    """The places of rows whose frames are not checked yet."""
    episode: IntArray | None = None
    frame: IntArray | None = None
    for name in EPISODE_NAMES:
        if name in columns:
            _refuse_nulls(columns[name], name)
            rows = episodes.find(columns[name], name)
            _check_equal(episode, rows, "episode and episode_index disagree")
            episode = rows
    for name in FRAME_NAMES:
        if name in columns:
            numbers = _integers(columns[name], name, "frames")
            _check_equal(frame, numbers, "frame and frame_index disagree")
            frame = numbers
    if INDEX in columns:
        episode, frame = _with_index(columns[INDEX], episode, frame, episodes)
    assert episode is not None, "place_names requires a name"
    if frame is not None:
        return TablePlaces(episode, frame, frame + 1)
    for name in STOP_NAMES:
        if name in columns:
            start = _integers(columns["start"], "start", "frames")
            return TablePlaces(episode, start, _integers(columns[name], name, "frames"))
    stop = np.where(episode == UNKNOWN, 0, episodes.num_frames[episode])
    return TablePlaces(episode, np.zeros_like(stop), stop)


def _with_index(
    column: pa.Array, episode: IntArray | None, frame: IntArray | None, episodes: EpisodeNames
) -> tuple[IntArray, IntArray]:
    """Episode and frame for each row of a table with an index, which must agree with both."""
    if episode is None or frame is None:
        rows, frames = episodes.locate(column)
        _check_equal(episode, rows, "index and episode disagree")
        _check_equal(frame, frames, "index and frame disagree")
        return rows, frames
    numbers, expected = _integers(column, INDEX, "frames"), episodes.indexes(episode, frame)
    if expected is not None:
        expected = np.where(episode == UNKNOWN, numbers, expected)
        problem = "index disagrees with episode and frame; if it counts rows, leave it out"
        _check_equal(expected, numbers, problem)
    return episode, frame


def _integers(column: pa.Array, name: str, content: str) -> IntArray:
    """A column of integers without nulls."""
    _refuse_nulls(column, name)
    if not pa.types.is_integer(column.type):
        got = str(column.type)
        raise ClipError(f"no {content} in column {name}", expected="integers", got=got)
    return np.asarray(column.cast(pa.int64(), safe=False), np.int64)


def _refuse_nulls(column: pa.Array, name: str) -> None:
    for row in np.flatnonzero(column.is_null())[:1].tolist():
        raise _wrong(f"no value in column {name}", row, "a value", "null")


def _check_equal(expected: IntArray | None, numbers: IntArray, problem: str) -> None:
    if expected is not None:
        for row in np.flatnonzero(expected != numbers)[:1].tolist():
            raise _wrong(problem, row, int(expected[row]), int(numbers[row]))


class RowError(ClipError):
    """An error in one of several table rows; `numbered` gives the one with the row's number."""

    row = 0

    def numbered(self, first_row: int) -> ClipError:
        """The error as of a table in which these rows begin at row `first_row`."""
        message = f"{self.message}, in row {first_row + self.row}"
        return ClipError(message, **self.context())


def _wrong(
    problem: str, row: int, expected: object, got: object, episode: str | None = None
) -> RowError:
    shown = got if isinstance(got, (int, np.integer)) else repr_of(got, 100)
    error = RowError(problem, episode=episode, expected=expected, got=shown)
    error.row = row
    return error
