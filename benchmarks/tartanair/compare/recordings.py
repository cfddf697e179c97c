"""Original recordings, source of the loaders' formats, and the clips of an epoch."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.loaders.raw_files import RawFilesDataset

__all__ = ["Clip", "Episode", "Feature", "Frame", "Recordings"]

Frame: TypeAlias = dict[str, npt.NDArray[Any]]
"""Feature to array."""


class Clip(NamedTuple):
    """Frames `start` to `stop` of an episode; `row` is the first frame's index in all episodes."""

    episode: str
    start: int
    stop: int
    row: int


class Feature(NamedTuple):
    """Dtype and shape of a frame."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape))


class Episode(NamedTuple):
    """A recording, and its number of frames with all features."""

    key: str
    num_frames: int


@dataclass(frozen=True)
class Recordings:
    """Frames of a TartanAir tree with all features; skips each episode's last, without flow.

    Originals of other kinds are subclasses with their own `open` and `read`.
    """

    root: Path
    features: dict[str, Feature]
    episodes: tuple[Episode, ...]

    @classmethod
    def open(cls, root: Path, features: Sequence[str]) -> Recordings:
        dataset = RawFilesDataset(root, clip_len=1, features=features)
        first = dataset[0]
        found = {
            name: Feature(first[name].numpy().dtype.str, tuple(first[name].shape[1:]))
            for name in features
        }
        counts = Counter(key for key, _ in dataset.places())
        return cls(root, found, tuple(itertools.starmap(Episode, counts.items())))

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        """Each episode with its frames, to be consumed before the next episode's."""
        dataset = RawFilesDataset(self.root, clip_len=1, features=list(self.features))
        numbers = iter(range(len(dataset)))

        def frames(count: int) -> Iterator[Frame]:
            for number in itertools.islice(numbers, count):
                sample = dataset[number]
                yield {name: sample[name].numpy()[0] for name in self.features}

        for episode in self.episodes:
            yield episode, frames(episode.num_frames)

    def delivered(self, frame: Frame) -> Frame:
        """The frame as clips contain it, after the loaders' transform."""
        return frame

    @property
    def num_frames(self) -> int:
        return sum(episode.num_frames for episode in self.episodes)

    @property
    def name(self) -> str:
        """A hash of episodes and features."""
        content = repr((sorted(self.features.items()), self.episodes))
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def frame_nbytes(self, features: Sequence[str] | None = None) -> int:
        """Bytes of a recorded frame with these features, by default all."""
        return sum(
            self.features[n].nbytes for n in (self.features if features is None else features)
        )

    def rows(self) -> Iterator[Frame]:
        """All frames, in the order of `Clip.row`."""
        for _, frames in self.read():
            yield from frames

    def clips(self, clip_len: int, stride: int) -> list[Clip]:
        """Every clip of an epoch, by episode and start."""
        clips, row = [], 0
        for episode in self.episodes:
            clips += [
                Clip(episode.key, start, start + clip_len, row + start)
                for start in range(0, episode.num_frames - clip_len + 1, stride)
            ]
            row += episode.num_frames
        return clips
