"""Spreading: parts of many episodes for each shard, where equal shares have too few of them.

The epoch is divided among shards and their cursors. A shard's batches have clips of at most as many
episodes as the shard has runs, so short epochs are cut: evenly, at the starts of decoding units, as
far as decodes allow::

    runs                |------A------|------B------|--C--|
    cut                 |-A1-|-A2-|-A3-|-B1-|-B2-|-B3-|--C--|
    in 3 shards         |-A2-|-B1-| |-A1-|-B3-|--C--| |-A3-|-B2-|

A shard has adjacent runs, and each of its cursors begins with a run. A cut decodes the frames
twice that clips on both sides of it share. A shard also begins inside a run, where a decoder begins
in the middle of a unit on the average::

    runs of a shard     = (episodes + cuts) / shards        of about equal lengths
    decoded twice       = cuts * (span - stride) + (shards - 1) * (span - stride + unit / 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from seqrecord.loader.sampling.bounds import ClipStats
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.loader.sampling.runs import Cuts, Runs
from seqrecord.store.tables.grids import distinct, ragged_arange
from seqrecord.store.units import MAX_INT

UNCUT_CHUNKS = 4  # in half an episode, or in a run: so short ones stay whole, because a cut reads
# its chunk twice
_PLANNED = 0.94  # of a budget: where shards begin in a unit is known as a mean. 1: 10.5 % for 10 %
_PLACE_BITS = 20  # fraction of the distance between the parts of a run


@dataclass(frozen=True)
class Spreading:
    """The cost of cutting the episodes of some clips for `num_shards` shards."""

    stats: ClipStats
    num_shards: int

    def max_cuts(self, budget: float) -> int:
        """The number of cuts that decode at most this fraction of all frames twice."""
        stats = self.stats
        if stats.uncut:
            return 0
        frames = _PLANNED * budget * stats.num_frames - self._by_shards
        cuts = int(frames / stats.shared_frames) if stats.shared_frames else MAX_INT
        return max(0, min(cuts, stats.num_units - stats.num_episodes))

    def cuts_for(self, num_runs: float, budget: float) -> int:
        """The number of cuts for so many runs of a shard, as far as a budget allows."""
        wanted = ceil(num_runs * self.num_shards - self.stats.even_episodes)
        return max(0, min(wanted, self.max_cuts(budget)))

    def num_runs(self, cuts: int) -> float:
        """The mean number of runs in a shard after so many cuts."""
        return (self.stats.even_episodes + cuts) / self.num_shards

    def run_frames(self, cuts: int) -> int | None:
        """The setting of plans for so many cuts."""
        return max(1, self.stats.num_frames // cuts) if cuts > 0 else None

    def reread(self, cuts: int) -> float:
        """The fraction of all frames that so many cuts decode twice."""
        frames = cuts * self.stats.shared_frames + self._by_shards
        return frames / max(1, self.stats.num_frames)

    @property
    def _by_shards(self) -> int:
        unit = self.stats.unit_frames
        return (self.num_shards - 1) * (self.stats.shared_frames + unit // 2)


def spread_runs(
    runs: Runs, run_frames: int | None, num_frames: int, places: Cuts, key: int
) -> Runs:
    """The same clips in shorter runs, so that equal shares have clips of many episodes.

    There is a cut per `run_frames` of all `num_frames` frames: it divides a run
    evenly, at decoding units, see `Cuts`. The parts of a run are at even distances in the sequence,
    in an order drawn from `key`.
    """
    length = runs.num_clips
    if run_frames is not None:
        length = max(1, run_frames * runs.num_clips // max(1, num_frames))
    clips = np.bincount(runs.run, runs.count).astype(np.int64)
    ends = np.cumsum(clips)
    # Of cuts. Counted in the middle between two: episodes of one length are cut, too.
    number = (ends + length // 2) // length - (ends - clips + length // 2) // length
    owner, inside = ragged_arange(number)
    wanted = (ends - clips)[owner] + clips[owner] * (inside + 1) // (number[owner] + 1)
    begin, end = places.chunks(*runs.find(wanted))
    half = (end - begin) // (2 * runs.stride)
    cuts = runs.snap(np.minimum(wanted + half, ends[owner] - 1), places)
    parts = runs.cut(distinct(cuts[cuts > (ends - clips)[owner]]))

    whole = runs.run[runs.find(parts.begins)[0]]  # of each part
    count = np.bincount(whole)
    rank = np.empty(len(whole), np.int64)
    drawn = hash64(key_of(Purpose.RUN_PARTS, key), np.arange(len(whole)))
    rank[np.lexsort((drawn, whole))] = ragged_arange(count)[1]
    offset = hash64(key_of(Purpose.RUN_OFFSETS, key), whole) >> np.uint64(64 - _PLACE_BITS)
    place = ((rank << _PLACE_BITS) + offset.astype(np.int64)) / count[whole]
    number = np.empty(len(whole), np.int64)
    number[np.argsort(place, kind="stable")] = np.arange(len(whole))
    return parts.ordered(number)
