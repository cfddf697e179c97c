"""Orders of an epoch by shares: which rows a shard emits, one after the other.

Any part of an order is computed without the rows before it:

- `SharedOrder`: shuffled episodes, read by cursors, see `cursor_shares` and `share_rounds`.
- `PermutedOrder`: rows whose frames cost nothing twice. The rows of an epoch are permuted, and each
  shard takes every n-th one, those with one row more than others first. Also later epochs of
  resident frames: a permutation of the rows that the shard has in epoch 0.
- `SequenceOrder`: each row of a batch follows its own share of the episodes. Without a shuffle,
  each shard has one share of the table, row by row.

A batch has the next `batch_size` rows of its shard's order. `order_of_shard` says which order. The
key of the sequence, of its shares and of a permutation of all rows is `EpochKey.of()`, with epoch 0
if frames are resident; that of a shard's rounds and permutation is `EpochKey.of(shard)`.

After a change of ranks or workers, the rows that are left, `left_of`, are a table of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqrecord.loader.sampling.cursor_shares import (
    EpisodeSequence,
    Pieces,
    even_shares,
    rows_of_shards,
    share_out,
)
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.permutations import Permutation
from seqrecord.loader.sampling.random_order import Purpose, key_of, ranks_of
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_rounds import CursorRounds, intervals
from seqrecord.loader.sampling.share_settings import ShareSettings, parts_of_block
from seqrecord.store.tables.grids import IntArray, distinct


class EpochKey(NamedTuple):
    """What an epoch's random numbers depend on: its number, and the times that it was divided anew
    among other ranks or workers.
    """

    seed: int
    epoch: int
    segment: int = 0

    def of(self, *values: int) -> int:
        """`key_of(Purpose.SHARES_OF_EPOCH, seed, epoch, segment, *values)`."""
        return key_of(Purpose.SHARES_OF_EPOCH, *self, *values)


class RowOrder(ABC):
    """The rows of one shard in emitted order."""

    num_rows: int

    @abstractmethod
    def rows(self, first: int, last: int) -> IntArray:
        """The rows `[first, last)` in emitted order, int64[last - first]."""

    @abstractmethod
    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """The rows after so many ones, as intervals: first rows and numbers of rows, ascending."""


class SharedOrder(RowOrder):
    """The order of one shard's cursors.

    Args:
        pieces: of the shard.
        settings: number and blocks of the cursors.
        batch_size: rows of a batch. The first round has two batches, or is as long as others if
            there are fewer cursors than rows of a batch.
        key: of all random numbers of the shard.
    """

    def __init__(self, pieces: Pieces, settings: ShareSettings, batch_size: int, key: int) -> None:
        parts = parts_of_block(batch_size, settings.num_cursors)
        # Rows of a batch overlap in short blocks.
        is_short = settings.num_cursors < batch_size
        first_rows = settings.round_rows if is_short else 2 * batch_size
        self.rounds = CursorRounds(pieces, first_rows, settings.round_rows, key, parts)
        self.num_rows = self.rounds.num_rows

    def rows(self, first: int, last: int) -> IntArray:
        """See `RowOrder`."""
        if first >= last:
            return np.zeros(0, np.int64)
        start, skip = self.rounds.find(first)
        stop = self.rounds.find(last - 1)[0] + 1
        return self.rounds.rows(start, stop).row[skip : skip + last - first]

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """See `RowOrder`."""
        return self.rounds.left(number)


class PermutedOrder(RowOrder):
    """Every `step`-th row of a permutation from `first` on, of `[0, length)` or of `pieces`."""

    def __init__(
        self, length: int, key: int, first: int = 0, step: int = 1, pieces: Pieces | None = None
    ) -> None:
        self._permutation, self._first, self._step = Permutation(length, key), first, step
        self.pieces = pieces
        self.num_rows = len(range(first, length, step))

    def rows(self, first: int, last: int) -> IntArray:
        """See `RowOrder`."""
        rows = self._permutation.at(self._first + np.arange(first, last) * self._step)
        return rows if self.pieces is None else self.pieces.find(rows)[1]

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """See `RowOrder`."""
        rows = np.sort(self.rows(number, self.num_rows))
        return rows, np.ones_like(rows)


class SequenceOrder(RowOrder):
    """Batches whose rows continue sequences: row k of each batch is of cursor k.

    Batch b has the rows b of all cursors that have so many. No cursor has more rows than the one
    before it, so row k is cursor k's until it ends.

    Args:
        pieces: of the cursors.
        size: number of cursors.
    """

    def __init__(self, pieces: Pieces, size: int) -> None:
        self.pieces = pieces
        self.counts = np.bincount(pieces.cursor, pieces.count, size).astype(np.int64)
        self._line = self.counts.cumsum() - self.counts
        self.num_rows = int(self.counts.sum())
        # Batches between two numbers of rows of cursors have the same cursors.
        self._ends = distinct(np.append(0, self.counts))
        self._begins = np.append(0, self._ends[:-1])
        self._widths = self.widths(self._begins)
        num_rows = (self._ends - self._begins) * self._widths
        self._before = num_rows.cumsum() - num_rows

    @classmethod
    def of(cls, sequence: EpisodeSequence, num_shards: int, shard: int, size: int) -> SequenceOrder:
        """The order of a shard whose cursors have equal shares of a sequence; see `even_shares`.
        Only its last batch may have fewer rows than `size`.
        """
        return cls(even_shares(sequence, num_shards, size).of_shard(shard), size)

    def widths(self, batch: IntArray) -> IntArray:
        """The rows of batches, at least 1; int64[n]."""
        widths: IntArray = len(self.counts) - self.counts[::-1].searchsorted(batch, "right")
        return np.maximum(widths, 1)

    def rows_before(self, batch: IntArray) -> IntArray:
        """The rows before batches, int64[n]."""
        part = self._begins.searchsorted(batch, side="right") - 1
        before = self._before[part] + (batch - self._begins[part]) * self._widths[part]
        bounded: IntArray = np.minimum(before, self.num_rows)
        return bounded

    def _place(self, number: IntArray) -> tuple[IntArray, IntArray]:
        """The batch and the cursor of rows by their numbers in emitted order, int64[n] each."""
        part = self._before.searchsorted(number, side="right") - 1
        batch, cursor = np.divmod(number - self._before[part], self._widths[part])
        return self._begins[part] + batch, cursor

    def find(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """The pieces and rows of `[first, last)` in emitted order, int64[last - first] each."""
        batch, cursor = self._place(np.arange(first, last))
        return self.pieces.find(self._line[cursor] + batch)

    def rows(self, first: int, last: int) -> IntArray:
        """See `RowOrder`."""
        return self.find(first, last)[1]

    def left(self, number: int) -> tuple[IntArray, IntArray]:
        """See `RowOrder`."""
        [batch], [over] = self._place(np.array([number]))
        emitted = batch + (np.arange(len(self.counts)) < over)
        return intervals(np.zeros(0, np.int64), *self.pieces.after(emitted))


def whole_sequences(
    sequence: EpisodeSequence, num_shards: int, shard: int, size: int
) -> SequenceOrder:
    """The order of a shard whose cursors have whole episodes: the longest ones are assigned first,
    each to the cursor of all shards that has fewest rows.

    Cursors are dealt to the shards by their rows. The last shard has the longest, as it has most
    rows where shards cannot be equal.
    """
    first = sequence.table.bounds[:-1][sequence.order]
    rows = sequence.table.row_counts[sequence.order]
    count = min(num_shards * size, len(rows))  # others are empty
    owner, load = np.zeros_like(rows), np.zeros(count, np.int64)
    longest_first = np.argsort(-rows, kind="stable")
    for block in range(0, len(rows), count):
        members = longest_first[block : block + count]
        owner[members] = load.argsort(kind="stable")[: len(members)]
        load[owner[members]] += rows[members]
    rank = ranks_of(np.argsort(-load, kind="stable"))[owner]
    cursor, dealt = np.divmod(rank, num_shards)
    of_shard = (dealt == num_shards - 1 - shard).nonzero()[0]
    of_shard = of_shard[cursor[of_shard].argsort(kind="stable")]
    return SequenceOrder(Pieces(first[of_shard], rows[of_shard], cursor[of_shard]), size)


def order_of_shard(
    table: RowTable,
    groups: Sequence[FrameGroup],
    settings: ShareSettings,
    key: EpochKey,
    shard: int,
    num_shards: int,
    batch_size: int,
    *,
    shuffle: bool = True,
    weight: IntArray | None = None,
) -> RowOrder:
    """The order of one shard.

    A `PermutedOrder` if `settings` say so; later epochs of resident frames permute the shard's rows
    of epoch 0 and of the same segment, cursor by cursor, front to back. Otherwise a `SharedOrder`;
    without a shuffle, a `SequenceOrder` of size 1.

    Args:
        table: the rows of the epoch.
        groups: the groups of features.
        settings: of all shards.
        key: of the epoch.
        shard: number of the shard.
        num_shards: number of shards.
        batch_size: rows of a batch.
        shuffle: whether the order is random.
        weight: cumulative costs, by which shards of a `SharedOrder` are equal; see
            `EpisodeSequence`. Other orders have equal numbers of rows.
    """
    if settings.is_permuted and shuffle:
        # Those with one row more than others begin.
        by_rows = np.argsort(-rows_of_shards(len(table), num_shards), kind="stable")
        first = int(np.flatnonzero(by_rows == shard)[0])
        return PermutedOrder(len(table), key.of(), first, num_shards)
    if not shuffle:
        return SequenceOrder.of(EpisodeSequence.in_order(table), num_shards, shard, 1)
    # Resident frames keep their shards.
    of_shares = key._replace(epoch=0) if settings.is_resident else key
    sequence = EpisodeSequence.shuffled(table, of_shares.of(), weight)
    numbers = num_shards, settings.num_cursors, of_shares.of()
    shares = share_out(sequence, groups, *numbers, settings.aligned, settings.rotation)
    pieces = shares.of_shard(shard)
    if not len(pieces) or (settings.is_resident and key.epoch):
        return PermutedOrder(int(pieces.count.sum()), key.of(shard), pieces=pieces)
    return SharedOrder(pieces, settings, batch_size, key.of(shard))


def left_of(table: RowTable, parts: Sequence[tuple[IntArray, IntArray]]) -> RowTable:
    """The table of the rows that are left of each shard: first rows and numbers of rows of disjoint
    intervals, int64[n] each.

    A row after one of its episode that was emitted is of the same episode still.
    """
    first, count = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    by_row = first.argsort(kind="stable")
    return table.only(first[by_row], count[by_row])
