"""Bytes of chunks, as they are stored and while they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from seqrecord.clips.grids import ChunkGrid, IntArray, frame_keys
from seqrecord.format.index import GroupIndex
from seqrecord.format.pages import ALIGNMENT
from seqrecord.reading.dataset import Dataset
from seqrecord.schema import FeatureSpec, Schema

_DECODER_FRAMES = 16  # in a video decoder: referenced frames, and frames that wait


def chunk_bytes(group: GroupIndex, features: Collection[str]) -> IntArray:
    """Bytes of the pages that some features have in each chunk of a group; int64[chunks].

    Packets that a page refers to count twice: as they are read, and as they are then put together.
    """
    columns = [group.schema.position(name) for name in group.schema if name in features]
    padded = group.page_length[:, columns].astype("i8") + (ALIGNMENT - 1)
    total: IntArray = (padded // ALIGNMENT * ALIGNMENT).sum(axis=1)
    times = 2 if any(spec.is_video for spec in group.schema.values()) else 1
    total += times * group.external * bool(columns)
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


def decoder_bytes(features: Iterable[FeatureSpec]) -> int:
    """Bytes of the frames in the decoders of video features."""
    return sum(_DECODER_FRAMES * spec.stored.nbytes for spec in features if spec.is_video)


def open_chunk_bytes(grid: ChunkGrid, groups: Sequence[GroupIndex], features: Schema) -> int:
    """What a cursor keeps open of some groups where its own one is in pieces, in bytes for each
    frame of a piece: the largest pages as they are stored, and the frames of their decoders."""
    if grid.whole is None:
        return 0
    kept = 0
    for group in groups:
        kept += decoder_bytes(spec for name, spec in group.schema.items() if name in features)
        kept += int(chunk_bytes(group, features).max(initial=0))
    return -(-kept // max(1, int(grid.largest.max(initial=1))))


def resized_bytes(dataset: Dataset, episodes: IntArray) -> int:
    """Bytes of a stored frame of each feature that a load resizes after decoding.

    A variable shape counts as its largest frame of some episodes, given by their rows.
    """
    nbytes, index = 0, dataset.contents.index
    for name, spec in dataset.features.items():
        if spec.stored_shape is not None and not spec.is_video:
            stored = spec.stored
            nbytes += stored.nbytes if stored.is_fixed else index.largest_frames(name, episodes)
    return nbytes


def _keys(group: GroupIndex) -> IntArray:
    """A number for each chunk; it ascends with episodes, and with first frames in them."""
    episode = np.repeat(np.arange(len(group.num_chunks)), group.num_chunks)
    return frame_keys(episode, group.first_frame.astype(np.int64))
