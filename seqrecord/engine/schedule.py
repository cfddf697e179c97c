"""When a round's loads are needed: by which of its clips first. Pure integers."""

from __future__ import annotations

import numpy as np

from seqrecord.order import IntArray
from seqrecord.plan import Clips, Loads

__all__ = ["first_uses"]

_FRAMES = 1 << 40  # more than an episode has


def first_uses(loads: Loads, clips: Clips, *, span: int, frame_step: int) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    A load that no clip of the round needs gets `len(clips)`. A clip spans `span` frames.
    """
    place = clips.run * _FRAMES + clips.start
    order = np.argsort(place, kind="stable")
    place = place[order]
    first, last = loads.first, loads.first + (loads.count - 1) * frame_step
    low = np.searchsorted(place, loads.run * _FRAMES + np.maximum(first - span + 1, 0))
    high = np.searchsorted(place, loads.run * _FRAMES + last, side="right")
    # The least number in each of the ranges [low, high): every second of these.
    bounds = np.stack((low, high), axis=1).ravel()
    least = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, least, len(clips))
