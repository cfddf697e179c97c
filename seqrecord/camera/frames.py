"""Small features of single frames, such as poses, read beside the frames of clips.

A camera's pose follows the window of its image, not that of its own feature, and may be missing
where the image is not. So it is no part of a plan: its blocks of frames are read when a batch first
needs them, and the last used ones are kept in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from seqrecord.camera.conventions import BoolArray, FloatArray
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.processes.threads import ThreadPool
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.episode import Episode
from seqrecord.store.tables.grids import IntArray

_BLOCK = 1 << 12  # frames
_MAX_REQUESTS = 8  # at a time
_MAX_MEDIANS = 1 << 17
_MAX_BYTES = 32 << 20  # of blocks in memory: poses of half a million frames


@dataclass(eq=False)
class _Blocks:
    """The blocks of this process: values and presence, the last used ones at the end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: OrderedDict[tuple[str, int, int], tuple[FloatArray, BoolArray]] = field(
        default_factory=OrderedDict
    )
    nbytes: int = 0


class FrameValues:
    """Values of small features by episode and frame. Thread-safe. Picklable, without values.

    Args:
        dataset: the dataset with these features, of fixed shapes.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._memory = PerProcess(_Blocks)

    @property
    def is_local(self) -> bool:
        """Whether reading ahead gains nothing."""
        return self._dataset.contents.chunks.is_local

    def read_ahead(self, requests: Iterable[tuple[str, int, IntArray]]) -> None:
        """Read the blocks for several calls of `find` from remote storage at once."""
        memory = self._memory.get()
        keys = {
            (feature, row, int(number))
            for feature, row, frames in requests
            for number in np.unique(frames // _BLOCK)
        }
        with memory.lock:
            absent = sorted(keys - memory.blocks.keys())
        if len(absent) > 1:
            with ThreadPool(min(len(absent), _MAX_REQUESTS), "seqrecord-cameras") as pool:
                deque(pool.map(lambda key: self._block(*key), absent), maxlen=0)

    def find(self, feature: str, row: int, frames: IntArray) -> tuple[FloatArray, BoolArray]:
        """The values of an episode's frames; the episode is a row of the index.

        `frames` is int64[T]. Returns float64 [T, …], and which frames have the feature, bool [T];
        the others are 0.
        """
        numbers = frames // _BLOCK
        values, present = self._zeros(feature, len(frames)), np.zeros(len(frames), np.bool_)
        for number in dict.fromkeys(numbers.tolist()):
            block_values, block_present = self._block(feature, row, number)
            places = np.flatnonzero(numbers == number)
            inside = frames[places] - number * _BLOCK
            values[places], present[places] = block_values[inside], block_present[inside]
        return values, present

    def _block(self, feature: str, row: int, number: int) -> tuple[FloatArray, BoolArray]:
        memory, key = self._memory.get(), (feature, row, number)
        with memory.lock:
            if (block := memory.blocks.get(key)) is not None:
                memory.blocks.move_to_end(key)
                return block
        block = self._read(feature, row, number)  # without the lock: other threads go on
        with memory.lock:
            if key not in memory.blocks:
                memory.blocks[key] = block
                memory.nbytes += block[0].nbytes
            while memory.nbytes > _MAX_BYTES and len(memory.blocks) > 1:
                _, (values, _) = memory.blocks.popitem(last=False)
                memory.nbytes -= values.nbytes
        return block

    def _read(self, feature: str, row: int, number: int) -> tuple[FloatArray, BoolArray]:
        contents = self._dataset.contents
        episode = Episode(contents.chunks, contents.index, row)
        frames = slice(number * _BLOCK, (number + 1) * _BLOCK)
        present = episode.present(feature)[frames].copy()
        numbers: Sequence[int] = (np.flatnonzero(present) + frames.start).tolist()
        values = self._zeros(feature, len(present))
        if numbers:
            values[present] = episode.read(numbers, features=[feature])[feature]
        return values, present

    def _zeros(self, feature: str, count: int) -> FloatArray:
        shape = [int(size or 0) for size in self._dataset.features[feature].shape]
        return np.zeros((count, *shape))


class MedianDepths:
    """Medians of depth maps. Thread-safe. Picklable, without values.

    Args:
        dataset: the dataset with the features of depth maps.
        sizes: metres per stored number, by feature.
    """

    def __init__(self, dataset: Dataset, sizes: Mapping[str, float]) -> None:
        self._dataset, self.sizes = dataset, sizes
        self._medians = PerProcess[dict[tuple[str, int, int], float]](dict)

    def find(self, feature: str, row: int, frame: int) -> float:
        """The median of the depths above 0 in a frame; the episode is a row of the index.

        NaN if the frame lacks the feature, or has no such depth.
        """
        medians, key = self._medians.get(), (feature, row, frame)
        if (median := medians.get(key)) is None:
            if len(medians) > _MAX_MEDIANS:  # another thread may clear it meanwhile
                medians.clear()
            median = medians[key] = self._read(feature, row, frame)
        return median

    def _read(self, feature: str, row: int, frame: int) -> float:
        contents = self._dataset.contents
        episode = Episode(contents.chunks, contents.index, row)
        if not episode.present(feature)[frame]:
            return float("nan")
        depth = np.asarray(episode.read([frame], features=[feature])[feature][0], np.float64)
        depth = depth[np.isfinite(depth) & (depth > 0)]
        return float(np.median(depth)) * self.sizes[feature] if depth.size else float("nan")
