"""The newest value of a feature that not every frame has: integers, without I/O.

A GPS that measures once a second, or a text that is written where it changes::

    frame        0 1 2 3 4 5 6 7 8 9
    measured         g       g g
    known            2 2 2 2 6 7 7 7     the frame that it is from
    age              0 1 2 3 0 0 1 2     frames
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqrecord.clip_uses import MissingFrames
from seqrecord.forks import cached_property
from seqrecord.frame_keys import frame_keys
from seqrecord.grids import IntArray

__all__ = ["LastKnown"]

UNKNOWN = -1
"""The age of what is not known."""


class KnownFrames(NamedTuple):
    """Where the values of some frames are from; int64, all of one shape."""

    frames: IntArray
    """The frames that have the feature; where nothing is known, what was asked for."""
    age: IntArray
    """How many frames before they are; -1 where nothing is known."""


@dataclass(frozen=True, eq=False)
class LastKnown:
    """Which frames lack a feature, and how many frames old a value may be; `None` for any age.

    With `has_unknown`, clips may have frames for which nothing is known.
    """

    missing: MissingFrames
    most: int | None = None
    has_unknown: bool = False

    @property
    def reach(self) -> int:
        """The largest age of a value: how many frames one looks back."""
        missing = self.missing
        ages = (missing.stop - missing.start)[missing.start > 0]
        oldest = int(ages.max(initial=0))
        return oldest if self.most is None else min(oldest, self.most)

    @property
    def unknown(self) -> MissingFrames:
        """The frames for which there is no value, or only an older one."""
        missing = self.missing
        start = missing.start
        if self.most is None:
            some = start == 0
        else:
            start = np.where(start == 0, 0, start + self.most)
            some = start < missing.stop
        return MissingFrames(missing.episode[some], start[some], missing.stop[some])

    def find(self, episode: IntArray, frames: IntArray) -> KnownFrames:
        """Of frames, int64[n, T], of episodes by their rows, int64[n]."""
        missing = self.missing
        if not len(missing):
            return KnownFrames(frames, np.zeros_like(frames))
        owner = np.broadcast_to(episode[:, None], frames.shape)
        run = np.searchsorted(self._keys, frame_keys(owner, frames), side="right") - 1
        first, stop = missing.start[run], missing.stop[run]
        lacks = (run >= 0) & (missing.episode[run] == owner) & (frames < stop)
        age = np.where(lacks, frames - first + 1, 0)
        is_unknown = lacks & (first == 0)
        if self.most is not None:
            is_unknown |= age > self.most
        age[is_unknown] = UNKNOWN
        return KnownFrames(frames - np.maximum(age, 0), age)

    @cached_property
    def _keys(self) -> IntArray:
        return frame_keys(self.missing.episode, self.missing.start)
