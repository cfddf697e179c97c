"""The video features of LeRobot datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import SourceError, located
from seqrecord.schema import FeatureSpec
from seqrecord.sources.lerobot_layout import LeRobotEpisode, LeRobotFeature
from seqrecord.sources.video_files import VideoFile
from seqrecord.sources.video_streams import check_file, read_gops, video_spec

__all__ = ["LastVideo", "LeRobotVideos", "first_video", "probed"]


class LastVideo:
    """The file that was opened last, which stays open: the next episode is mostly in it too.

    `check` is called with each file that is opened, and raises for one that does not fit.
    """

    def __init__(self, check: Callable[[VideoFile], None]) -> None:
        self._check = check
        self._file: VideoFile | None = None

    def opened(self, path: Path) -> VideoFile:
        """The open file; raises `SourceError`."""
        if self._file is not None and self._file.path == path:
            return self._file
        if self._file is not None:
            self._file.close()
            self._file = None
        file = VideoFile(path)
        try:
            self._check(file)
        except SourceError:
            file.close()
            raise
        self._file = file
        return file


class LeRobotVideos:
    """One feature's videos."""

    def __init__(self, root: Path, spec: FeatureSpec, tolerance: float) -> None:
        self._root, self._spec, self._tolerance = root, spec, tolerance
        self._last = LastVideo(lambda file: check_file(file, spec))

    def gops(self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]) -> Iterator[Gop]:
        """The frames of an episode's rows, of which `times` are the timestamps."""
        place = episode.videos[self._spec.name]
        with located(SourceError, episode=episode.key, feature=self._spec.name):
            file = self._last.opened(self._root / place.file)
            yield from read_gops(file, times + place.begin, tolerance=self._tolerance)


def first_video(
    root: Path, feature: LeRobotFeature, episodes: Iterable[LeRobotEpisode]
) -> FeatureSpec:
    """The feature, from the first episode whose video can be read; raises `SourceError`."""
    return probed(root, feature, episodes, lambda file: video_spec(feature.name, file))


def probed(
    root: Path,
    feature: LeRobotFeature,
    episodes: Iterable[LeRobotEpisode],
    spec_of: Callable[[VideoFile], FeatureSpec],
) -> FeatureSpec:
    """What `spec_of` says of the first episode whose video can be read; raises `SourceError`."""
    first: SourceError | None = None
    tried = set()
    for episode in episodes:
        path = root / episode.videos[feature.name].file
        if path in tried:
            continue
        tried.add(path)
        try:
            with VideoFile(path) as file:
                spec = spec_of(file)
        except SourceError as error:
            error.located(episode=episode.key, feature=feature.name)
            first = first or error
            continue
        feature.check_size(spec, path)
        return spec
    raise first or SourceError("a LeRobot dataset without episodes", file=str(root))
