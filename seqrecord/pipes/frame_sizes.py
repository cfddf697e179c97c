"""How many bytes frames, chunks and batches take: what a memory limit is divided into."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.format.index import GroupIndex
from seqrecord.format.pages import ALIGNMENT
from seqrecord.frame_keys import frame_keys
from seqrecord.grids import ChunkGrid
from seqrecord.pipes.arrays import bytes_by_group
from seqrecord.pipes.identity import groups_of
from seqrecord.pipes.selection import ClipSelection
from seqrecord.pipes.video_pieces import video_of
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.memory import FrameSizes
from seqrecord.schema import Schema

__all__ = [
    "bytes_beside",
    "bytes_kept_beside",
    "bytes_kept_open",
    "bytes_of_run",
    "chunk_bytes",
    "frame_sizes",
]

_TENSOR_BYTES = 1 << 10  # of a tensor beside what it holds: one for each frame of a variable shape
_DECODER_FRAMES = 16  # that a decoder holds: those that others refer to, and those that wait


def frame_sizes(selection: ClipSelection, batch_size: int | None) -> FrameSizes:
    """The sizes that plans of a selection have, with batches of so many clips; `None` is one.

    A variable shape counts as its largest frame of the selected episodes, decoded.

    With `frame_transform` the plan has one group, whose arena has what is made of frames, and each
    load reads chunks of all groups. Where that group is in pieces, a cursor keeps those open of
    which it has yet to need more.
    """
    dataset, episodes, stored = selection.dataset, selection.episodes, selection.stored.values()
    features, tables = dataset.features, dataset.index.groups
    sizes = [(group, chunk_bytes(group, features)) for group in groups_of(dataset)]
    if selection.frame_transform is not None:
        frame, grid = sum(spec.nbytes for spec in selection.arrays.values()), episodes.lead
        if grid.whole is None:
            frames = [frame]
            each = [int(bytes_beside(tables[grid.group], *one).max()) for one in sizes]
        else:
            frames, most = [frame + bytes_kept_beside(grid, tables, features)], grid.largest.max()
            each = [bytes_of_run(*one, int(most)) for one in sizes]
        chunk = sum(each) + sum(spec.nbytes for spec in stored) + frame
    else:  # codecs may need room for a frame that is in no row yet
        frames = bytes_by_group(selection.arrays, features)
        for place, grid in enumerate(episodes.groups):
            frames[place] += bytes_kept_open(grid, tables[grid.group], features)
        chunk = max(int(nbytes.max()) for _, nbytes in sizes)
        chunk += sum(spec.nbytes for spec in stored if not spec.is_fixed)
    lengths = selection.lengths
    clip = sum((spec.nbytes + _beside(spec)) * lengths[n] for n, spec in selection.made.items())
    batch = (batch_size or 1) * max(1, clip)
    return FrameSizes(tuple(max(1, nbytes) for nbytes in frames), chunk, batch)


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


def bytes_kept_open(grid: ChunkGrid, group: GroupIndex, features: Schema) -> int:
    """What a cursor keeps open of a group in pieces, in bytes for each frame of a piece: the page
    as it is stored, and the decoder's frames."""
    if grid.whole is None:
        return 0
    return _of_a_frame(_kept_of(grid.group, group, features), grid)


def bytes_kept_beside(grid: ChunkGrid, groups: Sequence[GroupIndex], features: Schema) -> int:
    """What a cursor whose group is in pieces keeps open of it, and of other groups beside it, in
    bytes for each frame of a piece: for a transform of whole frames."""
    numbers = sorted({spec.group for spec in features.values()})
    kept = sum(_kept_of(number, groups[number], features) for number in numbers)
    return _of_a_frame(kept, grid)


def _beside(spec: ArraySpec) -> int:
    """Bytes that a frame takes in a batch beside what it holds."""
    return _TENSOR_BYTES if not spec.is_fixed and spec.value == "array" else 0


def _keys(group: GroupIndex) -> IntArray:
    """A number for each chunk; it ascends with episodes, and with first frames in them."""
    episode = np.repeat(np.arange(len(group.num_chunks)), group.num_chunks)
    return frame_keys(episode, group.first_frame.astype(np.int64))


def _kept_of(number: int, group: GroupIndex, features: Schema) -> int:
    """Bytes of a group's largest chunk as it is stored, and of its decoder's frames, if any."""
    video = video_of(number, features)
    frames = 0 if video is None else _DECODER_FRAMES * video.nbytes
    return int(chunk_bytes(group, features).max(initial=0)) + frames


def _of_a_frame(kept: int, grid: ChunkGrid) -> int:
    return -(-kept // max(1, int(grid.largest.max(initial=1))))
