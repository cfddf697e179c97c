"""Rounds of orders that have no blocks of cursors: rows at consecutive places.

`share_rounds.CursorRounds` are the rounds of others; all have the same methods.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from seqrecord.loader.sampling.cursor_shares import Pieces
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import (
    PermutedOrder,
    RowOrder,
    SequenceOrder,
    SharedOrder,
)
from seqrecord.loader.sampling.share_rounds import RoundRows
from seqrecord.store.tables.grids import IntArray

ROUND = 1 << 8
"""Rows, where rounds have no blocks."""

_BLOCKS_AT_ONCE = 1 << 18


class Rounds(Protocol):
    """The rounds of one shard."""

    pieces: Pieces
    num_rounds: int

    def emitted(self, rounds: IntArray) -> IntArray:
        """The rows that each cursor has emitted before rounds; int64[rounds, cursors]."""

    def rows(self, start: int, stop: int) -> RoundRows:
        """The rows of rounds `[start, stop)`."""


class PositionRounds:
    """Rounds of an order without cursors.

    Args:
        order: of the shard.
        table: whose rows have their numbers in it.
    """

    def __init__(self, order: RowOrder, table: RowTable) -> None:
        self._order, self.num_rows = order, order.num_rows
        bounds = table.bounds if order.num_rows else np.zeros(1, np.int64)
        pieces = order.pieces if isinstance(order, PermutedOrder) else None
        first, count = bounds[:-1], bounds[1:] - bounds[:-1]
        if pieces is not None and len(pieces):
            by_first = pieces.first.argsort()
            first, count = pieces.first[by_first], pieces.count[by_first]
        self.pieces = Pieces(first, count, np.zeros_like(first))
        self.num_rounds = -(-order.num_rows // ROUND)

    def before(self, rounds: IntArray) -> IntArray:
        """The rows before rounds, int64[n]."""
        return np.minimum(rounds * ROUND, self.num_rows)

    def emitted(self, rounds: IntArray) -> IntArray:
        """See `Rounds`: no number is known to be passed."""
        return np.zeros((len(rounds), 1), np.int64)

    def rows(self, start: int, stop: int) -> RoundRows:
        """See `Rounds`."""
        row = self._order.rows(*self.before(np.array([start, stop])).tolist())
        piece = self.pieces.first.searchsorted(row, side="right") - 1
        return RoundRows(row, np.zeros_like(row), piece)


class SequenceRounds:
    """Rounds of a `SequenceOrder`, with so many rows of each cursor."""

    def __init__(self, order: SequenceOrder, step: int) -> None:
        self._order, self.pieces, self._step = order, order.pieces, step
        self.num_rounds = -(-int(order.counts.max(initial=0)) // step)

    def before(self, rounds: IntArray) -> IntArray:
        """The rows before rounds, int64[n]."""
        return self._order.rows_before(rounds * self._step)

    def emitted(self, rounds: IntArray) -> IntArray:
        """See `Rounds`."""
        emitted: IntArray = np.minimum(rounds[:, None] * self._step, self._order.counts)
        return emitted

    def rows(self, start: int, stop: int) -> RoundRows:
        """See `Rounds`."""
        piece, row = self._order.find(*self.before(np.array([start, stop])).tolist())
        return RoundRows(row, np.zeros_like(row), piece)


def rounds_of(order: RowOrder, table: RowTable, block: int) -> Rounds:
    """The rounds of an order."""
    if isinstance(order, SharedOrder):
        return order.rounds
    if isinstance(order, SequenceOrder) and order.num_rows:
        return SequenceRounds(order, block)
    return PositionRounds(order, table)


def rows_before_rounds(rounds: Rounds) -> IntArray:
    """The rows before each round, and before the end; int64[num_rounds + 1]."""
    numbers = np.arange(rounds.num_rounds + 1)
    if isinstance(rounds, (PositionRounds, SequenceRounds)):
        return rounds.before(numbers)
    width = max(1, _BLOCKS_AT_ONCE // max(1, rounds.emitted(numbers[:1]).shape[1]))
    parts = [numbers[i : i + width] for i in range(0, len(numbers), width)]
    return np.concatenate([rounds.emitted(part).sum(axis=1) for part in parts])
