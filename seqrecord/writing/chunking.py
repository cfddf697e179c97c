"""Chunks of an episode: how many frames each has, and its row of the index."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.format.pages import Blob
from seqrecord.format.rows import chunk_row, gap_rows
from seqrecord.schema import FeatureSpec, Schema

__all__ = ["CHUNK_BYTES", "CHUNK_FRAMES", "ChunkLength", "EncodedChunk"]

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


class EncodedChunk:
    """Encoded frames of the features of one group; `present` says which of them have a feature."""

    def __init__(self, schema: Schema, frames: Sequence[Mapping[str, Blob]]) -> None:
        self.num_frames = len(frames)
        self.blobs = {name: [f[name] for f in frames if name in f] for name in schema}
        self.present = {name: np.array([name in frame for frame in frames]) for name in schema}

    def row(self, schema: Schema, first_frame: int, pages: Sequence[bytes]) -> npt.NDArray[Any]:
        """The chunk's row, [1], but for its place in a file."""
        row = np.zeros(1, chunk_row(len(schema), len(schema.variable)))
        row["num_frames"], row["first_frame"] = self.num_frames, first_frame
        row["pages"]["length"] = [len(page) for page in pages]
        row["pages"]["crc32c"] = [crc32c(page) for page in pages]
        row["largest"] = [self._largest(spec) for spec in schema.variable]
        return row

    def gaps(self, schema: Schema) -> npt.NDArray[Any]:
        """Gap rows of the chunk, as number 0; `schema` is that of all groups."""
        rows = [gap_rows(0, schema.position(name), flags) for name, flags in self.present.items()]
        return np.concatenate(rows)

    def _largest(self, spec: FeatureSpec) -> int:
        """Bytes of the feature's largest frame."""
        sizes = [math.prod(blob.shape) for blob in self.blobs[spec.name]]
        return max(sizes, default=0) * spec.dtype.itemsize


def _fitting(frame_bytes: int) -> int:
    fitting = max(1, min(CHUNK_FRAMES, CHUNK_BYTES // max(1, frame_bytes)))
    return 1 << (fitting.bit_length() - 1)
