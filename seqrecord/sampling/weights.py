"""Weights: how often a chosen clip comes in an epoch.

A clip of weight 2.3 comes twice or three times: in three of ten epochs three times, on average. The
seed decides which clips come once more in an epoch, by systematic sampling (W. G. Madow, "On the
Theory of Systematic Sampling, II", Annals of Mathematical Statistics 1949): what their weights have
above whole numbers is laid out on a line, in an order drawn for the epoch and from a place drawn
between 0 and 1. Those that reach a whole number come once more::

    weights 2.3, 0.8, 0.5, 1.4      0         |1                  |2
    order 2, 0, 3, 1; from 0.4          [  2  )[ 0 )[  3 )[   1   )

So an epoch has as many clips as the weights sum to, or one more where that is no whole number. How
many clips all epochs before one have is then known without counting.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.chosen import ChosenClips
from seqrecord.clips import IntArray
from seqrecord.sampling.random_order import hash64, key_of

__all__ = ["clips_before", "times_in_epoch"]

_WEIGHTS = 4  # what a number drawn for a seed is for: `phases` has another one
_BITS = 53
_ONE = 1 << _BITS  # fractions are integers of so many to 1


def times_in_epoch(chosen: ChosenClips, *, seed: int, epoch: int) -> IntArray:
    """How often each clip comes in an epoch: its weight rounded down or up; int64[n]."""
    times, fractions = chosen.least, _fractions(chosen)
    some = np.flatnonzero(fractions)
    key = key_of(seed, _WEIGHTS, epoch)
    some = some[np.argsort(hash64(key, chosen.row[some]), kind="stable")]
    stop = np.cumsum(fractions[some], dtype=np.uint64)
    stop += np.uint64(_offset(_sum(fractions) % _ONE, seed, epoch))
    # It may wrap: 2**64 is a multiple of what 1 is here.
    start = stop - fractions[some]
    times[some] += (stop >> np.uint64(_BITS)) != (start >> np.uint64(_BITS))
    return times


def clips_before(chosen: ChosenClips, epoch: int, num_parts: int, *, seed: int) -> int:
    """How many clips each of so many equal parts has of all epochs before one."""
    whole, rest = divmod(_sum(_fractions(chosen)), _ONE)
    fewest = int(chosen.least.sum()) + whole
    longer = _longer_before(rest, seed, epoch)
    return (epoch - longer) * -(-fewest // num_parts) + longer * -(-(fewest + 1) // num_parts)


def _offset(rest: int, seed: int, epoch: int) -> int:
    """Where the line begins: below 1, and uniform over all epochs. `rest` is of the sum."""
    drawn = key_of(seed, _WEIGHTS, epoch, 0) >> (64 - _BITS)
    if _longer_before(rest, seed, epoch + 1) > _longer_before(rest, seed, epoch):
        return _ONE - rest + drawn * rest // _ONE  # from here the line reaches one number more
    return drawn * (_ONE - rest) // _ONE


def _longer_before(rest: int, seed: int, epoch: int) -> int:
    """How many of the epochs before this one have a clip more than others: evenly many."""
    return (epoch * rest + (key_of(seed, _WEIGHTS) >> (64 - _BITS))) // _ONE


def _fractions(chosen: ChosenClips) -> npt.NDArray[np.uint64]:
    """What weights have above whole numbers, exactly; uint64[n] below `_ONE`."""
    fractions: npt.NDArray[np.uint64] = ((chosen.weight % 1) * _ONE).astype(np.uint64)
    return fractions


def _sum(fractions: npt.NDArray[np.uint64]) -> int:
    """Exactly, of fewer than 2**32."""
    low = np.uint64(1 << 32) - np.uint64(1)
    high = int((fractions >> np.uint64(32)).sum())
    return (high << 32) + int((fractions & low).sum())
