"""The first frames of a dataset, which wait until its schema can be known from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.chunking import CHUNK_BYTES, CHUNK_FRAMES

__all__ = ["PendingFrames"]


class PendingFrames:
    """Copies of frames, in order: callers may fill the same arrays again for their next frame."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._nbytes = 0

    @property
    def are_enough(self) -> bool:
        """Whether they fill a chunk: then the schema is inferred."""
        return len(self._frames) == CHUNK_FRAMES or self._nbytes >= CHUNK_BYTES

    def append(self, frame: Frame) -> None:
        """Keep a copy of a frame."""
        copy = {name: _copied(item) for name, item in frame.items()}
        self._frames.append(copy)
        self._nbytes += sum(_nbytes(item) for item in copy.values())

    def take(self) -> list[Frame]:
        """The frames; none is left."""
        frames, self._frames, self._nbytes = self._frames, [], 0
        return frames


def _copied(item: Any) -> Any:
    if isinstance(item, (str, bytes, EncodedImage)):
        return item
    if isinstance(item, (bytearray, memoryview)):
        return bytes(item)
    return np.array(item)


def _nbytes(item: Any) -> int:
    if isinstance(item, EncodedImage):
        return len(item.data)
    return len(item) if isinstance(item, (str, bytes)) else int(np.asarray(item).nbytes)
