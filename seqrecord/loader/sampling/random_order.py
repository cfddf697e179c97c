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
So the size of an epoch is the sum of `repeat`, rounded down or up.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.tables.grids import ragged_arange

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_BITS = 53
_ONE = 1 << _BITS  # fractions are integers of so many to 1


class Purpose(IntEnum):
    """The uses of random numbers.

    Each has keys of its own, so that no two draws use one number. Each is used in one place.
    Numbers of removed purposes stay unused.
    """

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
    COPY_NUMBERS = 27
    MIX_SOURCES = 28
    MIX_PERIODS = 29
    MIX_SWAPS = 30
    MIX_BATCHES = 31
    MIX_SEEDS = 32
    EPISODE_ORDER = 45
    SHARE_BEGINS = 46
    SHARE_SHARDS = 47
    CURSOR_BEGINS = 48
    CURSOR_PLACES = 49
    BLOCK_SHIFTS = 50
    ROW_ORDER = 51
    SHARES_OF_EPOCH = 52
    SPAN_ORDER = 53


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


def sorted_places(major: IntArray, minor: IntArray) -> IntArray:
    """`np.lexsort((minor, major))` of numbers that are not negative, int64[n] each.

    One sort of numbers that end with their place takes a tenth of the time, where 63 bits suffice.
    """
    shift = len(minor).bit_length()
    bits = int(minor.max(initial=0)).bit_length()
    if int(major.max(initial=0)).bit_length() + bits + shift > 63:
        return np.lexsort((minor, major))
    keys = ((major << bits | minor) << shift) + np.arange(len(minor))
    keys.sort()
    places: IntArray = keys & ((1 << shift) - 1)
    return places


def ranks_of(order: IntArray) -> IntArray:
    """The place of each number in a permutation, int64[n]: its inverse."""
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks


def phase_of_epoch(first: IntArray, count: IntArray, stride: int, *, epoch: int, seed: int) -> int:
    """The phase of an epoch, below `stride`, for runs of `count` starts from `first`, int64[n].

    Phases without a start get no epoch. Of n other phases, every n epochs from epoch 0 have each
    once, in an order drawn anew for each such group. There must be a start.
    """
    phases = _phases(first, count, stride)
    group, place = divmod(epoch, len(phases))
    return int(phases[permutation(key_of(Purpose.PHASES, seed, group), len(phases))[place]])


def _phases(starts: IntArray, count: IntArray, stride: int) -> IntArray:
    """The phases with a start, ascending."""
    begin = starts % stride
    end = begin + np.minimum(count, stride)
    # A run may go past the last phase, and on at the first.
    begins = np.concatenate((begin, np.zeros_like(begin)))
    ends = np.concatenate((np.minimum(end, stride), np.maximum(end - stride, 0)))
    order = np.argsort(begins)
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    opens = np.flatnonzero(np.append(True, begins[1:] > reach[:-1]))
    first_phase, stop = begins[opens], np.append(reach[opens[1:] - 1], reach[-1])
    interval, place = ragged_arange(stop - first_phase)
    phases: IntArray = first_phase[interval] + place
    return phases


def times_in_epoch(
    repeat: npt.NDArray[np.float64], row: IntArray, *, seed: int, epoch: int
) -> IntArray:
    """The multiplicity of each sample in an epoch: `repeat` rounded down or up; int64[n].

    `row`, int64[n], are numbers of samples that are equal wherever lists of frames are divided.
    """
    times, fractions = np.floor(repeat).astype(np.int64), _fractions(repeat)
    fractional = np.flatnonzero(fractions)
    key = key_of(Purpose.EXTRA_ORDER, seed, epoch)
    fractional = fractional[np.argsort(hash64(key, row[fractional]), kind="stable")]
    remainder = _sum(fractions) % _ONE
    first, last = (_num_longer(remainder, seed, n) for n in (epoch, epoch + 1))
    times[fractional] += _extra(
        fractions[fractional].astype(np.int64), seed, epoch, is_longer=last > first
    )
    return times


