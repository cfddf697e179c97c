"""Random order by integer hashing: the same on every platform and with every NumPy version.

NumPy's generators may change their streams between versions, and draw in sequence. Here every
number is a pure function of a key and a counter (SplitMix64: Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014), so any part of an order can be computed
alone, in any process.

The clips of an epoch are drawn too. With `every(4, rotate=True)`, each epoch has the clip starts
`phase`, `phase + 4`, … of another phase, so that every start is used eventually. An episode with 10
starts::

    start               0 1 2 3 4 5 6 7 8 9
    epoch 0, phase 2        s       s
    epoch 1, phase 0    s       s       s
    epoch 2, phase 3          s       s
    epoch 3, phase 1      s       s       s
    epoch 4 …           every phase again, in a new order

A sample with `repeat` 2.3 comes twice or three times: on average three times in three of ten
epochs. The pivotal method (J.-C. Deville and Y. Tillé, "Unequal Probability Sampling Without
Replacement Through a Splitting Method", Biometrika 1998) chooses the extra samples of an epoch by
the seed. The fractions of `repeat` meet in pairs, in an order drawn for the epoch. One of a pair
takes as much of the other's fraction as it has room for, up to 1; which one is drawn, so that the
mean of each fraction is unchanged. A fraction of 0 or 1 is decided, others meet again::

    repeat 2.3, 0.8, 0.5, 1.4       fractions 0.3, 0.8, 0.5, 0.4
    order 2, 0, 3, 1                0.5 and 0.3: 0.8 and 0      0.4 and 0.8: 0.2 and 1
                                    0.8 and 0.2: 0 and 1        samples 1 and 2 come once more

Unlike systematic sampling, any two samples may come together in an epoch that has room for two.
So the size of an epoch is the sum of `repeat`, rounded down or up, and the number of clips in all
earlier epochs has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from seqrecord.store.clips.tables import ClipTable, IntArray

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_BITS = 53
_ONE = 1 << _BITS  # fractions are integers of so many to 1


class Purpose(IntEnum):
    """The uses of random numbers.

    Each has keys of its own, so that no two draws use one number. Each is used in one place.
    """

    SEGMENT = 1  # of an epoch: its order
    CUTS = 2
    RUN_ORDER = 3
    RUN_PARTS = 4
    RUN_OFFSETS = 5
    BLOCK_ORDER = 6
    BLOCK_NAMES = 7
    SECTION_ORDER = 8
    SECTION_BEGINS = 9
    PLACES_IN_SECTION = 10
    PLACES_IN_BLOCK = 11
    SEQUENCE_ORDER = 12
    SHARD_ORDER = 13
    PHASES = 14
    LONGER_EPOCHS = 15
    EXTRA_ORDER = 16
    EXTRA_SAMPLES = 17
    BATCHES = 18
    NUMBERS_OF_BATCHES = 19
    SAMPLE_FUNCTIONS = 20
    CLIP_STEPS = 21
    STEPS_OF_SAMPLE = 22
    CROPS = 23
    CROPS_OF_BATCH = 24
    CLIP_FUNCTIONS = 25
    LISTED_FRAMES = 26
    COPIES = 27
    MIX_SOURCES = 28
    MIX_PERIODS = 29
    MIX_SWAPS = 30
    MIX_BATCHES = 31
    MIX_SEEDS = 32
    PASS_ORDER = 33
    PASS_TIMES = 34
    PASS_SHARDS = 35
    PASS_PLACES = 36


def key_of(purpose: Purpose, *values: int) -> int:
    """Combine a purpose and integers to a 64-bit key; their order matters."""
    # Without their number, a key and a counter of `hash64` could be those of another key.
    key = len(values) << 32 | purpose
    for value in (0, *values):
        z = (key + (value & _MASK) + _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        key = z ^ (z >> 31)
    return key


def hash64(key: int, values: IntArray) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each value under `key`: SplitMix64's output at counter `value`."""
    z = values.astype(np.uint64)  # a copy; a negative value wraps
    z *= np.uint64(_GAMMA)
    z += np.uint64((key + _GAMMA) & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return z


def uniform(key: int, values: IntArray) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each value."""
    return np.asarray((hash64(key, values) >> np.uint64(11)) * 2.0**-53, np.float64)


def permutation(key: int, length: int) -> IntArray:
    """A permutation of [0, length), drawn from `key`."""
    return np.argsort(hash64(key, np.arange(length)), kind="stable")


@dataclass(frozen=True, eq=False)
class Phases:
    """The phases with clips, and the numbers of clips; other phases get no epoch.

    Phases `[first[i], stop[i])` have `num_clips[i]` clips each, at least 1. Intervals are ascending
    and disjoint; int64[n] each.
    """

    first: IntArray
    stop: IntArray
    num_clips: IntArray

    @classmethod
    def of(cls, first: IntArray, count: IntArray, stride: int) -> Phases:
        """The phases of `stride` of runs of consecutive starts, int64[n] each."""
        # A row gives each phase `count // stride` clips and one more to the phases of its last
        # `count % stride` starts, which may run past the last phase and go on at the first.
        begin = first % stride
        end = begin + count % stride
        past = np.maximum(end - stride, 0)
        up = np.concatenate(([0], begin, np.zeros_like(past)))
        down = np.concatenate(([stride], np.minimum(end, stride), past))
        edges = np.unique(np.concatenate((up, down)))
        change = np.zeros(len(edges), np.int64)
        np.add.at(change, np.searchsorted(edges, up[1:]), 1)
        np.add.at(change, np.searchsorted(edges, down[1:]), -1)
        num_clips = int((count // stride).sum()) + np.cumsum(change)[:-1]
        some = num_clips > 0
        return cls(edges[:-1][some], edges[1:][some], num_clips[some])

    def __len__(self) -> int:
        return int((self.stop - self.first).sum())

    def of_epoch(self, epoch: int, *, seed: int) -> int:
        """The phase of an epoch.

        Every `len(self)` epochs, from epoch 0, have each phase once, in an order drawn anew for
        each such group.
        """
        group, place = divmod(epoch, len(self))
        place = int(permutation(key_of(Purpose.PHASES, seed, group), len(self))[place])
        before = np.cumsum(self.stop - self.first) - (self.stop - self.first)
        i = int(np.searchsorted(before, place, side="right")) - 1
        return int(self.first[i]) + place - int(before[i])

    def clips_before(self, epoch: int, num_shards: int, *, seed: int) -> int:
        """The number of clips in each of `num_shards` equal shards of all earlier epochs."""
        group, place = divmod(epoch, len(self))
        clips = np.repeat(-(-self.num_clips // num_shards), self.stop - self.first)
        whole = group * int(clips.sum())
        clips = clips[permutation(key_of(Purpose.PHASES, seed, group), len(self))]
        return whole + int(clips[:place].sum())


def typical_table(table: ClipTable, stride: int) -> ClipTable:
    """The table from which settings for every phase of a larger stride are derived.

    Each row has the number of clips of its largest phase. Starts are meaningless.
    """
    times = stride // table.spec.stride
    spec = replace(table.spec, stride=stride)
    return replace(table, spec=spec, count=-(-table.count // times), samples=None)


def times_in_epoch(
    repeat: npt.NDArray[np.float64], row: IntArray, *, seed: int, epoch: int
) -> IntArray:
    """The multiplicity of each sample in an epoch: `repeat` rounded down or up; int64[n].

    `row`, int64[n], are numbers of samples that are equal wherever lists of frames are divided.
    """
    times, fractions = np.floor(repeat).astype(np.int64), _fractions(repeat)
    some = np.flatnonzero(fractions)
    key = key_of(Purpose.EXTRA_ORDER, seed, epoch)
    some = some[np.argsort(hash64(key, row[some]), kind="stable")]
    rest = _sum(fractions) % _ONE
    is_longer = _longer_before(rest, seed, epoch + 1) > _longer_before(rest, seed, epoch)
    times[some] += _extra(fractions[some].astype(np.int64), seed, epoch, is_longer=is_longer)
    return times


def clips_before(repeat: npt.NDArray[np.float64], epoch: int, num_shards: int, *, seed: int) -> int:
    """The number of clips in each of `num_shards` equal shards of all earlier epochs."""
    whole, rest = divmod(_sum(_fractions(repeat)), _ONE)
    fewest = int(np.floor(repeat).sum()) + whole
    longer = _longer_before(rest, seed, epoch)
    return (epoch - longer) * -(-fewest // num_shards) + longer * -(-(fewest + 1) // num_shards)


def _extra(fractions: IntArray, seed: int, epoch: int, *, is_longer: bool) -> npt.NDArray[np.bool_]:
    """Whether each of these samples comes once more, by its fraction, int64[n].

    If the fractions do not sum to an integer, the last one is undecided: it comes if `is_longer`.
    """
    comes = np.zeros(len(fractions), np.bool_)
    undecided, share, level = np.arange(len(fractions)), fractions, 0
    while len(undecided) > 1:
        half = len(undecided) // 2
        first, second = undecided[:half], undecided[half : 2 * half]
        total, room = share[:half] + share[half : 2 * half], _ONE - share[half : 2 * half]
        is_full = total >= _ONE
        drawn = uniform(key_of(Purpose.EXTRA_SAMPLES, seed, epoch, level), np.arange(half))
        # Of the first one, to take from the second.
        wins = drawn * np.where(is_full, 2 * _ONE - total, total) < np.where(
            is_full, room, share[:half]
        )
        comes[np.where(wins, first, second)[is_full]] = True
        undecided = np.append(np.where(wins != is_full, first, second), undecided[2 * half :])
        share = np.append(np.where(is_full, total - _ONE, total), share[2 * half :])
        undecided, share = undecided[share > 0], share[share > 0]
        level += 1
    comes[undecided] = is_longer
    return comes


def _longer_before(rest: int, seed: int, epoch: int) -> int:
    """The number of earlier epochs that are one clip longer than the shortest epoch.

    A share of `rest / _ONE` of all epochs is longer, evenly spaced; `seed` shifts them.
    """
    return (epoch * rest + (key_of(Purpose.LONGER_EPOCHS, seed) >> (64 - _BITS))) // _ONE


def _fractions(repeat: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """The fractions of `repeat`, exactly; uint64[n] below `_ONE`."""
    fractions: npt.NDArray[np.uint64] = ((repeat % 1) * _ONE).astype(np.uint64)
    return fractions


def _sum(fractions: npt.NDArray[np.uint64]) -> int:
    """The exact sum of fewer than 2**32 numbers."""
    low = np.uint64(1 << 32) - np.uint64(1)
    high = int((fractions >> np.uint64(32)).sum())
    return (high << 32) + int((fractions & low).sum())
