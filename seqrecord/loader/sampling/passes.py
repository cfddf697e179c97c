"""Passes: an epoch walks an episode once for each copy of its clips, at distant places.

Copies of a clip in one round would fill batches with one episode. So each copy is in a run of its
own, which reads its frames again unless they are resident. Shards get equally many runs of each
kind, which is the episode's number of copies. In a shard, the runs of each kind are at even
distances in time, as are the runs of an episode. The cursor that ends first takes the next run. So
at any time, the cursors' runs are a fair share of the epoch::

    episode A, 4 copies; B to E, one copy
    times               A   B   A   C   A   D   A   E
    cursor 0            |---A---|---C---|---A---|---D---|
    cursor 1            |---B---|---A---|---E---|---A---|
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, uniform
from seqrecord.loader.sampling.runs import Runs
from seqrecord.store.tables.grids import frame_keys, ragged_arange

PASSES_OF_CURSOR = 4  # where they decide how many cursors there are
_LEAST = 2  # … and else. Fewer: equal shares, which are cut


def num_passes(table: ClipTable) -> int:
    """The number of passes over all episodes, or 0 for a table that has each clip once."""
    if table.samples is None or not table.repeats:
        return 0
    return len(_episodes(passes(Runs.of(table))))


def passes(runs: Runs) -> Runs:
    """The same clips, in a run for each episode and copy; samples with equal clips are copies."""
    columns = runs.episode, runs.first_start, runs.count, runs.copy, runs.first_sample
    episode, start, count, copy, sample = _sorted(*columns)
    again = (start + (count - 1) * runs.stride)[:-1] >= start[1:]
    if (again & (np.diff(episode) == 0) & (np.diff(copy) == 0)).any():  # listed several times
        row, offset = ragged_arange(count)
        episode, start = episode[row], start[row] + offset * runs.stride
        sample = sample[row] + offset * runs.sample_step
        copy = _number_in(frame_keys(episode, start), sample)
        columns = episode, start, np.ones_like(row), copy, sample
        episode, start, count, copy, sample = _sorted(*columns)
    new = (np.diff(episode, prepend=-1) != 0) | (np.diff(copy, prepend=-1) != 0)
    opens = new.copy()
    opens[1:] |= (start + count * runs.stride)[:-1] != start[1:]
    opens[1:] |= (sample + count * runs.sample_step)[:-1] != sample[1:]
    starts = np.flatnonzero(opens)
    return Runs(
        runs.stride,
        episode[starts],
        start[starts],
        np.add.reduceat(count, starts),
        np.cumsum(new)[starts] - 1,
        sample[starts],
        runs.sample_step,
    )


def copies(passes: Runs) -> IntArray:
    """Each episode's number of copies, int64[episodes]; 0 for episodes without clips."""
    num_copies: IntArray = np.bincount(_episodes(passes)).astype(np.int64)
    return num_copies


def _episodes(runs: Runs) -> IntArray:
    """The episode of each run; int64[runs]."""
    episodes: IntArray = runs.episode[np.diff(runs.run, prepend=-1) != 0]
    return episodes


def _sorted(
    episode: IntArray, start: IntArray, count: IntArray, copy: IntArray, sample: IntArray
) -> tuple[IntArray, ...]:
    """Rows by episode, copy and sample; int64[n] each."""
    row = np.lexsort((sample, copy, episode))
    return tuple(column[row] for column in (episode, start, count, copy, sample))


def in_step(
    runs: Runs,
    num_copies: IntArray,
    lengths: IntArray,
    key: int,
    num_shards: int,
    num_cursors: int,
) -> tuple[Runs, IntArray | None]:
    """The runs in the order of cursors, one shard after the other, and the first clip of each
    cursor, int64[shards, cursors]; `None` for too few runs for so many cursors.

    Args:
        num_copies: see `copies`.
        lengths: frames by which a cursor advances in each run, int64[runs].
        key: of all random numbers.
        num_shards: shards of the epoch.
        num_cursors: cursors of each shard.
    """
    clips = np.bincount(runs.run, runs.count).astype(np.int64)
    kind, place = _places_in_kinds(runs, num_copies, key)
    shard_of = _shards(clips, kind, place, key, num_shards)
    order, totals = list[IntArray](), list[IntArray]()
    by_shard = np.argsort(shard_of, kind="stable")
    ends = np.cumsum(np.bincount(shard_of, minlength=num_shards))
    for shard, runs_of_shard in enumerate(np.split(by_shard, ends[:-1])):
        times = _times(
            kind[runs_of_shard], place[runs_of_shard], key_of(Purpose.PASS_TIMES, key, shard)
        )
        ordered = runs_of_shard[np.argsort(times, kind="stable")]
        cursor_of = _cursors(lengths[ordered], num_cursors)
        order.append(ordered[np.argsort(cursor_of, kind="stable")])
        totals.append(np.bincount(cursor_of, clips[ordered], num_cursors).astype(np.int64))
    # Shares of equally many clips then begin near the shards' first runs.
    shards = np.argsort(
        _even_places(np.array([clips_of_cursors.sum() for clips_of_cursors in totals]))
    )
    number = np.empty(len(clips), np.int64)
    number[np.concatenate([order[shard] for shard in shards])] = np.arange(len(clips))
    counts = np.concatenate([totals[shard] for shard in shards])
    clips_before = np.cumsum(counts) - counts
    has_many = len(clips) >= _LEAST * num_shards * num_cursors
    return runs.ordered(number), clips_before.reshape(num_shards, -1) if has_many else None


