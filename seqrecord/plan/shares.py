"""Which clips of an epoch's sequence a split has, and in which lanes.

The sequence of `R` splits with `C` cursors each is cut into `R * C` lanes, which are dealt to the
splits in turn, so that the cursors of a split lie far apart, in different episodes::

    sequence                |-----A-----|--B--|------C------|---D---|-----E-----|
    lanes of 2 x 4          |-------|-------|-------|-------|-------|-------|-------|-------|
    split, cursor             0 0     1 0     0 1     1 1     0 2     1 2     0 3     1 3

Lanes begin where chunks do, which moves clips from one split to another; only the last cursor's
lanes begin elsewhere, so that each split has its exact number of clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.order import IntArray
from seqrecord.plan.blocks import Pieces
from seqrecord.plan.settings import Split

__all__ = ["Share", "share_of"]


@dataclass(frozen=True, eq=False)
class Share:
    """The lanes of one split: clips `[start[i], stop[i])` of the sequence, int64[lanes].

    `num_clips` in all, of which the last `num_repeated` belong to another split too.
    """

    start: IntArray
    stop: IntArray
    num_repeated: int = 0

    @property
    def num_clips(self) -> int:
        return int((self.stop - self.start).sum())


def share_of(
    sequence: Pieces, grid: IntArray, split: Split, num_lanes: int, *, fill: bool
) -> Share:
    """The lanes of a split, of which none is empty. All splits together cover the sequence.

    Lanes begin where `grid`, int64[pieces], says that frames lie together: see `Pieces.snap`.
    Splits have equally many clips, or differ by one. With `fill` they all have equally many: a
    split that would have one clip less has one of the next split too::

        8 clips, 3 splits of one lane    0 1 2 | 2 3 4 | 5 6 7
        without `fill`                   0 1   | 2 3 4 | 5 6 7
        2 clips, 3 splits                0     | 0     | 1
    """
    total, count = sequence.num_clips, split.count
    begin = _lane_bounds(total, count, num_lanes, split.index)
    end = _lane_bounds(total, count, num_lanes, split.index + 1)
    most = -(-int(grid.max(initial=1)) // sequence.stride)
    if total // count // num_lanes > 2 * most:
        # What a split gains in one lane it loses in others: the moves of where its lanes begin,
        # and of where they end, come to the same, that of the first split's begins.
        even = _lane_bounds(total, count, num_lanes, 0)
        first = np.append(0, _snapped(sequence, grid, even[1:], 0))
        carry = int((first - even).sum())
        begin = first if split.index == 0 else _snapped(sequence, grid, begin, carry, exact=True)
        if split.index + 1 == count:
            end = np.append(first[1:], total)
        else:
            end = _snapped(sequence, grid, end, carry, exact=True)
    repeated = 0
    if fill and total:
        repeated = -(-total // count) - int((end - begin).sum())
        end[-1] += repeated
    some = end > begin
    return Share(begin[some], end[some], repeated)


def _lane_bounds(total: int, num_splits: int, num_lanes: int, index: int) -> IntArray:
    """Where the lanes of split `index` begin, or those of `index - 1` end; int64[num_lanes].

    They are as equally long as can be where each split has its share of `total` clips.
    """
    low, larger = divmod(total, num_splits)
    before = total * index // num_splits - low * index  # splits before with one clip more
    column = np.arange(num_lanes + 1)
    short, long = column * low // num_lanes, column * (low + 1) // num_lanes
    bounds = short * (num_splits - larger) + long * larger
    lengths = np.diff(short) * (index - before) + np.diff(long) * before
    found: IntArray = np.add(bounds[:-1], lengths, dtype=np.int64)
    return found


def _snapped(
    sequence: Pieces, grid: IntArray, bounds: IntArray, total_move: int, *, exact: bool = False
) -> IntArray:
    """`bounds`, each moved by up to a grid; all moves together come to about `total_move`.

    With `exact` to exactly that, for which the last one is moved to where no line is.
    """
    moved: IntArray = bounds.copy()
    owed = total_move
    for i in range(len(bounds) - exact):
        wanted = bounds[i : i + 1] + owed
        half = grid[sequence.find(wanted)[0]] // (2 * sequence.stride)
        moved[i] = sequence.snap(wanted + half, grid)[0]
        owed += int(bounds[i] - moved[i])
    if exact:
        moved[-1] += owed
    return moved
