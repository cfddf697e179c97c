"""Bounds on the time between frames of an episode, for windows in seconds.

Each entry bounds the time from a frame to the frame k later, for k = 1, 2, 4, …. They limit the
frames of a time window without reading any timestamp::

    frames later      1     2     4     8    16  …
    minimum        0.09  0.19  0.39  0.79  1.59         0.8 s span at most 8 frames
    maximum        0.11  0.21  0.41  0.82  1.62         and at least 7
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.text import repr_of

Reals = npt.NDArray[np.float64]

CLOCKS = ("timestamp", "log_time")
_LEAST_STEP, _MOST_STEP = 1e-5, 10.0  # seconds; milliseconds at 30 fps would be 33 apart

MAX_TIME_SPANS = 13  # over 1, 2, 4, …, 4096 frames
_TAIL = 1 << (MAX_TIME_SPANS - 1)
_PENDING = 1 << 12  # buffered timestamps
_MOST = 1 << 20  # frames of a time window
_AT_ONCE = 1 << 14  # episodes checked at a time


def is_timestamp(spec: FeatureSpec) -> bool:
    """Return whether a feature is one timestamp per frame."""
    is_time = spec.kind == "timestamp" and not spec.is_dropped
    return is_time and spec.shape in ((), (1,)) and spec.dtype.kind in "iuf"


def timestamp_features(schema: Schema) -> tuple[str, ...]:
    """Return the names of features with one timestamp per frame, in schema order."""
    return tuple(name for name, spec in schema.items() if is_timestamp(spec))


def clock_of(schema: Schema) -> str | None:
    """Return the feature with the frames' recording times, or `None`.

    It is the only timestamp feature with a unit of time or without a unit. Among several, it is the
    one named `timestamp` or `log_time`.
    """
    names = [n for n in timestamp_features(schema) if is_unit_of_time(schema[n].unit)]
    usual_names = [name for name in CLOCKS if name in names]
    return names[0] if len(names) == 1 else usual_names[0] if usual_names else None


def is_unit_of_time(unit: str | None) -> bool:
    """Return true for units such as `s`, `ms` or `ns`, and for `None` (unknown)."""
    return unit is None or size_in(unit, "s") is not None


def is_plausible(step: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return whether a frame step, in seconds, is plausible. For timestamps without a unit."""
    return np.asarray((np.asarray(step) >= _LEAST_STEP) & (np.asarray(step) <= _MOST_STEP))


