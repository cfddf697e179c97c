"""Loads: the frames of one chunk that are decoded together, and their rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FeatureRows

BY_USE = attrgetter("first_use")
"""Sorts loads."""


@dataclass(unsafe_hash=True, slots=True)  # frozen ones take three times as long to create
class Load:
    """Frames of a chunk for one run of a cursor. Immutable by convention.

    `frames`, int64[n], ascend; `places` are theirs in the table of the store. `first_use` is the
    index of the first clip of its step that needs one of them.
    """

    group: int
    cursor: int
    run: int
    episode: int
    chunk: int
    first: int
    frames: IntArray = field(compare=False)
    places: IntArray = field(compare=False)
    first_use: int = field(default=0, compare=False)

    @property
    def stop(self) -> int:
        """The frame behind the last one."""
        return int(self.frames[-1]) + 1


class RowLoad(NamedTuple):
    """Frames of a group to load, and their rows: chunk row, frame number and row; int64[n] each.

    Frames of a chunk are ascending.
    """

    group: int
    chunk: IntArray
    frame: IntArray
    rows: IntArray
    out: FeatureRows

    def take(self, index: Any) -> RowLoad:
        """The frames of an index, a mask or a slice."""
        chunk, frame, rows = self.chunk[index], self.frame[index], self.rows[index]
        return self._replace(chunk=chunk, frame=frame, rows=rows)


class AssignedLoad(NamedTuple):
    """A load: the frames of its episode, in rows of an arena, int64[n] each; and its size in
    bytes.
    """

    first_use: int
    load: Load
    target: Any
    frames: IntArray
    rows: IntArray
    nbytes: int
