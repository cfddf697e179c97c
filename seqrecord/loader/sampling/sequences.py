"""Sequences: an epoch in which each row of a batch follows an episode, clip by clip.

A *sequence* is a series of consecutive clips in an episode; an incomplete clip ends it. Row b of
every batch continues row b of the batch before, and begins a new sequence when its last one ends::

    batch               0     1     2     3     4     5
    row 0               A0    A1    A2    C0    C1    F0
    row 1               B0    B1    B2    B3    E0    E1
    row 2               D4    D5    D6    G0    G1            D is cut: another row has D0 to D3
    is_first of row 0   yes               yes         yes
    is_last of row 0                yes         yes   yes

Each row is a cursor that advances by one clip per round, and a round is a batch. So a row keeps the
frames of one clip, and the frames of its last chunk that the next clips need.

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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.bounds import ClipStats, EpochSegment, PlanSettings, cursor_bounds
from seqrecord.loader.sampling.budgets import ClipCosts
from seqrecord.loader.sampling.cursors import Blocks, CursorSchedule
from seqrecord.loader.sampling.epoch import check_drop_last, key_of_segment
from seqrecord.loader.sampling.plan import Clips, Plan, PlannedOrder
from seqrecord.loader.sampling.random_order import Purpose, key_of, permutation
from seqrecord.loader.sampling.runs import Runs, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws
from seqrecord.store.text import counted, repr_of


class SequencePlan(Plan):
    """The plan of one shard in one epoch, in which each row of a batch follows an episode.

    `settings` come from `SequenceOrder`. With `shuffle`, seed and epoch determine the order of
    episodes; otherwise it is that of `table`.

    All shards have the same numbers of batches and clips, and only the last batch may be smaller: a
    shard with one clip less repeats a clip of another one. For this, sequences are cut, `num_cut`
    of them where a row of this shard starts. With `last_batch="drop"` every batch is full, and
    no clip is repeated.

    With `last_batch="keep"` every clip is in exactly one shard, and no sequence is cut. Rows end at
    different times, the last row first, so batches get smaller.

    Raises `ClipError` if "drop" leaves no batch in any shard.
    """

    num_cut: int  # of this shard's rows, that begin inside a sequence
    num_sequences: int  # of this shard; a cut one counts in each of its rows

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        settings, shard, size = self.settings, self.shard, self._batch_size
        shards = np.array([shard.index])
        runs, starts, stops = rows_of(table, settings, shards, shard.count, self.epoch, segment)
        start, stop, lengths = starts[0], stops[0], stops - starts
        total = int(lengths[0].sum())
        self.num_repeated = 0
        if settings.last_batch == "repeat":
            self.num_repeated = -(-runs.num_clips // shard.count) - total
            stop[total % size] += self.num_repeated
            total += self.num_repeated
        if not segment:
            check_drop_last(runs.num_clips, settings, shard.count)
        if settings.drops:
            stop = np.minimum(stop, start + runs.num_clips // shard.count // size)
        has_clips = stop > start
        start, stop = start[has_clips], stop[has_clips]
        row, _ = runs.find(start)
        self.num_cut = int((start > runs.first_clip[row]).sum())
        pieces, cursor = runs.slices(start, stop)
        self._sequences = pieces
        self.num_sequences = len(pieces)
        self._cursors = _Rows(pieces, cursor, self._episodes, self._windows)
        self.num_cursors = self._cursors.count
        self.num_rounds = self.num_batches = self._cursors.num_rounds
        lengths = stop - start
        # Of the rows, which have fewer clips from one to the next, so many have a clip left.
        batches = np.arange(self.num_batches)
        going_on = len(lengths) - np.searchsorted(lengths[::-1], batches, side="right")
        self._before = np.append(0, np.cumsum(going_on))
        self.num_clips = int(self._before[-1])
        self.num_dropped = total - self.num_clips
        bounds = cursor_bounds(ClipStats.of(table, self._episodes, self._windows), settings)
        self._resident = [self.num_cursors * bound for bound in bounds]

    @property
    def counts(self) -> dict[str, int]:
        """Counts of clips and sequences."""
        return {
            **super().counts,
            "sequences": self.num_sequences,
            "sequences_cut": self.num_cut,
        }

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:
        """`is_first` and `is_last`, bool[rows]: whether a clip begins or ends a sequence in its
        row.

        The first and the last clip of a row always do.
        """
        count = self.first_clip(batch + 1) - self.first_clip(batch)
        clip = self._cursors.begin[:count] + batch
        row, _ = self._sequences.find(clip)
        first_clip = self._sequences.first_clip[row]
        return {
            "is_first": clip == first_clip,
            "is_last": clip + 1 == first_clip + self._sequences.count[row],
        }

    def _first_clip(self, batch: int) -> int:
        return int(self._before[batch])

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        order = np.lexsort((blocks.cursor, blocks.round))
        return blocks.take(order), blocks.cursor[order]

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        batch, place = blocks.round, self._places(self._before[blocks.round] + position)
        columns = blocks.cursor, blocks.run, blocks.episode, blocks.first, batch, position, place
        return Clips(*columns, blocks.sample, blocks.clip)


class _Rows(CursorSchedule):
    """Rows of a batch: cursors that advance by one clip per round."""

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
    ) -> None:
        super().__init__(runs, cursor, episodes, windows)
        self.num_rounds = int((self.end - self.begin).max(initial=0))

    def first_clips(self, rounds: IntArray) -> IntArray:
        """See `CursorSchedule`."""
        clips: IntArray = np.minimum(self.begin + rounds, self.end)
        return clips


class SequenceOrder(PlannedOrder):
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

    def settings(self, batch_size: int, stride: int) -> Mapping[str, Any]:
        """See `Order`: a cursor for each row, which advances by a clip."""
        blocks = dict.fromkeys(("block_frames", "first_block_frames"), stride)
        return {"num_cursors": batch_size, "run_frames": None, **blocks}

    def frames_left_out(self, table: ClipTable, num_frames: IntArray) -> int:
        """See `Order`."""
        return count_unused_frames(table, num_frames)

    def describe(self, table: ClipTable) -> str:
        """See `Order`."""
        return f"; {counted(len(table.count), 'sequence')}"

    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:  # noqa: ARG002
        """See `PlannedOrder`."""
        return SequencePlan

    def returned(
        self,
        table: ClipTable,
        episodes: EpisodeLayout,  # noqa: ARG002
        windows: Sequence[Window],  # noqa: ARG002
        segment: EpochSegment,
        place: tuple[int, int],
        draws: BatchDraws | None,  # noqa: ARG002
        costs: ClipCosts | None,  # noqa: ARG002
    ) -> tuple[Runs, Iterable[slice | IntArray]]:
        """See `PlannedOrder`."""
        from seqrecord.loader.sampling.elastic import batches_of_shards  # ranks seldom change

        settings, count = segment.settings, segment.ranks * segment.workers
        sequence, start, stop = rows_of(table, settings, np.arange(count), count, *place)
        num_clips = (stop - start).max(axis=1)
        if settings.is_even:
            num_clips[:] = (stop - start).min() if settings.drops else num_clips.max()
        batches = batches_of_shards(segment, num_clips)
        if (batches < num_clips).any():
            stop = np.minimum(start + batches[:, None], stop)
        return sequence, map(slice, start.ravel(), stop.ravel())


SEQUENCES = SequenceOrder()


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


def rows_of(
    table: ClipTable, settings: PlanSettings, shards: IntArray, count: int, epoch: int, segment: int
) -> tuple[Runs, IntArray, IntArray]:
    """The ordered clips of all episodes, and the bounds of rows.

    Row `b` in shard `shards[i]` of `count` has the clips `[start[i, b], stop[i, b])`: no more than
    the row before it.
    """
    runs, num_rows = Runs.of(table), settings.batch_size or 1
    if settings.shuffle and len(runs):
        key = key_of(Purpose.SEQUENCE_ORDER, key_of_segment(settings, epoch, segment))
        runs = runs.ordered(permutation(key, int(runs.run[-1]) + 1))
    if settings.is_even:
        return runs, *_equal_rows(runs.num_clips, shards, count, num_rows)
    return _whole_rows(runs, shards, count, num_rows)


def _equal_rows(
    total: int, shards: IntArray, num_shards: int, num_rows: int
) -> tuple[IntArray, IntArray]:
    """Bounds of rows with the same number of clips, or one less."""
    low, larger = divmod(total, num_shards)
    smaller = num_shards - larger  # shards, the first ones, with one clip less than the others
    row = np.arange(num_rows)
    short, long = ((clips + num_rows - 1 - row) // num_rows for clips in (low, low + 1))
    per_row = short * smaller + long * larger  # of all shards' rows of one number
    index = shards[:, None]
    preceding = short * np.minimum(index, smaller) + long * np.maximum(0, index - smaller)
    start: IntArray = np.cumsum(per_row) - per_row + preceding
    return start, start + np.where(index < smaller, short, long)


def _whole_rows(
    runs: Runs, shards: IntArray, num_shards: int, num_rows: int
) -> tuple[Runs, IntArray, IntArray]:
    """Bounds of rows with whole episodes, and the runs in the order of rows."""
    clips = np.zeros(int(runs.run[-1]) + 1 if len(runs) else 0, np.int64)
    np.add.at(clips, runs.run, runs.count)
    count = min(num_shards * num_rows, len(clips))  # others are empty
    owner, load = np.zeros_like(clips), np.zeros(count, np.int64)
    longest_first = np.argsort(-clips, kind="stable")
    for block in range(0, len(clips), max(1, count)):
        members = longest_first[block : block + count]
        owner[members] = np.argsort(load, kind="stable")[: len(members)]
        load[owner[members]] += clips[members]
    by_load = np.argsort(-load, kind="stable")  # dealt to the shards in turn
    place = np.empty(count, np.int64)
    place[by_load] = np.arange(count)
    number = np.empty_like(clips)
    number[np.argsort(place[owner], kind="stable")] = np.arange(len(clips))
    bounds = np.append(0, np.cumsum(load[by_load]))
    # The last shard has the longest row, as it has most clips where shards cannot be equal.
    rank = (num_shards - 1 - shards[:, None]) + np.arange(num_rows) * num_shards
    start, stop = bounds[np.minimum(rank, count)], bounds[np.minimum(rank + 1, count)]
    return runs.ordered(number), start, stop
