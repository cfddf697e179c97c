"""Small frames that are read along with requested ones: whole blocks, for later requests."""

from __future__ import annotations

import numpy as np

from seqrecord.clips.grids import IntArray, frame_keys, numbered, split_keys
from seqrecord.format.pages import slice_frames
from seqrecord.reading.dataset import Dataset

_BLOCK_BYTES = 128 << 10  # read at once: as many as Linux reads ahead


def with_neighbours(dataset: Dataset, keys: IntArray) -> IntArray:
    """Keys of all frames in the blocks of some frames, in ascending order.

    The dataset has one feature, whose chunks are cut into blocks of whole slices.
    """
    [grid], [spec] = dataset.contents.episode_table.groups, dataset.features.values()
    length = slice_frames(spec)
    block = max(1, _BLOCK_BYTES // (length * spec.nbytes)) * length
    episode, frame = split_keys(keys)
    start, stop = grid.bounds(episode, grid.place(episode, frame))
    stop = np.minimum(stop, dataset.contents.episode_table.num_frames[episode])
    first = frame - (frame - start) % block
    keys, some = np.unique(frame_keys(episode, first), return_index=True)
    owner, inside = numbered(np.minimum(block, stop - first)[some])
    return keys[owner] + inside
