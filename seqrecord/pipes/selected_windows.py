"""Which frames of each feature the clips of a selection have, by its options and its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.clip_frames import ClipFrames
from seqrecord.clip_times import TimedWindow
from seqrecord.clip_uses import ClipUse, MissingFrames, reach_of
from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.last_known import LastKnown
from seqrecord.pipes.last_known import find_known
from seqrecord.pipes.options import ClipOptions
from seqrecord.pipes.timelines import Timeline
from seqrecord.pipes.windows import check_windows, said_of
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.sampling import Window
from seqrecord.seconds import Seconds

__all__ = ["SelectedWindows"]


class SelectedWindows:
    """The windows of the features of a dataset, those of `clip_len` frames among them. Picklable.

    Raises `ClipError` for windows of other features, and for seconds where the selected episodes do
    not all say the same number of frames a second.

    Args:
        selected: rows of the selected episodes.
    """

    is_padded: bool  # whether clips may have frames beyond the ends of their episodes
    reach: tuple[int, int]  # how many frames before and behind a clip's start there must be
    offsets: dict[str, IntArray]  # of each feature that clips have, int64[T] from their starts
    padded: list[str]  # the features of which clips say what is padding
    timed: dict[str, TimedWindow]  # those with frames by timestamps, which offsets do not tell
    known: dict[str, LastKnown]  # the features of which clips have the last known values

    def __init__(self, options: ClipOptions, dataset: SeqRecordReader, selected: IntArray) -> None:
        self._windows = {} if options.windows is None else check_windows(options.windows)
        self._others = np.arange(options.clip_len or 1)
        self._dilations = options.dilations if options.has_drawn_steps else (1,)
        if not options.has_drawn_steps:
            self._others = self._others * options.dilations[0]
        self._all_have = options.clip_len is not None
        self._dataset, self._fps = dataset, 0.0
        seconds = {n: w for n, w in self._windows.items() if isinstance(w, Seconds)}
        names = {w.by for w in seconds.values() if w.by is not None}
        clocks = {by: Timeline(dataset, by, selected) for by in names}
        self._timed = {n: clocks[w.by].window(w) for n, w in seconds.items() if w.by is not None}
        if len(self._timed) < len(seconds):
            index = dataset.index
            self._fps = frames_per_second(index.fps, selected, index.keys, url=dataset.url)
        self.is_padded = options.pad is not None
        self._known = find_known(options.last_known, options.unknown, dataset, selected)
        self._is_transformed = options.frame_transform is not None
        if self._known and self._is_transformed:
            raise ClipError(
                "last_known does not go with frame_transform, which needs whole frames",
                file=dataset.url,
                expected="clip_transform, or no last_known",
                got=", ".join(self._known),
            )
        if self._is_transformed:  # which needs all stored features, of every window
            found = [self._held(name) for name in self._windows]
            every = np.unique(np.concatenate([self._others, *found]))
            self._stored = dict.fromkeys(dataset.features, every)
        else:
            self.give(dict.fromkeys(dataset.features))
            self._stored = {name: self._held(name) for name in dataset.features}
        nearest = (offsets * self._dilations[0] for offsets in self._stored.values())
        self.reach = (0, 0) if self.is_padded else reach_of(nearest)

    @property
    def span(self) -> int:
        """How many frames an episode must have for a clip."""
        return sum(self.reach) + 1

    def give(self, features: Mapping[str, str | None]) -> None:
        """Say which features clips have: others than those stored, where frames are transformed.

        A feature that is the mask of another has that one's name here, and its window.
        """
        names = [name for name, mask_of in features.items() if mask_of is None]
        if unknown := [name for name in self._windows if name not in names]:
            raise ClipError(
                "windows has a feature that clips do not have",
                file=self._dataset.url,
                expected=", ".join(names),
                got=", ".join(unknown)[:200],
            )
        self.offsets = {name: self._offsets_of(of or name) for name, of in features.items()}
        self.timed = {
            n: self._timed[of or n] for n, of in features.items() if (of or n) in self._timed
        }
        self.padded = [
            name
            for name in names
            if (self.is_padded and (self._all_have or name in self._windows))
            or (name in self.timed and self.timed[name].pads)
        ]
        known = self._known
        self.known = {n: known[of or n] for n, of in features.items() if (of or n) in known}

    def uses(self) -> list[list[ClipUse]]:
        """What clips use of the stored features, and the frames that lack one of these, with each
        of the dilations that may be drawn."""
        return [
            [ClipUse(use.offsets * dilation, use.missing) for use in self._uses]
            for dilation in self._dilations
        ]

    @cached_property
    def _uses(self) -> list[ClipUse]:
        frames = ClipFrames(self._stored, np.zeros(0, np.int64), known=self._known)
        sets = frames.alike(self._stored)
        return [ClipUse(self._stored[names[0]], self.missing(names)) for names in sets]

    def missing(self, features: Sequence[str]) -> MissingFrames:
        """The frames that lack one of the stored features, of which clips have the same frames.

        Of last known values, those for which there is none.
        """
        if (known := self._known.get(features[0])) is not None:
            return MissingFrames.none() if known.has_unknown else known.unknown
        if len(features) == len(self._dataset.features):
            return self._dataset.missing_frames()
        return self._dataset.select(features).missing_frames()

    def first_frame(self, episode: IntArray, start: IntArray) -> tuple[int, int]:
        """Of the first of some clips, its episode and one of its frames; it has all features of
        that one."""
        frames = ClipFrames(self._stored, self._dataset.episode_table.num_frames)
        found = frames.find(next(iter(self._stored)), episode, start)
        return int(episode[0]), int(found.frames[0, 0])

    def of_groups(self, stride: int) -> list[Window]:
        """What clips use of each group of features; of one, where frames are transformed."""
        groups: dict[int, list[IntArray]] = {}
        reach: dict[int, int] = {}
        scattered: set[int] = set()  # groups of which clips do not use evenly spaced frames
        for name in self.offsets:
            if not self._is_transformed and name not in self._dataset.features:
                continue  # the mask of another one
            group = 0 if self._is_transformed else self._dataset.features[name].group
            every = [self._held(name) * dilation for dilation in self._dilations]
            groups.setdefault(group, []).extend(every)
            if name in self.known:
                reach[group] = max(reach.get(group, 0), self.known[name].reach)
            if name in self.timed or name in self.known:
                scattered.add(group)
        return [
            Window.around(
                groups[n], stride, pad=self.is_padded or n in scattered, reach=reach.get(n, 0)
            )
            for n in sorted(groups)
        ]

    def _held(self, name: str) -> IntArray:
        """The offsets at which a feature's frames are, or with timestamps can be."""
        if name not in self._timed:
            return self._offsets_of(name)
        return np.arange(self._timed[name].first, self._timed[name].last + 1)

    def said(self) -> dict[str, str]:
        """The windows as text, by feature, where there are any but those of `clip_len`."""
        return {
            name: repr(self._windows[name]) if name in self._timed else said_of(offsets)
            for name in sorted(self._windows)
            for offsets in [self._offsets_of(name)]
        }

    @property
    def said_names(self) -> list[str]:
        """Names of what clips tell of their frames."""
        return [f"{n}_is_pad" for n in self.padded] + [f"{n}_age" for n in self._known]

    def said_of_known(self) -> dict[str, Any]:
        """By feature of which clips have the last known values, how old these may be, and whether
        there are clips for which nothing is known."""
        return {name: [k.most, k.has_unknown] for name, k in sorted(self._known.items())}

    def _offsets_of(self, name: str) -> IntArray:
        window = self._windows.get(name)
        if name in self._timed:
            return np.zeros(len(self._timed[name].times), np.int64)
        if isinstance(window, Seconds):
            return window.offsets(self._fps, name)
        return self._others if window is None else np.array(window, np.int64)


def frames_per_second(
    fps: npt.NDArray[np.float64], selected: IntArray, keys: pa.StringArray, *, url: str
) -> float:
    """What the selected episodes say, by what each does, float64[episodes]; 0 where it does not.

    Raises `ClipError` where one says nothing, or not the same as the others.
    """
    said: Any = fps[selected]
    wrong = np.flatnonzero((said == 0) | (said != said[:1]))
    if len(wrong):
        at = int(wrong[0])
        first = f"{said[0]:g} frames a second, as the first episode" if said[0] else "an fps"
        raise ClipError(
            "Seconds need episodes that say one number of frames a second",
            file=url,
            episode=str(keys[int(selected[at])].as_py()),
            expected=first,
            got=f"{said[at]:g}" if said[at] else "none",
        )
    return float(said[0]) if len(said) else 1.0
