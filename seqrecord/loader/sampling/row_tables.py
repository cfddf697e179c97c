"""The rows of an epoch: samples, numbered episode by episode.

A *row* is one clip of the epoch. Rows are numbered consecutively: by episode, then by start. Each
copy of an episode whose rows come several times is an episode of its own, so that a shuffle of
episodes separates copies; without a shuffle, they follow each other::

    row        0  1  2  3  4 | 5  6 | 7  8 | 9 10
    episode    0  0  0  0  0 | 1  1 | 2  2 | 2  2
    start      0  1  2  7  8 | 0  1 | 0  1 | 0  1
    run        0  0  0  1  1 | 2  2 | 3  3 | 4  4
    owner      0             | 1    | 2    | 3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import distinct, frame_keys, ragged_arange, split_keys


@dataclass(frozen=True, eq=False)
class RowTable:
    """Rows as runs of starts at even distances.

    Run `i` has `count[i]` rows of `episode[i]`, whose starts are `start[i]` and every `stride`
    frames after it, and whose samples are `sample[i]` and every `sample_step` after it. Runs of
    one `owner`, an episode or one copy of it, are adjacent and ascend. All int64[runs], `count` at
    least 1, `owner` ascending without gaps.
    """

    episode: IntArray
    start: IntArray
    count: IntArray
    owner: IntArray
    stride: int
    sample: IntArray
    sample_step: int

    @classmethod
    def of(cls, table: ClipTable, *, in_order: bool = False) -> RowTable:
        """The rows of a table of clips; `in_order`, copies of a row follow it."""
        columns = table.episode, table.first_start, table.count, table.first_sample
        copy = np.zeros_like(table.episode)
        if table.repeats and not in_order:
            columns, copy = _copies(columns, table.spec.stride, table.sample_step)
        is_filled = columns[2] > 0
        episode, start, count, sample = (column[is_filled] for column in columns)
        copy = copy[is_filled]
        order = np.lexsort((start, copy, episode))
        episode, copy = episode[order], copy[order]
        is_new = np.ones(len(episode), np.bool_)
        is_new[1:] = (episode[1:] != episode[:-1]) | (copy[1:] != copy[:-1])
        owner = is_new.cumsum() - 1
        columns = episode, start[order], count[order], owner
        return cls(*columns, table.spec.stride, sample[order], table.sample_step)

    def only(self, first: IntArray, count: IntArray) -> RowTable:
        """The table of the rows in intervals, which are numbered anew.

        Interval `i` has `count[i]` rows from row `first[i]` on; ascending, int64[n] each.
        """
        # Where intervals begin, and the runs inside them.
        filled = count > 0
        first, stop = first[filled], (first + count)[filled]
        begins = self._ends - self.count
        place = first.searchsorted(begins, side="right") - 1
        is_inside = (place >= 0) & (begins < stop[place]) if len(first) else place >= 0
        opens = distinct(np.concatenate((first, begins[is_inside])))
        run, offset = self._place(opens)
        interval = first.searchsorted(opens, side="right") - 1
        counts = np.minimum(stop[interval], self._ends[run]) - opens
        owner = np.cumsum(np.diff(self.owner[run], prepend=-1) != 0) - 1
        start = self.start[run] + offset * self.stride
        sample = self.sample[run] + offset * self.sample_step
        columns = self.episode[run], start, counts, owner
        return RowTable(*columns, self.stride, sample, self.sample_step)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.count) else 0

    def __repr__(self) -> str:
        return f"RowTable({len(self)} rows in {self.num_owners} episodes)"

    @cached_property
    def _ends(self) -> IntArray:
        return self.count.cumsum()

    @cached_property
    def _first_run(self) -> IntArray:
        """The first run of each owner, and the number of runs; int64[owners + 1]."""
        return np.concatenate((_begins(self.owner), [len(self.owner)]))

    @property
    def num_owners(self) -> int:
        return len(self._first_run) - 1

    @cached_property
    def bounds(self) -> IntArray:
        """The first row of each owner, and the number of rows; int64[owners + 1]."""
        return np.append(0, self._ends)[self._first_run]

    @cached_property
    def row_counts(self) -> IntArray:
        """The number of rows of each owner, int64[owners]."""
        return self.bounds[1:] - self.bounds[:-1]

    def _place(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        run = self._ends.searchsorted(rows, side="right")
        return run, rows - (self._ends - self.count)[run]

    def locate(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Episode and start of rows, int64[n] each."""
        run, offset = self._place(rows)
        return self.episode[run], self.start[run] + offset * self.stride

    def samples(self, rows: IntArray) -> IntArray:
        """The samples of rows, int64[n]; see `ClipKeys`."""
        run, offset = self._place(rows)
        samples: IntArray = self.sample[run] + offset * self.sample_step
        return samples

    def rows_from(self, owner: IntArray, start: IntArray) -> IntArray:
        """The first row of each owner at or after a start; where its rows end if none is.

        int64[n] each.
        """
        keys = frame_keys(self.owner, np.maximum(self.start, 0))
        run = keys.searchsorted(frame_keys(owner, np.maximum(start, 0)), side="right") - 1
        run = np.maximum(run, self._first_run[owner])
        step = np.clip(-((self.start[run] - start) // self.stride), 0, self.count[run])
        rows: IntArray = (self._ends - self.count)[run] + step
        return rows


def _begins(values: IntArray) -> IntArray:
    """Where values begin that differ from those before, int64."""
    is_new = np.ones(len(values), np.bool_)
    is_new[1:] = values[1:] != values[:-1]
    return is_new.nonzero()[0]


def _copies(
    columns: tuple[IntArray, ...], stride: int, sample_step: int
) -> tuple[tuple[IntArray, IntArray, IntArray, IntArray], IntArray]:
    """Runs of one row each, and the number of each among the rows with its episode and start."""
    episode, start, count, sample = columns
    run, offset = ragged_arange(count)
    keys = frame_keys(episode[run], start[run] + offset * stride)
    sample = sample[run] + offset * sample_step
    order = np.lexsort((sample, keys))
    keys, sample = keys[order], sample[order]
    places = np.arange(len(keys))
    is_new = np.diff(keys, prepend=-1) != 0
    copy = places - np.maximum.accumulate(np.where(is_new, places, 0))
    episode, start = split_keys(keys)
    order = np.lexsort((start, copy, episode))
    episode, start, sample, copy = (c[order] for c in (episode, start, sample, copy))
    goes_on: npt.NDArray[np.bool_] = np.zeros(len(copy), np.bool_)
    goes_on[1:] = (
        (episode[1:] == episode[:-1])
        & (copy[1:] == copy[:-1])
        & (start[1:] == start[:-1] + stride)
        & (sample[1:] == sample[:-1] + sample_step)
    )
    opens = np.flatnonzero(~goes_on)
    count = np.diff(opens, append=len(copy))
    return (episode[opens], start[opens], count, sample[opens]), copy[opens]
