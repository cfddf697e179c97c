"""Which frames of its episode a clip has of each feature, and which clips lack some of them:
integers, without I/O.

Each feature has a window, of one of three kinds. `OffsetWindow`: a clip that starts at frame `s`
has the frames `s + offsets`. What would lie before the episode's first frame or behind its last one
is that frame, again::

    episode of 6 frames       0 1 2 3 4 5
    offsets -1, 0 at 0      0 0                  is_pad  1 0
    offsets 0 to 3 at 4               4 5 5 5    is_pad  0 0 1 1

`TimedWindow`: the frames with the timestamps nearest to the times of a window. A clip that starts
at frame 2, and the times -0.1, 0 and 0.1::

    timestamps     0.00   0.11   0.19   0.30   0.41
    times                 0.09   0.19   0.29
    frames                1      2      3

`LatestWindow`: of the frames of another window, the newest ones that have the feature: a GPS that
measures once a second, or a text that is written where it changes::

    frame        0 1 2 3 4 5 6 7 8 9
    measured         g       g g
    known            2 2 2 2 6 7 7 7     the frame that it is from
    age              0 1 2 3 0 0 1 2     frames
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import IntArray, frame_keys, split_keys
from seqrecord.errors import ClipError
from seqrecord.processes.forks import cached_property

UNKNOWN = -1
"""The age of what is not known."""


class WindowFrames(NamedTuple):
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


class ClipSteps(NamedTuple):
    """How many frames n clips' frames are apart, and which of them have them in reverse."""

    dilation: IntArray
    """int64[n]: how often as far apart as their offsets say."""
    is_reversed: npt.NDArray[np.bool_]
    """bool[n]"""


DrawSteps: TypeAlias = Callable[[IntArray, IntArray, "IntArray | None"], ClipSteps]
"""Draws for clips: rows of episodes, starts, and places in the epoch if known, int64[n] each."""


@dataclass(frozen=True, eq=False)
class OffsetWindow:
    """The frames at offsets from a clip's start: int64[rates, T], of each rate.

    `rate`, int64[E], is that of each episode; `None` where there is only one. Offsets differ where
    they are in seconds, and frames a second differ.
    """

    offsets: IntArray
    rate: IntArray | None = None
    pads = False
    lookback = 0

    @classmethod
    def of(cls, offsets: Iterable[int]) -> OffsetWindow:
        """The same offsets in all episodes."""
        return cls(np.array([*offsets], np.int64)[None])

    @property
    def length(self) -> int:
        """How many frames a clip has."""
        return len(self.offsets[0])

    @property
    def key(self) -> object:
        """Equal for windows of the same frames."""
        return self.offsets.shape, self.offsets.tobytes()

    @property
    def frame_offsets(self) -> IntArray:
        """The offsets at which a clip's frames can be, in any episode."""
        return self.offsets[0] if len(self.offsets) == 1 else np.unique(self.offsets)

    def frame_offsets_at(self, rate: int) -> IntArray:
        """The same, in episodes of one rate."""
        found: IntArray = self.offsets[rate if len(self.offsets) > 1 else 0]
        return found

    def find(self, episode: IntArray, start: IntArray, frames: ClipFrames) -> WindowFrames:
        """See `ClipFrames.find`."""
        offsets = self.offsets[0 if self.rate is None else self.rate[episode]]
        if frames.draw is not None:
            dilation, is_reversed = frames.draw(episode, start, frames.place)
            drawn = offsets * dilation[:, None]
            offsets = np.where(is_reversed[:, None], drawn[:, ::-1], drawn)
        asked = start[:, None] + offsets
        last = frames.num_frames[episode][:, None] - 1
        found = np.minimum(np.maximum(asked, 0), last)  # three times as fast as clip
        return WindowFrames(found, found != asked)


