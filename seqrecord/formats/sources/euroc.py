"""Source for EuRoC MAV sequences in ASL layout, also used by TUM-VI.

::

    SEQUENCE/mav0/
      cam0/data.csv                          timestamp [ns], file name; images in data/
      cam0/sensor.yaml                       T_BS, rate, resolution, intrinsics
      imu0/data.csv                          timestamp, wx wy wz [rad/s], ax ay az [m/s^2]
      imu0/sensor.yaml                       T_BS, rate, densities of noise, random walks
      state_groundtruth_estimate0/data.csv   timestamp, p [m], q (w first), v, biases
      mocap0/data.csv                        timestamp, p [m], q (w first)

Format: https://projects.asl.ethz.ch/datasets/doku.php?id=kmavvisualinertialdatasets.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.aligning import align
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.common.sequence_tables import SequenceTables
from seqrecord.formats.sources.common.sequences import (
    Images,
    SequenceFrames,
    SequenceSource,
    Values,
)
from seqrecord.formats.sources.common.specs import frame_rate
from seqrecord.formats.sources.common.yaml_values import read_yaml
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_directory, is_file, list_folder
from seqrecord.store.cameras.distortion import model_of
from seqrecord.store.originals.protocol import SourceFormat
from seqrecord.store.text import repr_of

_WITHIN = 10_000_000  # nanoseconds between a frame and its pose, evo's default
_TRUTHS = {
    "state_groundtruth_estimate0": ("pose", "velocity", "imu_bias"),
    "mocap0": ("pose",),
}
"""Features of the ground truth by folder, of which the first one counts."""

_CAMERA = re.compile(r"cam\d+", re.ASCII)
_YAML_LISTS = ("resolution", "intrinsics", "distortion_coefficients")
_YAML_NUMBERS = ("rate_hz", "_noise_density", "_random_walk")
_YAML_TEXTS = ("comment", "sensor_type", "_model")


@dataclass(frozen=True)
class EurocSource(SequenceSource):
    """EuRoC sequences.

    Each image of `cam0` is a frame. Cameras are triggered together, so images of other cameras
    match by equal timestamps. A frame without a matching image lacks it; images without a frame are
    dropped. A frame gets the nearest pose at most 10 ms away, or none. The metadata counts
    unmatched images and poses, and IMU samples before the first frame.

    The metadata also contains the content of `sensor.yaml`: `cameras` by camera, `imu` and
    `ground_truth`, with `T_BS`, 4x4, from sensor to body. Pinhole cameras are in `camera` by
    feature, for `camera=True` of loaders. They do not depend on the selected
    features. Images are not undistorted.

    Features:

    - `image_cam0`, `image_cam1` uint8 [H, W]
    - `timestamp` int64, nanoseconds
    - `imu` float64 [?, 6], rad/s and m/s^2, and `imu_timestamp` int64 [?]: the samples from a frame
      to the next
    - `pose` float64 [7], `tx ty tz qx qy qz qw` of the body in metres
    - `velocity` float64 [3], m/s, and `imu_bias` float64 [6], if the ground truth has them

    Args:
        root: a folder of sequences at any depth, or one sequence.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    expected = "SEQUENCE/mav0/cam0/data.csv"

    def is_sequence(self, folder: Path, names: set[str]) -> bool:
        if "mav0" in names or ("cam0" in names and names & {"imu0", *_TRUTHS}):
            return True
        # COLMAP's rigs have folders cam0 and cam1 too, without lists.
        pair = ("cam0", "cam1")
        return names.issuperset(pair) and any(is_file(folder / n / "data.csv") for n in pair)

    def key(self, folder: Path) -> str:
        sequence = folder.parent if folder.name == "mav0" else folder
        is_below = sequence.is_relative_to(self.path)  # else the root is its mav0
        return super().key(sequence) if is_below else sequence.name

    def open(self, folder: Path) -> SequenceFrames:
        mav = _mav(folder)
        cameras = sorted(name for name, _ in list_folder(mav) if _CAMERA.fullmatch(name))
        if "cam0" not in cameras:
            raise SourceError("sequence without cam0", file=str(mav), expected=self.expected)
        prefix = "" if mav == folder else "mav0/"
        metadata: dict[str, Any] = {"dataset": "EuRoC", "cameras": {}}
        tables = SequenceTables(source=self, folder=folder, unit="ns", metadata=metadata)
        for name in cameras:
            feature, list_file = f"image_{name}", mav / name / "data.csv"
            tables.places[feature] = f"{prefix}{name}/*"
            if name != "cam0" and not self.wants(feature):
                with skipping_unreadable():  # raised where the feature is selected
                    _read_camera(tables, mav / name, feature)
                continue
            stamps, images = tables.images(list_file, mav / name / "data")
            if name == "cam0":
                tables.times = stamps
            by_time: dict[int, deque[Path]] = {}
            for time, image in zip(stamps.tolist(), images, strict=True):
                by_time.setdefault(time, deque()).append(image)
            # Images of one time belong to frames of that time in their order.
            queues = (by_time.get(time) for time in tables.times.tolist())
            paths = [queue.popleft() if queue else None for queue in queues]
            num_matched = sum(path is not None for path in paths)
            tables.check(list_file, num_matched, stamps, "with the timestamp", feature)
            tables.columns[feature] = Images(paths)
            if name != "cam0":
                tables.metadata[f"frames_without_{name}"] = len(paths) - num_matched
                tables.metadata[f"{name}_without_frame"] = len(images) - num_matched
            _add_camera(tables, mav / name, feature)
        tables.places["timestamp"] = f"{prefix}cam0/data.csv"
        tables.begin(tables.times)
        _add_imu(tables, mav / "imu0", f"{prefix}imu0/*")
        if name := next((n for n in _TRUTHS if is_file(mav / n / "data.csv")), ""):
            _add_truth(tables, mav / name, dict.fromkeys(_TRUTHS[name], f"{prefix}{name}/*"))
        tables.fps = frame_rate(tables.metadata["cameras"].get("cam0", {}).get("rate_hz"))
        return tables


