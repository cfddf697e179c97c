"""A Zarr array for each feature: read directly, through a cache of chunks, and block by block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.blob_folder import BlobFolder
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

    def __init__(self, place: Place, settings: Settings, cached: bool) -> None:
        self._place = place
        self._storage = settings.storage
        self._features = settings.features
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

        store = open_store(self._place, self._storage)
        if self._cached:
            from zarr.experimental.cache_store import CacheStore
            from zarr.storage import MemoryStore

            store = CacheStore(store, cache_store=MemoryStore(), max_size=CACHE_BYTES)
        return zarr.open_group(store, mode="r")


def open_store(place: Place, storage: str) -> Any:
    """A folder, or one in Azure through the client that is asked for."""
    from zarr.storage import FsspecStore, LocalStore, ObjectStore

    if storage == "adlfs":
        options = {"connection_string": place.options["connection_string"]}
        return FsspecStore.from_url(place.location, storage_options=options, read_only=True)
    if storage == "obstore":
        from obstore.store import AzureStore

        there = BlobFolder.of(place)
        store = AzureStore(
            there.container,
            prefix=there.path,
            account_name=there.account,
            account_key=there.key,
            endpoint=there.endpoint,
            client_options={"allow_http": True},
        )
        return ObjectStore(store, read_only=True)
    return LocalStore(place.folder, read_only=True)


class Blocks(Order):
    """Large blocks of neighbouring clips, the blocks shuffled and the clips inside each."""

    def numbers(self, rng: np.random.Generator) -> Iterable[int]:
        blocks = np.split(np.arange(self._count), range(BLOCK_CLIPS, self._count, BLOCK_CLIPS))
        for number in rng.permutation(len(blocks)):
            yield from rng.permutation(blocks[number]).tolist()


def open_batches(
    place: Place, clips: Sequence[Clip], settings: Settings, *, cached: bool
) -> Batches:
    order = Blocks(len(clips), settings) if settings.shuffle == "buffer" else None
    return map_style(Reader(place, settings, cached), clips, settings, order)


LOADERS = [
    Loader(
        name=name,
        format=one_format("zarr"),
        prepare=prepare,
        open=partial(open_batches, cached=cached),
        shuffles=("off", "buffer", "full"),
        storages=("local", "cold", "mount", "adlfs", "obstore"),
        needs=("zarr.experimental.cache_store",) if cached else ("zarr",),
        note=f"chunks of {CHUNK_FRAMES} frames; buffer: shuffled blocks of {BLOCK_CLIPS} clips",
    )
    for name, cached in (("zarr", False), ("zarr-cached", True))
]
