"""LitData: frames, of which a clip takes several, and clips cut before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.blob_folder import BlobFolder
from benchmarks.tartanair.loaders.map_style import loader_arguments, map_style
from benchmarks.tartanair.loaders.precut import CutBatches, cut_clips, cut_name, save_keys

CHUNK_BYTES = "64MB"


def items(_: int, recordings: Recordings, settings: Settings | None) -> Iterator[dict[str, Any]]:
    yield from recordings.rows() if settings is None else cut_clips(recordings, settings)


def write(recordings: Recordings, folder: Path, settings: Settings | None) -> None:
    from litdata import optimize

    save_keys(recordings, folder)
    optimize(
        partial(items, recordings=recordings, settings=settings),
        [0],
        output_dir=str(folder / "chunks"),
        chunk_bytes=CHUNK_BYTES,
        num_workers=1,  # items keep their order
        start_method="fork",
        verbose=False,
    )


def prepare_frames(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    write(recordings, folder, None)


class Reader:
    """Frames by their rows."""

    def __init__(self, place: Place, features: Sequence[str]) -> None:
        self._place = place
        self._features = features
        self._frames: Any = None

    def read(self, clip: Clip) -> Mapping[str, Any]:
        import numpy as np

        if self._frames is None:
            from litdata import StreamingDataset

            self._frames = StreamingDataset(**source(self._place))
        frames = [self._frames[clip.row + i] for i in range(clip.stop - clip.start)]
        return {name: np.stack([frame[name] for frame in frames]) for name in self._features}


def open_frames(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    if place.location:  # forget what was read before
        shutil.rmtree(caches(place), ignore_errors=True)
        caches(place).mkdir()
    return map_style(Reader(place, settings.features), clips, settings)


def open_clips(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(place.folder / "chunks"),
        shuffle=settings.shuffle != "off",
        seed=settings.seed,
        drop_last=False,
    )
    batches = StreamingDataLoader(
        dataset, batch_size=settings.batch_size, **loader_arguments(settings)
    )
    return CutBatches(place.folder, settings.features, batches)


def source(place: Place) -> dict[str, Any]:
    """What a `StreamingDataset` is told of where its chunks are, and where to cache remote ones."""
    if not place.location:
        return {"input_dir": str(place.folder / "chunks")}
    # It would fetch with obstore, which it tells neither the endpoint nor the key.
    os.environ["LITDATA_ASYNC_CHUNK_PREFETCH"] = "0"
    there = BlobFolder.of(place)
    credential = {"account_name": there.account, "account_key": there.key}
    return {
        "input_dir": f"azure://{there.container}/{there.path}/chunks",
        # By number, two processes that want a chunk at a time fail if they share a cache.
        "cache_dir": str(caches(place) / str(os.getpid())),
        "storage_options": {"account_url": there.endpoint, "credential": credential},
    }


def caches(place: Place) -> Path:
    """Where what was read from Azure is kept, beside the prepared data."""
    return place.folder.with_name(f"{place.folder.name}.cache")


LOADERS = [
    Loader(
        name="litdata",
        format=one_format("litdata"),
        prepare=prepare_frames,
        open=open_frames,
        storages=("local", "cold", "mount", "own"),
        needs=("litdata",),
        alone=True,
        note="an item a frame with all features, by number; Azure: azure-storage-blob, and a cache "
        "of chunks on the disk",
    ),
    Loader(
        name="litdata-cut",
        format=partial(cut_name, "litdata-cut"),
        prepare=write,
        open=open_clips,
        shuffles=("off", "buffer"),
        needs=("litdata",),
        alone=True,
        precut=True,
        note="an item a clip; buffer: chunks shuffled, and the clips in each",
    ),
]
