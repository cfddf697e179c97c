"""Frames as bytes, for formats that hold records of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.compare.recordings import Clip, Feature

__all__ = ["PackedReader", "pack"]

Arrays = dict[str, npt.NDArray[Any]]


def pack(frame: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """All features of a frame, one after the other."""
    return b"".join(array.tobytes() for array in frame.values())


class PackedReader:
    """Clips of packed frames. `open_frames` gives what has a frame's bytes under its row."""

    def __init__(
        self,
        open_frames: Callable[[], Any],
        all_features: Mapping[str, Feature],
        features: tuple[str, ...],
    ) -> None:
        self._open_frames = open_frames
        self._frames: Any = None
        self._places: dict[str, tuple[Feature, int]] = {}
        offset = 0
        for name, feature in all_features.items():
            if name in features:
                self._places[name] = (feature, offset)
            offset += feature.nbytes

    def read(self, clip: Clip) -> Arrays:
        if self._frames is None:
            self._frames = self._open_frames()
        length = clip.stop - clip.start
        arrays = {
            name: np.empty((length, *feature.shape), feature.dtype)
            for name, (feature, _) in self._places.items()
        }
        for i in range(length):
            record = self._frames[clip.row + i]
            for name, (feature, offset) in self._places.items():
                count = feature.nbytes // np.dtype(feature.dtype).itemsize
                flat = np.frombuffer(record, feature.dtype, count, offset)
                arrays[name][i] = flat.reshape(feature.shape)
        return arrays