def signed(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert timestamps [n], at least one, to int64 if they fit, otherwise to float64."""
    fits = times.dtype.kind == "i" or (times.dtype.kind == "u" and int(times.max()) < 2**63)
    return times.astype(np.int64 if fits else np.float64)


def seconds_since_first(
    times: npt.NDArray[Any], unit: str | None
) -> npt.NDArray[np.float64] | None:
    """Convert timestamps, a real dtype [n], to seconds since the first one, float64 [n].

    `unit` is a unit of time. Without one they are seconds if their mean step is plausible, else
    `None` is returned.
    """
    size = size_in(unit, "s")
    times = signed(times) if len(times) else times  # of unsigned ones, differences would wrap
    since_first: npt.NDArray[np.float64] = (times - times[:1]).astype(np.float64)
    num_steps = len(times) - 1
    if size is None and num_steps > 0 and not is_plausible(since_first[-1] / num_steps):
        return None
    return since_first * (size or 1.0)


def num_time_spans(num_frames: int) -> int:
    """Return how many of the distances 1, 2, 4, …, 4096 occur between frames of an episode."""
    return min(MAX_TIME_SPANS, (num_frames - 1).bit_length())


@dataclass(frozen=True)
class TimeSpans:
    """Minimum and maximum growth of an episode's timestamps over 1, 2, 4, …, 4096 frames.

    In the feature's unit. Distances beyond the episode's length are absent; see `num_time_spans`.
    """

    min_growth: tuple[float, ...]
    max_growth: tuple[float, ...]

    def cut(self, num_frames: int) -> TimeSpans:
        """Return the bounds for consecutive frames of the episode, `num_frames` of them."""
        count = num_time_spans(num_frames)
        return TimeSpans(self.min_growth[:count], self.max_growth[:count])

    def to_text(self) -> str:
        """Encode as base64 of little-endian float64: all of `min_growth`, then `max_growth`."""
        return base64.b64encode(
            np.array([*self.min_growth, *self.max_growth], "<f8").tobytes()
        ).decode()

    @classmethod
    def from_text(cls, text: object, num_frames: int) -> TimeSpans:
        """Inverse of `to_text`, for an episode of `num_frames`. Raises `FormatError` if invalid."""
        count = num_time_spans(num_frames)
        try:
            data = base64.b64decode(str(text).encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            data = b"-"
        if isinstance(text, str) and len(data) == 16 * count:
            min_growth, max_growth = np.frombuffer(data, "<f8").reshape(2, count)
            if (
                np.isfinite(min_growth).all()
                and np.isfinite(max_growth).all()
                and (min_growth <= max_growth).all()
            ):
                return cls(tuple(min_growth.tolist()), tuple(max_growth.tolist()))
        raise FormatError(
            "time spans of timestamps are invalid",
            expected=f"base64 of {count} finite float64 and as many that are no smaller",
            got=repr_of(text, 100),
        )


class TimeSpanCollector:
    """Computes the time spans of one episode after the other, from timestamps in frame order."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self._min_growth, self._max_growth = (
            np.full(MAX_TIME_SPANS, np.inf),
            np.full(MAX_TIME_SPANS, -np.inf),
        )
        self._is_whole = True
        self._tail: npt.NDArray[Any] = np.zeros(0)
        self._pending: list[npt.NDArray[Any]] = []
        self._num_pending = self._number = 0

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """Add timestamps, a real dtype [n] or [n, 1], of the frames `numbers`, int64 [n]."""
        if not len(numbers):
            return
        first_number, last_number = int(numbers[0]), int(numbers[-1])
        follows = first_number == self._number and last_number - first_number == len(numbers) - 1
        self._is_whole &= follows and bool(np.isfinite(times).all())
        self._number = last_number + 1
        self._pending.append(signed(times.reshape(-1)))
        self._num_pending += len(numbers)
        if self._num_pending >= _PENDING:
            self._look()

    def time_spans(self, num_frames: int) -> TimeSpans | None:
        """Return the time spans of the episode's `num_frames` frames so far.

        `None` if a frame has no timestamp or one that is not finite.
        """
        self._look()
        count = num_time_spans(num_frames)
        min_growth, max_growth = self._min_growth[:count], self._max_growth[:count]
        is_whole = self._is_whole and self._number == num_frames
        if not is_whole or not (np.isfinite(min_growth).all() and np.isfinite(max_growth).all()):
            return None
        return TimeSpans(tuple(min_growth.tolist()), tuple(max_growth.tolist()))

    def _look(self) -> None:
        if not self._pending or not self._is_whole:
            self._pending, self._num_pending = [], 0
            return
        count = self._num_pending
        times = np.concatenate([self._tail.astype(self._pending[0].dtype), *self._pending])
        self._pending, self._num_pending = [], 0
        if times.dtype == np.int64 and float(times.max()) - float(times.min()) >= 2.0**63:
            self._is_whole = False  # differences overflow
        with np.errstate(over="ignore"):
            for i in range(num_time_spans(len(times))):
                step = 1 << i
                end_times = times[max(step, len(times) - count) :]
                growth = end_times - times[len(times) - len(end_times) - step : len(times) - step]
                self._min_growth[i] = min(self._min_growth[i], float(np.minimum.reduce(growth)))
                self._max_growth[i] = max(self._max_growth[i], float(np.maximum.reduce(growth)))
        self._tail = times[-_TAIL:].copy()


