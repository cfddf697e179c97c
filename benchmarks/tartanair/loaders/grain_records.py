"""Grain over ArrayRecord: a record is a frame with all its features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import (
    Batch,
    Batches,
    Loader,
    Place,
    Settings,
    one_format,
)
from benchmarks.tartanair.loaders.features import load_features, save_features
from benchmarks.tartanair.loaders.packed import PackedReader, pack


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    save_features(recordings, folder)
    writer = ArrayRecordWriter(str(folder / "frames.array_record"), "group_size:1,uncompressed")
    for frame in recordings.rows():
        writer.write(pack(frame))
    writer.close()


def open_frames(path: str) -> Any:
    import grain

    return grain.sources.ArrayRecordDataSource([path])


class Epochs:
    """Batches of a Grain dataset, shuffled anew for each epoch."""

    def __init__(self, reader: PackedReader, clips: Sequence[Clip], settings: Settings) -> None:
        self._reader = reader
        self._clips = clips
        self._settings = settings
        self._epoch = 0

    def __iter__(self) -> Iterator[Batch]:
        import grain

        settings = self._settings
        dataset = grain.MapDataset.range(len(self._clips))
        if settings.shuffle != "off":
            dataset = dataset.shuffle(seed=settings.seed + self._epoch)
        self._epoch += 1
        if settings.workers:  # each process would leave a smaller last batch
            dataset = dataset.batch(settings.batch_size).map(partial(read_batch, self._read))
        else:
            dataset = dataset.map(self._read).batch(settings.batch_size, batch_fn=stack)
        threads = grain.ReadOptions(num_threads=16, prefetch_buffer_size=16)
        batches = dataset.to_iter_dataset(threads)
        if settings.workers:
            batches = batches.mp_prefetch(
                grain.MultiprocessingOptions(settings.workers, settings.prefetch)
            )
        yield from batches

    def _read(self, number: int) -> dict[str, Any]:
        clip = self._clips[number]
        return {**self._reader.read(clip), "episode": clip.episode, "start": clip.start}


def read_batch(read: Any, numbers: Any) -> Batch:
    return stack([read(int(number)) for number in numbers])


def stack(clips: Sequence[dict[str, Any]]) -> Batch:
    batch: Batch = {
        name: np.stack([clip[name] for clip in clips])
        for name in clips[0]
        if name not in ("episode", "start")
    }
    batch["episode"] = np.array([clip["episode"] for clip in clips])
    batch["start"] = np.array([clip["start"] for clip in clips])
    return batch


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    features = load_features(place.folder)
    frames = partial(open_frames, str(place.folder / "frames.array_record"))
    return Epochs(PackedReader(frames, features, settings.features), clips, settings)


LOADERS = [
    Loader(
        name="grain",
        format=one_format("array-record"),
        prepare=prepare,
        open=open_batches,
        needs=("grain", "array_record"),
        note="ArrayRecord, a record a frame",
    )
]
