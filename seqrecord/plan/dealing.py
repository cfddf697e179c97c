"""Dealing: the order in which the clips of a round are emitted.

The clips of a block, shuffled, spread evenly over the round, each cursor's from a moment of its
own::

    cursor 0    a . . b . . c . . d . .
    cursor 1    . e . . f . . g . . h .
    cursor 2    . . i . . . . . j . . .
    emitted     a e i b f c g j d h

With `repeat`, a round is dealt so many times in a row, in another order each time. A batch that
takes the last clips of one pass takes others from the next::

    pass 0                  a e i b f c g j d h
    pass 1, as drawn                            d f i b e g c a j h
    pass 1, as emitted                          f i b e d g c a j h
    batches of 6            0 0 0 0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 3 3
"""

from __future__ import annotations

import numpy as np

from seqrecord.order import IntArray, hash64, ranks
from seqrecord.plan.batches import Batches
from seqrecord.plan.lanes import Walk

__all__ = ["deal"]

_TIME_BITS = 20  # fraction of a turn that tells apart whose clip comes first


def deal(
    walk: Walk,
    turn: IntArray,
    *,
    stride: int,
    num_cursors: int,
    key: int | None,
    repeat: int,
    first: int,
    batches: Batches,
) -> tuple[IntArray, IntArray]:
    """Rows of `walk`, and starts, of the clips of whole rounds as they are emitted; int64[n] each.

    `walk` holds the rounds' blocks by round and turn, `turn` is int64[blocks]. `first` clips of
    the split, of which `batches` tells where each belongs, come before. Without a `key` every
    pass has the clips in the order of the blocks.
    """
    block = np.repeat(np.arange(len(walk)), walk.count)
    place = np.arange(len(block)) - (np.cumsum(walk.count) - walk.count)[block]
    start = walk.first[block] + place * stride
    if key is None and repeat == 1:
        return block, start
    rounds = walk.round[block]
    name = hash64(key or 0, walk.episode[block]).view(np.int64) + start

    def draw(number: int) -> IntArray:
        """The clips in the order of a pass, round after round."""
        if key is None:
            return np.arange(len(block))
        drawn = ranks(hash64(number, name), block)
        time = (drawn * num_cursors + turn[block] << _TIME_BITS) // walk.count[block]
        return np.lexsort((time, rounds))

    order = draw(0)
    if repeat == 1:
        return block[order], start[order]
    begin = np.searchsorted(rounds, rounds)  # of the clip's round, in every pass
    count = np.searchsorted(rounds, rounds, side="right") - begin
    place = np.arange(len(block)) - begin  # in the pass
    emitted = np.empty(len(block) * repeat, np.int64)
    for number in range(repeat):
        passed = begin * repeat + number * count  # where the pass begins, from the first round on
        if number:
            order = _apart(order, draw(number), rounds, place, count, first + passed, batches)
        emitted[passed + place] = order
    return block[emitted], start[emitted]


def _apart(
    before: IntArray,
    drawn: IntArray,
    rounds: IntArray,
    place: IntArray,
    count: IntArray,
    begin: IntArray,
    batches: Batches,
) -> IntArray:
    """`drawn`, changed so that no batch has a clip both from it and from the pass before.

    All int64[n], by round and place in the pass: both passes' clips, rounds, the places, how many
    clips the round has, and how many the split has before this pass. Where a round has fewer clips
    than a batch there is no way, and its pass begins with what can be told apart.
    """
    batch, _ = batches.places(begin - 1)
    taken = begin - batches.begins(batch)  # by the batch in which the pass before ends
    wanted = batches.begins(batch + 1) - begin  # by the same batch from this pass
    late = np.zeros(len(before), bool)
    late[before] = place >= count - taken
    free = ~late[drawn]
    number = np.cumsum(free) - free  # of the clips so far, those that are free
    number -= number[np.arange(len(drawn)) - place]
    head = free & (number < wanted)
    return drawn[np.lexsort((~head, rounds))]
