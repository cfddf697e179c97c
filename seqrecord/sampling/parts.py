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
from typing import NamedTuple

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.sampling.cuts import Cuts
from seqrecord.sampling.runs import Runs

__all__ = ["Part", "Shares", "shares_of"]


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


class Shares(NamedTuple):
    """What the cursors of some parts have: clips `[start, stop)`, int64[parts, cursors] each.

    A share may be empty. `repeated`, int64[parts], clips are the last of a part's last share, and
    another part has them too.
    """

    start: IntArray
    stop: IntArray
    repeated: IntArray


def shares_of(
    sequence: Runs, cuts: Cuts, index: IntArray, count: int, num_cursors: int, *, fill: bool
) -> Shares:
    """What the cursors of parts `index`, int64[parts], of `count` have.

    All parts together cover the sequence. Shares begin where chunks do, see `Cuts`, unless they are
    shorter than chunks. Parts have equally many clips, or differ by one. With `fill` they all have
    equally many: a part that would have one clip less has one of the next part too::

        8 clips, 3 parts of one cursor  0 1 2 | 2 3 4 | 5 6 7
        without `fill`                  0 1   | 2 3 4 | 5 6 7
        2 clips, 3 parts                0     | 0     | 1
    """
    total = sequence.num_clips
    start = _equal_bounds(total, count, num_cursors, index)
    stop = _equal_bounds(total, count, num_cursors, index + 1)
    most = -(-cuts.longest // sequence.stride)
    if total // count // num_cursors > most + 1:
        # What a part gains in one share it loses in others: the moves of where its shares begin,
        # and of where they end, come to the same, that of the first part's begins.
        equal = _equal_bounds(total, count, num_cursors, np.zeros(1, np.int64))
        first = np.append(0, _snapped(sequence, cuts, equal[:, 1:], 0)[0])
        moved = int((first - equal).sum())
        inner = index > 0
        start[~inner] = first
        start[inner] = _snapped(sequence, cuts, start[inner], moved, exact=True)
        inner = index < count - 1
        stop[~inner] = np.append(first[1:], total)
        stop[inner] = _snapped(sequence, cuts, stop[inner], moved, exact=True)
    repeated = np.zeros(len(index), np.int64)
    if fill and total:
        repeated = -(-total // count) - (stop - start).sum(axis=1)
        stop[:, -1] += repeated
    return Shares(start, stop, repeated)


def _equal_bounds(total: int, num_parts: int, num_cursors: int, index: IntArray) -> IntArray:
    """Where the shares of each part of `index` begin, or those of the one before end.

    Returns int64[parts, cursors]. Shares are as equal as can be where each part has its number of
    the `total` clips.
    """
    low, larger = divmod(total, num_parts)
    before = (index * larger // num_parts)[:, None]  # parts before with one clip more
    cursor = np.arange(num_cursors + 1)
    short, long = cursor * low // num_cursors, cursor * (low + 1) // num_cursors
    bounds = short * (num_parts - larger) + long * larger
    lengths = np.diff(short) * (index[:, None] - before) + np.diff(long) * before
    found: IntArray = np.add(bounds[:-1], lengths, dtype=np.int64)
    return found


def _snapped(
    sequence: Runs, cuts: Cuts, bounds: IntArray, total_move: int, *, exact: bool = False
) -> IntArray:
    """`bounds`, int64[parts, cursors], each moved to where a chunk begins.

    All moves of a part come to about `total_move`. With `exact` to exactly that, for which the last
    one is moved to where no chunk begins.
    """
    moved: IntArray = bounds.copy()
    if not len(bounds):
        return moved
    owed = np.full(len(bounds), total_move)
    for i in range(bounds.shape[1] - exact):
        wanted = bounds[:, i] + owed
        begin, end = cuts.chunks(*sequence.find(wanted))
        half = (end - begin) // (2 * sequence.stride)
        moved[:, i] = sequence.snap(wanted + half, cuts)
        owed += bounds[:, i] - moved[:, i]
    if exact:
        moved[:, -1] += owed
    return moved
