"""Measures the frame rate of an episode from its timestamps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.store.format.frame_rates import MeasuredRate
from seqrecord.store.format.time_spans import clock_of, seconds_since_first
from seqrecord.store.reading.episode import Episode


def measured_rate(episode: Episode, fps: float | None = None) -> MeasuredRate | None:
    """Measure the timestamps of an episode; reads them.

    Deviations are from `fps`, by default the episode's. `None` without one timestamp per frame in a
    unit of time; without a unit they are seconds if these are plausible.
    """
    seconds = read_seconds(episode)
    return None if seconds is None else MeasuredRate.of(seconds, fps or episode.fps)


def read_seconds(episode: Episode) -> npt.NDArray[np.float64] | None:
    """Read the timestamps of an episode, in seconds since the first one.

    Float64 [frames], NaN for frames without a timestamp. `None` without any timestamp; see
    `seconds_since_first` for one without a unit.
    """
    clock = clock_of(episode.features)
    if clock is None:
        return None
    frames = np.flatnonzero(episode.present(clock))
    if not len(frames):
        return None
    times = np.ravel(episode.read(frames.tolist(), features=[clock])[clock])
    since_first = seconds_since_first(times, episode.features[clock].unit)
    if since_first is None:
        return None
    seconds = np.full(len(episode), np.nan)
    seconds[frames] = since_first
    return seconds
