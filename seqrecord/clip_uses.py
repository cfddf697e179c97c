"""What clips use of features, and which clips lack some of it: integers, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.frame_keys import frame_keys, split_keys
from seqrecord.grids import IntArray

__all__ = ["ClipUse", "MissingFrames", "Starts", "excluded", "reach_of", "united"]

_FAR = 1 << 60  # frames; more than an episode has and a clip spans


@dataclass(frozen=True, eq=False)
class MissingFrames:
    """Runs of frames, `[start, stop)` of an episode, that lack a requested feature; int64[n] each.

    In ascending order of episode and frame; no two runs of an episode touch or overlap.
    """

    episode: IntArray
    start: IntArray
    stop: IntArray

    @classmethod
    def none(cls) -> MissingFrames:
        """Every frame has every requested feature."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty)

    @classmethod
    def of(cls, episode: IntArray, start: IntArray, stop: IntArray) -> MissingFrames:
        """From runs in any order, which may touch and overlap; int64[n] each."""
        first, last = united(frame_keys(episode, start), frame_keys(episode, stop))
        return cls(*split_keys(first), split_keys(last)[1])

    def taken(self, runs: npt.NDArray[np.bool_]) -> MissingFrames:
        """Some of the runs, bool[n]."""
        return MissingFrames(self.episode[runs], self.start[runs], self.stop[runs])

    def __len__(self) -> int:
        return len(self.episode)

    def __repr__(self) -> str:
        return f"MissingFrames({len(self)} runs, {int((self.stop - self.start).sum())} frames)"


@dataclass(frozen=True, eq=False)
class ClipUse:
    """What clips use of some features: frames `start + offsets`, int64[T], and which lack one."""

    offsets: IntArray
    missing: MissingFrames


@dataclass(frozen=True, eq=False)
class Starts:
    """Where clips may start in the selected episodes: `possible` starts in each, int64[selected].

    They are numbered over all of these episodes.
    """

    first: int
    stride: int
    selected: IntArray
    num_frames: IntArray  # of the selected episodes
    possible: IntArray

    def number(self, owner: IntArray, frame: IntArray) -> IntArray:
        """How many possible starts lie before these frames, of those of the episode `owner`."""
        before = -((self.first - frame) // self.stride)
        base = (np.cumsum(self.possible) - self.possible)[owner]
        return np.clip(before, 0, self.possible[owner]) + base


def reach_of(offsets: Iterable[IntArray]) -> tuple[int, int]:
    """How many frames before and behind a clip's start there must be for all these offsets."""
    every = np.concatenate([np.zeros(1, np.int64), *offsets])
    return -int(every.min()), int(every.max())


def excluded(starts: Starts, uses: Sequence[ClipUse], *, pad: bool) -> tuple[IntArray, IntArray]:
    """Intervals of possible clips, numbered over all selected episodes, that miss a frame.

    Missing frames `[a, b)` exclude the starts `[a - offset, b - offset)` for every offset of a use:
    separate intervals when the run is shorter than offsets are apart, else one. With `pad` an
    episode's first frame is also that of all before it, and its last one of all behind.
    """
    selected, owners, firsts, stops = starts.selected, [], [], []
    for use in uses:
        place = np.searchsorted(selected, use.missing.episode)
        known = place < len(selected)
        known[known] = selected[place[known]] == use.missing.episode[known]
        place, start, stop = place[known], use.missing.start[known], use.missing.stop[known]
        length = stop - start
        if pad:
            start = np.where(start == 0, -_FAR, start)
            stop = np.where(stop == starts.num_frames[place], _FAR, stop)
        for low, step, count in _progressions(use.offsets):
            far = length >= step
            owners += [place[far], np.tile(place[~far], count)]
            back = low + np.arange(count)[:, None] * step
            firsts += [start[far] - (low + (count - 1) * step), (start[~far] - back).ravel()]
            stops += [stop[far] - low, (stop[~far] - back).ravel()]
    owner = np.concatenate(owners)
    return starts.number(owner, np.concatenate(firsts)), starts.number(owner, np.concatenate(stops))


def _progressions(offsets: IntArray) -> list[tuple[int, int, int]]:
    """Offsets as evenly spaced ones: the first, how far they are apart, and how many they are."""
    values, found = np.unique(offsets).tolist(), []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 1
        count = next((i for i in range(1, len(values)) if values[i] - values[i - 1] != step), None)
        count = len(values) if count is None else count
        found.append((values[0], step, count))
        values = values[count:]
    return found


def united(start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """The union of half-open intervals as disjoint ones in ascending order, empty ones dropped."""
    start, stop = start[stop > start], stop[stop > start]
    if not len(start):
        return start, stop
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(stop[order])
    opens = np.append(True, start[1:] > reach[:-1])
    closes = np.append(opens[1:], True)
    return start[opens], reach[closes]
