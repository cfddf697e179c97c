"""Loads as integers: what a plan says to bring of which chunk, and which clip needs it first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.frame_keys import MAX_FRAMES, frame_keys, sought_keys
from seqrecord.sampling import Clips, GroupPlan, Loads, Round, Window

__all__ = ["Load", "Placed", "Waiting", "each_load", "first_uses", "loads_of_round"]


@dataclass(unsafe_hash=True, slots=True)  # to make a frozen one takes three times as long
class Load:
    """One row of a plan's `Loads`, those of a group of features. It is not changed."""

    group: int
    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    count: int


class Waiting(NamedTuple):
    """A load that waits for room, and the number of the first clip of its round that needs it."""

    first_use: int
    load: Load


class Placed(NamedTuple):
    """A load that has room: its frames, of so many bytes, go to rows of an arena, int64[count]."""

    first_use: int
    load: Load
    target: Any
    rows: IntArray
    nbytes: int


def loads_of_round(
    current: Round, groups: Sequence[GroupPlan], num_frames: IntArray
) -> list[Waiting]:
    """The loads of a round, those of a cursor in the order in which it needs them; none of one that
    has clips alone.

    Episodes have `num_frames`, int64[episodes].
    """
    if not current.groups:
        return []
    waiting: list[Waiting] = []
    for group, todo in zip(groups, current.groups, strict=True):
        uses = first_uses(todo.loads, current.clips, group.window, num_frames)
        in_order = _ordered_uses(uses, todo.loads, group)
        waiting += map(Waiting, in_order, each_load(group.group, todo.loads))
    return waiting


def each_load(group: int, loads: Loads) -> list[Load]:
    """The rows of `loads`, which are those of this group of features."""
    columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
    return [Load(group, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def first_uses(loads: Loads, clips: Clips, window: Window, num_frames: IntArray) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    The loads are those of a group of which clips use frames in this window, of episodes that have
    `num_frames` by the index's rows; int64[rows]. A load that no clip of the round needs gets
    `len(clips)`.
    """
    place = frame_keys(clips.run, clips.start)
    order = np.argsort(place, kind="stable")
    place = place[order]
    first = loads.first - window.offset
    last = first + (loads.count - 1) * window.frame_step
    # An episode's first and last frame are also those of windows that begin before or end behind.
    begins = loads.first == 0
    ends = last + window.offset == num_frames[loads.episode] - 1
    least = np.where(begins, 0, first - window.span + 1)
    most = np.where(ends, MAX_FRAMES, last)
    low = np.searchsorted(place, sought_keys(loads.run, least))
    high = np.searchsorted(place, sought_keys(loads.run, most), side="right")
    # The least number in each of the ranges [low, high): every second of these.
    bounds = np.stack((low, high), axis=1).ravel()
    found = np.minimum.reduceat(np.append(order, len(clips)), bounds)[::2]
    return np.where(high > low, found, len(clips))


def _ordered_uses(uses: IntArray, loads: Loads, group: GroupPlan) -> list[int]:
    """Of a group whose loads go on where the cursor's load before ended, the first uses such that
    none comes before that of a load before it; `uses` themselves of others."""
    found: list[int] = uses.tolist()
    if group.in_pieces:
        least: dict[int, int] = {}
        for i, cursor in reversed(list(enumerate(loads.cursor.tolist()))):
            found[i] = least[cursor] = min(found[i], least.get(cursor, found[i]))
    return found
