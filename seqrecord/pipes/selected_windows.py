"""Which frames of each feature the clips of a selection have, by its options and its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqrecord.clip_frames import (
    ClipFrames,
    ClipWindow,
    KnownWindow,
    OffsetWindow,
    TimedWindow,
    alike,
)
from seqrecord.clip_uses import ClipUse, MissingFrames, reach_of
from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.forks import cached_property
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
    of: dict[str, ClipWindow]  # of each feature that clips have
    padded: list[str]  # the features of which clips say what is padding
    aged: list[str]  # those of which they say how old values are

    def __init__(self, options: ClipOptions, dataset: SeqRecordReader, selected: IntArray) -> None:
        self._dataset, self._selected = dataset, selected
        self._dilations = options.dilations if options.has_drawn_steps else (1,)
        self._all_have = options.clip_len is not None
        self.is_padded = options.pad is not None
        self._is_transformed = options.frame_transform is not None
        self._asked = {} if options.windows is None else check_windows(options.windows)
        step = 1 if options.has_drawn_steps else options.dilations[0]
        self._others = OffsetWindow.of(np.arange(options.clip_len or 1) * step)
        self._windows = self._find(options)
        if self._is_transformed:  # which needs all stored features, of every window
            every = [window.held for window in (self._others, *self._windows.values())]
            whole = OffsetWindow.of(np.unique(np.concatenate(every)))
            self._stored: dict[str, ClipWindow] = dict.fromkeys(dataset.features, whole)
        else:
            self.give(dict.fromkeys(dataset.features))
            self._stored = self.of
        self.span = 1 + int(self._reach.sum(axis=1).min())

    def _find(self, options: ClipOptions) -> dict[str, ClipWindow]:
        """The windows of features that do not have `clip_len` frames, each the newest."""
        dataset, selected = self._dataset, self._selected
        found: dict[str, OffsetWindow | TimedWindow] = {}
        seconds: dict[str, Seconds] = {}  # by frames a second
        clocks: dict[str, Timeline] = {}
        for name, window in self._asked.items():
            if not isinstance(window, Seconds):
                found[name] = OffsetWindow.of(window)
            elif window.by is None:
                seconds[name] = window
            else:
                if window.by not in clocks:
                    clocks[window.by] = Timeline(dataset, window.by, selected)
                found[name] = clocks[window.by].window(window)
        self._rates = Rates.of(seconds, dataset.index, selected, url=dataset.url)
        found |= self._rates.windows
        names = list(options.last_known or ())
        if wrong := [name for name in names if name not in dataset.features]:
            raise ClipError(
                "last_known has a feature that is not read",
                file=dataset.url,
                expected=", ".join(dataset.features),
                got=", ".join(wrong)[:200],
            )
        if names and self._is_transformed:
            raise ClipError(
                "last_known does not go with frame_transform, which needs whole frames",
                file=dataset.url,
                expected="clip_transform, or no last_known",
                got=", ".join(names),
            )
        most = options.last_known if isinstance(options.last_known, Mapping) else {}
        known: dict[str, ClipWindow] = {}
        for name in names:
            missing = dataset.select([name]).missing_frames()
            known[name] = KnownWindow(
                found.get(name, self._others),
                missing.taken(np.isin(missing.episode, selected)),
                most.get(name),
                options.unknown is not None,
            )
        return {**found, **known}

    def give(self, features: Mapping[str, str | None]) -> None:
        """Say which features clips have: others than those stored, where frames are transformed.

        A feature that is the mask of another has that one's name here, and its window.
        """
        names = [name for name, mask_of in features.items() if mask_of is None]
        if unknown := [name for name in self._asked if name not in names]:
            raise ClipError(
                "windows has a feature that clips do not have",
                file=self._dataset.url,
                expected=", ".join(names),
                got=", ".join(unknown)[:200],
            )
        self.of = {n: self._windows.get(of or n, self._others) for n, of in features.items()}
        self.padded = [
            name
            for name in names
            if (self.is_padded and (self._all_have or name in self._asked)) or self.of[name].pads
        ]
        self.aged = [name for name in names if isinstance(self.of[name], KnownWindow)]

    def uses(self) -> list[list[tuple[IntArray, list[ClipUse]]]]:
        """What clips use of the stored features, and the frames that lack one of these, with each
        of the dilations that may be drawn; of episodes of one rate, by their rows, and of others.
        """
        sets = [(names, self.missing(names)) for names in alike(self._stored, self._stored)]
        return [
            [
                (rows, [ClipUse(self._stored[n[0]].held_at(rate) * d, lack) for n, lack in sets])
                for rate, rows in enumerate(self._rates.episodes)
            ]
            for d in self._dilations
        ]

    @cached_property
    def _reach(self) -> IntArray:
        """int64[rates, 2]: how many frames before and behind a clip's start there must be."""
        found = np.zeros((len(self._rates.episodes), 2), np.int64)
        for rate in range(0 if self.is_padded else len(found)):
            every = (window.held_at(rate) for window in self._stored.values())
            found[rate] = reach_of(offsets * self._dilations[0] for offsets in every)
        return found

    @property
    def reaches(self) -> IntArray:
        """The same of each episode of the dataset, int64[E, 2].

        Of those that are not selected, 0 where windows in seconds make it differ.
        """
        found: IntArray = self._reach[self._rates.rate]
        if any(isinstance(window, Seconds) for window in self._asked.values()):
            found[np.setdiff1d(np.arange(len(found)), self._selected)] = 0
        return found

    def missing(self, features: Sequence[str]) -> MissingFrames:
        """The frames that lack one of the stored features, of which clips have the same frames.

        Of last known values, those for which there is none.
        """
        if isinstance(window := self._stored[features[0]], KnownWindow):
            return window.unknown
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
        groups: dict[int, list[ClipWindow]] = {}
        for name, window in self.of.items():
            if self._is_transformed or name in self._dataset.features:  # no mask of another one
                group = 0 if self._is_transformed else self._dataset.features[name].group
                groups.setdefault(group, []).append(window)
        found = []
        for _, windows in sorted(groups.items()):
            held = [window.held * dilation for window in windows for dilation in self._dilations]
            is_even = all(isinstance(w, OffsetWindow) and w.rate is None for w in windows)
            reach = max(window.reach for window in windows)
            pad = self.is_padded or not is_even
            found.append(Window.around(held, stride, pad=pad, reach=reach))
        return found

    def said(self) -> dict[str, str]:
        """The windows as text, by feature, where there are any but those of `clip_len`."""
        return {
            name: repr(window)
            if isinstance(window, Seconds) and window.by is not None
            else self._rates.said.get(name) or said_of(self._windows[name].held)
            for name, window in sorted(self._asked.items())
        }

    @property
    def said_names(self) -> list[str]:
        """Names of what clips tell of their frames."""
        return [f"{n}_is_pad" for n in self.padded] + [f"{n}_age" for n in self.aged]

    def said_of_known(self) -> dict[str, Any]:
        """By feature of which clips have the last known values, how old these may be, and whether
        there are clips for which nothing is known."""
        known = sorted((n, w) for n, w in self._windows.items() if isinstance(w, KnownWindow))
        return {name: [window.most, window.has_unknown] for name, window in known}
