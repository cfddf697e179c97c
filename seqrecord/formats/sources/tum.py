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

import numpy as np

from seqrecord.formats.sources.common.aligning import NONE, associate
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.common.sequence_tables import SequenceTables
from seqrecord.formats.sources.common.sequences import (
    Column,
    Images,
    SequenceFrames,
    SequenceSource,
    Values,
)
from seqrecord.in_place.files import opened
from seqrecord.store.cameras.distortion import OPENCV
from seqrecord.store.originals.protocol import SourceFormat

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
    calibrated colour camera with its distortion. The header of `rgb.txt` or else the
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

    def is_sequence(self, folder: Path, names: set[str]) -> bool:  # noqa: ARG002
        return {"rgb.txt", "rgb"} <= names

    def open(self, folder: Path) -> SequenceFrames:
        rgb, depth, truth, accelerometer = (
            folder / f"{name}.txt" for name in ("rgb", "depth", "groundtruth", "accelerometer")
        )
        tables = SequenceTables(
            source=self, folder=folder, unit="s", metadata={"dataset": "TUM RGB-D"}
        )
        camera, note = _calibration(folder)
        tables.metadata |= {} if camera is None else {"camera": camera.to_json()}
        tables.notes.append(note)
        tables.times, images = tables.images(rgb, folder)
        tables.places |= {"image": "rgb/*", "timestamp": "rgb.txt"}
        rgb_rows, columns = np.arange(len(tables.times)), dict[str, Column]()
        if tables.has(depth, depth="depth/*", depth_timestamp="depth.txt"):
            depth_times, depths = tables.images(depth, folder)
            rgb_rows, partners = associate(tables.times, depth_times, _WITHIN)
            tables.check(depth, len(rgb_rows), depth_times, _NEAR, "depth")
            paths = [depths[row] for row in partners.tolist()]
            columns["depth"] = Images(paths, "depth", "1/5000 m")
            columns["depth_timestamp"] = Values(depth_times[partners], "timestamp", "s")
            tables.metadata |= {
                "depth_per_metre": 5000,
                "rgb_without_depth": len(tables.times) - len(rgb_rows),
                "depth_without_rgb": len(depth_times) - len(rgb_rows),
            }
            tables.notes.append("unit of depth assumed: 1/5000 m")
        tables.columns |= {"image": Images([images[row] for row in rgb_rows.tolist()]), **columns}
        tables.begin(tables.times[rgb_rows])
        if tables.has(truth, pose="groundtruth.txt") and (rows := tables.rows(truth, (7,))):
            pose_rows = np.full(len(rgb_rows), NONE)
            frames, near_rows = associate(tables.times, rows[0], _WITHIN)
            pose_rows[frames] = near_rows
            has_pose = tables.match_poses(truth, rows[0], pose_rows, _NEAR)
            tables.columns["pose"] = Values(rows[1][pose_rows], "pose", "m", has_pose)
        if tables.has(accelerometer, accelerometer="accelerometer.txt") and (
            samples := tables.samples(accelerometer, 3)
        ):
            stamps, values, bounds = samples
            timed_values = np.column_stack([stamps, values])
            tables.columns["accelerometer"] = Values(timed_values, "imu", bounds=bounds)
        return tables


def _calibration(folder: Path) -> tuple[Camera | None, str]:
    """Return the camera named by the header of `rgb.txt` or the path, and a note on the origin."""
    with opened(folder / "rgb.txt") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    header = "".join(line for line in head.splitlines() if line.startswith("#"))
    origin, kinects = "the header of rgb.txt", _KINECT.findall(header)
    if not kinects:
        origin, kinects = "the path", _KINECT.findall(folder.as_posix())
    if not kinects:
        return (
            None,
            "camera unknown: neither the header of rgb.txt nor the path names freiburg1 to 3",
        )
    values, distortion = _CALIBRATION[kinects[-1]]
    camera = Camera.of(values, (640, 480), folder, model=OPENCV, coefficients=distortion)
    return camera, f"camera assumed: freiburg{kinects[-1]}'s, named by {origin}"


FORMAT = SourceFormat("tum", TumSource.expected, TumSource, ("exif",), takes_urls=True)
