"""Dealing: the order in which the clips of a round are emitted.

The clips of a block, shuffled, spread evenly over the round, each cursor's from a moment of its
own::

    cursor 0    a . . b . . c . . d . .
    cursor 1    . e . . f . . g . . h .
    cursor 2    . . i . . . . . j . . .
    emitted     a e i b f c g j d h

A batch has several clips of a cursor where there are fewer cursors than clips in a batch. So that
they don't overlap, a block is cut into sections, each at least a clip long. One clip after the
other comes from another section, at the same place in each. Where sections are narrow, places come
in descending order from a random one on, so that the clips of one place and the next don't overlap
either::

    block of 12, 3 sections     0 1 2 3 | 4 5 6 7 | 8 9 10 11
    in the order                2 6 10    1 5 9     0 4 8       3 7 11

These are few orders. That is enough where blocks begin at other clips in each epoch, which those of
a single cursor do not. So its small blocks are shuffled as a whole, and each next clip is the first
one that overlaps none of those that may be in a batch with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.clips import IntArray
from seqrecord.grids import numbered
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.random_order import hash64

__all__ = ["deal", "in_order"]

_TIME_BITS = 20  # fraction of a cursor's share that tells apart whose clip comes first
_MOST_SECTIONS = 8
_NARROW = 4  # clips' spans
_FEW = 512  # clips of a single cursor's block that are put in order one by one


def in_order(
    blocks: Blocks, number: IntArray, drawn: npt.NDArray[np.uint64]
) -> tuple[IntArray, IntArray]:
    """The order of the rows of whole rounds, and the position of each in its round; int64[n] each.

    `number`, int64[n], is that of each row's block; blocks come by round, and in it by what was
    `drawn` for them. A block's rows keep their order. What blocks load comes in that order too, so
    that the first clips need not wait for all loads of their round.
    """
    order = np.lexsort((drawn, blocks.round))
    number, index = number[order], blocks.round[order]
    block = np.cumsum(np.diff(number, prepend=number[:1]) != 0)
    return order, block - block[np.searchsorted(index, index)]


def deal(
    blocks: Blocks,
    position: IntArray,
    ordinal: IntArray,
    *,
    stride: int,
    span: int,
    num_cursors: int,
    batch_size: int,
    key: int | None,
) -> tuple[IntArray, IntArray]:
    """The clips of whole rounds as they are emitted: rows of `blocks`, and starts; int64[n] each.

    `blocks` are sorted by round, by `position` of the cursor in it, and by place in the block.
    `position` and `ordinal`, which numbers the row's episode, are int64[rows]. Clips start every
    `stride` frames and span `span`. Where batches have more clips than there are cursors, those of
    a cursor in a row are far apart. Without a `key` clips come in the order of the rows.
    """
    row, inside = numbered(blocks.count)
    start = blocks.first[row] + inside * stride
    if key is None or not len(row):
        return row, start
    new = np.diff(blocks.round, prepend=-1) != 0
    new |= np.diff(position, prepend=-1) != 0
    first = np.flatnonzero(new)  # row of each block
    sizes = np.add.reduceat(blocks.count, first)
    block, place = numbered(sizes)
    size = sizes[block]
    name = hash64(key, ordinal[first]).view(np.int64) + blocks.first[first]
    spread = num_cursors < batch_size
    apart = -(-span // stride) if spread else len(row) + 1
    order = np.lexsort((*_order(name, block, size, place, apart), block))
    number = np.empty(len(order), np.int64)  # of each clip among those of its block
    number[order] = place
    # Whatever other blocks there are: of several parts at once they must come in the same order.
    if num_cursors == 1 and spread and apart > 1:
        few = np.flatnonzero(size <= _FEW)
        number[few] = _one_by_one(name[block[few]], block[few], place[few], apart, batch_size)
    time = (number * num_cursors + position[row] << _TIME_BITS) // size
    order = np.lexsort((time, blocks.round[row]))
    return row[order], start[order]


def _order(
    name: IntArray, block: IntArray, size: IntArray, place: IntArray, apart: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Keys to sort a block's clips by, the second one first, so that clips in a row are far apart.

    That is by `apart` clips, as far as there are so many. `name` is int64[blocks]; block, its size
    and the place in it are those of each clip, int64[n].
    """
    sections = np.clip(size // apart, 1, _MOST_SECTIONS)
    section = place * sections // size
    inside = place + (-section * size) // sections  # counted from the section's first
    width = -(-size // sections)
    begin = (hash64(2, name) >> np.uint64(33)).astype(np.int64)[block]
    narrow = (sections > 1) & (width < _NARROW * apart)
    number = name[block] + inside * (_MOST_SECTIONS + 1)
    outer = np.where(narrow, ((begin - inside) % width).astype(np.uint64), hash64(0, number))
    inner = np.where(narrow, section.astype(np.uint64), hash64(1, number + section))
    return inner, outer


def _one_by_one(
    name: IntArray, block: IntArray, place: IntArray, apart: int, batch_size: int
) -> IntArray:
    """The number of each clip among those of its block, int64[n]; `block` never falls.

    Of a block's clips in random order, each next one is the first that is `apart` places from the
    `batch_size - 1` before it; where there is none, of those that are near to the earliest one.
    """
    drawn = hash64(0, name + place)
    _, block, sizes = np.unique(block, return_inverse=True, return_counts=True)
    most = int(sizes.max(initial=0))
    near = max(0, min(apart, most) - 1)  # places further away are in no block
    order = np.lexsort((drawn, block))
    taken = most * (batch_size + 2)
    rank = np.full((len(sizes), most), taken)
    rank[block[order], place[order]] = place
    number = np.zeros_like(rank)
    until = np.zeros((len(sizes), most + 2 * near), np.int64)  # with a margin on both sides
    reach = np.arange(2 * near + 1)
    for i in range(most):
        some = np.flatnonzero(sizes > i)
        late = np.maximum(until[some, near : near + most] - i, 0)
        picked = np.argmin(rank[some] + most * late, axis=1)
        number[some, picked] = i
        rank[some, picked] = taken
        until[some[:, None], picked[:, None] + reach] = i + batch_size
    found: IntArray = number[block, place]
    return found
