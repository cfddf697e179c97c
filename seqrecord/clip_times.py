"""Frames of clips by their timestamps: the nearest to each time of a window.

A clip that starts at frame 2, and the times -0.1, 0 and 0.1 of its window::

    timestamps     0.00   0.11   0.19   0.30   0.41
    times                 0.09   0.19   0.29
    frames                1      2      3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.grids import IntArray

__all__ = ["Clock", "TimedWindow"]


class Clock(Protocol):
    """The timestamps of episodes, and their names."""

    def seconds(self, episode: int) -> npt.NDArray[np.float64]:
        """Ascending, of all frames of an episode by its row, counted from the first frame's."""

    def name(self, episode: int) -> dict[str, str]:
        """What an error says: file, episode and feature."""


class TimedFrames(NamedTuple):
    """Of n clips: frames int64[n, T], and bool[n, T] of those that stand for something else.

    `is_outside`: the time lies before the episode's first frame or behind its last. `is_far`: it
    has no frame within the tolerance.
    """

    frames: IntArray
    is_outside: npt.NDArray[np.bool_]
    is_far: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TimedWindow:
    """The frames nearest to these times, in seconds from a clip's start, by a clock.

    They are within the offsets `first` to `last` of the start, both counted, or the episode ends.
    """

    times: tuple[float, ...]
    tolerance: float
    pads: bool  # frames that are too far away; or they are errors
    first: int
    last: int
    clock: Clock

    def find(self, episode: IntArray, start: IntArray) -> TimedFrames:
        """The frames of clips by the rows of their episodes and their starts, int64[n] each.

        Raises `ClipError` where a frame is too far away, unless `pads`; and where timestamps are
        further apart, or closer, than the index says.
        """
        shape = len(start), len(self.times)
        found = TimedFrames(np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool))
        for row in np.unique(episode).tolist():
            mine = np.flatnonzero(episode == row)
            one = self._find(row, start[mine])
            for column, part in zip(found, one, strict=True):
                column[mine] = part
        return found

    def _find(self, row: int, start: IntArray) -> TimedFrames:
        stamps, near = self.clock.seconds(row), self.tolerance
        last = len(stamps) - 1
        asked = stamps[start][:, None] + np.array(self.times)
        later = np.clip(np.searchsorted(stamps, asked), 0, last)
        earlier = np.maximum(later - 1, 0)
        frames = np.where(asked - stamps[earlier] <= stamps[later] - asked, earlier, later)
        far = np.abs(stamps[frames] - asked) > near
        outside = far & ((asked < stamps[0]) | (asked > stamps[-1]))
        far &= ~outside
        if far.any() and not self.pads:
            clip, number = np.argwhere(far)[0].tolist()
            raise ClipError(
                "no frame is near enough to a time of a clip's window",
                **self.clock.name(row),  # type: ignore[arg-type]
                frame=int(start[clip]),
                expected=f"a timestamp {self.times[number]:g} s from that of the clip's start, to "
                f"{near:g} s",
                got=f"the nearest one {stamps[frames[clip, number]] - stamps[start[clip]]:g} s",
            )
        least = np.clip(start + self.first, 0, last)[:, None]
        most = np.clip(start + self.last, 0, last)[:, None]
        if ((frames < least) | (frames > most)).any():
            raise ClipError(
                "timestamps are further apart, or closer, than the index says",
                **self.clock.name(row),  # type: ignore[arg-type]
            )
        return TimedFrames(frames, outside, far)
