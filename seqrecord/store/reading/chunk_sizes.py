"""Memory of chunks in bytes: stored pages, and buffers while they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from seqrecord.store.format.index import GroupIndex
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.tables.grids import ChunkGrid, IntArray, frame_keys


def is_decoded(spec: FeatureSpec) -> bool:
    """Whether frames cost more than a copy: they are decoded, or resized."""
    return spec.stored_shape is not None or not page_kind(spec).in_slices


def chunk_bytes(group: GroupIndex, features: Collection[str]) -> IntArray:
    """Return the bytes of the features' pages in each chunk of a group: int64 [chunks].

    Referenced packets count twice, see `PageKind.reference_copies`.
    """
    columns, copies = list[int](), 0
    for column, (name, spec) in enumerate(group.schema.items()):
        copies = max(copies, page_kind(spec).reference_copies)
        if name in features:
            columns.append(column)
    padded = group.page_length[:, columns].astype("i8") + (ALIGNMENT - 1)
    total: IntArray = (padded // ALIGNMENT * ALIGNMENT).sum(axis=1)
    total += copies * group.external * bool(columns)
    return total


def overlapping_chunk_bytes(base: GroupIndex, group: GroupIndex, nbytes: IntArray) -> IntArray:
    """Return, for each chunk of `base`, the bytes of the other group's chunks with the same frames.

    `nbytes` are the sizes of the other group's chunks. Returns int64 [chunks of `base`].
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(group)
    base_keys = _keys(base)
    start = np.searchsorted(keys, base_keys, side="right") - 1
    stop = np.searchsorted(
        keys, base_keys + np.minimum(base.first_frame, 0) + base.num_frames, side="left"
    )
    totals: IntArray = total[stop] - total[start]
    return totals


def max_chunk_bytes(group: GroupIndex, nbytes: IntArray, num_frames: int) -> int:
    """Return the maximum bytes of chunks touched by `num_frames` consecutive frames of an episode.

    `nbytes` are the sizes of the group's chunks. The maximum is reached by frames that begin with
    the last frame of a chunk.
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(group)
    last_keys = keys + np.minimum(group.first_frame, 0) + group.num_frames - 1
    stop = np.searchsorted(keys, last_keys + num_frames, side="left")
    return int((total[stop] - total[:-1]).max(initial=0))


def decoder_bytes(features: Iterable[FeatureSpec]) -> list[int]:
    """Return each decoder's memory in bytes, for the features that have one."""
    return [
        page_kind(spec).decoder_bytes(spec.stored)
        for spec in features
        if page_kind(spec).decodes_in_order
    ]


def open_chunk_bytes(grid: ChunkGrid, groups: Sequence[GroupIndex], features: Schema) -> int:
    """Return the memory of a cursor's open chunks in other groups, in bytes per frame of a piece.

    A cursor keeps them open while its own group's chunks are cut into pieces: the largest stored
    pages, and the frames of their decoders.
    """
    nbytes = 0
    for group in groups:
        specs = (spec for name, spec in group.schema.items() if name in features)
        nbytes += sum(decoder_bytes(specs))
        nbytes += int(chunk_bytes(group, features).max(initial=0))
    return -(-nbytes // max(1, int(grid.max_chunk_frames.max(initial=1))))


def resized_bytes(dataset: Dataset, episodes: IntArray) -> int:
    """Return the bytes of one stored frame, for each feature that is resized after decoding.

    For a variable shape, the largest frame in `episodes` (row numbers).
    """
    nbytes, index = 0, dataset.contents.index
    for name, spec in dataset.features.items():
        if spec.stored_shape is not None and not page_kind(spec).scales:
            largest = index.largest_frames(name, episodes)
            nbytes += spec.stored.nbytes if largest is None else largest
    return nbytes


def _keys(group: GroupIndex) -> IntArray:
    """Return a sort key for each chunk, ascending by episode and first frame in the episode."""
    episode = np.repeat(np.arange(len(group.num_chunks)), group.num_chunks)
    return frame_keys(episode, np.maximum(group.first_frame, 0, dtype=np.int64))
