"""Which frames of each feature the clips of a selection have, by its options and its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqrecord.clip_frames import ClipFrames, RatedOffsets
from seqrecord.clip_times import TimedWindow
from seqrecord.clip_uses import ClipUse, MissingFrames, reach_of
from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.forks import cached_property
from seqrecord.last_known import LastKnown
from seqrecord.pipes.last_known import find_known
from seqrecord.pipes.options import ClipOptions
from seqrecord.pipes.rates import Rates
from seqrecord.pipes.timelines import Timeline
from seqrecord.pipes.windows import check_windows, said_of
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.sampling import Window
from seqrecord.seconds import Seconds

__all__ = ["SelectedWindows"]


class SelectedWindows:
    """The windows of the features of a dataset, those of `clip_len` frames among them. Picklable.

    Raises `ClipError` for windows of other features, and for seconds where a selected episode does
    not say how many frames a second it has.

    Args:
        selected: rows of the selected episodes.
    """

    is_padded: bool  # whether clips may have frames beyond the ends of their episodes
    span: int  # how many frames an episode must have for a clip, at least
    offsets: dict[str, IntArray]  # of each feature that clips have, int64[T] from their starts
    padded: list[str]  # the features of which clips say what is padding
    timed: dict[str, TimedWindow]  # those with frames by timestamps, which offsets do not tell
    rated: dict[str, RatedOffsets]  # those whose offsets differ with the episode
    known: dict[str, LastKnown]  # the features of which clips have the last known values

    def __init__(self, options: ClipOptions, dataset: SeqRecordReader, selected: IntArray) -> None:
        self._windows = {} if options.windows is None else check_windows(options.windows)
        self._others = np.arange(options.clip_len or 1)
        self._dilations = options.dilations if options.has_drawn_steps else (1,)
        if not options.has_drawn_steps:
            self._others = self._others * options.dilations[0]
        self._all_have = options.clip_len is not None
        self._dataset, self._selected = dataset, selected
        seconds = {n: w for n, w in self._windows.items() if isinstance(w, Seconds)}
        names = {w.by for w in seconds.values() if w.by is not None}
        clocks = {by: Timeline(dataset, by, selected) for by in names}
        self._timed = {n: clocks[w.by].window(w) for n, w in seconds.items() if w.by is not None}
        by_fps = {n: w for n, w in seconds.items() if n not in self._timed}
        self._rates = Rates.of(by_fps, dataset.index, selected, url=dataset.url)
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
        self.span = 1 + int(self._reach.sum(axis=1).min())

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
        rated, known = self._rates.rated, self._known
        self.rated = {n: rated[of or n] for n, of in features.items() if (of or n) in rated}
        self.known = {n: known[of or n] for n, of in features.items() if (of or n) in known}

    def uses(self) -> list[list[tuple[IntArray, list[ClipUse]]]]:
        """What clips use of the stored features, and the frames that lack one of these, with each
        of the dilations that may be drawn; of episodes of one rate, by their rows, and of others.
        """
        return [
            [
                (rows, [ClipUse(use.offsets * dilation, use.missing) for use in self._uses(rate)])
                for rate, rows in enumerate(self._rates.episodes)
            ]
            for dilation in self._dilations
        ]

    def _uses(self, rate: int) -> list[ClipUse]:
        stored = self._stored_at(rate)
        frames = ClipFrames(stored, np.zeros(0, np.int64), known=self._known)
        sets = frames.alike(stored)
        return [ClipUse(stored[names[0]], self.missing(names)) for names in sets]

    def _stored_at(self, rate: int) -> dict[str, IntArray]:
        """The offsets that clips use of each stored feature, in episodes of one rate."""
        if self._is_transformed:
            return self._stored
        offsets = self._rates.offsets
        return {n: offsets[n][rate] if n in offsets else held for n, held in self._stored.items()}

    @cached_property
    def _reach(self) -> IntArray:
        """int64[rates, 2]: how many frames before and behind a clip's start there must be."""
        found = np.zeros((len(self._rates.episodes), 2), np.int64)
        for rate in range(0 if self.is_padded else len(found)):
            every = self._stored_at(rate).values()
            found[rate] = reach_of(offsets * self._dilations[0] for offsets in every)
        return found

    @property
    def reaches(self) -> IntArray:
        """The same of each episode of the dataset, int64[E, 2].

        Of those that are not selected, 0 where windows in seconds make it differ.
        """
        found: IntArray = self._reach[self._rates.rate]
        if self._rates.offsets or self._timed:
            found[np.setdiff1d(np.arange(len(found)), self._selected)] = 0
        return found

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
        frames = ClipFrames(
            self._stored,
            self._dataset.episode_table.num_frames,
            rated={} if self._is_transformed else self._rates.rated,
        )
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
            if name in self.timed or name in self.known or name in self.rated:
                scattered.add(group)
        return [
            Window.around(
                groups[n], stride, pad=self.is_padded or n in scattered, reach=reach.get(n, 0)
            )
            for n in sorted(groups)
        ]

    def _held(self, name: str) -> IntArray:
        """The offsets at which a feature's frames are, or with timestamps can be."""
        if name in self._rates.rated:
            return np.unique(self._rates.offsets[name])
        if name not in self._timed:
            return self._offsets_of(name)
        return np.arange(self._timed[name].first, self._timed[name].last + 1)

    def said(self) -> dict[str, str]:
        """The windows as text, by feature, where there are any but those of `clip_len`."""
        return {
            name: self._rates.said.get(name, said_of(offsets))
            if name not in self._timed
            else repr(self._windows[name])
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
        if name in self._rates.offsets:
            first: IntArray = self._rates.offsets[name][0]
            return first
        return self._others if window is None else np.array(window, np.int64)
