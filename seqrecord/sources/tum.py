"""Source for TUM RGB-D, https://cvg.cit.tum.de/data/datasets/rgbd-dataset/file_formats.

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

from seqrecord.originals.files import is_file, opened
from seqrecord.originals.protocol import SourceFormat
from seqrecord.sources.common.aligning import associate, sample_bounds
from seqrecord.sources.common.sequences import (
    Column,
    Images,
    SequenceFrames,
    SequenceSource,
    Values,
)
from seqrecord.sources.common.text_tables import check_matches, timed_files, timed_values

_WITHIN = 0.02  # seconds, the default of associate.py
_NEAR = "within 20 ms"
_HEAD_BYTES = 1 << 12

_KINECT = re.compile(r"freiburg([123])")
_CALIBRATION = {  # fx, fy, cx, cy; distortion
    "1": ((517.3, 516.5, 318.6, 255.3), (0.2624, -0.9531, -0.0054, 0.0026, 1.1633)),
    "2": ((520.9, 521.0, 325.1, 249.7), (0.2312, -0.7849, -0.0033, -0.0001, 0.9172)),
    "3": ((535.4, 539.2, 320.1, 247.6), (0.0, 0.0, 0.0, 0.0, 0.0)),
}
"""Colour cameras, https://cvg.cit.tum.de/data/datasets/rgbd-dataset/file_formats."""


@dataclass(frozen=True)
class TumSource(SequenceSource):
    """TUM RGB-D sequences.

    Frames are pairs of a colour and a depth image, matched as TUM's `associate.py` does: less than
    20 ms apart, closest pairs first. Unmatched images are dropped; the metadata counts them. Poses
    are matched to colour images in the same way; a frame without one lacks it. If there is no
    `depth.txt`, or `features` selects neither `depth` nor `depth_timestamp`, frames are all colour
    images. Tables of features that are not selected are not read. A table without any matching row
    is an error; an empty one is noted in the inventory.

    For sequences of `freiburg1`, `freiburg2` or `freiburg3` the metadata has `camera`, TUM's
    calibrated colour camera, and its `distortion_coefficients`. The header of `rgb.txt` or else the
    path names the camera; the inventory notes the origin. Images are not undistorted.

    Features:

    - `image` uint8 [H, W, 3]
    - `depth` uint16 [H, W], 5000 per metre, 0 where unknown
    - `pose` float64 [7], `tx ty tz qx qy qz qw` of the colour camera in metres
    - `timestamp` and `depth_timestamp` float64, seconds
    - `accelerometer` float64 [?, 4], time in seconds and m/s^2: the samples from a frame to the
      next

    Args:
        root: a folder of sequences at any depth, or one sequence.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    expected = "SEQUENCE/rgb.txt with rgb/, depth.txt with depth/, groundtruth.txt"

    def is_sequence(self, names: set[str]) -> bool:
        return {"rgb.txt", "rgb"} <= names

    def open(self, folder: Path) -> SequenceFrames:
        rgb, depth, truth, accelerometer = (
            folder / f"{name}.txt" for name in ("rgb", "depth", "groundtruth", "accelerometer")
        )
        times, images = timed_files(rgb, folder)
        files = [rgb, *images]
        places = {"image": "rgb/*", "timestamp": "rgb.txt"}
        known, note = _calibration(folder)
        notes = [note]
        columns: dict[str, Column] = {}
        metadata: dict[str, Any] = {"dataset": "TUM RGB-D", **known}
        kept = np.arange(len(times))
        if is_file(depth):
            places |= {"depth": "depth/*", "depth_timestamp": "depth.txt"}
        if "depth" in places and self.wants("depth", "depth_timestamp"):
            depth_times, depths = timed_files(depth, folder)
            files += [depth, *depths]
            kept, partners = associate(times, depth_times, _WITHIN)
            check_matches(depth, len(kept), depth_times, times, _NEAR, "s", "depth")
            columns["depth"] = Images(
                [depths[row] for row in partners.tolist()], "depth", "1/5000 m"
            )
            columns["depth_timestamp"] = Values(depth_times[partners], "timestamp", "s")
            metadata["depth_per_metre"] = 5000
            notes.append("unit of depth assumed: 1/5000 m")
            metadata["rgb_without_depth"] = len(times) - len(kept)
            metadata["depth_without_rgb"] = len(depth_times) - len(kept)
        times = times[kept]
        columns = {"image": Images([images[row] for row in kept.tolist()]), **columns}
        columns["timestamp"] = Values(times, "timestamp", "s")
        if is_file(truth):
            places["pose"] = "groundtruth.txt"
        if "pose" in places and self.wants("pose"):
            files.append(truth)
            pose_times, poses = timed_values(truth, (7,))
            if len(pose_times):
                frames, rows = associate(times, pose_times, _WITHIN)
                check_matches(truth, len(frames), pose_times, times, _NEAR, "s", "pose")
                found = np.zeros((len(times), 7))
                there = np.zeros(len(times), np.bool_)
                found[frames], there[frames] = poses[rows], True
                columns["pose"] = Values(found, "pose", "m", there)
                metadata["frames_without_pose"] = len(times) - len(frames)
            else:
                notes.append("groundtruth.txt is empty")
        if is_file(accelerometer):
            places["accelerometer"] = "accelerometer.txt"
        if "accelerometer" in places and self.wants("accelerometer"):
            files.append(accelerometer)
            stamps, values = timed_values(accelerometer, (3,))
            if len(stamps):
                samples, bounds = np.column_stack([stamps, values]), sample_bounds(times, stamps)
                before, after = int(bounds[0]), len(stamps) - int(bounds[-1])
                inside = len(stamps) - before - after
                during = "within the time"
                check_matches(accelerometer, inside, stamps, times, during, "s", "accelerometer")
                columns["accelerometer"] = Values(samples, "imu", bounds=bounds)
                metadata["accelerometer_before_first_frame"] = before
                metadata["accelerometer_after_last_frame"] = after
            else:
                notes.append("accelerometer.txt is empty")
        return SequenceFrames(len(times), columns, places, files, metadata, notes=notes)


def _calibration(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the camera named by the header of `rgb.txt` or the path, and a note on the origin."""
    with opened(folder / "rgb.txt") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    header = "".join(line for line in head.splitlines() if line.startswith("#"))
    origin, found = "the header of rgb.txt", _KINECT.findall(header)
    if not found:
        origin, found = "the path", _KINECT.findall(folder.as_posix())
    if not found:
        return {}, "camera unknown: neither the header of rgb.txt nor the path names freiburg1 to 3"
    values, distortion = _CALIBRATION[found[-1]]
    camera = dict(zip(("fx", "fy", "cx", "cy"), values, strict=True))
    return {
        "camera": {**camera, "width": 640, "height": 480},
        "distortion_coefficients": list(distortion),
    }, f"camera assumed: freiburg{found[-1]}'s, named by {origin}"


FORMAT = SourceFormat("tum", TumSource.expected, TumSource, ("exif",), takes_urls=True)
