"""Elastic epochs: the remaining clips after a change of ranks or workers.

An epoch in which the number of shards changes has *segments*. In each segment, a fixed number of
shards returns batches of its own plan; the next segment plans the remaining clips like an epoch::

    segment 0, 4 shards   |#######    |########   |#######    |########   |     # returned
    segment 1, 2 shards          |#####-------------|######--------------|
    segment 2, 3 shards                |-------|-------|-------|

The remaining clips follow from the plans. A shard in round `r` has returned, of each cursor, all
clips before block `r`, some clips of that block, and none behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from seqrecord.errors import StateError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import EpochSegment, PlanSettings
from seqrecord.loader.sampling.budget_shards import BudgetShards, StreamOf
from seqrecord.loader.sampling.budgets import ClipCosts
from seqrecord.loader.sampling.epoch import EpochLayout, key_of_segment
from seqrecord.loader.sampling.fixed_shards import shuffled, shuffled_stream
from seqrecord.loader.sampling.plan import order_of
from seqrecord.loader.sampling.runs import Runs, Shard, Window, remaining_table
from seqrecord.loader.sampling.shard_batches import BatchDraws, ShardBatches

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
    windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
    for number, segment in enumerate(segments):
        settings, count = segment.settings, segment.ranks * segment.workers
        order = order_of(settings)
        num_cursors = settings.batch_size or 1 if order.has_rows else settings.cursors
        if count > _MAX_SHARDS or count * num_cursors > _MAX_CURSORS:
            raise StateError(
                "a segment has more shards or cursors than can be planned",
                expected=f"at most {_MAX_SHARDS}, with at most {_MAX_CURSORS} in all",
                got=f"{count} shards of {num_cursors}",
            )
        place = epoch, number
        sequence, returned = order.returned(table, episodes, windows, segment, place, draws, costs)
        is_left = np.ones(sequence.num_clips, bool)
        for clips in returned:
            is_left[clips] = False
        edges = np.flatnonzero(np.diff(is_left, prepend=False, append=False))
        table = remaining_table(table, sequence.slices(edges[::2], edges[1::2])[0])
    return table


def returned_of_cursors(
    table: ClipTable,
    episodes: EpisodeLayout,
    windows: Sequence[Window],
    segment: EpochSegment,
    place: tuple[int, int],
    draws: BatchDraws | None,
    costs: ClipCosts | None,
) -> tuple[Runs, Iterable[slice | IntArray]]:
    """See `PlannedOrder.returned`, for clips in the order of `EpochPlan` or `ShuffledPlan`."""
    settings, workers, (epoch, number) = segment.settings, segment.workers, place
    count, is_shuffled = segment.ranks * workers, _is_shuffled(settings, epoch, number)
    of_shares = 0 if is_shuffled else epoch
    layout = EpochLayout.of(table, episodes, windows, settings, count, of_shares, number, costs)
    if costs is not None:
        stream_of: StreamOf = layout.stream
        if is_shuffled:
            stream_of = partial(shuffled_stream, settings, epoch, count)
        arranged = layout.arranged(table, stream_of, key_of_segment(settings, epoch, number))
        return arranged.sequence, _returned_of_budget(arranged, segment)
    sequence, shares = layout.share_out(table, np.arange(count))
    shards = [Shard(i, count, workers) for i in range(count)]
    batches_of_workers = [
        ShardBatches.of(settings, draws, epoch, number, member) for member in shards[:workers]
    ]
    clips = layout.num_clips(shares, batches_of_workers)
    num_batches = [batches_of_workers[i % workers].count(n) for i, n in enumerate(clips.tolist())]
    batches = batches_of_shards(segment, np.array(num_batches)).tolist()
    num_clips = np.array(
        [batches_of_workers[i % workers].first_clip(n) for i, n in enumerate(batches)]
    )
    num_returned = np.minimum(num_clips, clips)
    if (num_returned == clips).all():
        return sequence, [slice(None)]

    def of_shard(shard: Shard) -> Iterator[slice | IntArray]:
        """The places of a shard's first `count` clips in the sequence."""
        is_part = shares.stop[shard.index] > shares.start[shard.index]
        start, stop = (bounds[shard.index, is_part] for bounds in shares[:2])
        quota = int(num_returned[shard.index])
        if is_shuffled:
            places = np.concatenate([np.arange(*share) for share in zip(start, stop, strict=True)])
            run_clips = sequence.slices(start, stop)[0].run_clips
            yield places[shuffled(settings, epoch, shard, run_clips)[:quota]]
            return
        cursors = layout.cursors(sequence, start, stop)
        shift = start - cursors.begin  # from clip numbers of the cursors
        clips_before = cursors.clips_before_rounds()
        index = int(np.searchsorted(clips_before, quota, side="right")) - 1
        yield from map(slice, start, cursors.first_clips(np.array([[index]]))[0] + shift)
        if quota > clips_before[index]:
            blocks = cursors.blocks(index, index + 1)[layout.episodes.leading]
            blocks, position = layout.in_order(blocks, index * cursors.count + blocks.cursor)
            row, offset = layout.deal(blocks, position, cursors.count)
            clip = blocks.clip[row] + offset + shift[blocks.cursor[row]]
            yield clip[: quota - clips_before[index]]

    return sequence, chain.from_iterable(
        of_shard(member) for member in shards if num_returned[member.index]
    )


def _returned_of_budget(shards: BudgetShards, segment: EpochSegment) -> Iterator[slice | IntArray]:
    """The places of the clips that shards have returned in a segment."""
    batches = batches_of_shards(segment, np.array(shards.num_batches)).tolist()
    if batches == shards.num_batches:
        yield slice(None)
        return
    for shard, number in enumerate(batches):
        ends = shards.arrangement(shard).ends[:number]
        yield shards.clips(shard)[: ends[-1] if len(ends) else 0]


def batches_of_shards(segment: EpochSegment, clips: IntArray) -> IntArray:
    """The number of batches that each shard has returned, of at most `most`; int64[shards] each."""
    ranks, size = clips.reshape(segment.ranks, segment.workers), segment.batch_size
    longest = ranks[np.argmax((-(-ranks // size)).sum(axis=1))]
    items_of_workers(longest.tolist(), segment.batch, size)  # it has so many, or raises
    batches = [
        items_of_workers(workers, segment.batch, size, others=True) for workers in ranks.tolist()
    ]
    return np.concatenate(batches)


def _is_shuffled(settings: PlanSettings, epoch: int, number: int) -> bool:
    """Whether a segment has a `ShuffledPlan`."""
    return settings.resident and epoch > 0 and not number
