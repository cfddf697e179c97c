"""Lags: how much time passes from a frame of an episode to a later one, at least and at most.

They bound at which frames the times of a window can lie, without any timestamp being read::

    frames later      1     2     4     8    16  …
    at least       0.09  0.19  0.39  0.79  1.59         nothing is more than 8 frames later
    at most        0.11  0.21  0.41  0.82  1.62         within 0.8 s, nor less than 7
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.feature_kinds import size_in
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.text import repr_of

Reals = npt.NDArray[np.float64]

_CLOCKS = ("timestamp", "log_time")
_LEAST_STEP, _MOST_STEP = 1e-5, 10.0  # seconds; milliseconds of 30 frames a second are 33 apart

MOST_LAGS = 13  # over 1, 2, 4, …, 4096 frames
_TAIL = 1 << (MOST_LAGS - 1)
_PENDING = 1 << 12  # timestamps that wait
_MOST = 1 << 20  # frames of a window in time
_AT_ONCE = 1 << 14  # episodes that are checked


def has_lags(spec: FeatureSpec) -> bool:
    """Whether a feature is one timestamp a frame."""
    is_time = spec.kind == "timestamp" and not spec.is_dropped
    return is_time and spec.shape in ((), (1,)) and spec.dtype.kind in "iuf"


def with_lags(schema: Schema) -> tuple[str, ...]:
    """The names of the features that are one timestamp a frame, in the order of the schema."""
    return tuple(name for name, spec in schema.items() if has_lags(spec))


def clock_of(schema: Schema) -> str | None:
    """The feature of the frames' recording times: the only timestamp of a unit of time or of
    unknown unit, or the one called `timestamp` or `log_time`; `None` if there is no such one."""
    known = [n for n in with_lags(schema) if is_unit_of_time(schema[n].unit)]
    usual = [name for name in _CLOCKS if name in known]
    return known[0] if len(known) == 1 else usual[0] if usual else None


def is_unit_of_time(unit: str | None) -> bool:
    """Whether this is a unit such as `s`, `ms` or `ns`, or unknown."""
    return unit is None or size_in(unit, "s") is not None


def is_plausible(step: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether frames can be so many seconds apart, of timestamps of unknown unit."""
    return np.asarray((np.asarray(step) >= _LEAST_STEP) & (np.asarray(step) <= _MOST_STEP))


def num_lags(num_frames: int) -> int:
    """How many of 1, 2, 4, …, 4096 frames fit between two frames of an episode."""
    return min(MOST_LAGS, (num_frames - 1).bit_length())


