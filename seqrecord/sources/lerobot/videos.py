"""Video features of LeRobot datasets: colour packets, kept, and depth codes, decoded to metres.

lerobot 0.6 quantises depth to 12 bits, encodes the codes as video with pixel format gray12le, and
stores the scale in the feature's `info`. The formulas are from its `datasets/depth_utils.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import SourceError, located
from seqrecord.format.references import ReferencedGops
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.specs import feature_spec
from seqrecord.sources.lerobot.layout import INFO, LeRobotEpisode, LeRobotFeature
from seqrecord.sources.video.files import VideoFile
from seqrecord.sources.video.streams import (
    check_size,
    own_config,
    read_frames,
    read_gops,
    video_spec,
)
from seqrecord.sources.video.tables import PacketTable, read_references, read_table

NUM_CODES = 4096

_PIXELS = "gray12le"
_NUMBERS = ("depth_min", "depth_max", "shift")


class LeRobotVideos:
    """The videos of one feature.

    The last file stays open, since the next episode is usually in it too. `limits` are the end
    times of episodes in their files, by key, see `limits_in_videos`.
    """

    def __init__(
        self,
        root: Path,
        feature: LeRobotFeature,
        spec: FeatureSpec,
        tolerance: float,
        *,
        limits: Mapping[str, float],
        in_place: bool = False,
    ) -> None:
        self._root, self._spec, self._tolerance = root, spec, tolerance
        self._limits, self._reference = limits, in_place
        self.is_depth = not spec.is_video
        self._metres = None if spec.is_video else depth_scale(feature, root / INFO).metres()
        self._file: VideoFile | None = None
        self._opened_last = ""
        self._table: PacketTable | None = None
        self._how: dict[str, Any] = {}  # tolerance, and the file's configuration

    def gops(
        self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]
    ) -> Iterator[Gop | ReferencedGops]:
        """Yield the GOPs of an episode's rows with these timestamps."""
        with located(SourceError, episode=episode.key, feature=self._spec.name):
            file, begin = self._opened(episode, times)
            if self._table is None:
                yield from read_gops(file, times + begin, **self._how)
            else:
                yield read_references(file, self._table, times + begin, **self._how)

    def depths(
        self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the frames of a depth feature in metres, float32 [H, W]."""
        assert self._metres is not None
        with located(SourceError, episode=episode.key, feature=self._spec.name):
            file, begin = self._opened(episode, times)
            for frame in read_frames(file, times + begin, tolerance=self._tolerance):
                yield self._metres[_codes(frame, file)]

    def _opened(
        self, episode: LeRobotEpisode, times: npt.NDArray[np.float64]
    ) -> tuple[VideoFile, float]:
        """Return an episode's open file, and the time of its first frame in the file."""
        place = episode.videos[self._spec.name]
        end, limit = place.begin + times[-1], self._limits.get(episode.key, math.inf)
        if end >= limit:
            raise SourceError(
                "the episode overlaps with the next one in its video",
                file=str(self._root / place.file),
                expected=f"rows from {place.begin:.3f} s to less than {limit:.3f} s",
                got=f"{len(times)} rows to {end:.3f} s",
            )
        if self._file is None or self._opened_last != place.file:
            if self._file is not None:
                self._file.close()
                self._file, self._opened_last = None, ""
            self._file = VideoFile(self._root / place.file)
            config = own_config(self._file, self._spec) if self._spec.is_video else None
            self._how = {"tolerance": self._tolerance, "config": config}
            self._table = read_table(self._file) if self._reference else None
            self._opened_last = place.file
        check_size(self._file, self._spec)
        if self.is_depth:
            _check_pixels(self._file)
        return self._file, place.begin


def read_spec(feature: LeRobotFeature, path: Path) -> FeatureSpec:
    """Return the feature's spec from one of its videos; depth is float32 [H, W].

    Raises `SourceError` for an unreadable or unsupported video.
    """
    with VideoFile(path) as file:
        if feature.depth is None:
            return video_spec(feature.name, file)
        _check_pixels(file)
        dtype = np.dtype(np.float32)
        return feature_spec(feature.name, dtype, file.size, path, kind="depth", unit="m")


@dataclass(frozen=True)
class DepthScale:
    """Depth in metres of the 12-bit codes of a LeRobot depth video.

    Args:
        depth_min: metres of code 0.
        depth_max: metres of code 4095.
        shift: added to metres before the logarithm.
        use_log: codes are evenly spaced in log(metres + shift) instead of metres.

    Example:
        from seqrecord.sources import DepthScale

        scale = DepthScale(0.1, 10.0, 0.0, use_log=False)
        print(scale.metres()[4095])
    """

    depth_min: float
    depth_max: float
    shift: float
    use_log: bool

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> DepthScale:
        """Parse a feature's `info`. Raises `ValueError` for a missing or invalid value."""
        numbers = []
        for name in _NUMBERS:
            value = info.get(f"video.{name}")
            if isinstance(value, bool) or not (
                isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
            ):
                raise ValueError(f"video.{name}: expected a finite number, got {value!r:.40}")
            numbers.append(float(value))
        use_log = info.get("video.use_log")
        if not isinstance(use_log, bool):
            raise ValueError(f"video.use_log: expected true or false, got {use_log!r:.40}")
        low, high, shift = numbers
        if not low < high:
            raise ValueError(f"video.depth_max: expected more than {low} m, got {high}")
        if use_log and not low + shift > 0:
            raise ValueError(f"video.shift: expected more than {-low} m, got {shift}")
        scale = cls(low, high, shift, use_log)
        if not np.isfinite(scale.metres()).all():
            raise ValueError("video.depth_max: expected a value in the range of float32")
        return scale

    def metres(self) -> npt.NDArray[np.float32]:
        """Return the metres of each code, float32 [4096].

        Computed in float32 steps as in lerobot, so linear scales are equal bit by bit. Logarithmic
        scales may differ in the last bits: exponentials are rounded correctly here.
        """
        if self.use_log:
            first, last = (
                math.log(self.depth_min + self.shift),
                math.log(self.depth_max + self.shift),
            )
        else:
            first, last = self.depth_min, self.depth_max
        with np.errstate(over="ignore", invalid="ignore"):
            step = np.float32((last - first) / (NUM_CODES - 1))
            values = np.arange(NUM_CODES, dtype=np.float32) * step + np.float32(first)
            if self.use_log:
                values = np.exp(values.astype(np.float64)).astype(np.float32)
                values -= np.float32(self.shift)
            limits = np.float32(self.depth_min), np.float32(self.depth_max)
            return np.asarray(np.clip(values, *limits), np.float32)


def depth_scale(feature: LeRobotFeature, info: Path) -> DepthScale:
    """Return the scale of a depth feature, as the file `info` declares it.

    Raises `SourceError` for a missing or invalid scale.
    """
    try:
        return DepthScale.of(feature.depth or {})
    except ValueError as error:
        raise SourceError(
            f"depth video without a valid scale: {error}; to pack the other features, select "
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


def _codes(frame: Any, file: VideoFile) -> npt.NDArray[np.uint16]:
    """Return the codes of a decoded frame, uint16 [H, W]."""
    if frame.format.name != _PIXELS or (frame.height, frame.width) != file.size:
        raise SourceError(
            "a frame differs from its video",
            file=str(file.path),
            expected=f"{_PIXELS} {list(file.size)}",
            got=f"{frame.format.name} {[frame.height, frame.width]}",
        )
    plane = frame.planes[0]
    rows = np.frombuffer(plane, "<u2").reshape(-1, plane.line_size // 2)
    codes: npt.NDArray[np.uint16] = rows[: frame.height, : frame.width]
    if codes.max() >= NUM_CODES:
        raise SourceError(
            "damaged video",
            file=str(file.path),
            expected=f"codes below {NUM_CODES}",
            got=int(codes.max()),
        )
    return codes