def _places_in_kinds(runs: Runs, num_copies: IntArray, key: int) -> tuple[IntArray, IntArray]:
    """The kind of each run, which is how often its episode is copied, and its place among all
    runs of its kind; int64[runs] each.

    The runs of an episode are at even distances.
    """
    episode = _episodes(runs)
    hashes = hash64(key_of(Purpose.PASS_ORDER, key), np.arange(len(episode)))
    jitter = uniform(key_of(Purpose.PASS_PLACES, key), np.arange(len(episode)))
    when = (_number_in(episode, hashes) + jitter) / np.bincount(episode)[episode]
    kind = num_copies[episode]
    return kind, _number_in(kind, when)


def _number_in(group: IntArray, key: npt.NDArray[Any]) -> IntArray:
    """The place of each element in its group, sorted by `key`; int64[n]."""
    order = np.lexsort((key, group))
    _, count = np.unique(group, return_counts=True)
    number = np.empty(len(group), np.int64)
    number[order] = ragged_arange(count)[1]
    return number


def _shards(
    clips: IntArray, kind: IntArray, place: IntArray, key: int, num_shards: int
) -> IntArray:
    """The shard of each run, int64[runs].

    Of `num_shards` successive runs of a kind, each shard has one, by place. The longest goes to the
    shard with the fewest clips.
    """
    shard, totals = np.zeros(len(clips), np.int64), np.zeros(num_shards, np.int64)
    if num_shards == 1:
        return shard
    hashes = hash64(key_of(Purpose.PASS_SHARDS, key), np.arange(len(clips)))
    group = place // num_shards
    size = np.bincount(kind)[kind]
    is_incomplete = (group + 1) * num_shards > size
    order = np.lexsort(
        (hashes, -clips, group, kind, is_incomplete)
    )  # incomplete groups make totals equal
    bounds = np.flatnonzero(
        (np.diff(group[order], prepend=-1) != 0) | (np.diff(kind[order], prepend=-1) != 0)
    )
    for number, members in enumerate(np.split(order, bounds[1:])):
        # Equal totals are in another order each time.
        ties = np.roll(np.arange(num_shards), number)
        emptiest = np.lexsort((ties, totals))[: len(members)]
        shard[members] = emptiest
        totals[emptiest] += clips[members]
    return shard


def _times(kind: IntArray, place: IntArray, key: int) -> npt.NDArray[np.float64]:
    """When to begin each run of a shard, float64[runs] in [0, 1): evenly spaced for each kind."""
    number = _number_in(kind, place)
    phase = uniform(key, kind)
    return (number + phase) / np.bincount(kind)[kind]


def _cursors(lengths: IntArray, num_cursors: int) -> IntArray:
    """The cursor of each run, int64[runs], in the order of runs: the first to end takes it.

    All cursors are at the same time of the epoch then, with runs of any lengths.
    """
    free = [(0, cursor) for cursor in range(num_cursors)]
    cursor_of = np.empty(len(lengths), np.int64)
    for i, length in enumerate(lengths.tolist()):
        end, cursor_of[i] = free[0]
        heapq.heapreplace(free, (end + length, int(cursor_of[i])))
    return cursor_of


def _even_places(totals: IntArray) -> IntArray:
    """The places of numbers in an order in which the first n sum to about n times the mean."""
    order, mean, excess = np.argsort(totals, kind="stable").tolist(), totals.mean(), 0.0
    places = np.empty(len(order), np.int64)
    for place in range(len(order)):
        number = order.pop(0 if excess > 0 else -1)
        places[number] = place
        excess += totals[number] - mean
    return places
