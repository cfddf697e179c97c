"""A TartanAir tree as the loaders' formats are made from it, and the clips that an epoch has."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.loaders.raw_files import RawFilesDataset

__all__ = ["Clip", "Episode", "Feature", "Tree"]


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
class Tree:
    """The frames of a tree that have all features: TartanAir's last frame has no flow.

    Every format holds exactly these, so that all hold the same. `Tree.open` lists the files once
    and remembers the listing in the folder `cache`.
    """

    root: Path
    features: dict[str, Feature]
    episodes: tuple[Episode, ...]

    @classmethod
    def open(cls, root: Path, features: Sequence[str], cache: Path) -> Tree:
        made = {"root": str(root.resolve()), "features": list(features)}
        name = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:12]
        file = cache / f"tree-{name}.json"
        if file.exists():
            saved = json.loads(file.read_text())
            return cls(
                root,
                {n: Feature(f["dtype"], tuple(f["shape"])) for n, f in saved["features"].items()},
                tuple(Episode(**episode) for episode in saved["episodes"]),
            )
        dataset = RawFilesDataset(root, clip_len=1, features=features)
        first = dataset[0]
        tree = cls(
            root,
            {
                name: Feature(first[name].numpy().dtype.str, tuple(first[name].shape[1:]))
                for name in features
            },
            tuple(itertools.starmap(Episode, Counter(key for key, _ in dataset.places()).items())),
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            json.dumps(
                {
                    "features": {name: asdict(f) for name, f in tree.features.items()},
                    "episodes": [asdict(episode) for episode in tree.episodes],
                }
            )
        )
        return tree

    @property
    def num_frames(self) -> int:
        return sum(episode.num_frames for episode in self.episodes)

    @cached_property
    def name(self) -> str:
        """Short, and another one when there are other episodes or features."""
        said = repr((sorted(self.features.items()), self.episodes))
        return hashlib.sha256(said.encode()).hexdigest()[:8]

    def frame_nbytes(self, features: Sequence[str]) -> int:
        return sum(self.features[name].nbytes for name in features)

    def read(self) -> Iterator[tuple[Episode, Iterator[dict[str, npt.NDArray[Any]]]]]:
        """Each episode with its frames, which must be taken before the next episode's."""
        dataset = RawFilesDataset(self.root, clip_len=1, features=list(self.features))
        numbers = iter(range(len(dataset)))

        def frames(count: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
            for number in itertools.islice(numbers, count):
                sample = dataset[number]
                yield {name: sample[name].numpy()[0] for name in self.features}

        for episode in self.episodes:
            yield episode, frames(episode.num_frames)

    def rows(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
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
