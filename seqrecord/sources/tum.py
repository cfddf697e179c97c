"""TUM RGB-D sequences, https://cvg.cit.tum.de/data/datasets/rgbd-dataset/file_formats.

::

    SEQUENCE/rgb.txt              timestamp rgb/1305031102.175304.png
    SEQUENCE/depth.txt            timestamp depth/1305031102.160407.png
    SEQUENCE/groundtruth.txt      timestamp tx ty tz qx qy qz qw
    SEQUENCE/accelerometer.txt    timestamp ax ay az
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.sources.aligning import associate, sample_bounds
from seqrecord.sources.base import SourceFormat
from seqrecord.sources.files import is_file
from seqrecord.sources.sequences import Column, Images, SequenceFrames, SequenceSource, Values
from seqrecord.sources.text_tables import timed_files, timed_values

_WITHIN = 0.02  # seconds: what associate.py allows
_SEPARATORS = ",\t"

_KINECT = re.compile(r"freiburg([123])")
_CALIBRATION = {  # fx, fy, cx, cy; distortion
    "1": ((517.3, 516.5, 318.6, 255.3), (0.2624, -0.9531, -0.0054, 0.0026, 1.1633)),
    "2": ((520.9, 521.0, 325.1, 249.7), (0.2312, -0.7849, -0.0033, -0.0001, 0.9172)),
    "3": ((535.4, 539.2, 320.1, 247.6), (0.0, 0.0, 0.0, 0.0, 0.0)),
}
"""Of the colour cameras, https://cvg.cit.tum.de/data/datasets/rgbd-dataset/file_formats."""


@dataclass(frozen=True)
class Tum(SequenceSource):
    """TUM RGB-D sequences as a source.

    Frames are the pairs of a colour and a depth image that TUM's `associate.py` finds: less than
    20 ms apart, the closest pairs first. Images without a partner are dropped; the metadata counts
    them. Each colour image's pose is found in the same way; a frame without one lacks it. Without
    `depth.txt` frames are all colour images.

    The metadata has `camera`, the colour camera that TUM has calibrated, and its
    `distortion_coefficients`, of sequences whose path says `freiburg1`, `freiburg2` or `freiburg3`:
    the files do not tell. Images are as they were recorded, so distortion is not removed.

    Features: `image` uint8 [H, W, 3]; `depth` uint16 [H, W], 5000 a metre, 0 where unknown; `pose`
    float64 [7], `tx ty tz qx qy qz qw` of the colour camera in metres; `timestamp` and
    `depth_timestamp` float64, seconds; `accelerometer` float64 [?, 4], time in seconds and m/s^2,
    the samples from a frame up to the next.
    """

    expected = "SEQUENCE/rgb.txt with rgb/, depth.txt with depth/, groundtruth.txt"

    @staticmethod
    def is_sequence(names: set[str]) -> bool:
        return {"rgb.txt", "rgb"} <= names

    def open(self, folder: Path) -> SequenceFrames:
        times, images = timed_files(folder / "rgb.txt", folder, _SEPARATORS)
        kept = np.arange(len(times))
        columns: dict[str, Column] = {}
        metadata: dict[str, Any] = {"dataset": "TUM RGB-D", **_calibration(folder)}
        if is_file(folder / "depth.txt"):
            depth_times, depths = timed_files(folder / "depth.txt", folder, _SEPARATORS)
            kept, partners = associate(times, depth_times, _WITHIN)
            columns["depth"] = Images(
                [depths[row] for row in partners.tolist()], "depth", "1/5000 m"
            )
            columns["depth_timestamp"] = Values(depth_times[partners], "timestamp", "s")
            metadata["depth_per_metre"] = 5000
            metadata["rgb_without_depth"] = len(times) - len(kept)
            metadata["depth_without_rgb"] = len(depth_times) - len(kept)
        if not len(kept):
            raise SourceError(
                "a sequence without frames",
                file=str(folder),
                expected="colour and depth images less than 20 ms apart",
            )
        times = times[kept]
        columns = {"image": Images([images[row] for row in kept.tolist()]), **columns}
        columns["timestamp"] = Values(times, "timestamp", "s")
        if is_file(folder / "groundtruth.txt"):
            pose_times, poses = timed_values(folder / "groundtruth.txt", 7, _SEPARATORS)
            frames, rows = associate(times, pose_times, _WITHIN)
            found = np.zeros((len(times), 7))
            there = np.zeros(len(times), np.bool_)
            found[frames], there[frames] = poses[rows], True
            metadata["frames_without_pose"] = len(times) - len(frames)
            if len(frames):
                columns["pose"] = Values(found, "pose", "m", there)
        if is_file(folder / "accelerometer.txt"):
            stamps, values = timed_values(folder / "accelerometer.txt", 3, _SEPARATORS)
            samples, bounds = np.column_stack([stamps, values]), sample_bounds(times, stamps)
            columns["accelerometer"] = Values(samples, "imu", bounds=bounds)
        return SequenceFrames(len(times), columns, metadata)


def _calibration(folder: Path) -> dict[str, Any]:
    """What is known of the camera of a sequence by its folder's name."""
    if not (found := _KINECT.findall(folder.as_posix())):
        return {}
    values, distortion = _CALIBRATION[found[-1]]
    camera = dict(zip(("fx", "fy", "cx", "cy"), values, strict=True))
    return {
        "camera": {**camera, "width": 640, "height": 480},
        "distortion_coefficients": list(distortion),
    }


FORMAT = SourceFormat("tum", Tum.expected, Tum, ("exif",), takes_urls=True)
