"""Dealing: the order in which the clips of a round are emitted.

The clips of a block, shuffled, spread evenly over the round, each cursor's from a moment of its
own::

    cursor 0    a . . b . . c . . d . .
    cursor 1    . e . . f . . g . . h .
    cursor 2    . . i . . . . . j . . .
    emitted     a e i b f c g j d h

A batch has several clips of a cursor where there are fewer cursors than clips in a batch. So that
they don't overlap, a block is cut into strata, each at least a clip long, and one clip after the
other comes from another stratum, at the same place in each. Where strata are narrow, places come
in descending order from a random one on, so that clips of two turns don't overlap either::

    block of 12, 3 strata   0 1 2 3 | 4 5 6 7 | 8 9 10 11
    in the order            2 6 10    1 5 9     0 4 8       3 7 11
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.order import IntArray, hash64
from seqrecord.plan.lanes import Walk

__all__ = ["deal"]

_TIME_BITS = 20  # fraction of a turn that tells apart whose clip comes first
_MOST_STRATA = 8
_NARROW = 4  # clips' spans


def deal(
    walk: Walk,
    turn: IntArray,
    ordinal: IntArray,
    *,
    stride: int,
    span: int,
    num_cursors: int,
    spread: bool,
    key: int | None,
) -> tuple[IntArray, IntArray]:
    """Rows of `walk`, and starts, of the clips of whole rounds as they are emitted; int64[n] each.

    `walk` holds the parts of the rounds' blocks by round, turn and place in the block; `turn` and
    `ordinal`, which numbers the part's episode, are int64[parts]. Clips start every `stride` frames
    and span `span`. With `spread` a cursor's clips in a row are far apart. Without a `key` clips
    come in the order of the parts.
    """
    part = np.repeat(np.arange(len(walk)), walk.count)
    start = walk.first[part] + _counted(walk.count, part) * stride
    if key is None or not len(part):
        return part, start
    new = np.diff(walk.round, prepend=-1) != 0
    new |= np.diff(turn, prepend=-1) != 0
    block = (np.cumsum(new) - 1)[part]
    sizes = np.bincount(block)
    size, place = sizes[block], _counted(sizes, block)
    first = np.flatnonzero(new)  # part of each block
    name = hash64(key, ordinal[first]).view(np.int64) + walk.first[first]
    apart = -(-span // stride) if spread else len(part) + 1
    order = np.lexsort((*_order(name, block, size, place, apart), block))
    rank = np.empty(len(order), np.int64)
    rank[order] = _counted(sizes, block)
    time = (rank * num_cursors + turn[part] << _TIME_BITS) // size
    order = np.lexsort((time, walk.round[part]))
    return part[order], start[order]


def _order(
    name: IntArray, block: IntArray, size: IntArray, place: IntArray, apart: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Keys to sort a block's clips by, the second one first, so that clips in a row are far apart.

    That is by `apart` clips, as far as there are so many. `name` is int64[blocks]; block, its size
    and the place in it are those of each clip, int64[n].
    """
    strata = np.clip(size // apart, 1, _MOST_STRATA)
    stratum = place * strata // size
    inside = place + (-stratum * size) // strata  # counted from the stratum's first
    width = -(-size // strata)
    begin = (hash64(2, name) >> np.uint64(33)).astype(np.int64)[block]
    narrow = (strata > 1) & (width < _NARROW * apart)
    number = name[block] + inside * (_MOST_STRATA + 1)
    turn = np.where(narrow, ((begin - inside) % width).astype(np.uint64), hash64(0, number))
    among = np.where(narrow, stratum.astype(np.uint64), hash64(1, number + stratum))
    return among, turn


def _counted(counts: IntArray, owner: IntArray) -> IntArray:
    """0, 1, … for the items of each owner, of which there are `counts`, one after the other."""
    counted: IntArray = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    return counted
