"""What map-style loaders share: a `DataLoader` over something that can read one clip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders.base import Batches, Settings

__all__ = ["ClipDataset", "ClipReader", "Order", "loader_arguments", "map_style"]


class ClipReader(Protocol):
    """Reads a clip of one format. Files are opened at the first read: workers are forked before."""

    def read(self, clip: Clip) -> Mapping[str, Any]:
        """Feature to array or tensor [N, …]."""


def map_style(
    reader: ClipReader,
    clips: Sequence[Clip],
    settings: Settings,
    order: Sampler[int] | None = None,
) -> Batches:
    """Batches of clips that are read one by one, in canonical order, shuffled, or in `order`."""
    return DataLoader(
        ClipDataset(reader, clips),
        batch_size=settings.batch_size,
        sampler=order or Order(len(clips), settings),
        **loader_arguments(settings),
    )


def loader_arguments(settings: Settings) -> dict[str, Any]:
    """What every `DataLoader` of the comparison is given."""
    workers = settings.workers
    return {
        "num_workers": workers,
        "prefetch_factor": settings.prefetch if workers else None,
        "persistent_workers": workers > 0,
    }


class ClipDataset(Dataset[dict[str, Any]]):
    """Clips by their number."""

    def __init__(self, reader: ClipReader, clips: Sequence[Clip]) -> None:
        self._reader = reader
        self._clips = clips

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, number: int) -> dict[str, Any]:
        clip = self._clips[number]
        tensors = {
            name: value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
            for name, value in self._reader.read(clip).items()
        }
        return {**tensors, "episode": clip.episode, "start": clip.start}


class Order(Sampler[int]):
    """All numbers, each once, in another order every epoch if they are to be shuffled."""

    def __init__(self, count: int, settings: Settings) -> None:
        self._count = count
        self._shuffle = settings.shuffle != "off"
        self._seed = settings.seed
        self._epoch = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        yield from self.numbers(rng) if self._shuffle else range(self._count)

    def numbers(self, rng: np.random.Generator) -> Iterable[int]:
        """A full shuffle."""
        numbers: list[int] = rng.permutation(self._count).tolist()
        return numbers
