"""Epochs out of DALI's pipelines, on the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders.base import Batch, Settings
from benchmarks.tartanair.loaders.map_style import Order

__all__ = ["DaliEpochs", "places"]


class DaliEpochs(ABC):
    """Batches of clips; `shapes` are those of a frame of each feature."""

    def __init__(
        self, clips: Sequence[Clip], settings: Settings, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.settings = settings
        self._clips = clips
        self._shapes = shapes
        self._order = Order(len(clips), settings)

    @abstractmethod
    def build(self, clips: Sequence[Clip], size: int) -> Any:
        """A `pipeline` that gives these clips in order, `size` a run: all frames of a feature."""

    def pipeline(self, outputs: Callable[[], tuple[Any, ...]], batch_size: int) -> Any:
        """A pipeline of these outputs, of which a run gives `batch_size` samples."""
        from nvidia.dali import pipeline_def

        make = pipeline_def(outputs)
        pipeline = make(
            batch_size=batch_size,
            num_threads=max(1, self.settings.workers),
            device_id=None,
            prefetch_queue_depth=max(1, self.settings.prefetch),
        )
        pipeline.build()
        return pipeline

    def __iter__(self) -> Iterator[Batch]:
        clips = [self._clips[number] for number in self._order]
        size = self.settings.batch_size
        whole = len(clips) // size * size
        # A pipeline's batches are of one size: the rest of the epoch has one of its own.
        for part in (clips[:whole], clips[whole:]):
            if part:
                yield from self._run(part, min(size, len(part)))

    def _run(self, clips: Sequence[Clip], size: int) -> Iterator[Batch]:
        pipeline = self.build(clips, size)
        for at in range(0, len(clips), size):
            outputs = pipeline.run()
            batch: Batch = {}
            for name, output in zip(self.settings.features, outputs, strict=True):
                frames = np.array(output.as_array())  # DALI reuses its own
                shape = (size, self.settings.clip_len, *self._shapes[name])
                batch[name] = torch.from_numpy(frames.reshape(shape))
            yield {**batch, **places(clips[at : at + size])}


def places(clips: Sequence[Clip]) -> Batch:
    """Episode and start of clips, as batches have them."""
    return {
        "episode": [clip.episode for clip in clips],
        "start": torch.tensor([clip.start for clip in clips]),
    }
