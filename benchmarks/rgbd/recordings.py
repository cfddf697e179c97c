"""A folder of RGB-D recordings, whose frames are resized on their way to training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.rgbd.frames import read_frame, resize
from benchmarks.tartanair.compare.recordings import Episode, Feature, Frame, Recordings

__all__ = ["RgbdRecordings"]


class RgbdRecordings(Recordings):
    """Every frame of every recording, at its full size; `delivered` resizes it."""

    @classmethod
    def open(cls, root: Path, features: Sequence[str], _cache: Path) -> RgbdRecordings:
        episodes = tuple(
            Episode(folder.name, sum(1 for _ in (folder / features[0]).iterdir()))
            for folder in sorted(root.iterdir())
        )
        first = read_frame(root, episodes[0].key, 0, tuple(features))
        return cls(
            root,
            {name: Feature(array.dtype.str, array.shape) for name, array in first.items()},
            episodes,
        )

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        for episode in self.episodes:
            yield episode, self._frames(episode)

    def _frames(self, episode: Episode) -> Iterator[Frame]:
        for index in range(episode.num_frames):
            yield read_frame(self.root, episode.key, index, tuple(self.features))

    def delivered(self, frame: Frame) -> Frame:
        return resize(frame)
