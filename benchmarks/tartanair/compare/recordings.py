"""Recordings as the loaders' formats are made from them, and the clips that an epoch has."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Clip", "Episode", "Feature", "Frame", "Recordings"]

Frame: TypeAlias = dict[str, npt.NDArray[Any]]
"""Feature to array."""


class Clip(NamedTuple):
    """Frames `start` to `stop` of an episode; `row` is the number of the first in all episodes."""

    episode: str
    start: int
    stop: int
    row: int


@dataclass(frozen=True)
class Feature:
    """What one frame of a feature is."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape))


@dataclass(frozen=True)
class Episode:
    """A recording and how many frames it has that have all features."""

    key: str
    num_frames: int


@dataclass(frozen=True)
class Recordings(ABC):
    """The original files of a workload. Every format holds exactly their frames."""

    root: Path
    features: dict[str, Feature]
    episodes: tuple[Episode, ...]

    @abstractmethod
    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        """Each episode with its frames, which must be taken before the next episode's."""

    def delivered(self, frame: Frame) -> Frame:
        """What clips have of a frame: all of it, unless loaders are to transform frames."""
        return frame

    @property
    def num_frames(self) -> int:
        return sum(episode.num_frames for episode in self.episodes)

    @cached_property
    def name(self) -> str:
        """Short, and another one when there are other episodes or features."""
        said = repr((sorted(self.features.items()), self.episodes))
        return hashlib.sha256(said.encode()).hexdigest()[:8]

    def frame_nbytes(self, features: Sequence[str] | None = None) -> int:
        """Of a frame as it was recorded, with these features or all."""
        return sum(
            self.features[name].nbytes for name in (self.features if features is None else features)
        )

    def rows(self) -> Iterator[Frame]:
        """All frames, in the order of `Clip.row`."""
        for _, frames in self.read():
            yield from frames

    def clips(self, clip_len: int, stride: int) -> list[Clip]:
        """Every clip of an epoch, in the order of episode and start."""
        clips, row = [], 0
        for episode in self.episodes:
            clips += [
                Clip(episode.key, start, start + clip_len, row + start)
                for start in range(0, episode.num_frames - clip_len + 1, stride)
            ]
            row += episode.num_frames
        return clips
