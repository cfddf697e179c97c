"""Frames a chunk: as many as fit 48 MiB decoded, 32 at most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from seqrecord.schema import Schema

__all__ = ["CHUNK_BYTES", "CHUNK_FRAMES", "ChunkLength"]

CHUNK_BYTES = 48 << 20  # decoded; a chunk is the unit of reading, so it bounds readers' memory
CHUNK_FRAMES = 32  # at most, however small the frames


class ChunkLength:
    """Frames a chunk of one episode: `given`, else a power of two that its frames' size allows.

    `frames` is `None` until that is known. Where all shapes are fixed it is known at once. A
    feature of a variable shape is judged by the episode's first frames, the largest of them: 32, or
    fewer that take 48 MiB together. Frames that come later may be larger, and so then are chunks.
    """

    def __init__(self, schema: Schema, given: int | None = None) -> None:
        self._variable = schema.variable
        self._fixed_bytes = sum(spec.nbytes for spec in schema.values() if spec.is_fixed)
        self._seen = self._bytes = self._largest = 0
        self.frames = given
        if given is None and not self._variable:
            self.frames = _fitting(self._fixed_bytes)

    def add(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """The episode's next frame: the shape of each feature that it has."""
        if self.frames is not None:
            return
        nbytes = self._fixed_bytes + sum(
            math.prod(shapes[spec.name]) * spec.dtype.itemsize
            for spec in self._variable
            if spec.name in shapes
        )
        self._seen += 1
        self._bytes += nbytes
        self._largest = max(self._largest, nbytes)
        if self._seen == CHUNK_FRAMES or self._bytes >= CHUNK_BYTES:
            self.settle()

    def settle(self) -> int:
        """No more frames are to be waited for."""
        if self.frames is None:
            self.frames = _fitting(self._largest)
        return self.frames


def _fitting(frame_bytes: int) -> int:
    fitting = max(1, min(CHUNK_FRAMES, CHUNK_BYTES // max(1, frame_bytes)))
    return 1 << (fitting.bit_length() - 1)
