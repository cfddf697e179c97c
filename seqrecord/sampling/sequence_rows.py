"""Rows: which clips each row of a batch has, where clips of an episode follow each other.

There are `batch_size` rows in each part. Where all parts must be equal, the clips of all episodes,
one after the other, are cut into equal shares, one for each row. A cut may lie inside an episode,
whose rest is then another row's::

    2 parts of 2 rows       |------A------|---B---|-C-|-----D-----|--E--|----F----|
    part, row                0 0           1 0           0 1           1 1

Else no episode is cut: the longest ones are given out first, each to the row that has least::

    part 1, row 0           |-----D-----|--E--|
    part 0, row 0           |------A------|-C-|
    part 1, row 1           |----F----|
    part 0, row 1           |---B---|

In a part, rows have fewer clips from row to row, so that row b stays row b where others have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.sampling.parts import Part
from seqrecord.sampling.runs import Runs

__all__ = ["Rows", "equal_bounds", "equal_rows", "whole_bounds", "whole_rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a part: row `b` has the clips `[start[b], stop[b])` of `runs`; int64[rows].

    No row is empty, and none has more clips than the one before. `num_repeated` of the clips are
    another part's too.
    """

    runs: Runs
    start: IntArray
    stop: IntArray
    num_repeated: int = 0

    @property
    def num_cut(self) -> int:
        """How many rows begin inside a sequence, of which another row has what comes before."""
        row, _ = self.runs.find(self.start)
        return int((self.start > self.runs.first_clip[row]).sum())

    def full(self, num_rows: int) -> int:
        """How many batches have so many rows."""
        return int((self.stop - self.start)[-1]) if len(self.start) == num_rows else 0


def equal_rows(runs: Runs, part: Part, num_rows: int, *, fill: bool) -> Rows:
    """Shares of equally many clips, which differ by one where it does not come out even.

    Parts have equally many clips, or differ by one. With `fill` they all have equally many: a part
    that would have one clip less has one of the next part too.
    """
    start, stop = equal_bounds(runs, np.array([part.index]), part.count, num_rows)
    start, stop = start[0], stop[0]
    low, larger = divmod(runs.num_clips, part.count)
    repeated = int(fill and larger > 0 and part.index < part.count - larger)
    stop[low % num_rows] += repeated
    some = stop > start
    return Rows(runs, start[some], stop[some], repeated)


def equal_bounds(
    runs: Runs, parts: IntArray, num_parts: int, num_rows: int
) -> tuple[IntArray, IntArray]:
    """Where the rows of these parts begin and end, without `fill`; int64[parts, rows] each."""
    low, larger = divmod(runs.num_clips, num_parts)
    smaller = num_parts - larger  # parts, the first ones, with one clip less than the others
    short, long = _lengths(low, num_rows), _lengths(low + 1, num_rows)
    every = short * smaller + long * larger  # of all parts' rows of one number
    index = parts[:, None]
    before = short * np.minimum(index, smaller) + long * np.maximum(0, index - smaller)
    start: IntArray = np.cumsum(every) - every + before
    return start, start + np.where(index < smaller, short, long)


def whole_rows(runs: Runs, part: Part, num_rows: int) -> Rows:
    """Rows of whole episodes, the clips of each in one row; parts may differ."""
    runs, start, stop = whole_bounds(runs, np.array([part.index]), part.count, num_rows)
    some = stop[0] > start[0]
    return Rows(runs, start[0, some], stop[0, some])


def whole_bounds(
    runs: Runs, parts: IntArray, num_parts: int, num_rows: int
) -> tuple[Runs, IntArray, IntArray]:
    """The runs in another order, and where rows of parts begin and end; int64[parts, rows]."""
    clips = np.zeros(int(runs.run[-1]) + 1 if len(runs) else 0, np.int64)
    np.add.at(clips, runs.run, runs.count)
    count = min(num_parts * num_rows, len(clips))  # others are empty
    owner, load = np.zeros_like(clips), np.zeros(count, np.int64)
    longest_first = np.argsort(-clips, kind="stable")
    for first in range(0, len(clips), max(1, count)):
        some = longest_first[first : first + count]
        owner[some] = np.argsort(load, kind="stable")[: len(some)]
        load[owner[some]] += clips[some]
    by_load = np.argsort(-load, kind="stable")  # dealt to the parts in turn
    place = np.empty(count, np.int64)
    place[by_load] = np.arange(count)
    number = np.empty_like(clips)
    number[np.argsort(place[owner], kind="stable")] = np.arange(len(clips))
    bounds = np.append(0, np.cumsum(load[by_load]))
    # The last part has the longest row, as it has most clips where parts cannot be equal.
    rank = (num_parts - 1 - parts[:, None]) + np.arange(num_rows) * num_parts
    start, stop = bounds[np.minimum(rank, count)], bounds[np.minimum(rank + 1, count)]
    return runs.ordered(number), start, stop


def _lengths(clips: int, num_rows: int) -> IntArray:
    """So many clips, shared out to the rows of a part; the first ones have one more."""
    return np.asarray(clips // num_rows + (np.arange(num_rows) < clips % num_rows), np.int64)
