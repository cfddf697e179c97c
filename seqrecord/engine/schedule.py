"""When a round's loads are needed: by which of its clips first. Pure integers."""

from __future__ import annotations

import numpy as np

from seqrecord.order import IntArray
from seqrecord.plan import Clips, Loads

__all__ = ["first_uses"]

_PAIRS_AT_ONCE = 1 << 22


def first_uses(loads: Loads, clips: Clips, *, span: int, frame_step: int) -> IntArray:
    """The number in `clips` of the first clip that needs a load, int64[loads].

    A load that no clip of the round needs gets `len(clips)`. A clip spans `span` frames.
    """
    first = np.full(len(loads), len(clips), np.int64)
    if not len(clips):
        return first
    last = loads.first + (loads.count - 1) * frame_step
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(clips)))
    for at in range(0, len(loads), rows):
        part = slice(at, at + rows)
        uses = (
            (loads.cursor[part, None] == clips.cursor)
            & (clips.start <= last[part, None])
            & (clips.start + span > loads.first[part, None])
        )
        some = uses.any(axis=1)
        first[part][some] = uses.argmax(axis=1)[some]
    return first