FORMAT = SourceFormat("euroc", EurocSource.expected, EurocSource, ("exif",), takes_urls=True)


def _mav(folder: Path) -> Path:
    return folder / "mav0" if is_directory(folder / "mav0") else folder


def _add_camera(tables: SequenceTables, folder: Path, feature: str) -> None:
    """Add the description of an image's camera, with a note if it has no known intrinsics."""
    if _read_camera(tables, folder, feature) is None:
        problem = "unknown: no known pinhole camera in its sensor.yaml"
        tables.notes.append(f"camera {folder.name} {problem}")


def _read_camera(tables: SequenceTables, folder: Path, feature: str) -> Camera | None:
    """Add the description of an image's camera; return the camera if it is a known pinhole."""
    description = _sensor_of(tables, folder)
    if not description:
        return None
    tables.metadata["cameras"][folder.name] = description
    camera = _pinhole(description, tables.files[-1])
    if camera is not None:
        tables.metadata.setdefault("camera", {})[feature] = camera.to_json()
    return camera


def _describe(tables: SequenceTables, name: str, table: Path, *, is_selected: bool) -> None:
    """Add the description of a sensor that has a table.

    A broken one is ignored if no feature of the sensor is selected.
    """
    context: AbstractContextManager[None] = nullcontext() if is_selected else skipping_unreadable()
    with context:
        if is_file(table) and (description := _sensor_of(tables, table.parent)):
            tables.metadata[name] = description


def _add_imu(tables: SequenceTables, folder: Path, place: str) -> None:
    """Add the samples of the inertial sensor between frames."""
    table = folder / "data.csv"
    is_selected = tables.has(table, imu=place, imu_timestamp=place)
    _describe(tables, "imu", table, is_selected=is_selected)
    if is_selected and (samples := tables.samples(table, 6)):
        stamps, values, bounds = samples
        tables.columns["imu"] = Values(values, "imu", "rad/s, m/s^2", bounds=bounds)
        tables.columns["imu_timestamp"] = Values(stamps, "timestamp", "ns", bounds=bounds)


