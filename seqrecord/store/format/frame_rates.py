"""Compares a declared frame rate with timestamps: the one rule for writers, edits and exports.

Timestamps agree with an fps if their mean rate differs by at most 5 %, no step is longer than 1.5
frame periods, and none goes back. In short episodes, up to five steps, the last timestamp may also
be a quarter of a period off. Frames without a timestamp count in the steps around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.format.time_spans import signed

MAX_DRIFT = 0.05  # of the mean rate
MAX_EXTRA = 0.5  # frame periods of a step beyond the frames in it
MAX_OFF = 0.25  # frame periods of the last timestamp in short episodes
_ROUNDING = 1 + 1e-6


@dataclass(frozen=True)
class MeasuredRate:
    """Timestamps of an episode as a rate: mean frames per second, and deviations in seconds.

    `max_step` is the longest time from a timestamp to the next, and `max_deviation` the largest
    difference between a timestamp, counted from the first, and `i / fps` with the declared fps,
    or with the mean rate if there is none.
    """

    mean_fps: float
    max_step: float
    max_deviation: float

    @classmethod
    def of(cls, seconds: npt.NDArray[np.float64], fps: float | None) -> MeasuredRate | None:
        """Measure timestamps of consecutive frames, float64 [n], in seconds.

        `None` for fewer than two, for timestamps that are not finite, and if the last is not after
        the first.
        """
        since_start = seconds - seconds[:1]
        if len(since_start) < 2 or not np.isfinite(since_start).all() or since_start[-1] <= 0:
            return None
        mean_fps = (len(since_start) - 1) / float(since_start[-1])
        expected_times = np.arange(len(since_start)) / (fps or mean_fps)
        return cls(
            mean_fps,
            float(np.diff(since_start).max()),
            float(np.abs(since_start - expected_times).max()),
        )


@dataclass(frozen=True)
class Contradiction:
    """The first frame whose timestamp contradicts an fps; `seconds` are since the first frame."""

    frame: int
    seconds: float
    reason: str


class RateComparison:
    """Compares the timestamps of one episode with its fps, as they come.

    `unit` is the timestamps' unit in seconds.
    """

    def __init__(self, fps: float, unit: float) -> None:
        self._fps, self._unit = fps, unit
        self._origin: tuple[Any, int] | None = None  # timestamp and number of the first frame
        self._span = 0.0, 0  # periods and frames since the first
        self._step: Contradiction | None = None

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """Add timestamps, a real dtype [n], and their frame numbers, int64 [n], in order."""
        if times.dtype.kind == "f" and np.isnan(times).any():  # as frames without a timestamp
            times, numbers = times[~np.isnan(times)], numbers[~np.isnan(times)]
        if not len(times) or self._step is not None:
            return
        times = signed(times)
        if self._origin is None:
            self._origin = times[0], int(numbers[0])
        time, number = self._origin
        with np.errstate(invalid="ignore", over="ignore"):
            since_start, rounded = times - time, times.astype(np.float64) - float(time)
            # Differences of integers overflow, those of floats do not.
            since_start = np.where(np.abs(rounded) < 2.0**62, since_start, rounded)
            periods = since_start * (self._unit * self._fps)
            steps = np.diff(periods, prepend=self._span[0])
        frames = numbers - number
        extra_periods = steps - np.diff(frames, prepend=self._span[1])
        contradictions = np.flatnonzero((extra_periods > MAX_EXTRA * _ROUNDING) | (steps < 0))
        if len(contradictions):
            place = int(contradictions[0])
            step = float(steps[place]) / self._fps
            reason = f"{step:.6g} s after the timestamp before, at most 1.5 frame periods fit"
            self._step = Contradiction(
                int(numbers[place]), float(since_start[place]) * self._unit, reason
            )
        self._span = float(periods[-1]), int(frames[-1])

    def step_in_seconds(self) -> float:
        """The mean time between frames so far; 0 for fewer than two."""
        periods, frames = self._span
        return periods / self._fps / frames if frames else 0.0

    def contradiction(self) -> Contradiction | None:
        """What contradicts the fps in the timestamps so far, if anything."""
        periods, frames = self._span
        tolerance = max(MAX_DRIFT * frames, MAX_OFF) * _ROUNDING
        if self._step is not None or self._origin is None or not abs(periods - frames) > tolerance:
            return self._step
        rate = f"{frames / periods * self._fps:.6g}" if periods else "no"
        reason = f"a mean rate of {rate} frames per second, at most 5 % off fits"
        return Contradiction(self._origin[1] + frames, periods / self._fps, reason)