@dataclass(frozen=True)
class Lags:
    """The least and the most that an episode's timestamps grow in 1, 2, 4, …, 4096 frames.

    In the unit of the feature, and only over what the episode is long enough for: `num_lags`.
    """

    least: tuple[float, ...]
    most: tuple[float, ...]

    def to_text(self) -> str:
        """Least and then most as little-endian float64, in base64."""
        return base64.b64encode(np.array([*self.least, *self.most], "<f8").tobytes()).decode()

    @classmethod
    def from_text(cls, text: object, num_frames: int) -> Lags:
        """Inverse of `to_text`, for an episode of so many frames; trusts nothing.

        Raises `FormatError` for what `to_text` does not give.
        """
        count = num_lags(num_frames)
        try:
            data = base64.b64decode(str(text).encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            data = b"-"
        if isinstance(text, str) and len(data) == 16 * count:
            least, most = np.frombuffer(data, "<f8").reshape(2, count)
            if np.isfinite(least).all() and np.isfinite(most).all() and (least <= most).all():
                return cls(tuple(least.tolist()), tuple(most.tolist()))
        raise FormatError(
            "lags of timestamps that make no sense",
            expected=f"base64 of {count} finite float64 and as many that are no smaller",
            got=repr_of(text, 100),
        )


class LagCollector:
    """Collects the lags of one episode after the other, whose timestamps it sees in order."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self._least, self._most = np.full(MOST_LAGS, np.inf), np.full(MOST_LAGS, -np.inf)
        self._is_whole = True
        self._tail: npt.NDArray[Any] = np.zeros(0)
        self._pending: list[npt.NDArray[Any]] = []
        self._num_pending = self._number = 0

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """The timestamps of frames of these numbers; a real dtype [n] or [n, 1], and int64[n]."""
        if not len(numbers):
            return
        first, last = int(numbers[0]), int(numbers[-1])
        follows = first == self._number and last - first == len(numbers) - 1
        self._is_whole &= follows and bool(np.isfinite(times).all())
        self._number = last + 1
        whole = np.int64 if times.dtype.kind in "iu" else np.float64
        self._pending.append(times.reshape(-1).astype(whole))
        self._num_pending += len(numbers)
        if self._num_pending >= _PENDING:
            self._look()

    def lags(self, num_frames: int) -> Lags | None:
        """Those of the episode's frames so far, which are so many.

        `None` where one of them has no timestamp, or one that is not finite.
        """
        self._look()
        count = num_lags(num_frames)
        least, most = self._least[:count], self._most[:count]
        is_whole = self._is_whole and self._number == num_frames
        if not is_whole or not (np.isfinite(least).all() and np.isfinite(most).all()):
            return None
        return Lags(tuple(least.tolist()), tuple(most.tolist()))

    def _look(self) -> None:
        if not self._pending or not self._is_whole:
            self._pending, self._num_pending = [], 0
            return
        count = self._num_pending
        times = np.concatenate([self._tail.astype(self._pending[0].dtype), *self._pending])
        self._pending, self._num_pending = [], 0
        with np.errstate(over="ignore"):
            for i in range(num_lags(len(times))):
                step = 1 << i
                later = times[max(step, len(times) - count) :]
                grown = later - times[len(times) - len(later) - step : len(times) - step]
                self._least[i] = min(self._least[i], float(np.minimum.reduce(grown)))
                self._most[i] = max(self._most[i], float(np.maximum.reduce(grown)))
        self._tail = times[-_TAIL:].copy()


@dataclass(frozen=True, eq=False)
class EpisodeLags:
    """The lags of all episodes of a dataset: float64 [E, T, S], of T features; views of a file.

    S is `num_lags` of the longest episode, and at least 1. NaN stands for lags that an episode is
    too short for, and for all lags of one of which they are not known.
    """

    least: Reals
    most: Reals

    @classmethod
    def of(cls, rows: list[list[Lags | None]], num_features: int, longest: int) -> EpisodeLags:
        """From those of each episode and feature; `longest` frames has the longest episode."""
        shape = (len(rows), num_features, max(1, num_lags(longest)))
        least, most = np.full(shape, np.nan), np.full(shape, np.nan)
        for i, row in enumerate(rows):
            for j, lags in enumerate(row):
                if lags is not None:
                    least[i, j, : len(lags.least)] = lags.least
                    most[i, j, : len(lags.most)] = lags.most
        return cls(least, most)

    def extended(self, more: EpisodeLags) -> EpisodeLags:
        """These episodes, then those of `more`."""
        width = max(self.least.shape[2], more.least.shape[2])
        pairs = ((self.least, more.least), (self.most, more.most))
        return EpisodeLags(*(np.concatenate([_wide(a, width), _wide(b, width)]) for a, b in pairs))

    def check(self, num_frames: npt.NDArray[np.int64]) -> None:
        """Raise `FormatError` unless these can be lags of episodes of so many frames, int64 [E]."""
        for first in range(0, len(num_frames), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            least, most = self.least[rows], self.most[rows]
            there = np.arange(least.shape[2]) < _counts(num_frames[rows])[:, None, None]
            known = ~np.isnan(least[:, :, :1]) & there
            fits = np.isnan(least) & np.isnan(most)
            fits[known] = (np.abs(least) < np.inf)[known] & (np.abs(most) < np.inf)[known]
            fits &= ~known | (least <= most)
            if not fits.all():
                row = first + int(np.argmin(fits.all(axis=(1, 2))))
                raise FormatError(
                    "lags of timestamps that make no sense", offset=0, got=f"row {row}"
                )

    def unknown(self, rows: npt.NDArray[np.int64], feature: int) -> npt.NDArray[np.int64]:
        """Those of these episodes, int64 [n], of which no bound is known: timestamps that do not
        ascend among them. One frame alone has no lags and needs none."""
        known: npt.NDArray[np.bool_] = self.least[rows, feature, 0] > 0
        return rows[~known]

    def mean_steps(self, rows: npt.NDArray[np.int64], feature: int) -> Reals:
        """About how far apart the frames of these episodes are, float64 [n]; NaN if unknown."""
        last = np.zeros(len(rows), np.int64)
        for place in range(1, self.least.shape[2]):
            last[~np.isnan(self.least[rows, feature, place])] = place
        found: Reals = self.least[rows, feature, last] + self.most[rows, feature, last]
        return found / (2 << last)

    def contradict(
        self, rows: npt.NDArray[np.int64], feature: int, steps: Reals
    ) -> npt.NDArray[np.bool_]:
        """Whether the timestamps of these episodes cannot be within a quarter of a step of those of
        frames so far apart, float64 [n] in the feature's unit; bool [n]."""
        found = np.zeros(len(rows), np.bool_)
        for place in range(self.least.shape[2]):
            for lags in (self.least, self.most):
                off = np.abs(lags[rows, feature, place] / steps - (1 << place))
                found |= off > 0.5 * (1 + 1e-6)
        return found

    def frames_within(
        self, rows: npt.NDArray[np.int64], feature: int, time: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many frames later the last frame is that lies at most `time` later, 0 or more.

        At least, unless the episode ends before, and at most so many, in each of these episodes,
        int64 [n]. No bound is above 2^20.
        """
        most = _count(self.most[rows, feature], time)
        return most, _count(self.least[rows, feature], time)


def _counts(num_frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`num_lags` of each."""
    powers = 1 << np.arange(MOST_LAGS)
    found: npt.NDArray[np.int64] = np.searchsorted(powers, num_frames, side="left")
    return found


def _wide(lags: Reals, width: int) -> Reals:
    found = np.full((*lags.shape[:2], width), np.nan)
    found[:, :, : lags.shape[2]] = lags
    return found


def _count(lags: Reals, time: float) -> npt.NDArray[np.int64]:
    """The most frames for which the sum of such lags, one for each power of two, is at most `time`.

    Of each episode, float64 [n, S], NaN where it is too short. The least that timestamps grow over
    a number of frames is at least the sum of the least for its parts, and the most is at most the
    sum of the most.
    """
    left, found = np.full(len(lags), time), np.zeros(len(lags), np.int64)
    longest = np.ones(len(lags), bool)  # the longest lag counts as often as it fits
    for i in range(lags.shape[1] - 1, -1, -1):
        lag = lags[:, i]
        is_there = lag > 0
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            times = np.where(longest, np.minimum(left // lag, _MOST), lag <= left)
        times = np.where(is_there, times, 0)
        left = left - np.where(is_there, times * np.where(is_there, lag, 0), 0)
        found += times.astype(np.int64) << i
        longest &= ~is_there
    return np.minimum(found, _MOST)
