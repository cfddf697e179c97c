"""Weights: how often a chosen clip comes in an epoch.

A clip of weight 2.3 comes twice or three times: in three of ten epochs three times, on average.
Which epochs these are is a function of the seed and of the clip.
"""

from __future__ import annotations

import numpy as np

from seqrecord.chosen import ChosenClips
from seqrecord.clips import IntArray
from seqrecord.sampling.random_order import hash64, key_of

__all__ = ["times_in_epoch"]

_WEIGHTS = 4  # what a random number is for: no use of the other modules has this number


def times_in_epoch(chosen: ChosenClips, *, seed: int, epoch: int) -> IntArray:
    """How often each clip comes in an epoch: its weight rounded down or up; int64[n]."""
    drawn = hash64(key_of(seed, _WEIGHTS, epoch), chosen.row)
    share = (drawn >> np.uint64(11)).astype(np.float64) / (1 << 53)
    least = chosen.least
    more: IntArray = (share < chosen.weight - least).astype(np.int64)
    return least + more
