"""Sequences: an epoch in which each row of a batch follows an episode, clip by clip.

A *sequence* is a series of consecutive clips in an episode; an incomplete clip ends it. Row b of
every batch continues row b of the batch before, and begins a new sequence when its last one ends::

    batch               0     1     2     3     4     5
    row 0               A0    A1    A2    C0    C1    F0
    row 1               B0    B1    B2    B3    E0    E1
    row 2               D4    D5    D6    G0    G1            D is cut: another row has D0 to D3
    is_first of row 0   yes               yes         yes
    is_last of row 0                yes         yes   yes

Each row is a cursor that advances by one clip per batch; see `share_orders.SequenceOrder`.

Each shard has `batch_size` rows. For even batches, the clips of all episodes are divided into equal
shares, one for each row. A cut may be inside an episode, which another row continues::

    2 shards of 2 rows      |------A------|---B---|-C-|-----D-----|--E--|----F----|
    shard, row               0 0           1 0           0 1           1 1

Otherwise no episode is cut: the longest episodes are assigned first, each to the shortest row::

    shard 1, row 0          |-----D-----|--E--|
    shard 0, row 0          |------A------|-C-|
    shard 1, row 1          |----F----|
    shard 0, row 1          |---B---|

In a shard, no row has more clips than the row before it, so row b is still row b when others have
ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.cursor_shares import Pieces
from seqrecord.loader.sampling.orders import Order
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.store.text import counted, repr_of


class FollowedEpisodes(Order):
    """`order="sequences"`: each row of a batch follows an episode."""

    name = "sequences"
    columns = ("is_first", "is_last")
    is_mixed = keeps_shards = has_copies = is_for_mixes = False
    has_rows = shares_draws = True
    rules: ClassVar[tuple[Rule[Any], ...]] = (
        Rule(
            lambda options: options.batch_size is None,
            'order="sequences" needs a batch_size',
            "the number of rows in a batch; a mix has no sequences",
        ),
        Rule(
            lambda options: options.table is not None,
            'order="sequences" takes no table of samples',
            "no samples",
        ),
        Rule(
            lambda options: options.draws_sizes,
            'order="sequences" takes no BatchResize: sequences keep their size',
            "Resize",
            lambda options: repr_of(options.clip_transform, 100),
        ),
        Rule(
            lambda options: options.has_drawn_steps,
            'order="sequences" takes neither dilate, reverse and subset nor a drawn clip_len',
            "one clip_len, and functions that leave out samples or add columns",
            lambda options: options.drawn_steps,
        ),
    )

    def stride(self, length: int, dilation: int) -> int:
        """See `Order`: clips do not overlap."""
        return length * dilation

    def batch_columns(
        self, table: RowTable, pieces: Pieces, number: IntArray, *, is_end: bool
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        """`is_first` and `is_last`, bool[rows]: whether a clip begins or ends a sequence in its
        row.

        The first and the last clip of a row always do.
        """
        piece, row = pieces.find(number)
        first, stop = _sequence_of(table, row)
        is_first = row == np.maximum(first, pieces.first[piece])
        is_last = row + 1 == np.minimum(stop, pieces.first[piece] + pieces.count[piece])
        return {"is_first": is_first, "is_last": is_last | is_end}

    def counts(self, table: RowTable, pieces: Pieces, num_batches: int) -> Mapping[str, int]:
        """The sequences of a shard, and the rows of batches that begin inside one."""
        if not len(pieces):
            return {"sequences": 0, "sequences_cut": 0}
        places = pieces.places
        count = np.clip(num_batches - places, 0, pieces.count)
        first, count, places = (column[count > 0] for column in (pieces.first, count, places))
        begins = np.cumsum(table.count) - table.count
        low = np.searchsorted(begins, first, side="right")
        high = np.searchsorted(begins, first + count - 1, side="right")
        is_cut = (places == 0) & (begins[low - 1] < first)
        return {"sequences": int((high - low + 1).sum()), "sequences_cut": int(is_cut.sum())}

    def frames_left_out(self, table: ClipTable, num_frames: IntArray) -> int:
        """See `Order`."""
        return count_unused_frames(table, num_frames)

    def describe(self, table: ClipTable) -> str:
        """See `Order`."""
        return f"; {counted(len(table.count), 'sequence')}"


SEQUENCES = FollowedEpisodes()


def count_unused_frames(table: ClipTable, num_frames: IntArray) -> int:
    """The number of frames in the selected episodes that are in no clip.

    `num_frames`, int64, has the length of every episode. Assumes that clips with common frames are
    in one row of `table`; this is wrong only for overlapping clips with a `dilation` above 1.
    """
    spec = table.spec
    # Frames are `i * stride + j * dilation`. Two pairs are the same frame where their i differ by
    # multiples of `every` and their j by as many of `back`: all but the first of them count twice.
    common = int(np.gcd(spec.stride, spec.dilation))
    period, back = spec.dilation // common, spec.stride // common
    again = np.maximum(0, table.count - period) * max(0, spec.length - back)
    used = int((table.count * spec.length - again).sum())
    return int(num_frames[table.selected].sum()) - used


def _sequence_of(table: RowTable, row: IntArray) -> tuple[IntArray, IntArray]:
    """The rows `[first, stop)` of the sequences of rows, int64[n] each."""
    ends = np.cumsum(table.count)
    run = np.searchsorted(ends, row, side="right")
    return ends[run] - table.count[run], ends[run]
