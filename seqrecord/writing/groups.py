"""Groups of an episode that is being written: frames that are in no chunk yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from seqrecord.format.pages import Blob, PageCodec
from seqrecord.schema import Schema
from seqrecord.writing.chunking import ChunkLength, ReadyChunk
from seqrecord.writing.video_group import VideoGroup

__all__ = ["FrameGroup", "Group"]


class FrameGroup:
    """The encoded frames of a group that is not video, of one episode after the other."""

    def __init__(self, schema: Schema, number: int, codecs: Mapping[str, PageCodec]) -> None:
        self.number = number
        self.schema = schema.group(number)
        self._codecs = codecs
        self._length = ChunkLength(self.schema)
        self._frames: list[dict[str, Blob]] = []
        self._written = 0  # frames of the episode in chunks

    def begin(self, chunk_frames: int | None) -> None:
        """The next episode; see `ChunkLength` for `None`."""
        self._length = ChunkLength(self.schema, chunk_frames)
        self._frames, self._written = [], 0

    def add(self, blobs: dict[str, Blob]) -> None:
        """The episode's next frame: what it has of the group's features."""
        self._frames.append(blobs)
        if self._length.frames is None:
            self._length.add(blobs)

    def take(self) -> ReadyChunk | None:
        """The next chunk that is full, if there is one."""
        length = self._length.frames
        return None if length is None or len(self._frames) < length else self._take(length)

    def take_rest(self) -> ReadyChunk | None:
        """A chunk of the frames that are left when no chunk is full, if there are any."""
        return self._take(len(self._frames)) if self._frames else None

    def settle(self) -> None:
        """The episode ends: nothing more tells how long its chunks should be."""
        self._length.settle()

    def clear(self) -> None:
        """Forget the frames that are in no chunk."""
        self._frames = []

    def _take(self, length: int) -> ReadyChunk:
        frames = self._frames[:length]
        del self._frames[:length]
        found = {name: [f[name] for f in frames if name in f] for name in self.schema}
        gaps = {
            name: np.array([name in frame for frame in frames], bool)
            for name, blobs in found.items()
            if len(blobs) < length
        }
        pages = [self._codecs[name].join(blobs) for name, blobs in found.items()]
        largest = [
            max((math.prod(blob.shape) for blob in found[spec.name]), default=0)
            * spec.dtype.itemsize
            for spec in self.schema.variable
        ]
        first, self._written = self._written, self._written + length
        return ReadyChunk.of(self.schema, first, length, gaps, pages, largest)


Group: TypeAlias = "FrameGroup | VideoGroup"