@dataclass(frozen=True)
class EpochSizes:
    """The number of clips in each epoch of samples with `repeat`: the sum of `times_in_epoch`.

    Each epoch has `fewest` clips or one more, evenly spaced, so they are added in closed form.
    """

    fewest: int
    remainder: int
    seed: int

    @classmethod
    def of(cls, repeat: npt.NDArray[np.float64], seed: int) -> EpochSizes:
        """The sizes for `repeat`, float64[n]."""
        whole, remainder = divmod(_sum(_fractions(repeat)), _ONE)
        return cls(int(np.floor(repeat).sum()) + whole, remainder, seed)

    def before(self, epoch: int, num_shards: int = 1) -> int:
        """The number of clips before an epoch in one of `num_shards` equal shards.

        Each epoch of a shard is rounded up.
        """
        num_longer = _num_longer(self.remainder, self.seed, epoch)
        size, longer = (-(-clips // num_shards) for clips in (self.fewest, self.fewest + 1))
        return (epoch - num_longer) * size + num_longer * longer

    def epoch_of(self, clip: int, num_shards: int = 1) -> int:
        """The epoch of a clip of a shard, which is numbered over all epochs."""
        # The clips before an epoch differ by at most 1 from the mean of all epochs.
        per_cycle = self.before(_ONE, num_shards)
        low, stop = (max(0, (clip + by) * _ONE // per_cycle) for by in (-2, 2))
        epochs = range(low, stop + 2)
        return epochs[bisect_right(epochs, clip, key=lambda n: self.before(n, num_shards)) - 1]


def _extra(fractions: IntArray, seed: int, epoch: int, *, is_longer: bool) -> npt.NDArray[np.bool_]:
    """Whether each of these samples comes once more, by its fraction, int64[n].

    If the fractions do not sum to an integer, the last one is undecided: it comes if `is_longer`.
    """
    comes = np.zeros(len(fractions), np.bool_)
    undecided, share, level = np.arange(len(fractions)), fractions, 0
    while len(undecided) > 1:
        half = len(undecided) // 2
        head, second = undecided[:half], undecided[half : 2 * half]
        total, room = share[:half] + share[half : 2 * half], _ONE - share[half : 2 * half]
        is_full = total >= _ONE
        draw = uniform(key_of(Purpose.EXTRA_SAMPLES, seed, epoch, level), np.arange(half))
        # Of the first one, to take from the second.
        wins = draw * np.where(is_full, 2 * _ONE - total, total) < np.where(
            is_full, room, share[:half]
        )
        comes[np.where(wins, head, second)[is_full]] = True
        undecided = np.append(np.where(wins != is_full, head, second), undecided[2 * half :])
        share = np.append(np.where(is_full, total - _ONE, total), share[2 * half :])
        undecided, share = undecided[share > 0], share[share > 0]
        level += 1
    comes[undecided] = is_longer
    return comes


def _num_longer(remainder: int, seed: int, epoch: int) -> int:
    """The number of epochs before an epoch that are one clip longer than the shortest epoch.

    A share of `remainder / _ONE` of all epochs is longer, evenly spaced; `seed` shifts them.
    """
    shift = key_of(Purpose.LONGER_EPOCHS, seed) >> (64 - _BITS)
    return (epoch * remainder + shift) // _ONE


def _fractions(repeat: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """The fractions of `repeat`, exactly; uint64[n] below `_ONE`."""
    fractions: npt.NDArray[np.uint64] = ((repeat % 1) * _ONE).astype(np.uint64)
    return fractions


def _sum(fractions: npt.NDArray[np.uint64]) -> int:
    """The exact sum of fewer than 2**32 numbers."""
    low = np.uint64(1 << 32) - np.uint64(1)
    high = int((fractions >> np.uint64(32)).sum())
    return (high << 32) + int((fractions & low).sum())
