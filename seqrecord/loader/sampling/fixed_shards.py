"""Fixed shards: the same clips in every epoch, and their full shuffle.

While the frames of a shard are resident, it yields the clips of its plan for epoch 0 in every
epoch. Epoch 0 streams. Each later epoch is a random permutation of these clips; in several shards
the clips of each run are at even distances::

    clips of all shards     |-----A-----|--B--|------C------|---D---|
    shard 0, epoch 0        A B C D A B C D         streamed by cursors
    shard 0, epoch 1        D A A C B D C B         a permutation, any clip may come first

A process that resumes without these frames loads each chunk when a clip first needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.budget_shards import StreamOf
from seqrecord.loader.sampling.budgets import Stream
from seqrecord.loader.sampling.epoch import EpochLayout, EpochPlan, key_of_segment
from seqrecord.loader.sampling.plan import Clips, Frees, GroupRound, Loads, Round
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, permutation
from seqrecord.loader.sampling.runs import Runs, Shard, Window
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import frame_keys, ragged_arange, split_keys

_ROUND = 256  # clips
_PLACE_BITS = 20  # fraction of the distance between the clips of a run


def shuffled(settings: PlanSettings, epoch: int, shard: Shard, run_clips: IntArray) -> IntArray:
    """The order of a shard's clips in a later epoch, int64[clips], by the clips of its runs.

    The clips of each run are in random order, at even distances from a random place on: a shard of
    few runs has clips of each in every batch. A single shard is shuffled as a whole.
    """
    key = key_of(Purpose.SHARD_ORDER, key_of_segment(settings, epoch, 0), shard.index, shard.count)
    number = permutation(key, int(run_clips.sum()))
    if shard.count == 1:
        return number
    run = np.repeat(np.arange(len(run_clips)), run_clips)
    order = np.lexsort((number, run))
    begin = hash64(key_of(Purpose.SHARD_PLACES, key), np.arange(len(run_clips)))
    place = (begin >> np.uint64(64 - _PLACE_BITS)).astype(np.int64)[run]
    place += ragged_arange(run_clips)[1] << _PLACE_BITS
    found: IntArray = order[np.argsort(place / run_clips[run], kind="stable")]
    return found


def shuffled_stream(
    settings: PlanSettings,
    epoch: int,
    count: int,
    sequence: Runs,
    start: IntArray,
    stop: IntArray,
    shard: int,
) -> Stream:
    """The clips of shard `shard` (of `count`) in a later epoch, whose frames all stay in memory."""
    shares = zip(start.tolist(), stop.tolist(), strict=True)
    places = np.concatenate([np.arange(*share) for share in shares])
    run_clips = sequence.slices(start, stop)[0].run_clips
    order = shuffled(settings, epoch, Shard(shard, count), run_clips)
    return Stream(places[order], np.array([0, len(places)]))


def shard_runs(
    table: ClipTable,
    episodes: EpisodeLayout,
    windows: Sequence[Window],
    settings: PlanSettings,
    num_shards: int,
    shards: IntArray | None = None,
) -> tuple[Runs, IntArray]:
    """The runs of `shards` in epoch 0, and the place of each row's shard in them, int64[rows].

    `shards` are shard numbers, int64; by default all.
    """
    layout = EpochLayout.of(table, episodes, windows, settings, num_shards)
    runs, shares = layout.share_out(table, np.arange(num_shards) if shards is None else shards)
    rows, share = runs.slices(shares.start.ravel(), shares.stop.ravel())
    return rows, share // max(1, shares.start.shape[1])


class ShuffledPlan(EpochPlan):
    """The plan of one shard in a later epoch: a full shuffle of its clips in epoch 0.

    Rounds are slices of the shuffle. They load every chunk that their clips need, into a store with
    a row for each frame. Nothing is freed.
    """

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        assert not segment, "the rest of an epoch is planned as a first one"
        _, runs, shares = self._share_out(table, 0, 0)
        has_clips = shares.stop > shares.start
        self._mine, _ = runs.slices(shares.start[has_clips], shares.stop[has_clips])
        self.num_rounds = -(-self.num_clips // _ROUND)
        self.num_cursors = min(1, self.num_clips)
        self._resident = [0] * len(self._windows)

    @property
    def counts(self) -> dict[str, int]:
        """See `Plan`: batches are mixed from all clips."""
        return {**super().counts, "num_interleaved": self.num_clips}

    def locate_clip(self, clip: int) -> tuple[int, int]:
        """See `Plan`."""
        index = min(clip // _ROUND, self.num_rounds)
        return index, clip - min(index * _ROUND, self.num_clips)

    def resident(self, round_index: int) -> tuple[Loads, ...]:  # noqa: ARG002
        """See `Plan`: nothing, because each round loads its missing frames."""
        return tuple(Loads(*[np.zeros(0, np.int64)] * 6) for _ in self._windows)

    def used_frames(self, group: int, loads: Loads, index: int) -> None:  # noqa: ARG002
        """See `Plan`: a store with a row for each frame knows them itself."""
        return

    def _planned_runs(self) -> Runs:
        """See `Plan`."""
        return self._mine

    def merged(self, start: int, stop: int, *, loads: bool = True) -> Round:
        """See `Plan`."""
        number = np.arange(start * _ROUND, min(stop * _ROUND, self.num_clips))
        row, first = self._mine.find(self._order[number])
        episode, sample = self._mine.episode[row], self._mine.samples(row, self._order[number])
        batch, slot = self.batches.find(number)
        place = self._places(number)
        columns = np.zeros_like(number), episode, episode, first, batch, slot, place, sample
        clips = Clips(*columns, self._order[number])
        groups = range(len(self._windows)) if loads else ()
        return Round(start, clips, tuple(self._needed(group, episode, first) for group in groups))

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        return (self.merged(index, index + 1) for index in range(start, stop))

    def _needed(self, group: int, episode: IntArray, start: IntArray) -> GroupRound:
        """Loads of a group's chunks for clips, each chunk once, in the order of use.

        An episode counts as one run.
        """
        grid, window = self._episodes.groups[group], self._windows[group]
        grid = grid if grid.stored_grid is None else grid.stored_grid
        last_frame = self._episodes.num_frames[episode] - 1
        begin, stop = window.begin(start, last_frame), window.stop(start, last_frame)
        first_place = grid.place(episode, begin)
        row, offset = ragged_arange(grid.place(episode, stop - 1) - first_place + 1)
        keys = frame_keys(episode[row], first_place[row] + offset)
        keys, use, number = np.unique(keys, return_index=True, return_inverse=True)
        owner, place = split_keys(keys)
        begin_of_chunk, end = grid.bounds(
            owner, place
        )  # and of each chunk only the frames of these clips
        low, high = end.copy(), begin_of_chunk.copy()
        np.minimum.at(low, number, begin[row])
        np.maximum.at(high, number, stop[row])
        low, high = np.maximum(low, begin_of_chunk), np.minimum(high, end)
        step, phase = window.frame_step, self._spec.phase + window.offset
        low += (phase - low) % step
        count = -(-(high - low) // step)
        columns = (np.zeros_like(low), owner, owner, grid.row(owner, place), low, count)
        order = np.argsort(use)
        order = order[count[order] > 0]
        loads = Loads(*(column[order] for column in columns))
        return GroupRound(loads, Frees(*[np.zeros(0, np.int64)] * 4))

    def _stream_of(self, layout: EpochLayout) -> StreamOf:
        return partial(shuffled_stream, self.settings, self.epoch, layout.num_shards)

    @cached_property
    def _order(self) -> IntArray:
        order = shuffled(self.settings, self.epoch, self.shard, self._mine.run_clips)
        return order if self._arrangement is None else order[self._arrangement.order]
