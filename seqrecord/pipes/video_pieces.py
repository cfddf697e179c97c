"""Long chunks of video in pieces: each is read once, and decoded as far as clips need.

A chunk of video is one group of pictures at least, of up to 256 frames. Decoded at once it would
take the arena's memory for all of them. So plans see pieces of it as chunks, and the engine keeps
the page and its decoder open between two pieces of a cursor's chunk.
"""

from __future__ import annotations

from dataclasses import replace

from seqrecord.clips import EpisodeTable
from seqrecord.schema import FeatureSpec, Schema

__all__ = ["in_pieces", "video_of"]

_PIECE_FRAMES = 32  # at most, as other chunks have
_PIECE_BYTES = 48 << 20  # decoded, likewise
_LEAST_FRAMES = 4


def in_pieces(table: EpisodeTable, features: Schema) -> EpisodeTable:
    """The episodes with long chunks of video in pieces, see `ChunkGrid.in_pieces`."""
    groups = list(table.groups)
    for place, grid in enumerate(groups):
        video = video_of(grid.group, features)
        if video is not None:
            most = max(_LEAST_FRAMES, min(_PIECE_FRAMES, _PIECE_BYTES // video.nbytes))
            groups[place] = grid.in_pieces(table.num_frames, most)
    return replace(table, groups=tuple(groups))


def video_of(group: int, features: Schema) -> FeatureSpec | None:
    """The video feature that a group has, if it has one."""
    found = [spec for spec in features.values() if spec.group == group and spec.is_video]
    return found[0] if found else None
