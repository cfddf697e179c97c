"""Long chunks of video in pieces: each is read once, and decoded as far as clips need.

A chunk of video is one group of pictures at least, of up to 256 frames. Decoded at once it would
take the arena's memory for all of them. So plans see pieces of it as chunks, and the engine keeps
the page and its decoder open between two pieces of a cursor's chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqrecord.clips import EpisodeTable
from seqrecord.format.group_index import GroupIndex
from seqrecord.grids import ChunkGrid
from seqrecord.pipes.chunk_sizes import chunk_bytes
from seqrecord.schema import FeatureSpec, Schema

__all__ = ["bytes_kept_beside", "bytes_kept_open", "in_pieces"]

PIECE_FRAMES = 32  # at most, as other chunks have
_PIECE_BYTES = 48 << 20  # decoded, likewise
_LEAST_FRAMES = 4
_DECODER_FRAMES = 16  # that a decoder holds: those that others refer to, and those that wait


def in_pieces(table: EpisodeTable, features: Schema) -> EpisodeTable:
    """The episodes with long chunks of video in pieces, see `ChunkGrid.in_pieces`."""
    groups = list(table.groups)
    for place, grid in enumerate(groups):
        video = _video_of(grid.group, features)
        if video is not None:
            most = max(_LEAST_FRAMES, min(PIECE_FRAMES, _PIECE_BYTES // video.nbytes))
            groups[place] = grid.in_pieces(table.num_frames, most)
    return replace(table, groups=tuple(groups))


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


def _kept_of(number: int, group: GroupIndex, features: Schema) -> int:
    """Bytes of a group's largest chunk as it is stored, and of its decoder's frames, if any."""
    video = _video_of(number, features)
    frames = 0 if video is None else _DECODER_FRAMES * video.nbytes
    return int(chunk_bytes(group, features).max(initial=0)) + frames


def _of_a_frame(kept: int, grid: ChunkGrid) -> int:
    return -(-kept // max(1, int(grid.largest.max(initial=1))))


def _video_of(group: int, features: Schema) -> FeatureSpec | None:
    """The video feature that a group has, if it has one."""
    found = [spec for spec in features.values() if spec.group == group and spec.is_video]
    return found[0] if found else None
