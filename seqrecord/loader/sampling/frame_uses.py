"""The frames that clips use of a group, without frames between them. Pure integers.

Resident frames, and the bytes of a shard in remote storage, are those that its clips use::

    clips of frames s and s + 4        s       e
                                            s       e
    used                             f . . f f . . f

Clips near each other leave out no frame: `Window.solid`. Only frames of other runs are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.runs import Intervals, Runs, Window
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import distinct, frame_keys, split_keys

_CLIPS_AT_ONCE = 1 << 13  # whose arrays are small: 1 << 15 take half as long again
_MAX_MARKS = 1 << 26  # bytes; frames of longer intervals are sorted, several times as slow

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
            begin, stop = self.bounds
            reach = np.maximum.accumulate(frame_keys(runs.run, stop)) + self.window.frame_step - 1
            is_apart = frame_keys(runs.run, begin)[1:] > reach[:-1]
            has_holes[runs.run[1:][is_apart & (runs.run[1:] == runs.run[:-1])]] = True
            has_holes[runs.run[runs.count < solid]] = True
        return has_holes if has_holes.any() else None

    def intervals(self, part: IntArray) -> tuple[IntArray, Intervals]:
        """The used frames in parts of the rows, int64[rows]: the part of each interval, and
        intervals that may overlap.
        """
        runs, step, (begin, stop) = self.runs, self.window.frame_step, self.bounds
        if self.has_holes is None:
            return part, Intervals(runs.episode, begin, stop, step)
        row = np.flatnonzero(self.has_holes[runs.run])
        keys, owner = np.unique(frame_keys(part[row], runs.episode[row]), return_inverse=True)
        parts, episodes = split_keys(keys)
        clips = runs.first_clip[row], runs.first_clip[row] + runs.count[row], owner
        place, shift = self._used(*clips, np.zeros_like(keys), self.num_frames[episodes])
        owner = np.searchsorted(shift, place, side="right") - 1
        opens = np.flatnonzero(
            (np.diff(place, prepend=-1) != step) | (np.diff(owner, prepend=-1) != 0)
        )
        owner, ends = owner[opens], np.append(opens[1:], len(place)) - 1
        first_frame, last_frame = place[opens] - shift[owner], place[ends] - shift[owner]
        solid = np.flatnonzero(~self.has_holes[runs.run])
        part = np.concatenate((part[solid], parts[owner]))
        episode = np.concatenate((runs.episode[solid], episodes[owner]))
        begin = np.concatenate((begin[solid], first_frame))
        stop = np.concatenate((stop[solid], last_frame + 1))
        return part, Intervals(episode, begin, stop, step)

    def _used(
        self, low: IntArray, high: IntArray, owner: IntArray, begin: IntArray, stop: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The frames `[begin, stop)` of owners, int64[owners] each, that clips use: their places,
        ascending, and what is added to an owner's frames to get places, int64[owners].

        The clips are `[low, high)`, numbered over all runs, of `owner`; int64[n] each. Places of
        frames of two owners are not consecutive.
        """
        assert self.frames is not None, "runs without holes have no frames to look up"
        room = stop - begin + 2  # with a margin on both sides, for frames outside
        shift = np.cumsum(room) - room + 1 - begin
        places = UsedPlaces(int(room.sum()))
        ends, runs = np.cumsum(high - low), self.runs
        num_clips = int(ends[-1]) if len(ends) else 0
        for first in range(0, num_clips, _CLIPS_AT_ONCE):
            numbers = np.arange(first, min(first + _CLIPS_AT_ONCE, num_clips))
            part = np.searchsorted(ends, numbers, side="right")
            clips = numbers + (high - ends)[part]
            row, start = runs.find(clips)
            keys = ClipKeys(
                runs.episode[row], start, runs.samples(row, clips), np.zeros_like(start)
            )
            part = owner[part]
            frames = self.frames(keys) + shift[part][:, None]
            np.maximum(frames, (begin + shift - 1)[part][:, None], out=frames)
            np.minimum(frames, (stop + shift)[part][:, None], out=frames)
            places.add(frames)
        return places.without(np.concatenate((begin + shift - 1, stop + shift))), shift


def united(part: IntArray, intervals: Intervals) -> tuple[IntArray, Intervals]:
    """Merge overlapping intervals of each part, int64[n]; they become disjoint and ascending."""
    episode, begin, stop, step = intervals
    is_next = (part[1:] == part[:-1]) & (episode[1:] == episode[:-1]) & (begin[1:] > stop[:-1])
    is_next |= (part[1:] > part[:-1]) | ((part[1:] == part[:-1]) & (episode[1:] > episode[:-1]))
    if is_next.all():  # as of frames that were looked up, of which there are many
        return part, intervals
    order = np.lexsort((begin, episode, part))
    part, episode, begin, stop = (column[order] for column in (part, episode, begin, stop))
    owner = np.cumsum((np.diff(part, prepend=-1) != 0) | (np.diff(episode, prepend=-1) != 0)) - 1
    reached = np.maximum.accumulate(frame_keys(owner, stop))
    apart = frame_keys(owner, begin)[1:] > reached[:-1]
    openings = np.flatnonzero(np.append(True, apart)[: len(part)])
    stops = split_keys(reached[np.append(openings[1:], len(part))[: len(openings)] - 1])[1]
    return part[openings], Intervals(episode[openings], begin[openings], stops, step)


def frames_of_shards(
    runs: Runs,
    shard: IntArray,
    num_frames: IntArray,
    windows: Sequence[Window],
    frames: Sequence[SampleFrames] | None = None,
) -> tuple[list[Intervals], tuple[int, ...]]:
    """The frames of each group that shard 0 uses, and the greatest number of frames of each group
    in any shard.

    Args:
        runs: of all shards.
        shard: of each row of `runs`, int64[rows].
        num_frames: length of each episode, int64[episodes].
        windows: of the groups.
        frames: functions that find the frames of clips in each group, if these are equal in all
            epochs; by default, all within reach may be used.
    """
    intervals, most = list[Intervals](), list[int]()
    finders: Sequence[SampleFrames | None] = frames or [None] * len(windows)
    for window, find in zip(windows, finders, strict=True):
        shard_of, used = united(*RunFrames(runs, num_frames, window, find).intervals(shard))
        most.append(int(np.bincount(shard_of, used.counts).max(initial=0)))
        intervals.append(used.take(shard_of == 0))
    return intervals, tuple(most)


class UsedPlaces:
    """Distinct places in `[0, num_places)`: marked, or sorted where marks need much memory."""

    def __init__(self, num_places: int, max_marks: int = _MAX_MARKS) -> None:
        self._marks = np.zeros(num_places, np.bool_) if num_places <= max_marks else None
        self._parts = [np.empty(0, np.int64)]  # distinct places each; the longest one first

    def add(self, places: IntArray) -> None:
        if self._marks is not None:
            self._marks[places] = True
            return
        self._parts.append(distinct(places))
        if sum(map(len, self._parts)) > 2 * len(self._parts[0]):
            self._parts = [distinct(np.concatenate(self._parts))]

    def without(self, places: IntArray) -> IntArray:
        """The added places except these, ascending; int64[n]."""
        if self._marks is not None:
            self._marks[places] = False
            return np.flatnonzero(self._marks)
        return np.setdiff1d(distinct(np.concatenate(self._parts)), places, assume_unique=True)