@dataclass(frozen=True, eq=False)
class EpisodeTimeSpans:
    """A dataset's time spans, by episode: float64 [E, T, S], T features; views of a file.

    S is `num_time_spans` of the longest episode, at least 1. NaN marks distances beyond an
    episode's length, and all entries of an episode with unknown time spans.
    """

    min_growth: Reals
    max_growth: Reals

    @classmethod
    def of(
        cls, rows: list[list[TimeSpans | None]], num_features: int, max_frames: int
    ) -> EpisodeTimeSpans:
        """Create from rows of each episode and feature; `longest` is the maximum episode length."""
        shape = (len(rows), num_features, max(1, num_time_spans(max_frames)))
        min_growth, max_growth = np.full(shape, np.nan), np.full(shape, np.nan)
        for i, row in enumerate(rows):
            for j, time_spans in enumerate(row):
                if time_spans is not None:
                    min_growth[i, j, : len(time_spans.min_growth)] = time_spans.min_growth
                    max_growth[i, j, : len(time_spans.max_growth)] = time_spans.max_growth
        return cls(min_growth, max_growth)

    def extended(self, addition: EpisodeTimeSpans) -> EpisodeTimeSpans:
        """Append the episodes of `more`."""
        width = max(self.min_growth.shape[2], addition.min_growth.shape[2])
        pairs = ((self.min_growth, addition.min_growth), (self.max_growth, addition.max_growth))
        return EpisodeTimeSpans(
            *(np.concatenate([_widen(a, width), _widen(b, width)]) for a, b in pairs)
        )

    def take(self, rows: npt.NDArray[np.int64]) -> EpisodeTimeSpans:
        """Return the time spans of these episodes, int64 [n]; unknown for row -1."""
        is_row = (rows >= 0)[:, None, None]
        columns = (np.where(is_row, a[rows], np.nan) for a in (self.min_growth, self.max_growth))
        return EpisodeTimeSpans(*columns)

    def of_features(self, places: list[int]) -> EpisodeTimeSpans:
        """Return the time spans of these features."""
        return EpisodeTimeSpans(self.min_growth[:, places], self.max_growth[:, places])

    def beside(self, others: EpisodeTimeSpans) -> EpisodeTimeSpans:
        """Return the time spans of the same episodes with the features of `others` behind."""
        width = max(self.min_growth.shape[2], others.min_growth.shape[2])
        pairs = ((self.min_growth, others.min_growth), (self.max_growth, others.max_growth))
        return EpisodeTimeSpans(
            *(np.concatenate([_widen(a, width), _widen(b, width)], axis=1) for a, b in pairs)
        )

    def check(self, num_frames: npt.NDArray[np.int64]) -> None:
        """Raise `FormatError` unless the values are possible for episodes of `num_frames`, int64
        [E].
        """
        for start in range(0, len(num_frames), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            min_growth, max_growth = self.min_growth[rows], self.max_growth[rows]
            is_inside = np.arange(min_growth.shape[2]) < _counts(num_frames[rows])[:, None, None]
            is_set = ~np.isnan(min_growth[:, :, :1]) & is_inside
            fits = np.isnan(min_growth) & np.isnan(max_growth)
            fits[is_set] = (np.abs(min_growth) < np.inf)[is_set] & (np.abs(max_growth) < np.inf)[
                is_set
            ]
            fits &= ~is_set | (min_growth <= max_growth)
            if not fits.all():
                row = start + int(np.argmin(fits.all(axis=(1, 2))))
                raise FormatError(
                    "time spans of timestamps are invalid", offset=0, got=f"row {row}"
                )

    def unknown(self, rows: npt.NDArray[np.int64], feature: int) -> npt.NDArray[np.int64]:
        """Return the episodes among `rows`, int64 [n], without usable bounds.

        This includes timestamps that do not ascend, and episodes of a single frame.
        """
        is_known: npt.NDArray[np.bool_] = self.min_growth[rows, feature, 0] > 0
        return rows[~is_known]

    def mean_steps(self, rows: npt.NDArray[np.int64], feature: int) -> Reals:
        """Estimate the time between frames of these episodes, float64 [n]; NaN if unknown."""
        last_place = np.zeros(len(rows), np.int64)
        for place in range(1, self.min_growth.shape[2]):
            last_place[~np.isnan(self.min_growth[rows, feature, place])] = place
        growth: Reals = (
            self.min_growth[rows, feature, last_place] + self.max_growth[rows, feature, last_place]
        )
        return growth / (2 << last_place)

    def durations(
        self, rows: npt.NDArray[np.int64], feature: int, num_steps: npt.NDArray[np.int64]
    ) -> tuple[Reals, Reals]:
        """Bound the time over `num_steps` frames, int64 [n], in each episode: float64 [n] each.

        Returns minimum and maximum, sums over powers of two; NaN if unknown.
        """
        bounds = []
        for time_spans in (self.min_growth, self.max_growth):
            remaining_steps, duration = num_steps.copy(), np.zeros(len(rows))
            for place in range(time_spans.shape[2] - 1, -1, -1):
                growth = time_spans[rows, feature, place]
                times = np.where(np.isnan(growth), 0, remaining_steps >> place)
                duration += np.where(times > 0, times * growth, 0)
                remaining_steps -= times << place
            bounds.append(np.where(remaining_steps > 0, np.nan, duration))
        return bounds[0], bounds[1]

    def contradict(
        self,
        rows: npt.NDArray[np.int64],
        feature: int,
        steps: Reals,
        num_steps: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Return which episodes' timestamps cannot belong to the given frame steps, bool [n].

        `steps`, float64 [n], are in the feature's unit. Timestamps may deviate by a quarter of a
        step from a regular clock. Over all `num_steps` of the episodes, int64 [n], between two
        powers of two, the deviation is that of their mean step.
        """
        is_contradiction = np.zeros(len(rows), np.bool_)
        for place in range(self.min_growth.shape[2]):
            for time_spans in (self.min_growth, self.max_growth):
                deviation = np.abs(time_spans[rows, feature, place] / steps - (1 << place))
                is_contradiction |= deviation > 0.5 * (1 + 1e-6)
        drift = self.mean_steps(rows, feature) / steps - 1
        deviation = np.abs(drift) * np.minimum(num_steps, 2 * _TAIL - 1)
        return is_contradiction | (deviation > 0.5 * (1 + 1e-6))

    def frames_within(
        self, rows: npt.NDArray[np.int64], feature: int, time: float | Reals
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Bound the number of frames within `time` after any frame, in each episode: int64 [n]
        each. `time` may be of each episode, float64 [n].

        Returns minimum and maximum. Ends of episodes may cut the minimum. Bounds are at most 2^20.
        """
        min_frames = _count(self.max_growth[rows, feature], time)
        return min_frames, _count(self.min_growth[rows, feature], time)


def _counts(num_frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return `num_time_spans` of each episode."""
    powers = 1 << np.arange(MAX_TIME_SPANS)
    counts: npt.NDArray[np.int64] = np.searchsorted(powers, num_frames, side="left")
    return counts


def _widen(time_spans: Reals, width: int) -> Reals:
    padded = np.full((*time_spans.shape[:2], width), np.nan)
    padded[:, :, : time_spans.shape[2]] = time_spans
    return padded


def _count(time_spans: Reals, time: float | Reals) -> npt.NDArray[np.int64]:
    """Return the largest number, summed from powers of two, whose time spans add up to at most
    `time`, int64 [n].

    `time_spans`, float64 [n, S], is NaN beyond an episode's length. The minimum growth over a
    number of frames is at least its parts' minima together, the maximum at most their maxima
    together.
    """
    remaining_time, num_frames = np.full(len(time_spans), time), np.zeros(len(time_spans), np.int64)
    may_repeat = np.ones(len(time_spans), bool)  # the largest distance may repeat
    for i in range(time_spans.shape[1] - 1, -1, -1):
        lag = time_spans[:, i]
        is_set = lag > 0
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            times = np.where(
                may_repeat, np.minimum(remaining_time // lag, _MOST), lag <= remaining_time
            )
        times = np.where(is_set, times, 0)
        remaining_time = remaining_time - np.where(is_set, times * np.where(is_set, lag, 0), 0)
        num_frames += times.astype(np.int64) << i
        may_repeat &= ~is_set
    return np.minimum(num_frames, _MOST)
