"""The frames that clips use of a group, without frames between them. Pure integers.

Cursors keep one interval of frames of a run, in which a row is found by adding. Of a chunk, they
load the frames from the first to the last that clips of the run use. Frames between, which no
clip uses, have a row and are neither read nor decoded::

    clips of frames s and s + 4        s       e
                                            s       e
    loaded                           f f f f f f f f f f
    used                             f . . f f . . f        decoded

Clips near each other leave out no frame: `Window.solid`. Only frames of other runs are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.loader.sampling.runs import Intervals, Runs, Window
from seqrecord.store.clips.frames import ClipKeys
from seqrecord.store.clips.grids import frame_keys, ragged_arange, split_keys
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.processes.forks import cached_property

_CLIPS_AT_ONCE = 1 << 15

SampleFrames: TypeAlias = Callable[[ClipKeys], IntArray]
"""Returns the frames of a group in clips, int64[n, T]."""


@dataclass(frozen=True, eq=False)
class RunFrames:
    """The frames of a group that clips of runs use.

    Attributes:
        runs: the runs.
        num_frames: length of each episode, int64[episodes].
        window: how far clips reach.
        frames: the frames of clips. Default: all from the first to the last frame of a row.
    """

    runs: Runs
    num_frames: IntArray
    window: Window
    frames: SampleFrames | None = None

    @cached_property
    def bounds(self) -> tuple[IntArray, IntArray]:
        """The frames `[begin, stop)` of each row, from the first to the last used one; int64[rows]
        each.
        """
        last_frame = self.num_frames[self.runs.episode] - 1
        begin = self.window.begin(self.runs.first_start, last_frame)
        return begin, self.window.stop(self.runs.last_start, last_frame)

    @cached_property
    def has_holes(self) -> npt.NDArray[np.bool_] | None:
        """Whether clips of a run may leave out frames between others, bool[runs]; `None` if no run
        does.
        """
        runs, solid = self.runs, self.window.solid
        if self.frames is None or not len(runs):
            return None
        has_holes = np.full(int(runs.run[-1]) + 1, solid is None)
        if solid is not None:
            begin, stop = (frame_keys(runs.run, bound) for bound in self.bounds)
            reach = np.maximum.accumulate(stop) + self.window.frame_step - 1
            follows = runs.run[1:] == runs.run[:-1]
            has_holes[runs.run[1:][follows & (begin[1:] > reach[:-1])]] = True
            has_holes[runs.run[runs.count < solid]] = True
        return has_holes if has_holes.any() else None

    @cached_property
    def intervals(self) -> Intervals:
        """All used frames, in intervals that may overlap."""
        runs, (begin, stop) = self.runs, self.bounds
        if self.has_holes is None:
            return Intervals(runs.episode, begin, stop)
        row = np.flatnonzero(self.has_holes[runs.run])
        owner, offset = ragged_arange(runs.count[row])
        keys = self._unique(runs.first_clip[row][owner] + offset, by_run=False)
        opens = np.flatnonzero(np.diff(keys, prepend=-2) != 1)
        episode, first = split_keys(keys[opens])
        _, last = split_keys(keys[np.append(opens[1:], len(keys)) - 1])
        solid = np.flatnonzero(~self.has_holes[runs.run])
        columns = (runs.episode, episode), (begin, first), (stop, last + 1)
        return Intervals(*(np.concatenate((rows[solid], more)) for rows, more in columns))

    def between(self, low: IntArray, high: IntArray) -> IntArray:
        """Keys of the frames in clips `[low, high)`, numbered over all runs, int64[n] each: unique
        and ascending by run.
        """
        owner, offset = ragged_arange(np.maximum(high - low, 0))
        return self._unique(low[owner] + offset, by_run=True)

    def _unique(self, clips: IntArray, *, by_run: bool) -> IntArray:
        """Keys of the clips' frames, by run or by episode, ascending."""
        parts = [np.zeros(0, np.int64), *self._keys(clips, by_run=by_run)]
        return np.unique(np.concatenate(parts))

    def _keys(self, clips: IntArray, *, by_run: bool) -> Iterator[IntArray]:
        assert self.frames is not None, "runs without holes have no frames to look up"
        for i in range(0, len(clips), _CLIPS_AT_ONCE):
            number = clips[i : i + _CLIPS_AT_ONCE]
            row, start = self.runs.find(number)
            episode, place = self.runs.episode[row], np.zeros_like(start)
            keys = ClipKeys(episode, start, self.runs.samples(row, number), place)
            owner = self.runs.run[row] if by_run else episode
            yield np.unique(frame_keys(owner[:, None], self.frames(keys)))


@dataclass(frozen=True, eq=False)
class UsedFrames:
    """The frames of loads that clips use; found when first needed.

    Loads have the frames `[first, last]` of `run`, for clips `[low, high)` of it that are to come,
    numbered over all runs; int64[loads] each.
    """

    frames: RunFrames
    run: IntArray
    first: IntArray
    last: IntArray
    low: IntArray
    high: IntArray

    def contain(self, run: int, frames: IntArray) -> npt.NDArray[np.bool_]:
        """Whether clips use these frames of a run, bool[n]."""
        has_holes = self.frames.has_holes
        if has_holes is None or not has_holes[run]:
            return np.ones(len(frames), np.bool_)
        keys = frame_keys(np.full_like(frames, run), frames)
        place = np.searchsorted(self._keys, keys)
        is_used: npt.NDArray[np.bool_] = self._keys[np.minimum(place, len(self._keys) - 1)] == keys
        return is_used

    @cached_property
    def _keys(self) -> IntArray:
        """Keys of the used frames; -1 in place of none."""
        of, runs = self.frames, self.frames.runs
        assert of.has_holes is not None
        order = np.argsort(self.run, kind="stable")
        order = order[of.has_holes[self.run[order]]]
        run, begins = np.unique(self.run[order], return_index=True)
        first = np.minimum.reduceat(self.first[order], begins)
        last = np.maximum.reduceat(self.last[order], begins)
        num_frames = of.num_frames[runs.episode[np.searchsorted(runs.run, run)]]
        low_start, high_start = of.window.users(first, last, num_frames)
        low, high = runs.clips_from(run, low_start), runs.clips_from(run, high_start + 1)
        low = np.maximum(low, self.low[order][begins])
        keys = of.between(low, np.minimum(high, self.high[order][begins]))
        return keys if len(keys) else np.full(1, -1)
