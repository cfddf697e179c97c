"""Loads as integers: what a plan says to bring of which chunk, and which clip needs it first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.sampling import Clips, Loads, Window

__all__ = ["Load", "each_load", "first_uses", "frame_key"]

_FRAMES = 1 << 40  # more than an episode has


@dataclass(frozen=True)
class Load:
    """One row of a plan's `Loads`, those of a group of features."""

    group: int
    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    count: int


def each_load(group: int, loads: Loads) -> list[Load]:
    """The rows of `loads`, which are those of this group of features."""
    columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
    return [Load(group, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def frame_key(run: IntArray, frame: IntArray) -> IntArray:
    """A number for each frame of a run, int64[n]; it ascends with runs, and with frames in them."""
    return run * _FRAMES + frame


def first_uses(loads: Loads, clips: Clips, window: Window) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    The loads are those of a group of which clips use frames in this window. A load that no clip of
    the round needs gets `len(clips)`.
    """
    place = frame_key(clips.run, clips.start)
    order = np.argsort(place, kind="stable")
    place = place[order]
    first = loads.first - window.offset
    last = first + (loads.count - 1) * window.frame_step
    low = np.searchsorted(place, frame_key(loads.run, np.maximum(first - window.span + 1, 0)))
    high = np.searchsorted(place, frame_key(loads.run, last), side="right")
    # The least number in each of the ranges [low, high): every second of these.
    bounds = np.stack((low, high), axis=1).ravel()
    least = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, least, len(clips))