class Clock(Protocol):
    """The timestamps of episodes, and their names."""

    unit: str
    """Of the timestamps as they are stored, for messages."""

    def seconds(self, episode: int) -> npt.NDArray[np.float64]:
        """Ascending, of all frames of an episode by its row, counted from the first frame's."""

    def name(self, episode: int) -> dict[str, str]:
        """What an error says: file, episode and feature."""


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
    lookback = 0

    @property
    def length(self) -> int:
        """How many frames a clip has."""
        return len(self.times)

    @property
    def key(self) -> object:
        """Equal for windows of the same frames."""
        return self

    @property
    def frame_offsets(self) -> IntArray:
        """The offsets at which a clip's frames can be, in any episode."""
        return np.arange(self.first, self.last + 1)

    def frame_offsets_at(self, _rate: int) -> IntArray:
        """The same, for frames a second mean nothing here."""
        return self.frame_offsets

    def find(self, episode: IntArray, start: IntArray, _frames: ClipFrames) -> WindowFrames:
        """See `ClipFrames.find`.

        Raises `ClipError` where a frame is too far away, unless `pads`; and where timestamps are
        further apart, or closer, than the index says.
        """
        shape = len(start), len(self.times)
        found = WindowFrames(np.zeros(shape, np.int64), np.zeros(shape, bool))
        num_far = 0
        for row in np.unique(episode).tolist():
            mine = np.flatnonzero(episode == row)
            found.frames[mine], found.is_pad[mine], far = self._find(row, start[mine])
            num_far += far
        return found._replace(num_far=num_far)

    def _find(self, row: int, start: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_], int]:
        stamps, near = self.clock.seconds(row), self.tolerance
        last = len(stamps) - 1
        asked = stamps[start][:, None] + np.array(self.times)
        later = np.clip(np.searchsorted(stamps, asked), 0, last)
        earlier = np.maximum(later - 1, 0)
        frames = np.where(asked - stamps[earlier] <= stamps[later] - asked, earlier, later)
        is_pad = np.abs(stamps[frames] - asked) > near
        far = is_pad & (asked >= stamps[0]) & (asked <= stamps[-1])
        if far.any() and not self.pads:
            clip, number = np.argwhere(far)[0].tolist()
            raise ClipError(
                "no frame is near enough to a time of a clip's window; allow more with "
                "Seconds(…, tolerance=), or pad with out_of_range='pad'",
                **self.clock.name(row),  # type: ignore[arg-type]
                frame=int(start[clip]),
                expected=f"a timestamp {self.times[number]:g} s from that of the clip's start, to "
                f"{near:g} s",
                got=f"the nearest one {stamps[frames[clip, number]] - stamps[start[clip]]:g} s, of "
                f"timestamps in {self.clock.unit}",
            )
        least = np.clip(start + self.first, 0, last)[:, None]
        most = np.clip(start + self.last, 0, last)[:, None]
        if ((frames < least) | (frames > most)).any():
            raise ClipError(
                "timestamps are further apart, or closer, than the index says",
                **self.clock.name(row),  # type: ignore[arg-type]
                got=f"timestamps in {self.clock.unit}",
            )
        return frames, is_pad, int(far.sum())


@dataclass(frozen=True, eq=False)
class LatestWindow:
    """Of the frames of `window`, the newest that have the feature.

    `missing` are the frames that lack it. A value is at most `most` frames old; `None` for any age.
    With `has_unknown`, clips may have frames for which nothing is known.
    """

    window: OffsetWindow | TimedWindow
    missing: MissingFrames
    most: int | None = None
    has_unknown: bool = False

    @property
    def length(self) -> int:
        """How many frames a clip has."""
        return self.window.length

    @property
    def key(self) -> object:
        """Equal for windows of the same frames."""
        return self

    @property
    def frame_offsets(self) -> IntArray:
        """The offsets at which frames of `window` can be, from which one looks back."""
        return self.window.frame_offsets

    def frame_offsets_at(self, rate: int) -> IntArray:
        """The same, in episodes of one rate."""
        return self.window.frame_offsets_at(rate)

    @property
    def pads(self) -> bool:
        """Whether frames stand for times that are too far away."""
        return self.window.pads

    @property
    def lookback(self) -> int:
        """The largest age of a value: how many frames one looks back."""
        missing = self.missing
        ages = (missing.stop - missing.start)[missing.start > 0]
        oldest = int(ages.max(initial=0))
        return oldest if self.most is None else min(oldest, self.most)

    @property
    def unknown(self) -> MissingFrames:
        """The frames for which there is no value, or only an older one, unless clips may have such
        frames."""
        if self.has_unknown:
            return MissingFrames.none()
        if self.most is None:
            return self.missing.subset(self.missing.start == 0)
        start = self.missing.start
        late = replace(self.missing, start=np.where(start == 0, 0, start + self.most))
        return late.subset(late.start < late.stop)

    def find(self, episode: IntArray, start: IntArray, frames: ClipFrames) -> WindowFrames:
        """See `ClipFrames.find`."""
        asked = self.window.find(episode, start, frames)
        missing, of_clips = self.missing, asked.frames
        if not len(missing):
            return asked._replace(age=np.zeros_like(of_clips))
        lacks, run = missing.find(episode[:, None], of_clips)
        first = missing.start[run]
        age = np.where(lacks, of_clips - first + 1, 0)
        is_unknown = lacks & (first == 0)
        if self.most is not None:
            is_unknown |= age > self.most
        age[is_unknown] = UNKNOWN
        return asked._replace(frames=of_clips - np.maximum(age, 0), age=age)


