"""Collects the statistics of frames that pass by, at about the speed of memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.schema import EncodedImage, FeatureSpec, Schema
from seqrecord.statistics.by_feature import FeatureStatistics, Statistics, num_channels
from seqrecord.statistics.moments import moments_of
from seqrecord.statistics.sketch import Sketch, sketch_dtype

FRAME_PIXELS = 128  # of a frame, drawn for quantiles
_PENDING_ROWS = 1 << 14  # of a feature, before they are sketched: sorting many at once pays
_PENDING_VALUES = 1 << 20  # or so many
_SEED = 0
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie evenly between 0 and 1


class StatisticsCollector:
    """Statistics of the frames of episodes, up to the last `keep` of each.

    All numbers are counted, and are in means, deviations and extremes. Which pixels of large frames
    are drawn for quantiles depends on the episode's key and the frame's number alone: not on the
    worker that sees it, nor on what it saw before. Without a schema nothing is looked at.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._features: Mapping[str, FeatureSpec] = {} if schema is None else schema.active
        self._base = _base_shares()
        self._num_frames = 0
        self._all = {
            name: _Feature(spec, count)
            for name, spec in self._features.items()
            if (count := num_channels(spec)) is not None
        }
        self._flushed: dict[str, _Feature] = {}  # what was kept of the episode
        self._episode: dict[str, _Feature] = {}  # what came since
        self._phase = 0.0
        self._number = 0  # frames of the episode so far
        self._kept = 0  # of these

    @property
    def names(self) -> frozenset[str]:
        """The features that are looked at."""
        return frozenset(self._all)

    def begin(self, key: str) -> None:
        """Start an episode; forget what was not kept of the one before."""
        self._settle()
        self._episode = {}
        self._phase = zlib.crc32(key.encode()) / 2**32
        self._number = self._kept = 0

    def add(self, frame: Mapping[str, Any]) -> None:
        """Look at the episode's next frame, which fits the schema. Nothing of it is kept.

        Features that it lacks may come in `add_frames`.
        """
        for name, item in frame.items():
            if isinstance(item, EncodedImage):
                self.leave_out(name)  # decoding it would take longer than storing it
            elif name in self._all:
                self.add_frames(name, np.asarray(item)[None], np.array([self._number]))
        self._number += 1

    def leave_out(self, name: str) -> None:
        """Frames of the episode have a feature that is not looked at: it has no statistics."""
        if (feature := self._of_episode(name)) is not None:
            feature.is_whole = False

    def add_frames(
        self, name: str, frames: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> None:
        """Look at one feature of frames [n, …] of the episode, of these numbers [n].

        They count as frames by `add` or `skip`. Nothing of the array is kept.
        """
        if (feature := self._of_episode(name)) is None:
            return
        shares = None
        if frames.size > len(frames) * feature.channels * FRAME_PIXELS:
            phases = (self._phase + numbers * _GOLDEN) % 1
            shares = (self._base + phases[:, None]) % 1
        feature.add(frames, shares)

    def skip(self, count: int) -> None:
        """So many frames of the episode have passed by."""
        self._number += count

    def keep(self) -> None:
        """The episode's frames so far count, unless it is discarded."""
        _merge(self._flushed, self._episode)
        self._kept = self._number

    def discard(self) -> None:
        """Forget the episode, and what was kept of it."""
        self._episode, self._flushed = {}, {}
        self._number = self._kept = 0

    def _settle(self) -> None:
        """The episode before has ended: what was kept of it counts."""
        _merge(self._all, self._flushed)
        self._num_frames += self._kept
        self._kept = 0

    def statistics(self) -> Statistics:
        """Those of all frames that were kept."""
        self._settle()
        return Statistics(
            self._num_frames,
            {name: feature.statistics() for name, feature in self._all.items() if feature.is_whole},
        )

    def _of_episode(self, name: str) -> _Feature | None:
        """What is seen of a feature in the episode; `None` for one that is not looked at."""
        if name not in self._episode and name in self._all:
            self._episode[name] = _Feature(self._features[name], self._all[name].channels)
        return self._episode.get(name)


def _merge(into: dict[str, _Feature], more: dict[str, _Feature]) -> None:
    """Take what `more` has seen, which is empty then."""
    for name, feature in more.items():
        if name in into:
            into[name].merge(feature)
        else:
            into[name] = feature
    more.clear()


class _Feature:
    """One feature's sketches, and the rows of numbers [n, C] that wait to be sketched: all numbers
    of frames, and those drawn of frames whose moments are in the sketches already."""

    def __init__(self, spec: FeatureSpec, channels: int) -> None:
        dtype = sketch_dtype(spec.dtype)
        assert dtype is not None, "a feature without statistics"
        self.is_whole = True  # no frame was left out
        self.channels = channels
        self._dtype = dtype
        self._num_frames = 0
        self._sketches: list[Sketch] = []  # of each channel, once there is something to sketch
        self._pending: dict[bool, list[npt.NDArray[Any]]] = {False: [], True: []}  # drawn or not
        self._pending_values = 0

    def add(self, frames: npt.NDArray[Any], shares: npt.NDArray[np.float64] | None) -> None:
        """Take the pixels of frames [n, …]; for quantiles all, or those at shares [n, pixels] of
        their number."""
        num_frames = len(frames)
        self._num_frames += num_frames
        if not frames.size:
            return
        rows = np.ascontiguousarray(frames, self._dtype).reshape(-1, self.channels)
        if shares is not None:
            for sketch, moments in zip(self._made(), moments_of(rows), strict=True):
                sketch.add_moments(moments)
            count = len(rows) // num_frames
            places = (shares * count).astype(np.intp) + np.arange(num_frames)[:, None] * count
            rows = rows.take(places.ravel(), axis=0)
        elif np.shares_memory(rows, frames):
            rows = rows.copy()
        self._pending[shares is not None].append(rows)
        self._pending_values += rows.size
        self._flush_if_many()

    def merge(self, other: _Feature) -> None:
        """Add what another has seen, which is then not used any more."""
        self.is_whole &= other.is_whole
        self._num_frames += other._num_frames
        if other._sketches:
            for sketch, more in zip(self._made(), other._sketches, strict=True):
                sketch.merge(more)
        for drawn, rows in other._pending.items():
            self._pending[drawn] += rows
        self._pending_values += other._pending_values
        self._flush_if_many()

    def statistics(self) -> FeatureStatistics:
        self._flush()
        sketches = tuple(sketch.copy() for sketch in self._made())
        return FeatureStatistics(self._num_frames, sketches)

    def _flush_if_many(self) -> None:
        many = min(_PENDING_ROWS * self.channels, _PENDING_VALUES)
        if self._pending_values >= many:
            self._flush()

    def _flush(self) -> None:
        for drawn, pending in self._pending.items():
            if not pending:
                continue
            columns = np.empty((self.channels, sum(map(len, pending))), self._dtype)
            np.concatenate([rows.T for rows in pending], axis=1, out=columns)
            pending.clear()
            for sketch, column in zip(self._made(), columns, strict=True):
                (sketch.add_drawn if drawn else sketch.add)(column, in_place=True)
        self._pending_values = 0

    def _made(self) -> list[Sketch]:
        self._sketches = self._sketches or [Sketch(self._dtype) for _ in range(self.channels)]
        return self._sketches


def _base_shares() -> npt.NDArray[np.float64]:
    """Shares from 0 to 1, one drawn in each of so many equal parts: float64 [FRAME_PIXELS]."""
    drawn = np.random.default_rng(_SEED).random(FRAME_PIXELS)
    return (np.arange(FRAME_PIXELS) + drawn) / FRAME_PIXELS
