"""How many bytes loads read, by the index: of a chunk, and of what other groups have beside it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.format.index import GroupIndex
from seqrecord.format.pages import ALIGNMENT

__all__ = ["bytes_beside", "bytes_of_run", "chunk_bytes"]

_FRAME_BITS = 32  # an episode has fewer frames than two to this power


def chunk_bytes(group: GroupIndex, features: Collection[str]) -> IntArray:
    """Bytes of the pages that some features have in each chunk of a group; int64[chunks]."""
    columns = [group.schema.position(name) for name in group.schema if name in features]
    padded = group.page_length[:, columns].astype("i8") + (ALIGNMENT - 1)
    total: IntArray = (padded // ALIGNMENT * ALIGNMENT).sum(axis=1)
    return total


def bytes_beside(lead: GroupIndex, other: GroupIndex, nbytes: IntArray) -> IntArray:
    """Bytes of those chunks of another group that have frames of each chunk of `lead`.

    `nbytes` are bytes of the other group's chunks. Returns int64[chunks of `lead`].
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(other)
    first = _keys(lead)
    start = np.searchsorted(keys, first, side="right") - 1
    stop = np.searchsorted(keys, first + lead.num_frames, side="left")
    beside: IntArray = total[stop] - total[start]
    return beside


def bytes_of_run(group: GroupIndex, nbytes: IntArray, num_frames: int) -> int:
    """The most bytes of those chunks of a group that have some of `num_frames` frames of an
    episode, which follow each other.

    `nbytes` are bytes of the group's chunks. Most chunks are touched by frames that begin with the
    last one of a chunk.
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(group)
    last = keys + group.num_frames - 1
    stop = np.searchsorted(keys, last + num_frames, side="left")
    return int((total[stop] - total[:-1]).max(initial=0))


def _keys(group: GroupIndex) -> IntArray:
    """A number for each chunk; it ascends with episodes, and with first frames in them."""
    episode = np.repeat(np.arange(len(group.num_chunks)), group.num_chunks)
    keys: IntArray = (episode << _FRAME_BITS) + group.first_frame
    return keys
