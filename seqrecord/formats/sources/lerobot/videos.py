"""Video features of LeRobot datasets.

lerobot 0.6 quantises depth to 12 bits, encodes the codes as video with pixel format gray12le, and
stores the scale in the feature's `info`. The packets are kept, and readers decode to metres.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.specs import UnsupportedError
from seqrecord.formats.sources.lerobot.counts import episodes_by_video, overlapping
from seqrecord.formats.sources.lerobot.layout import LeRobotEpisode, LeRobotFeature
from seqrecord.formats.sources.lerobot.pairing import have_frames, jitter_note, pair_in_order
from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.streams import TOLERANCE, own_config, read_gops, video_spec
from seqrecord.formats.sources.video.tables import PacketTable, read_references, read_table
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.remote import remote_files
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.tables.grids import nearest_frames
from seqrecord.video.depth import DepthScale
from seqrecord.video.gops import DecodedFrame, Gop
from seqrecord.video.references import ReferencedGops

_logger = logging.getLogger("seqrecord")

_PIXELS = "gray12le"


class LeRobotVideos:
    """The videos of one feature.

    The last file is left open, since the next episode is usually in it too. Without `tolerance`,
    rows whose times jitter are paired with frames in order, see `pair_in_order`. `episodes` are all
    of the dataset, and `span_of` returns the first and last timestamp of an episode's rows.
    """

    def __init__(
        self,
        root: Path,
        feature: LeRobotFeature,
        spec: FeatureSpec,
        tolerance: float | None,
        *,
        fps: float,
        episodes: Collection[LeRobotEpisode],
        span_of: Callable[[LeRobotEpisode], tuple[float, float]],
        in_place: bool = False,
    ) -> None:
        self._root, self._spec, self._tolerance = root, spec, tolerance
        self._step = 1 / fps
        self._has_jitter = False
        self._episodes = episodes_by_video(episodes, spec.name)
        self._span_of, self._reference = span_of, in_place
        self._overlapping: Mapping[str, str] = {}  # episodes of the open file
        self._is_depth = feature.depth is not None
        self._file: VideoFile | None = None
        self._open_place = ""
        self._table: PacketTable | None = None
        self._ticks: list[int] | None = None
        self._gop_options: dict[str, Any] = {}  # tolerance, and the file's configuration

    def gops(
        self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]
    ) -> Iterator[Gop | ReferencedGops | DecodedFrame]:
        """Yield the GOPs of an episode's rows with these timestamps."""
        with located(SourceError, episode=episode.key, feature=self._spec.name):
            file, begin = self._open_video(episode, times)
            options = self._gop_options
            frame_times = self._pair_times(file, times + begin, begin)
            if self._table is not None:
                yield read_references(file, self._table, frame_times, **options)
                return
            if self._tolerance is not None:
                nearest = self._nearest_times(file, frame_times, begin)
                if nearest is not None:
                    frame_times, options = nearest, options | {"tolerance": TOLERANCE}
            yield from read_gops(file, frame_times, **options)

    def _nearest_times(
        self, file: VideoFile, times: npt.NDArray[np.float64], begin: float
    ) -> npt.NDArray[np.float64] | None:
        """Return the times of the frames nearest to the rows' times, as in place.

        `None` if a row has none within the tolerance, or two rows have the same: `read_gops`
        raises.
        """
        if not (frames := self._frame_times(file, times - begin)):
            return None
        shown_times = np.array(frames) * file.tick
        nearest = nearest_frames(times, shown_times)
        distances = np.abs(shown_times[nearest] - times)
        if (distances >= (self._tolerance or 0)).any() or (np.diff(nearest) <= 0).any():
            return None
        return shown_times[nearest]

    def _pair_times(
        self, file: VideoFile, times: npt.NDArray[np.float64], begin: float
    ) -> npt.NDArray[np.float64]:
        """Return the times of the rows' frames if the rows' times jitter, else `times`."""
        if self._tolerance is not None or not (frames := self._frame_times(file, times - begin)):
            return times
        shown_times = np.array(frames) * file.tick
        if have_frames(times, shown_times, TOLERANCE):
            return times
        if (pair := pair_in_order(times, shown_times, begin, self._step)) is None:
            return times
        if remote_files(self._root) is not None and not self._has_jitter:  # else the account tells
            self._has_jitter = True
            _logger.warning("%s: %s", file.path, jitter_note("the first such episode", pair[1]))
        return pair[0]

    def _frame_times(self, file: VideoFile, times: npt.NDArray[np.float64]) -> list[int]:
        """Return ticks of all frames in ascending order; empty if they are not needed.

        `times` are the rows' times in the episode. Files without tables are read once more; on a
        URL only with a tolerance, or if the rows' times are not multiples of the step.
        """
        if self._table is not None:
            return [int(tick) for tick in self._table.ticks[self._table.shown]]
        differences = times - np.round(times / self._step) * self._step
        is_regular = self._tolerance is None and np.abs(differences).max() < TOLERANCE
        if is_regular and remote_files(self._root) is not None:
            return []
        if self._ticks is None:
            entries = file.entries()
            shown_ticks = sorted(entry.timestamp for entry in entries if not entry.is_discard)
            self._ticks = shown_ticks or file.ticks()
        return self._ticks

    def _open_video(
        self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]
    ) -> tuple[VideoFile, float]:
        """Return an episode's open file, and the time of its first frame in the file."""
        place = episode.videos[self._spec.name]
        if self._file is None or self._open_place != place.file:
            self._open_place = ""
            if self._file is not None:
                self._file.close()
            self._file = VideoFile(self._root / place.file)
            if self._is_depth:
                _check_pixels(self._file)
            config = own_config(self._file, self._spec)
            tolerance = TOLERANCE if self._tolerance is None else self._tolerance
            self._gop_options = {"tolerance": tolerance, "config": config}
            self._ticks = None
            self._table = read_table(self._file) if self._reference else None
            self._overlapping = overlapping(self._claims(place.file), self._step)
            self._open_place = place.file
        if (key := self._overlapping.get(episode.key)) is not None:
            raise SourceError(
                "two episodes claim the same frames of a video, and nothing tells whose they are; "
                "correct meta/episodes, or record both again",
                file=str(self._root / place.file),
                expected="frames of one episode",
                got=f"{len(times)} rows from {place.begin:.3f} s to {place.begin + times[-1]:.3f} "
                f"s, and rows of {key}",
            )
        return self._file, place.begin

    def _claims(self, file: str) -> dict[str, tuple[float, float]]:
        """Return the times of the first and the last frame of each episode in a video file.

        By its rows, or by its listed length without any, which its own reading refuses.
        """
        claims: dict[str, tuple[float, float]] = {}
        members = self._episodes[file]
        for episode in members if len(members) > 1 else ():
            first, last = 0.0, (episode.length - 1) * self._step
            with skipping_unreadable():
                first, last = self._span_of(episode)
            begin = episode.videos[self._spec.name].begin
            claims[episode.key] = begin + first, begin + last
        return claims