class ClipWindow(Protocol):
    """The frames of one feature in clips."""

    @property
    def pads(self) -> bool:
        """Whether clips may have frames outside of their episode."""

    @property
    def lookback(self) -> int:
        """The number of frames before a clip's frames that may be read for it."""

    @property
    def length(self) -> int:
        """The number of frames of a clip."""

    @property
    def key(self) -> object:
        """Equal for windows of the same frames."""

    @property
    def frame_offsets(self) -> IntArray:
        """The offsets at which a clip's frames can be, in any episode."""

    def frame_offsets_at(self, rate: int, /) -> IntArray:
        """The same, in episodes of one rate."""

    def find(self, episode: IntArray, start: IntArray, frames: ClipFrames, /) -> WindowFrames:
        """See `ClipFrames.find`."""


class FrameMapping(Protocol):
    """Clips that are lists of frames."""

    def stored(self, episode: IntArray, places: IntArray, /) -> tuple[IntArray, IntArray]:
        """The rows of episodes in the index, and their frames as they are stored."""


@dataclass(frozen=True, eq=False)
class ClipFrames:
    """Which frames clips have of each feature.

    `num_frames` is int64 of all rows of the index: how many frames each episode has. Where `draw`
    is, clips have the frames `s + offsets * dilation`, the last one first where they are reversed;
    `place` is that of these clips in the epoch, int64[n].
    With `excerpts`, episodes and frames are these and their places; `stored` says what they are of.
    """

    windows: Mapping[str, ClipWindow]
    num_frames: IntArray
    draw: DrawSteps | None = None
    excerpts: FrameMapping | None = None
    place: IntArray | None = None

    @property
    def lengths(self) -> dict[str, int]:
        """How many frames of each feature a clip has."""
        return {name: window.length for name, window in self.windows.items()}

    def by_window(self, features: Iterable[str]) -> list[tuple[str, ...]]:
        """The features in sets, of which those of one set have the same frames in every clip."""
        found: dict[object, list[str]] = {}
        for name in features:
            found.setdefault(self.windows[name].key, []).append(name)
        return [tuple(names) for names in found.values()]

    def stored(self, episode: IntArray, frames: IntArray) -> tuple[IntArray, IntArray]:
        """The rows of episodes in the index, and their frames as they are stored."""
        return (episode, frames) if self.excerpts is None else self.excerpts.stored(episode, frames)

    def has_unknown(self, feature: str) -> bool:
        """Whether clips may have frames of a feature for which nothing is known: zeros."""
        window = self.windows.get(feature)
        return isinstance(window, LatestWindow) and window.has_unknown

    def at(self, place: IntArray) -> ClipFrames:
        """For clips at these places in the epoch, int64[n]."""
        return self if self.draw is None else replace(self, place=place)

    def find(self, feature: str, episode: IntArray, start: IntArray) -> WindowFrames:
        """The frames of a feature that clips have, in the order in which a batch has them.

        The clips are given by the rows of their episodes and their starts, int64[n] each.
        """
        return self.windows[feature].find(episode, start, self)


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
        first, last = merged_intervals(frame_keys(episode, start), frame_keys(episode, stop))
        return cls(*split_keys(first), split_keys(last)[1])

    def find(self, episode: IntArray, frame: IntArray) -> tuple[npt.NDArray[np.bool_], IntArray]:
        """Which frames of episodes are missing, and in which run; there is one at least."""
        run = np.searchsorted(self._keys, frame_keys(episode, frame), side="right") - 1
        lacks = (run >= 0) & (self.episode[run] == episode) & (frame < self.stop[run])
        return lacks, run

    @cached_property
    def _keys(self) -> IntArray:
        return frame_keys(self.episode, self.start)

    def subset(self, runs: npt.NDArray[np.bool_]) -> MissingFrames:
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


def offset_range(offsets: Iterable[IntArray]) -> tuple[int, int]:
    """How many frames before and behind a clip's start there must be for all these offsets."""
    every = np.concatenate([np.zeros(1, np.int64), *offsets])
    return -int(every.min()), int(every.max())


def excluded(starts: Starts, uses: Sequence[ClipUse]) -> tuple[IntArray, IntArray]:
    """Intervals of possible clips, numbered over all selected episodes, that miss a frame.

    Missing frames `[a, b)` exclude the starts `[a - offset, b - offset)` for every offset of a use:
    separate intervals when the run is shorter than offsets are apart, else one. An episode's first
    frame is also that of all before it, and its last one of all behind, where clips use such.
    """
    selected, owners, firsts, stops = starts.selected, [], [], []
    for use in uses:
        place = np.searchsorted(selected, use.missing.episode)
        known = place < len(selected)
        known[known] = selected[place[known]] == use.missing.episode[known]
        place, start, stop = place[known], use.missing.start[known], use.missing.stop[known]
        length = stop - start
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


def merged_intervals(start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """The union of half-open intervals as disjoint ones in ascending order, empty ones dropped."""
    start, stop = start[stop > start], stop[stop > start]
    if not len(start):
        return start, stop
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(stop[order])
    opens = np.append(True, start[1:] > reach[:-1])
    closes = np.append(opens[1:], True)
    return start[opens], reach[closes]
