"""Dealing: the order in which the clips of a round are emitted.

The clips of a block, shuffled, spread evenly over the round, each cursor's from a moment of its
own::

    cursor 0    a . . b . . c . . d . .
    cursor 1    . e . . f . . g . . h .
    cursor 2    . . i . . . . . j . . .
    emitted     a e i b f c g j d h
"""

from __future__ import annotations

import numpy as np

from seqrecord.order import IntArray, hash64, ranks
from seqrecord.plan.lanes import Walk

__all__ = ["deal"]

_TIME_BITS = 20  # fraction of a turn that tells apart whose clip comes first


def deal(
    walk: Walk, turn: IntArray, *, stride: int, num_cursors: int, key: int | None
) -> tuple[IntArray, IntArray]:
    """Rows of `walk`, and starts, of the clips of whole rounds as they are emitted; int64[n] each.

    `walk` holds the rounds' blocks by round and turn, `turn` is int64[blocks]. Without a `key`
    clips come in the order of the blocks.
    """
    block = np.repeat(np.arange(len(walk)), walk.count)
    place = np.arange(len(block)) - (np.cumsum(walk.count) - walk.count)[block]
    start = walk.first[block] + place * stride
    if key is None:
        return block, start
    name = hash64(key, walk.episode[block]).view(np.int64) + start
    drawn = ranks(hash64(0, name), block)
    time = (drawn * num_cursors + turn[block] << _TIME_BITS) // walk.count[block]
    order = np.lexsort((time, walk.round[block]))
    return block[order], start[order]