def read_spec(feature: LeRobotFeature, path: Path, info: Path) -> FeatureSpec:
    """Return the feature's spec from one of its videos; depth is float32 [H, W], scaled by `info`.

    Raises `SourceError` for an unreadable or unsupported video.
    """
    with VideoFile(path) as file:
        if feature.depth is None:
            return video_spec(feature.name, file)
        scale = depth_scale(feature, info)
        _check_pixels(file)
        return replace(video_spec(feature.name, file, depth=scale), kind="depth", unit="m")


def depth_scale(feature: LeRobotFeature, info: Path) -> DepthScale:
    """Return the scale of a depth feature, as the file `info` declares it.

    Raises `UnsupportedError` for a missing or invalid scale.
    """
    try:
        return DepthScale.of(feature.depth or {})
    except ValueError as error:
        raise UnsupportedError(
            f"depth video without a valid scale: video.{error}; to pack the other features, select "
            "them (--features), or set without_video (--source-option without_video=true)",
            file=str(info),
            feature=feature.name,
        ) from error


def _check_pixels(file: VideoFile) -> None:
    if file.pixel_format != _PIXELS:
        raise SourceError(
            "depth video without 12-bit codes",
            file=str(file.path),
            expected=_PIXELS,
            got=file.pixel_format,
        )
