"""Computes statistics of frames while they are written or read, near memory bandwidth."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.bfloat16 import numbers_of
from seqrecord.store.feature_kinds import is_vector
from seqrecord.store.schema import EncodedImage, FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import (
    FeatureStatistics,
    NonFinite,
    Statistics,
    add_non_finite,
    num_channels,
)
from seqrecord.store.statistics.moments import moments_of
from seqrecord.store.statistics.sketch import Sketch, sketch_dtype

FRAME_PIXELS = 128  # pixels drawn from a frame for quantiles
_PENDING_ROWS = 1 << 14  # rows of a feature per sketch update: sorting many at once is faster
_PENDING_VALUES = 1 << 20  # or values
_SEED = 0
_GOLDEN = 0.6180339887498949  # multiples modulo 1 are evenly spread over [0, 1)


class StatisticsCollector:
    """Accumulates statistics of episodes; frames count up to the last `keep` of each episode.

    Counts, means, deviations and extremes use all numbers. The pixels drawn for quantiles depend on
    episode key and frame number only, not on the worker or on earlier frames. Without a schema, all
    frames are ignored.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._features: Mapping[str, FeatureSpec] = {} if schema is None else schema.active
        # A random position in each of FRAME_PIXELS equal intervals of [0, 1): float64.
        jitter = np.random.default_rng(_SEED).random(FRAME_PIXELS)
        self._base = (np.arange(FRAME_PIXELS) + jitter) / FRAME_PIXELS
        self._num_frames = 0
        self._totals = {
            name: _Feature(spec, count)
            for name, spec in self._features.items()
            if (count := num_channels(spec)) is not None
        }
        self._flushed: dict[str, _Feature] = {}  # frames of the episode before the last `keep`
        self._episode: dict[str, _Feature] = {}  # frames of the episode since
        self._key = ""
        self._phase = 0.0
        self._number = 0  # number of the episode's next frame
        self._num_kept = 0  # frames of the episode before the last `keep`

    @property
    def names(self) -> frozenset[str]:
        """Names of the features with statistics."""
        return frozenset(self._totals)

    def begin(self, key: str, number: int = 0) -> None:
        """Start an episode; discard frames of the previous one since its last `keep`.

        `number` is its first frame's: negative for frames before the start of a trimmed episode.
        """
        self._end_episode()
        self._episode = {}
        self._key = key
        self._phase = zlib.crc32(key.encode()) / 2**32
        self._number, self._num_kept = number, 0

    def add(self, frame: Mapping[str, Any]) -> None:
        """Add the episode's next frame, which matches the schema. The arrays are not retained.

        Features absent from the frame may follow by `add_frames`.
        """
        for name, item in frame.items():
            if isinstance(item, EncodedImage):
                self.exclude(name)  # decoding takes longer than storing
            elif name in self._totals:
                self.add_frames(name, np.asarray(item)[None], np.array([self._number]))
        self._number += 1

    def exclude(self, name: str) -> None:
        """Exclude a feature from the statistics, because frames of the episode are ignored."""
        if (feature := self._episode_feature(name)) is not None:
            feature.is_whole = False

    def add_frames(
        self, name: str, frames: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> None:
        """Add frames [n, …] of one feature; `numbers` [n] are the frame numbers.

        The frames must also be counted, by `add` or `skip`. The array is not retained.
        """
        if (feature := self._episode_feature(name)) is None:
            return
        shares = None
        if frames.size > len(frames) * feature.channels * FRAME_PIXELS:
            phases = (self._phase + numbers * _GOLDEN) % 1
            shares = (self._base + phases[:, None]) % 1
        feature.add(frames, shares, numbers)

    def skip(self, count: int) -> None:
        """Count `count` frames of the episode without looking at their features."""
        self._number += count

    def keep(self) -> None:
        """Include the episode's frames so far, unless it is discarded later."""
        for feature in self._episode.values():
            feature.find_non_finite()
        _merge(self._flushed, self._episode)
        self._num_kept = self._number

    def non_finite(self) -> dict[str, NonFinite]:
        """NaN and infinities by feature, in the kept frames of the current episode."""
        features = self._flushed.items()
        return {name: feature.non_finite[0] for name, feature in features if feature.non_finite}

    def discard(self) -> None:
        """Discard all frames of the episode, including kept ones."""
        self._episode, self._flushed = {}, {}
        self._number = self._num_kept = 0

    def _end_episode(self) -> None:
        """End the previous episode: include its kept frames."""
        _merge(self._totals, self._flushed)
        self._num_frames += self._num_kept
        self._num_kept = 0

    def statistics(self) -> Statistics:
        """Statistics of all included frames."""
        self._end_episode()
        return Statistics(
            self._num_frames,
            {
                name: feature.statistics()
                for name, feature in self._totals.items()
                if feature.is_whole
            },
        )

    def _episode_feature(self, name: str) -> _Feature | None:
        """Accumulator of a feature in the episode; `None` for a feature without statistics."""
        if name not in self._episode and name in self._totals:
            channels = self._totals[name].channels
            self._episode[name] = _Feature(self._features[name], channels, self._key)
        return self._episode.get(name)


def _merge(into: dict[str, _Feature], additions: dict[str, _Feature]) -> None:
    """Move the contents of `more` to `into`."""
    for name, feature in additions.items():
        if name in into:
            into[name].merge(feature)
        else:
            into[name] = feature
    additions.clear()


class _Feature:
    """Sketches of one feature, and pending rows [n, C] that are not in the sketches yet.

    Pending rows are whole frames, or pixels drawn from frames whose moments were added already.
    """

    def __init__(self, spec: FeatureSpec, channels: int, episode: str = "") -> None:
        dtype = sketch_dtype(spec.dtype)
        assert dtype is not None, "a feature without statistics"
        self.is_whole = True  # no frame was ignored
        self.channels = channels
        self._dtype = dtype
        self._num_frames = 0
        self._sketches: list[Sketch] = []  # one per channel, made at first use
        self._rows: dict[bool, list[npt.NDArray[Any]]] = {False: [], True: []}  # by whether drawn
        self._num_values = 0
        self.non_finite: list[NonFinite] = []
        self._key = episode
        self._is_vector = is_vector(spec)
        self._unchecked: list[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]] = []

    def add(
        self,
        frames: npt.NDArray[Any],
        shares: npt.NDArray[np.float64] | None,
        numbers: npt.NDArray[np.int64],
    ) -> None:
        """Add the pixels of frames [n, …] with their numbers in the episode.

        Quantiles use all pixels, or those at `shares` [n, pixels], positions in [0, 1) of a frame.
        """
        num_frames = len(frames)
        self._num_frames += num_frames
        if not frames.size:
            return
        frames = numbers_of(frames)
        rows = np.ascontiguousarray(frames, self._dtype).reshape(-1, self.channels)
        is_kept = shares is None or self._is_vector
        if is_kept and np.shares_memory(rows, frames):
            rows = rows.copy()
        if self._is_vector:
            self._unchecked.append((rows, numbers))
        if shares is not None:
            for sketch, moments in zip(self._channel_sketches(), moments_of(rows), strict=True):
                sketch.add_moments(moments)
            count = len(rows) // num_frames
            places = (shares * count).astype(np.intp) + np.arange(num_frames)[:, None] * count
            rows = rows.take(places.ravel(), axis=0)
        self._rows[shares is not None].append(rows)
        self._num_values += rows.size
        self._flush_if_many()

    def merge(self, other: _Feature) -> None:
        """Add the contents of `other`, which must not be used afterwards."""
        self.is_whole &= other.is_whole
        add_non_finite(self.non_finite, other.non_finite)
        self._num_frames += other._num_frames
        if other._sketches:
            for sketch, addition in zip(self._channel_sketches(), other._sketches, strict=True):
                sketch.merge(addition)
        for is_drawn, rows in other._rows.items():
            self._rows[is_drawn] += rows
        self._num_values += other._num_values
        self._flush_if_many()

    def statistics(self) -> FeatureStatistics:
        self._flush()
        sketches = tuple(sketch.as_dtype(self._dtype) for sketch in self._channel_sketches())
        return FeatureStatistics(self._num_frames, sketches, tuple(self.non_finite))

    def find_non_finite(self) -> None:
        """Note the episode's frames with NaN or infinities, of the frames added since."""
        if not self._unchecked:
            return
        (rows, numbers), self._unchecked = zip(*self._unchecked, strict=True), []
        place = NonFinite.of(self._key, np.concatenate([*rows]), np.concatenate([*numbers]))
        if place is not None:
            add_non_finite(self.non_finite, [place])

    def _flush_if_many(self) -> None:
        limit = min(_PENDING_ROWS * self.channels, _PENDING_VALUES)
        if self._num_values >= limit:
            self._flush()

    def _flush(self) -> None:
        self.find_non_finite()
        for is_drawn, arrays in self._rows.items():
            if not arrays:
                continue
            columns = np.empty((self.channels, sum(map(len, arrays))), self._dtype)
            np.concatenate([rows.T for rows in arrays], axis=1, out=columns)
            arrays.clear()
            for sketch, column in zip(self._channel_sketches(), columns, strict=True):
                (sketch.add_drawn if is_drawn else sketch.add)(column, in_place=True)
        self._num_values = 0

    def _channel_sketches(self) -> list[Sketch]:
        self._sketches = self._sketches or [Sketch(self._dtype) for _ in range(self.channels)]
        return self._sketches
