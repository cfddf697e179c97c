"""How many bytes frames, chunks and batches take: what a memory limit is divided into."""

from __future__ import annotations

from collections.abc import Mapping

from seqrecord.clips import EpisodeTable
from seqrecord.pipes.chunk_sizes import bytes_beside, bytes_of_run, chunk_bytes
from seqrecord.pipes.identity import groups_of
from seqrecord.pipes.video_pieces import bytes_kept_beside, bytes_kept_open
from seqrecord.reading.frames import ArraySpec
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.sampling.memory import FrameSizes
from seqrecord.schema import Schema

__all__ = ["bytes_by_group", "frame_sizes"]

_TENSOR_BYTES = 1 << 10  # of a tensor beside what it holds: one for each frame of a variable shape


def frame_sizes(
    dataset: SeqRecordReader,
    episodes: EpisodeTable,
    *,
    stored: Mapping[str, ArraySpec],
    held: Mapping[str, ArraySpec],
    made: Mapping[str, ArraySpec],
    lengths: Mapping[str, int],
    is_transformed: bool,
    batch_size: int | None,
) -> FrameSizes:
    """The sizes that a plan of these episodes has.

    A variable shape counts as its largest frame of the selected episodes, decoded.

    With `frame_transform` the plan has one group, whose arena has what is made of frames, and each
    load reads chunks of all groups. Where that group is in pieces, a cursor keeps those open of
    which it has yet to need more.

    Args:
        dataset: with the requested features.
        episodes: as the plan sees them.
        stored: each feature of a frame as it is decoded.
        held: each feature of a frame in an arena.
        made: each feature of a frame of a batch.
        lengths: how many frames of each feature a clip of a batch has.
        is_transformed: whether there is a `frame_transform`.
        batch_size: clips of a batch; `None` is one.
    """
    features, tables = dataset.features, dataset.index.groups
    if is_transformed:
        frame = sum(spec.nbytes for spec in held.values())
        grid, lead = episodes.lead, tables[episodes.lead.group]
        if grid.whole is None:
            frames = [frame]
            each = [
                bytes_beside(lead, group, chunk_bytes(group, features)).max()
                for group in groups_of(dataset)
            ]
        else:
            frames, most = [frame + bytes_kept_beside(grid, tables, features)], grid.largest.max()
            each = [
                bytes_of_run(group, chunk_bytes(group, features), int(most))
                for group in groups_of(dataset)
            ]
        chunk = int(sum(each)) + sum(spec.nbytes for spec in stored.values()) + frame
    else:  # codecs may need room for a frame that is in no row yet
        frames = bytes_by_group(held, features)
        for place, grid in enumerate(episodes.groups):
            frames[place] += bytes_kept_open(grid, tables[grid.group], features)
        each = [chunk_bytes(group, features).max() for group in groups_of(dataset)]
        chunk = int(max(each)) + sum(s.nbytes for s in stored.values() if not s.is_fixed)
    clip = sum((spec.nbytes + _beside(spec)) * lengths[name] for name, spec in made.items())
    batch = (batch_size or 1) * max(1, clip)
    return FrameSizes(tuple(max(1, nbytes) for nbytes in frames), chunk, batch)


def bytes_by_group(arrays: Mapping[str, ArraySpec], features: Schema) -> list[int]:
    """Bytes of a frame's features of each group, by the groups' numbers."""
    sizes = dict.fromkeys(sorted({spec.group for spec in features.values()}), 0)
    for name, spec in arrays.items():
        sizes[features[spec.mask_of or name].group] += spec.nbytes
    return list(sizes.values())


def _beside(spec: ArraySpec) -> int:
    """Bytes that a frame takes in a batch beside what it holds."""
    return _TENSOR_BYTES if not spec.is_fixed and spec.value == "array" else 0
