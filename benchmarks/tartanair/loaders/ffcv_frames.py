"""FFCV: one file of frames; a clip is the indices of its frames, a batch so many of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batch, Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.features import load_features, save_features
from benchmarks.tartanair.loaders.map_style import Order


class Rows:
    """The frames in order, for FFCV's writer, which asks for each by its number, in order."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings
        self._rows: Iterator[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return self._recordings.num_frames

    def __getitem__(self, _number: int) -> tuple[Any, ...]:
        if self._rows is None:
            self._rows = self._recordings.rows()
        return tuple(next(self._rows).values())


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    save_features(recordings, folder)
    fields = {
        name: NDArrayField(np.dtype(feature.dtype), feature.shape)
        for name, feature in recordings.features.items()
    }
    page = max(8 << 20, 1 << (recordings.frame_nbytes(list(recordings.features)) * 2).bit_length())
    writer = DatasetWriter(str(folder / "frames.beton"), fields, page_size=page, num_workers=1)
    writer.from_indexed_dataset(Rows(recordings))


class Epochs:
    """Batches of its loader, which is compiled once."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        workers = max(1, settings.workers)
        if workers > len(os.sched_getaffinity(0)):
            # Numba, which runs them, reads it when it is imported; else a core is the most.
            os.environ["NUMBA_NUM_THREADS"] = str(workers)
        from ffcv.fields.decoders import NDArrayDecoder
        from ffcv.loader import Loader as FfcvLoader
        from ffcv.loader import OrderOption
        from ffcv.transforms import ToTensor

        self._clips = clips
        self._settings = settings
        self._order = Order(len(clips), settings)
        # Its batches hold its fields in their order, whatever order they are asked for in.
        everything = load_features(folder)
        self._names = [name for name in everything if name in settings.features]
        pipelines = {
            name: [NDArrayDecoder(), ToTensor()] if name in self._names else None
            for name in everything
        }
        self._loader = FfcvLoader(
            str(folder / "frames.beton"),
            batch_size=settings.batch_size * settings.clip_len,
            num_workers=workers,
            order=OrderOption.SEQUENTIAL,
            indices=self._rows(clips),
            pipelines=pipelines,
            drop_last=False,
            batches_ahead=settings.prefetch,
        )

    def __iter__(self) -> Iterator[Batch]:
        size = self._settings.batch_size
        clips = [self._clips[number] for number in self._order]
        self._loader.traversal_order.indices = self._rows(clips)
        for number, frames in enumerate(self._loader):
            chosen = clips[number * size : (number + 1) * size]
            batch: Batch = {
                name: array.reshape(len(chosen), -1, *array.shape[1:])
                for name, array in zip(self._names, frames, strict=True)
            }
            batch["episode"] = [clip.episode for clip in chosen]
            batch["start"] = torch.tensor([clip.start for clip in chosen])
            yield batch

    def _rows(self, clips: Sequence[Clip]) -> Any:
        firsts = np.array([clip.row for clip in clips])
        return (firsts[:, None] + np.arange(self._settings.clip_len)).reshape(-1)


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return Epochs(place.folder, clips, settings)


LOADERS = [
    Loader(
        name="ffcv",
        format=one_format("ffcv"),
        prepare=prepare,
        open=open_batches,
        needs=("ffcv", "cv2"),
        install="make install-ffcv",
        alone=True,
        note="clips through indices; workers are threads, at least one",
    )
]
