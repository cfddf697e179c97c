"""Which frames of its episode a clip has of each feature: integers, without I/O.

A clip that starts at frame `s` has of a feature the frames `s + offsets`. What would lie before the
episode's first frame or behind its last one is that frame, again::

    episode of 6 frames       0 1 2 3 4 5
    offsets -1, 0 at 0      0 0                  is_pad  1 0
    offsets 0 to 3 at 4               4 5 5 5    is_pad  0 0 1 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clip_times import TimedWindow
from seqrecord.grids import IntArray
from seqrecord.last_known import LastKnown

__all__ = ["ClipFrames", "ClipSteps", "FoundFrames", "RatedOffsets"]


class FoundFrames(NamedTuple):
    """Of n clips and one feature, of which a clip has T frames."""

    frames: IntArray
    """int64[n, T]: the frames, all of them inside the clip's episode."""
    is_pad: npt.NDArray[np.bool_]
    """bool[n, T]: whether the frame stands for one that would lie outside, or for none."""
    num_far: int = 0
    """How many of these lie inside, and stand for a time without a frame."""
    age: IntArray | None = None
    """int64[n, T]: how many frames before the clip's frame that one is, of a feature of which clips
    have the last known values; -1 where nothing is known."""


@dataclass(frozen=True, eq=False)
class RatedOffsets:
    """Offsets that depend on the episode, as those in seconds do where frames a second differ."""

    offsets: IntArray
    """int64[rates, T]: those of each rate."""
    rate: IntArray
    """int64[E]: the rate of each episode."""

    def of(self, episode: IntArray) -> IntArray:
        """int64[n, T], by the rows of the episodes, int64[n]."""
        found: IntArray = self.offsets[self.rate[episode]]
        return found


class ClipSteps(NamedTuple):
    """How many frames n clips' frames are apart, and which of them have them in reverse."""

    dilation: IntArray
    """int64[n]: how often as far apart as their offsets say."""
    is_reversed: npt.NDArray[np.bool_]
    """bool[n]"""


DrawSteps: TypeAlias = Callable[[IntArray, IntArray], ClipSteps]
"""What is drawn for clips by the rows of their episodes and their starts, int64[n] each."""


@dataclass(frozen=True, eq=False)
class ClipFrames:
    """Which frames clips have of each feature.

    `offsets`, int64[T] for each feature, are counted from a clip's start. `num_frames` is int64 of
    all rows of the index: how many frames each episode has. Where `draw` is, clips have the frames
    `s + offsets * dilation`, the last one first where they are reversed. Features in `timed` have
    the frames that are nearest to times, and `offsets` of the same length that mean nothing. Of the
    features in `known` clips have the values that were known last. Those in `rated` have other
    offsets in some episodes; `offsets` has those of one.
    """

    offsets: Mapping[str, IntArray]
    num_frames: IntArray
    draw: DrawSteps | None = None
    timed: Mapping[str, TimedWindow] = field(default_factory=dict)
    known: Mapping[str, LastKnown] = field(default_factory=dict)
    rated: Mapping[str, RatedOffsets] = field(default_factory=dict)

    @property
    def lengths(self) -> dict[str, int]:
        """How many frames of each feature a clip has."""
        return {name: len(offsets) for name, offsets in self.offsets.items()}

    def alike(self, features: Iterable[str]) -> list[tuple[str, ...]]:
        """The features in sets, of which those of one set have the same frames in every clip."""
        found: dict[object, list[str]] = {}
        for name in features:
            rated = self.rated.get(name)
            offsets = self.offsets[name] if rated is None else rated.offsets
            window = self.timed.get(name, offsets.tobytes())
            found.setdefault((window, id(self.known.get(name))), []).append(name)
        return [tuple(names) for names in found.values()]

    def find(self, feature: str, episode: IntArray, start: IntArray) -> FoundFrames:
        """The frames of a feature that clips have, in the order in which a batch has them.

        The clips are given by the rows of their episodes and their starts, int64[n] each.
        """
        num_far = 0
        if feature in self.timed:
            timed = self.timed[feature].find(episode, start)
            frames, is_pad = timed.frames, timed.is_outside | timed.is_far
            num_far = int(timed.is_far.sum())
        else:
            asked = start[:, None] + self._offsets(feature, episode, start)
            last = self.num_frames[episode][:, None] - 1
            frames = np.minimum(np.maximum(asked, 0), last)  # three times as fast as clip
            is_pad = frames != asked
        if (known := self.known.get(feature)) is None:
            return FoundFrames(frames, is_pad, num_far)
        newest = known.find(episode, frames)
        return FoundFrames(newest.frames, is_pad, num_far, newest.age)

    def _offsets(self, feature: str, episode: IntArray, start: IntArray) -> IntArray:
        """Of each clip's frames, int64[n, T], or of all clips', int64[T]."""
        rated = self.rated.get(feature)
        offsets = self.offsets[feature] if rated is None else rated.of(episode)
        if self.draw is None:
            return offsets
        dilation, is_reversed = self.draw(episode, start)
        drawn = offsets * dilation[:, None]
        found: IntArray = np.where(is_reversed[:, None], drawn[:, ::-1], drawn)
        return found
