"""A Zarr array for each feature: read directly, and block by block through a cache of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import Order, map_style

CHUNK_FRAMES = 16
CACHE_BYTES = 1 << 30  # of each process
BLOCK_CLIPS = 128


def prepare(tree: Recordings, folder: Path, _settings: Settings) -> None:
    import zarr

    group = zarr.open_group(str(folder), mode="w")
    arrays = {
        name: group.create_array(
            name,
            shape=(tree.num_frames, *feature.shape),
            chunks=(min(CHUNK_FRAMES, tree.num_frames), *feature.shape),
            dtype=feature.dtype,
            compressors=None,
        )
        for name, feature in tree.features.items()
    }
    frames = list[dict[str, Any]]()
    for row, frame in enumerate(tree.rows(), 1):
        frames.append(frame)
        if len(frames) == CHUNK_FRAMES or row == tree.num_frames:
            for name, array in arrays.items():
                array[row - len(frames) : row] = np.stack([frame[name] for frame in frames])
            frames.clear()


class Reader:
    """Slices of the arrays; `cached` keeps what was read of the store, the newest first."""

    def __init__(self, folder: Path, features: Sequence[str], cached: bool) -> None:
        self._folder = folder
        self._features = features
        self._cached = cached
        self._arrays: dict[str, Any] = {}

    def read(self, clip: Clip) -> Mapping[str, Any]:
        if not self._arrays:
            group = self._open()
            self._arrays = {name: group[name] for name in self._features}
        rows = slice(clip.row, clip.row + clip.stop - clip.start)
        return {name: array[rows] for name, array in self._arrays.items()}

    def _open(self) -> Any:
        import zarr
        from zarr.storage import LocalStore, MemoryStore

        store: Any = LocalStore(self._folder, read_only=True)
        if self._cached:
            from zarr.experimental.cache_store import CacheStore

            store = CacheStore(store, cache_store=MemoryStore(), max_size=CACHE_BYTES)
        return zarr.open_group(store, mode="r")


class Blocks(Order):
    """Large blocks of neighbouring clips, the blocks shuffled and the clips inside each."""

    def numbers(self, rng: np.random.Generator) -> Iterable[int]:
        blocks = np.split(np.arange(self._count), range(BLOCK_CLIPS, self._count, BLOCK_CLIPS))
        for number in rng.permutation(len(blocks)):
            yield from rng.permutation(blocks[number]).tolist()


def open_batches(
    place: Place, clips: Sequence[Clip], settings: Settings, *, cached: bool
) -> Batches:
    order = Blocks(len(clips), settings) if cached else None
    return map_style(Reader(place.folder, settings.features, cached), clips, settings, order)


LOADERS = [
    Loader(
        name=name,
        format=one_format("zarr"),
        prepare=prepare,
        open=partial(open_batches, cached=cached),
        shuffles=("off", "buffer" if cached else "full"),
        needs=("zarr.experimental.cache_store",) if cached else ("zarr",),
        note=f"chunks of {CHUNK_FRAMES} frames; buffer: shuffled blocks of {BLOCK_CLIPS} clips",
    )
    for name, cached in (("zarr", False), ("zarr-cached", True))
]
