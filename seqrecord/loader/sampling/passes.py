"""Passes: an epoch walks an episode once for each copy of its clips, at distant places.

Copies of a clip in one round would fill batches with one episode. So each copy is in a run of its
own, which reads its frames again unless they stay in memory. Each run gets a time in the epoch: the
runs of an episode are at even distances, and so are all runs of episodes with equally many. Cursors
take runs in turn, equally many of each kind, and order them by time. So at any time, the cursors'
runs are a fair share of the epoch::

    episode A, 4 copies; B to E, one copy
    times               A   B   A   C   A   D   A   E
    cursor 0            |---A---|---C---|---A---|---D---|
    cursor 1            |---B---|---A---|---E---|---A---|
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, uniform
from seqrecord.loader.sampling.runs import Runs
from seqrecord.store.clips.tables import IntArray

_RUNS = 4  # of a cursor, at least


def passes(runs: Runs) -> Runs:
    """The same clips, in a run for each episode and copy."""
    copy = runs.copy
    row = np.lexsort((runs.first_sample, copy, runs.episode))
    columns = runs.episode, runs.first_start, runs.count, copy, runs.first_sample
    episode, start, count, copy, sample = (column[row] for column in columns)
    new = (np.diff(episode, prepend=-1) != 0) | (np.diff(copy, prepend=-1) != 0)
    opens = new.copy()
    opens[1:] |= (start + count * runs.stride)[:-1] != start[1:]
    opens[1:] |= (sample + count * runs.sample_step)[:-1] != sample[1:]
    some = np.flatnonzero(opens)
    return Runs(
        runs.stride,
        episode[some],
        start[some],
        np.add.reduceat(count, some),
        np.cumsum(new)[some] - 1,
        sample[some],
        runs.sample_step,
    )


def in_step(
    runs: Runs, key: int, num_shards: int, num_cursors: int
) -> tuple[Runs, IntArray | None]:
    """The runs in the order of the cursors of one shard after the other, and the first clip of each
    cursor, int64[shards, cursors]; `None` for too few runs for so many cursors.
    """
    clips = np.bincount(runs.run, runs.count).astype(np.int64)
    times, kind = _times(runs, key)
    by_time = np.argsort(times, kind="stable")
    # Equally many clips, and runs of each kind.
    weight = (clips / clips.mean() + kind / kind.mean())[by_time]
    drawn = hash64(key_of(Purpose.PASS_CURSORS, key), by_time)
    shard_of = _dealt(weight, drawn, num_shards)
    by_shard = np.argsort(shard_of, kind="stable")
    ends = np.cumsum(np.bincount(shard_of, minlength=num_shards))
    order, counts = list[IntArray](), list[IntArray]()
    for own in np.split(by_shard, ends[:-1]):
        cursor_of = _dealt(weight[own], drawn[own], num_cursors)
        totals = np.bincount(cursor_of, clips[by_time[own]], num_cursors).astype(np.int64)
        places = _places(totals)
        order.append(by_time[own[np.argsort(places[cursor_of], kind="stable")]])
        counts.append(totals[np.argsort(places)])
    number = np.empty(len(clips), np.int64)
    number[np.concatenate(order)] = np.arange(len(clips))
    before = np.cumsum(np.concatenate(counts)) - np.concatenate(counts)
    has_many = len(clips) >= _RUNS * num_shards * num_cursors
    return runs.ordered(number), before.reshape(num_shards, -1) if has_many else None


def _dealt(weight: npt.NDArray[np.float64], drawn: npt.NDArray[np.uint64], number: int) -> IntArray:
    """The owner of each run, int64[n]: owners take one in turn, and the heaviest goes to the owner
    with the least weight.
    """
    owner, totals = np.zeros(len(weight), np.int64), np.zeros(number)
    for first in range(0, len(weight) if number > 1 else 0, number):
        some = slice(first, first + number)
        heaviest = first + np.lexsort((drawn[some], -weight[some]))
        # Equal totals are in another order each time.
        least = np.lexsort((np.roll(np.arange(number), first // number), totals))[: len(heaviest)]
        owner[heaviest] = least
        totals[least] += weight[heaviest]
    return owner


def _places(totals: IntArray) -> IntArray:
    """The places of numbers in an order in which the first n sum to about n times the mean."""
    order, mean, excess = np.argsort(totals, kind="stable").tolist(), totals.mean(), 0.0
    places = np.empty(len(order), np.int64)
    for place in range(len(order)):
        chosen = order.pop(0 if excess > 0 else -1)
        places[chosen] = place
        excess += totals[chosen] - mean
    return places


def _times(runs: Runs, key: int) -> tuple[npt.NDArray[np.float64], IntArray]:
    """When to begin each run, float64[runs] in [0, 1), and its kind: the number of its episode's
    runs.

    Times are evenly spaced for each episode, and for each kind.
    """
    episode = runs.episode[np.diff(runs.run, prepend=-1) != 0]
    drawn = hash64(key_of(Purpose.PASS_ORDER, key), np.arange(len(episode)))
    order = np.lexsort((drawn, episode))
    _, first, number = np.unique(episode[order], return_index=True, return_counts=True)
    rank, size = np.empty_like(order), np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(first, number)
    size[order] = np.repeat(number, number)
    order = np.lexsort((drawn, rank, size))
    _, first, number = np.unique(size[order], return_index=True, return_counts=True)
    inside = np.arange(len(order)) - np.repeat(first, number)
    jitter = uniform(key_of(Purpose.PASS_TIMES, key), order)
    times = np.empty(len(order))
    times[order] = (inside + jitter) / np.repeat(number, number)
    return times, size
