"""Phases: where an epoch's clip starts lie, so that a stride leaves nothing out for ever.

With `rotate_phase`, every epoch has the clip starts `phase`, `phase + stride`, … of another
phase. Stride 4, an episode with 10 starts::

    start               0 1 2 3 4 5 6 7 8 9
    epoch 0, phase 2        s       s
    epoch 1, phase 0    s       s       s
    epoch 2, phase 3          s       s
    epoch 3, phase 1      s       s       s
    epoch 4 …           every phase again, in a new order
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from seqrecord.clips import ClipTable, IntArray
from seqrecord.sampling.random_order import key_of, permutation

__all__ = ["Phases", "typical_table"]

_PHASES = 3  # what a number drawn for a seed is for: `weights` has another one


@dataclass(frozen=True, eq=False)
class Phases:
    """The phases that have clips, and how many; a phase without any clip gets no epoch.

    Phases `[first[i], stop[i])` have `num_clips[i]` clips each, at least 1. Intervals ascend and
    don't overlap; int64[n] each.
    """

    first: IntArray
    stop: IntArray
    num_clips: IntArray

    @classmethod
    def of(cls, every: ClipTable, stride: int) -> Phases:
        """The phases of `stride`, from a table of stride 1."""
        # A row gives each phase `count // stride` clips and one more to those of its last
        # `count % stride` starts, which may run past the last phase and go on at the first.
        begin = every.first_start % stride
        end = begin + every.count % stride
        past = np.maximum(end - stride, 0)
        up = np.concatenate(([0], begin, np.zeros_like(past)))
        down = np.concatenate(([stride], np.minimum(end, stride), past))
        edges = np.unique(np.concatenate((up, down)))
        change = np.zeros(len(edges), np.int64)
        np.add.at(change, np.searchsorted(edges, up[1:]), 1)
        np.add.at(change, np.searchsorted(edges, down[1:]), -1)
        num_clips = int((every.count // stride).sum()) + np.cumsum(change)[:-1]
        some = num_clips > 0
        return cls(edges[:-1][some], edges[1:][some], num_clips[some])

    def __len__(self) -> int:
        return int((self.stop - self.first).sum())

    @property
    def fewest_clips(self) -> int:
        """Clips of the phase that has fewest; raises `ValueError` where no phase has any."""
        return int(self.num_clips.min())

    def of_epoch(self, epoch: int, *, seed: int, shuffle: bool) -> int:
        """The phase of an epoch.

        Every `len(self)` epochs, counted from epoch 0, have each phase once: in ascending order,
        or with `shuffle` in an order drawn anew for each such group of epochs.
        """
        group, place = divmod(epoch, len(self))
        if shuffle:
            place = int(permutation(key_of(seed, _PHASES, group), len(self))[place])
        before = np.cumsum(self.stop - self.first) - (self.stop - self.first)
        i = int(np.searchsorted(before, place, side="right")) - 1
        return int(self.first[i]) + place - int(before[i])

    def clips_before(self, epoch: int, num_parts: int, *, seed: int, shuffle: bool) -> int:
        """How many clips each of so many equal parts has of all epochs before one."""
        group, place = divmod(epoch, len(self))
        clips = np.repeat(-(-self.num_clips // num_parts), self.stop - self.first)
        whole = group * int(clips.sum())
        if shuffle:
            clips = clips[permutation(key_of(seed, _PHASES, group), len(self))]
        return whole + int(clips[:place].sum())


def typical_table(every: ClipTable, stride: int) -> ClipTable:
    """What settings that hold for every phase are chosen from, given a table of stride 1.

    Each row has as many clips as in the phase that has most of them. Its starts mean nothing.
    """
    spec = replace(every.spec, stride=stride)
    return ClipTable(
        spec, every.selected, every.episode, every.first_start, -(-every.count // stride)
    )