def _add_truth(tables: SequenceTables, folder: Path, places: dict[str, str]) -> None:
    """Add the ground truth; `places` has its features."""
    table = folder / "data.csv"
    is_selected = tables.has(table, **places)
    if is_selected and (rows := tables.rows(table, (16, 7))):
        _add_poses(tables, table, *rows)
    _describe(tables, "ground_truth", table, is_selected=is_selected)


def _add_poses(
    tables: SequenceTables,
    path: Path,
    stamps: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
) -> None:
    """Add the columns of the ground truth."""
    pose_rows = align(tables.times, stamps, "nearest", _WITHIN)
    has_pose, rows = (
        tables.match_poses(path, stamps, pose_rows, "at most 10 ms away"),
        values[pose_rows],
    )
    tables.columns["pose"] = Values(rows[:, [0, 1, 2, 4, 5, 6, 3]], "pose", "m", has_pose)
    if values.shape[1] == 16:
        tables.columns["velocity"] = Values(rows[:, 7:10], "state", "m/s", has_pose)
        tables.columns["imu_bias"] = Values(rows[:, 10:16], "state", "rad/s, m/s^2", has_pose)


def _sensor_of(tables: SequenceTables, folder: Path) -> dict[str, Any]:
    """Read the description of a sensor, which is then a file of the sequence."""
    tables.files.append(folder / "sensor.yaml")
    return _sensor(tables.files[-1])


def _sensor(path: Path) -> dict[str, Any]:
    """Parse a sensor's YAML: numbers, lists of numbers, model names and `T_BS`; {} if missing."""
    if not is_file(path):
        return {}
    content = read_yaml(path, 1 << 20)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SourceError(
            "not a description of a sensor",
            file=str(path),
            expected="names and values, such as rate_hz: 20",
            got=repr_of(content, 120),
        )
    return _known_values(content, path)


def _known_values(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the known values of a mapping and of mappings in it."""
    description: dict[str, Any] = {}
    for name, value in content.items():
        if name == "T_BS":
            data = value.get("data") if isinstance(value, dict) else value
            rows = data if isinstance(data, list) else [data]
            numbers = [n for row in rows for n in (row if isinstance(row, list) else [row])]
            description[name] = np.reshape(_numbers(numbers, name, path, 16), (4, 4)).tolist()
        elif isinstance(value, dict):
            description |= _known_values(value, path)
        elif name in _YAML_LISTS:
            description[name] = _numbers(value, name, path)
        elif name.endswith(_YAML_NUMBERS):
            [description[name]] = _numbers([value], name, path, 1)
        elif name.endswith(_YAML_TEXTS):
            description[name] = "" if value is None else str(value)[:200]
    return description


def _pinhole(sensor: dict[str, Any], path: Path) -> Camera | None:
    """Return a pinhole camera; `None` for other or incomplete descriptions."""
    values, size = sensor.get("intrinsics", ()), sensor.get("resolution", ())
    coefficients = sensor.get("distortion_coefficients", ())
    model = model_of(sensor.get("distortion_model", ""))
    if sensor.get("camera_model") != "pinhole" or (len(values), len(size)) != (4, 2):
        return None
    if model is None and any(coefficients):  # of an unknown model, not of no distortion
        return None
    return Camera.of(values, size, path, model=model, coefficients=coefficients if model else ())


def _numbers(values: Any, name: str, path: Path, count: int | None = None) -> list[float]:
    is_right = isinstance(values, list) and all(type(n) in (int, float) for n in values)
    is_right = is_right and all(abs(number) < 1e300 for number in values)
    if not is_right or count not in (None, len(values)):
        expected = f"{count or 'finite'} numbers"
        raise SourceError(
            f"invalid {name}", file=str(path), expected=expected, got=repr_of(values, 120)
        )
    return [float(number) for number in values]
