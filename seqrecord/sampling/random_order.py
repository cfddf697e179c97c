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
epochs. Systematic sampling (W. G. Madow, "On the Theory of Systematic Sampling, II", Annals of
Mathematical Statistics 1949) chooses the extra samples of an epoch by the seed: the fractions of
`repeat` are laid out on a line, in an order drawn for the epoch and from an offset drawn in [0, 1).
A sample that reaches an integer comes once more::

    repeat 2.3, 0.8, 0.5, 1.4       0         |1                  |2
    order 2, 0, 3, 1; from 0.4          [  2  )[ 0 )[  3 )[   1   )

So the size of an epoch is the sum of `repeat`, rounded down or up, and the number of clips in all
earlier epochs has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.clips.tables import ClipTable, IntArray

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_PHASES, _WEIGHTS = 3, 4  # purposes of random numbers
_BITS = 53
_ONE = 1 << _BITS  # fractions are integers of so many to 1


def key_of(*values: int) -> int:
    """Combine integers to a 64-bit key; their order matters."""
    key = 0
    for value in values:
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
        place = int(permutation(key_of(seed, _PHASES, group), len(self))[place])
        before = np.cumsum(self.stop - self.first) - (self.stop - self.first)
        i = int(np.searchsorted(before, place, side="right")) - 1
        return int(self.first[i]) + place - int(before[i])

    def clips_before(self, epoch: int, num_shards: int, *, seed: int) -> int:
        """The number of clips in each of `num_shards` equal shards of all earlier epochs."""
        group, place = divmod(epoch, len(self))
        clips = np.repeat(-(-self.num_clips // num_shards), self.stop - self.first)
        whole = group * int(clips.sum())
        clips = clips[permutation(key_of(seed, _PHASES, group), len(self))]
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
    key = key_of(seed, _WEIGHTS, epoch)
    some = some[np.argsort(hash64(key, row[some]), kind="stable")]
    stop = np.cumsum(fractions[some], dtype=np.uint64)
    stop += np.uint64(_offset(_sum(fractions) % _ONE, seed, epoch))
    # It may wrap: 2**64 is a multiple of `_ONE`.
    start = stop - fractions[some]
    times[some] += (stop >> np.uint64(_BITS)) != (start >> np.uint64(_BITS))
    return times


def clips_before(repeat: npt.NDArray[np.float64], epoch: int, num_shards: int, *, seed: int) -> int:
    """The number of clips in each of `num_shards` equal shards of all earlier epochs."""
    whole, rest = divmod(_sum(_fractions(repeat)), _ONE)
    fewest = int(np.floor(repeat).sum()) + whole
    longer = _longer_before(rest, seed, epoch)
    return (epoch - longer) * -(-fewest // num_shards) + longer * -(-(fewest + 1) // num_shards)


def _offset(rest: int, seed: int, epoch: int) -> int:
    """The offset of the line, in [0, 1) as fraction, uniform over all epochs.

    `rest` is the fraction of the sum of `repeat`.
    """
    drawn = key_of(seed, _WEIGHTS, epoch, 0) >> (64 - _BITS)
    if _longer_before(rest, seed, epoch + 1) > _longer_before(rest, seed, epoch):
        return _ONE - rest + drawn * rest // _ONE  # from here the line reaches one number more
    return drawn * (_ONE - rest) // _ONE


def _longer_before(rest: int, seed: int, epoch: int) -> int:
    """The number of earlier epochs that are one clip longer than the shortest epoch.

    A share of `rest / _ONE` of all epochs is longer, evenly spaced; `seed` shifts them.
    """
    return (epoch * rest + (key_of(seed, _WEIGHTS) >> (64 - _BITS))) // _ONE


def _fractions(repeat: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """The fractions of `repeat`, exactly; uint64[n] below `_ONE`."""
    fractions: npt.NDArray[np.uint64] = ((repeat % 1) * _ONE).astype(np.uint64)
    return fractions


def _sum(fractions: npt.NDArray[np.uint64]) -> int:
    """The exact sum of fewer than 2**32 numbers."""
    low = np.uint64(1 << 32) - np.uint64(1)
    high = int((fractions >> np.uint64(32)).sum())
    return (high << 32) + int((fractions & low).sum())
