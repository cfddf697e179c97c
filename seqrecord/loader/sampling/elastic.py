"""Elastic epochs: the remaining clips after a change of ranks or workers.

An epoch in which the number of shards changes has *segments*. In each segment, a fixed number of
shards returns batches of its own plan; the next segment plans the remaining clips like an epoch::

    segment 0, 4 shards   |#######    |########   |#######    |########   |     # returned
    segment 1, 2 shards          |#####-------------|######--------------|
    segment 2, 3 shards                |-------|-------|-------|

The remaining clips are the rows that are left of each shard's order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from seqrecord.errors import StateError
from seqrecord.loader.clips.frames import MOST_COPIES
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.clip_costs import ClipCosts
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.plan_settings import EpochSegment
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Shard, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws
from seqrecord.loader.sampling.share_orders import left_of
from seqrecord.store.tables.grids import ragged_arange

_NO_ROWS = np.zeros(0, np.int64)
_MAX_CURSORS = 1 << 24  # of all shards of a segment, …
_MAX_SHARDS = 1 << 17  # which take time one by one


def items_of_workers(
    most: Sequence[int], batches: int, batch_size: int = 1, *, others: bool = False
) -> list[int]:
    """The number of items that each worker of a rank has returned, in `batches` batches of
    `batch_size` items together.

    Worker `i` has at most `most[i]` items. Workers take turns, without exhausted ones.

    Raises `StateError` if they have fewer batches, unless `others`, other ranks, may have more.
    """
    turns = [-(-items // batch_size) for items in most]
    if batches > sum(turns) and not others:
        raise StateError(
            "a position is beyond the end of its epoch",
            expected=f"at most {sum(turns)} batches",
            got=f"batches={batches}",
        )
    whole = bisect_right(
        range(max(turns)), batches, key=lambda n: sum(min(n + 1, m) for m in turns)
    )
    returned = [min(whole, m) for m in turns]
    for worker in [i for i, m in enumerate(turns) if m > whole][: batches - sum(returned)]:
        returned[worker] += 1
    return [min(n * batch_size, items) for n, items in zip(returned, most, strict=True)]


def find_remaining(
    table: ClipTable,
    episodes: EpisodeLayout,
    segments: Sequence[EpochSegment],
    *,
    epoch: int,
    windows: Sequence[Window] | None = None,
    draws: BatchDraws | None = None,
    costs: ClipCosts | None = None,
) -> ClipTable:
    """The clips of `table` that remain after all `segments` of an epoch, in canonical order.

    If every shard has returned its last batch, nothing remains, not even clips dropped by
    `last_batch="drop"`. Takes a byte for each clip, and some milliseconds for each shard.

    Raises `StateError` for a segment with more batches than its plan.
    """
    for number, segment in enumerate(segments):
        [settings], count = segment.settings, segment.ranks * segment.workers
        has_rows = find_order(settings.order).has_rows
        num_cursors = settings.batch_size or 1 if has_rows else settings.num_cursors
        if count > _MAX_SHARDS or count * num_cursors > _MAX_CURSORS:
            raise StateError(
                "a segment has more shards or cursors than can be planned",
                expected=f"at most {_MAX_SHARDS}, with at most {_MAX_CURSORS} in all",
                got=f"{count} shards of {num_cursors}",
            )
        plans = [
            EpochPlan(
                table,
                episodes,
                settings,
                epoch=epoch,
                shard=Shard(index, count, segment.workers),
                segments=tuple(segments[:number]),
                windows=windows,
                draws=draws,
                costs=costs,
            )
            for index in range(count)
        ]
        rows = RowTable.of(table, in_order=not settings.shuffle)
        if segment.rows:
            of_workers = np.resize(segment.rows, count).tolist()
            parts = [plan.left_of_rows(n) for plan, n in zip(plans, of_workers, strict=True)]
        else:
            most = np.array([plan.num_batches for plan in plans])
            given = batches_of_shards(segment, most)
            parts = [plan.left(n) for plan, n in zip(plans, given.tolist(), strict=True)]
            if not (given < most).any():
                parts = [(_NO_ROWS, _NO_ROWS)]
        table = _table_of(table, left_of(rows, parts))
    return table


def _table_of(table: ClipTable, rows: RowTable) -> ClipTable:
    """The clips of a table in some rows of it. Adjacent runs are joined."""
    columns = rows.episode, rows.start, rows.count, rows.sample
    if (rows.sample % MOST_COPIES).any():  # a clip between two copies of another one
        row, offset = ragged_arange(rows.count)
        start = rows.start[row] + offset * rows.stride
        sample = rows.sample[row] + offset * rows.sample_step
        columns = rows.episode[row], start, np.ones_like(row), sample
    order = np.argsort(columns[-1])
    return table.with_runs(*(column[order] for column in columns))


def batches_of_shards(segment: EpochSegment, clips: IntArray) -> IntArray:
    """The number of batches that each shard has returned, of at most `most`; int64[shards] each."""
    ranks, size = clips.reshape(segment.ranks, segment.workers), segment.batch_size
    longest = ranks[np.argmax((-(-ranks // size)).sum(axis=1))]
    items_of_workers(longest.tolist(), segment.batch, size)  # it has so many, or raises
    batches = [
        items_of_workers(workers, segment.batch, size, others=True) for workers in ranks.tolist()
    ]
    return np.concatenate(batches)
