"""Parts: which clips of an epoch a rank or worker has, and which of them each of its cursors.

The sequence of an epoch's clips is cut into equal shares, one for each cursor of each part. They
are dealt to the parts in turn, so that the cursors of a part lie far apart, in other episodes::

    sequence                |-----A-----|--B--|------C------|---D---|-----E-----|
    2 parts of 4 cursors    |-------|-------|-------|-------|-------|-------|-------|-------|
    part, cursor             0 0     1 0     0 1     1 1     0 2     1 2     0 3     1 3

Each share begins where a chunk does, which moves clips from one part to another; only the share of
each part's last cursor begins elsewhere, so that each part has its exact number of clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.grids import ChunkGrid
from seqrecord.sampling.runs import Runs

__all__ = ["Part", "share_out"]


@dataclass(frozen=True)
class Part:
    """Part `index` of `count` disjoint parts of an epoch, one for each rank and worker."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ClipError(
                "not a part of an epoch",
                expected="0 <= index < count",
                got=f"index {self.index} of {self.count}",
            )


def share_out(
    sequence: Runs, grid: ChunkGrid, part: Part, num_cursors: int, *, fill: bool
) -> tuple[IntArray, IntArray, int]:
    """What the cursors of a part have, and how many of these clips another part has too.

    Cursor `i` has the clips `[start[i], stop[i])` of the sequence, at least one; int64[cursors].
    All parts together cover the sequence. Shares begin where chunks do, of which `grid` has those
    of each row's episode: see `Runs.snap`. Parts have equally many clips, or differ by one. With
    `fill` they all have equally many: a part that would have one clip less has one of the next part
    too::

        8 clips, 3 parts of one cursor  0 1 2 | 2 3 4 | 5 6 7
        without `fill`                  0 1   | 2 3 4 | 5 6 7
        2 clips, 3 parts                0     | 0     | 1
    """
    total, count = sequence.num_clips, part.count
    start = _equal_bounds(total, count, num_cursors, part.index)
    stop = _equal_bounds(total, count, num_cursors, part.index + 1)
    most = -(-int(grid.largest.max(initial=1)) // sequence.stride)
    if total // count // num_cursors > 2 * most:
        # What a part gains in one share it loses in others: the moves of where its shares begin,
        # and of where they end, come to the same, that of the first part's begins.
        equal = _equal_bounds(total, count, num_cursors, 0)
        first = np.append(0, _snapped(sequence, grid, equal[1:], 0))
        moved = int((first - equal).sum())
        start = first if part.index == 0 else _snapped(sequence, grid, start, moved, exact=True)
        if part.index + 1 == count:
            stop = np.append(first[1:], total)
        else:
            stop = _snapped(sequence, grid, stop, moved, exact=True)
    repeated = 0
    if fill and total:
        repeated = -(-total // count) - int((stop - start).sum())
        stop[-1] += repeated
    some = stop > start
    return start[some], stop[some], repeated


def _equal_bounds(total: int, num_parts: int, num_cursors: int, index: int) -> IntArray:
    """Where the shares of part `index` begin, or those of `index - 1` end; int64[cursors].

    Shares are as equal as can be where each part has its number of the `total` clips.
    """
    low, larger = divmod(total, num_parts)
    before = total * index // num_parts - low * index  # parts before with one clip more
    cursor = np.arange(num_cursors + 1)
    short, long = cursor * low // num_cursors, cursor * (low + 1) // num_cursors
    bounds = short * (num_parts - larger) + long * larger
    lengths = np.diff(short) * (index - before) + np.diff(long) * before
    found: IntArray = np.add(bounds[:-1], lengths, dtype=np.int64)
    return found


def _snapped(
    sequence: Runs, grid: ChunkGrid, bounds: IntArray, total_move: int, *, exact: bool = False
) -> IntArray:
    """`bounds`, each moved to where a chunk begins; all moves come to about `total_move`.

    With `exact` to exactly that, for which the last one is moved to where no chunk begins.
    """
    moved: IntArray = bounds.copy()
    owed = total_move
    for i in range(len(bounds) - exact):
        wanted = bounds[i : i + 1] + owed
        begin, end = grid.bounds(*_chunk(sequence, grid, wanted))
        half = (end - begin) // (2 * sequence.stride)
        moved[i] = sequence.snap(wanted + half, grid)[0]
        owed += int(bounds[i] - moved[i])
    if exact:
        moved[-1] += owed
    return moved


def _chunk(sequence: Runs, grid: ChunkGrid, clips: IntArray) -> tuple[IntArray, IntArray]:
    """Row and number of the chunk in which each clip starts."""
    row, start = sequence.find(clips)
    return row, grid.place(row, start)
