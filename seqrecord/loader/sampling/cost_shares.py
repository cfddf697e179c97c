"""Shares of equal costs: the runs of an epoch with a budget, for its shards and their cursors.

Shards have consecutive parts of the sequence of runs, and so do the cursors of a shard::

    runs, by mean cost      3 3 | 5 6 | 9 9         strata of as many runs as shards
    dealt to 2 shards       9 3 5 | 6 9 3           each shard has clips of all strata
    cursors of a shard      9 | 3 5                 of equal costs
    turned                  9 | 5 3                 if cheap clips would come late in most cursors

Few lengths may not fill a budget, and trends would be batches of longer clips at some time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, ranks_of
from seqrecord.loader.sampling.runs import CursorShares, Cuts, Runs, divide_shares
from seqrecord.store.tables.grids import distinct

_SHORT = 8  # of a shard: shorter runs are dealt whole where others are longer than a shard
_PLACE_BITS = 20  # fraction of a cursor
_COST_BITS = 8  # of a cost, of the greatest one

ValueOf: TypeAlias = Callable[[IntArray], IntArray]
"""A value of each sample, int64[n]."""


def deal_runs(runs: Runs, cost_of: ValueOf, weight_of: ValueOf, num_shards: int, key: int) -> Runs:
    """The same clips in an order in which shares of equal weights have clips of all costs.

    Runs are sorted by mean cost; of each `num_shards` next ones, each shard has one, drawn from
    `key`. If a run is longer than a shard, long runs are cut where shards end, between the short
    ones: else a shard inside of one would have no other clips.
    """
    samples, begins = runs.all_samples, runs.begins
    totals = np.add.reduceat(weight_of(samples), begins)
    mean = np.add.reduceat(cost_of(samples), begins) / runs.run_clips
    share, rest = divmod(int(totals.sum()), num_shards)
    is_short = np.full(len(begins), True)
    if (totals > share).any():
        is_short = totals * _SHORT <= share
    group = np.full(len(begins), num_shards)  # of long ones: behind all others
    group[is_short] = _strata(mean[is_short], num_shards, key)
    filled = np.bincount(group[is_short], totals[is_short], num_shards).astype(np.int64)
    runs, of_short = _ordered(runs, group), np.sort(group[is_short])
    if is_short.all():
        return runs
    # Long runs fill the shards that short ones begin.
    number = np.arange(1, num_shards)
    room = number * share + number * rest // num_shards - np.cumsum(filled)[:-1]
    paid = np.append(0, np.cumsum(weight_of(runs.all_samples)))
    targets = np.clip(filled.sum() + np.maximum.accumulate(room), filled.sum(), paid[-1])
    cuts = nearest_clips(paid, targets)
    runs = _cut(runs, cuts)
    begins = runs.begins
    group = np.searchsorted(cuts, begins, side="right")
    group[: len(of_short)] = of_short
    return _ordered(runs, group, key)


def shares_by_cost(
    sequence: Runs,
    cuts: Cuts,
    cost: IntArray,
    count: int,
    num_cursors: int,
    num_shares: int,
    *,
    begins: IntArray | None = None,
    at_runs: bool = False,
) -> CursorShares:
    """The cursors' shares in all `count` shards, with about equal costs.

    `cost`, int64[clips], are the costs of the sequence's clips. A shard's shares are consecutive;
    all but the first begin at chunks or runs, or at the clips `begins`, as in `shares_of`. A shard
    of few runs has a share for each.
    """
    paid = np.append(0, np.cumsum(cost))  # before each clip
    whole, rest = divmod(int(paid[-1]), count)
    number = np.arange(count + 1)
    targets = number * whole + number * rest // count
    edges, run_bounds = nearest_clips(paid, targets), np.append(sequence.begins, len(cost))
    if cuts.whole:  # a run is not cut for less than a clip
        near = run_bounds[nearest_clips(paid[run_bounds], targets)]
        edges = np.where(np.abs(paid[near] - targets) < cost.max(), near, edges)
    edges[0], edges[-1] = 0, sequence.num_clips
    start, stop = edges[:-1, None], edges[1:, None]
    if begins is not None:
        inner, num_shares = begins[:, 1:], num_cursors
    else:
        part = np.arange(1, num_shares)
        share, rest_of_shares = np.divmod(paid[stop] - paid[start], num_shares)
        targets = paid[start] + part * share + part * rest_of_shares // num_shares
        inner = nearest_clips(paid, targets)
        longest = -(-cuts.longest // sequence.stride)
        if cuts.whole or at_runs:
            run = np.searchsorted(run_bounds, start, side="right")
            is_few = np.searchsorted(run_bounds, stop) - run < num_shares
            own = run_bounds[np.minimum(run + part - 1, len(run_bounds) - 1)]
            inner = np.where(is_few, own, sequence.nearest(inner))
        elif sequence.num_clips // count // num_shares > longest + 1:
            begin, end = cuts.chunks(*sequence.find(np.minimum(inner, sequence.num_clips - 1)))
            half = (end - begin) // (2 * sequence.stride)
            middle = np.minimum(inner + half, sequence.num_clips - 1)
            inner = sequence.snap(middle, cuts)
    inner = np.maximum.accumulate(np.clip(inner, start, stop), axis=1)
    start, stop = np.hstack((start, inner)), np.hstack((inner, stop))
    return divide_shares(start, stop, np.zeros(count, np.int64), num_cursors)


def turn_runs(sequence: Runs, shares: CursorShares, cost: IntArray, *, pads: bool) -> Runs:
    """The same shares, in some of which runs have the opposite order.

    In each shard, cursors are turned so that their trends of cost, int64[clips], cancel out. Else
    batches of some time would have longer clips: with few cursors, a correlation of .1 to .3 of
    length and number of a batch.
    """
    starts = distinct(shares.start[shares.stop > shares.start])
    runs = _cut(sequence, starts)
    paid = np.append(0, np.cumsum(cost))
    bounds = np.append(starts, runs.num_clips)
    length = np.repeat(np.diff(paid[bounds]), np.diff(bounds))
    place = ((paid[:-1] + paid[1:]) / 2 - np.repeat(paid[starts], np.diff(bounds))) / length - 0.5
    trend_of_clips = np.rint(place * (1 << _PLACE_BITS)).astype(np.int64)
    if pads:  # the number of batches is by cost, else by clips
        size = np.rint(cost / cost.max() * (1 << _COST_BITS)).astype(np.int64)
        trend_of_clips *= size * size
    trend = np.add.reduceat(trend_of_clips, starts)
    shard = np.searchsorted(shares.start[:, 0], starts, side="right") - 1
    is_turned, sums = np.zeros(len(starts), np.bool_), [0] * len(shares.start)
    for cursor in np.argsort(-np.abs(trend), kind="stable").tolist():
        of_shard, value = int(shard[cursor]), int(trend[cursor])
        is_turned[cursor] = sums[of_shard] * value > 0
        sums[of_shard] += -value if is_turned[cursor] else value
    begins = runs.begins
    cursor_of_run = np.searchsorted(starts, begins, side="right") - 1
    run = np.arange(len(begins))
    number = np.where(is_turned[cursor_of_run], -run, run)
    return runs.ordered(ranks_of(np.lexsort((number, cursor_of_run))))


def nearest_clips(paid: IntArray, targets: IntArray) -> IntArray:
    """The clips that begin nearest to sums of costs, int64[…].

    `paid`, int64[clips + 1], are the sums before each clip. The first clip behind a sum would give
    the earlier part most of the long clips, on which a sum is more likely to fall.
    """
    place = np.searchsorted(paid, targets)
    before: IntArray = np.maximum(place - 1, 0)
    return np.where(targets - paid[before] < paid[place] - targets, before, place)


def _strata(mean: npt.NDArray[np.float64], num_groups: int, key: int) -> IntArray:
    """A group of each run, int64[runs]: of the `num_groups` next ones by mean cost, one in each."""
    number = np.arange(len(mean))
    stratum, place = np.divmod(number, num_groups)
    drawn = hash64(key_of(Purpose.COST_GROUPS, key), number)
    first = hash64(key_of(Purpose.COST_STRATA, key), stratum) % np.uint64(num_groups)
    group = np.empty(len(mean), np.int64)
    order = np.argsort(mean, kind="stable")[np.lexsort((drawn, stratum))]
    group[order] = (place + first.astype(np.int64)) % num_groups
    return group


def _cut(runs: Runs, clips: IntArray) -> Runs:
    """The same clips in runs that begin at `clips`, too; runs have numbers without gaps."""
    return runs.cut(np.setdiff1d(clips, runs.begins))


def _ordered(runs: Runs, group: IntArray, key: int | None = None) -> Runs:
    """The runs sorted by group, int64[runs]; in a group as they are, or in an order of `key`."""
    number = np.arange(len(group))
    hashes = number if key is None else hash64(key_of(Purpose.COST_RUNS, key), number)
    return runs.ordered(ranks_of(np.lexsort((hashes, group))))
