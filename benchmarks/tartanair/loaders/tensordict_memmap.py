"""A TensorDict whose tensors are mapped files; a batch is one indexing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batch, Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import Order, loader_arguments


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from tensordict import TensorDict

    frames = TensorDict({}, batch_size=[recordings.num_frames]).memmap_(folder)
    for name, feature in recordings.features.items():
        dtype = torch.from_numpy(np.empty(0, feature.dtype)).dtype
        frames.make_memmap(name, (recordings.num_frames, *feature.shape), dtype=dtype)
    for row, frame in enumerate(recordings.rows()):
        for name, array in frame.items():
            frames[name][row] = torch.from_numpy(array)


class Indexed(Dataset[Batch]):
    """Batches by the numbers of their clips."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        self._folder = folder
        self._clips = clips
        self._features = settings.features
        self._steps = torch.arange(settings.clip_len)
        self._frames: Any = None

    def __getitem__(self, numbers: Sequence[int]) -> Batch:
        if self._frames is None:
            from tensordict import TensorDict

            self._frames = TensorDict.load_memmap(self._folder).select(*self._features)
        clips = [self._clips[number] for number in numbers]
        rows = torch.tensor([clip.row for clip in clips])[:, None] + self._steps
        batch: Batch = self._frames[rows].to_dict()
        starts = torch.tensor([clip.start for clip in clips])
        return {**batch, "episode": [clip.episode for clip in clips], "start": starts}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    order = BatchSampler(Order(len(clips), settings), settings.batch_size, drop_last=False)
    return DataLoader(
        Indexed(place.folder, clips, settings),
        batch_size=None,
        sampler=order,
        **loader_arguments(settings),
    )


LOADERS = [
    Loader(
        name="tensordict",
        format=one_format("tensordict"),
        prepare=prepare,
        open=open_batches,
        needs=("tensordict",),
        note="mapped; a batch is one indexing",
    )
]
