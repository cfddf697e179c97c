"""Rounds of cursors: the rows of one shard in emitted order.

The cursors are those up to the last one with a row.

In a *round*, each cursor emits the next rows of its share, its *block*. All cursors end together: a
cursor with twice as many rows has blocks twice as long. Rounds of a shard with n rows have edges::

    edge       0 | f | 3 f | 7 f | … | + longest | + longest | … | n

The first round has f rows, each next one twice as many, up to the longest; edges above n are n.
Before a round with the edge e, a cursor that has m of the n rows has emitted this many::

    floor((e m + d) / n)        d = floor((2 i + 1) n / (2 cursors)), another i for each cursor

The numbers i are a `permutation` of the cursors (purpose `CURSOR_BEGINS`). So before a round, all
cursors together have emitted nearly e rows, in the first rounds one cursor after the other.

A round emits the rows of its blocks evenly spread. Block b, numbered by round and then by cursor,
with s rows emits as its k-th row its row (g k + h) mod s, where h is `hash64` of b
(`BLOCK_SHIFTS`), and g the number nearest to s / `parts` without a common divisor with s: see
`coprime_part`. So rows of one cursor that are emitted one after the other are far apart, and as
many as `parts` are evenly spread over the block. The row's place in the round is
(k + (r + 1/2) / cursors) / s, rounded down to 2^-36, where r is the rank of `hash64` of b among the
blocks of the round's cursors, also of empty ones (`CURSOR_PLACES`). Rows of equal places come by
block, and then by k.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from seqrecord.loader.sampling.cursor_shares import GOLDEN, Pieces, coprime_part
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, permutation
from seqrecord.store.tables.grids import IntArray, distinct, ragged_arange

_PLACE_BITS = 36  # of a row's place in its round; rounds and rows of a round have the others


@dataclass(frozen=True, eq=False)
class RoundRows:
    """Rows in emitted order, with their rounds and the pieces that they are in; int64[n] each."""

    row: IntArray
    round: IntArray
    piece: IntArray

    def __len__(self) -> int:
        return len(self.row)


class CursorRounds:
    """The rounds of one shard. Any round is computed without those before it.

    Args:
        pieces: of the shard, at least one.
        first_rows: rows of the first round.
        round_rows: rows of the longest round.
        key: of all random numbers.
        parts: how many rows of a block are evenly spread.
    """

    def __init__(
        self,
        pieces: Pieces,
        first_rows: int,
        round_rows: int,
        key: int,
        parts: float = 1 / GOLDEN,
    ) -> None:
        self.pieces, self._key, self._parts = pieces, key, parts
        self.num_rows = int(pieces.ends[-1])
        num_cursors = int(pieces.cursor[-1]) + 1
        self.row_counts = np.bincount(pieces.cursor, pieces.count, num_cursors).astype(np.int64)
        self._line = self.row_counts.cumsum() - self.row_counts  # where cursors begin
        place = permutation(key_of(Purpose.CURSOR_BEGINS, key), num_cursors)
        self._drawn = (2 * place + 1) * self.num_rows // (2 * num_cursors)
        edges = [0]
        size = min(first_rows, round_rows)
        while size < round_rows and edges[-1] < self.num_rows:
            edges.append(edges[-1] + size)
            size *= 2
        self._short, self._long = np.array(edges, np.int64), round_rows
        self.num_rounds = int(self._round_at(np.array([self.num_rows]))[0])

    @property
    def num_cursors(self) -> int:
        return len(self.row_counts)

    def edges(self, rounds: IntArray) -> IntArray:
        """About how many rows come before rounds, int64[n]."""
        last = len(self._short) - 1
        edges = self._short[np.minimum(rounds, last)] + np.maximum(rounds - last, 0) * self._long
        bounded: IntArray = np.minimum(edges, self.num_rows)
        return bounded

    def _round_at(self, edge: IntArray) -> IntArray:
        """The first round before which at least so many rows come, int64[n]."""
        last = len(self._short) - 1
        short = self._short.searchsorted(edge, side="left")
        long = last - (self._short[last] - edge) // self._long
        rounds: IntArray = np.where(edge <= self._short[last], short, long)
        return rounds

    def emitted(self, rounds: IntArray) -> IntArray:
        """The rows that each cursor has emitted before rounds; int64[rounds, cursors]."""
        edges = self.edges(rounds)[:, None]
        emitted: IntArray = (edges * self.row_counts + self._drawn) // self.num_rows
        return emitted

    def before(self, index: int) -> int:
        """The number of rows before a round."""
        return int(self.emitted(np.array([index])).sum())

    def find(self, number: int) -> tuple[int, int]:
        """The round of a row by its number in emitted order, and the rows before it there.

        For `num_rows`, the number of rounds and 0.
        """
        if number >= self.num_rows:
            return self.num_rounds, number - self.num_rows
        index = bisect_right(range(self.num_rounds), number, key=self.before) - 1
        return index, number - self.before(index)

    def rows(self, start: int, stop: int) -> RoundRows:
        """The rows of rounds `[start, stop)`."""
        emitted = self.emitted(np.arange(start, stop + 1))
        sizes = (emitted[1:] - emitted[:-1]).ravel()  # of blocks, by round and cursor
        blocks = np.arange(start * self.num_cursors, stop * self.num_cursors)
        shift = hash64(key_of(Purpose.BLOCK_SHIFTS, self._key), blocks)
        shift = (shift % np.maximum(sizes, 1).astype(np.uint64)).astype(np.int64)
        block, place = ragged_arange(sizes)
        size = sizes[block]
        kinds = distinct(sizes)
        strides = np.array([coprime_part(int(kind), self._parts) for kind in kinds], np.int64)
        stride = strides[kinds.searchsorted(sizes)]
        offset = (stride[block] * place + shift[block]) % size
        line = (self._line + emitted[:-1]).ravel()[block] + offset
        piece, row = self.pieces.find(line)
        rounds = block // self.num_cursors
        # Integers: a part of the rounds has the order that it has among all.
        spread = 2 * (place * self.num_cursors + self._ranks(start, stop)[block]) + 1
        at = (rounds << _PLACE_BITS + 1) + (spread << _PLACE_BITS) // (2 * self.num_cursors * size)
        order = at.argsort(kind="stable")
        return RoundRows(row[order], start + rounds[order], piece[order])

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """The rows that come after so many rows in emitted order, as intervals: the first rows and
        the numbers of rows, int64[n] each, ascending.
        """
        index, skip = self.find(number)
        stop = min(index + 1, self.num_rounds)
        single = self.rows(index, stop).row[skip:]
        return intervals(single, *self.pieces.after(self.emitted(np.array([stop]))[0]))

    def _ranks(self, start: int, stop: int) -> IntArray:
        """The rank of each cursor in rounds `[start, stop)`, drawn; int64, by round and cursor."""
        count = self.num_cursors
        blocks = np.arange(start * count, stop * count).reshape(-1, count)
        drawn = hash64(key_of(Purpose.CURSOR_PLACES, self._key), blocks)
        return drawn.argsort(axis=1).argsort(axis=1).ravel()


def intervals(single: IntArray, first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """Single rows and intervals of rows, ascending, int64[n] each; without empty ones."""
    first = np.concatenate((single, first))
    count = np.concatenate((np.ones_like(single), count))
    order = first.argsort(kind="stable")
    order = order[count[order] > 0]
    return first[order], count[order]
