"""Measures the frame rate of an episode from its timestamps."""

from __future__ import annotations

import numpy as np

from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.frame_rates import MeasuredRate
from seqrecord.store.format.time_spans import clock_of, is_plausible, signed
from seqrecord.store.reading.episode import Episode


def measured_rate(episode: Episode, fps: float | None = None) -> MeasuredRate | None:
    """Measure the timestamps of an episode; reads them.

    Deviations are from `fps`, by default the episode's. `None` without one timestamp per frame in a
    unit of time; without a unit they are seconds if these are plausible.
    """
    clock = clock_of(episode.features)
    if clock is None or not episode.present(clock).all():
        return None
    times = np.ravel(episode.read(range(len(episode)), features=[clock])[clock])
    size = size_in(episode.features[clock].unit, "s")
    times = signed(times) if len(times) else times  # of unsigned ones, differences would wrap
    since = (times - times[:1]).astype(np.float64)
    rate = MeasuredRate.of(since * (size or 1.0), fps or episode.fps)
    if rate is not None and size is None and not is_plausible(1 / rate.mean_fps):
        return None
    return rate
