"""Camera poses of any dataset in one convention: camera-to-world, OpenCV axes.

OpenCV's axes are x to the right, y down, z forward. A dataset stores the poses of its format: of a
camera with other axes, or of the body that carries the cameras. A rig converts them::

    stored pose [7], [3, 4] or [4, 4]  ->  world_from_body @ body_from_camera  ->  [4, 4]

| dataset | poses | body_from_camera |
|---|---|---|
| TartanAir | of each camera, NED: x forward, y right, z down | change of axes |
| TUM RGB-D | of the colour camera, OpenCV axes | identity |
| EuRoC | of the sensor of the ground truth | `T_BS` of the sensor and of the camera |
| KITTI odometry | of `image_0`, OpenCV axes | baselines, of P0 to P3 |
| scenes, and every dataset whose metadata `convention` says so | OpenCV axes | identity |
| bags | of the optical frame of a camera in /tf (REP 103); `camera_poses` names it | identity |

References: https://github.com/castacks/tartanair_tools/blob/master/data_type.md,
https://cvg.cit.tum.de/data/datasets/rgbd-dataset/file_formats, the readme of KITTI's odometry
devkit, https://www.ros.org/reps/rep-0103.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.cameras.intrinsics import CAMERA_POSES
from seqrecord.store.cameras.rotations import rotations_of, unit_quaternions

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

OPENCV_POSES = "camera-to-world, OpenCV axes: x right, y down, z forward"
"""Value of `convention["pose"]` in the metadata of episodes with poses in this convention."""

POSE_SHAPES: tuple[tuple[int, ...], ...] = ((7,), (12,), (16,), (3, 4), (4, 4))
"""Shapes of poses: x y z and a quaternion x y z w, or a matrix in the order of rows."""

MIRROR: FloatArray = np.diag([-1.0, 1.0, 1.0, 1.0])
"""The mirror S of clips. A mirrored camera has the pose S T S: its determinant is 1."""

_RIGID = 1e-3  # tolerance of rotations, as of sources: files print few digits

AXES: Mapping[str, FloatArray] = {
    "opencv": np.eye(4),
    "opengl": np.diag([1.0, -1.0, -1.0, 1.0]),
    "ned": np.array([[0.0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]),
    "ros": np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]]),
}
"""From OpenCV's axes to the axes of a stored pose's camera, float64 [4, 4], by name.

`opengl`: x right, y up, z backward. `ned`: x forward, y right, z down. `ros`: x forward, y left, z
up, as for a link of the robot.
"""


# ---- arithmetic of poses


def pose_matrices(values: npt.NDArray[Any]) -> tuple[FloatArray, BoolArray]:
    """Convert stored poses [n, *shape], whose shape is in `POSE_SHAPES`, to matrices.

    Returns float64 [n, 4, 4], and a mask bool [n] of missing poses: numbers that are not finite, or
    a quaternion of 0 or whose squares overflow or underflow. Their matrices are 0. Quaternions are
    normalized.

    Raises `ClipError` for a matrix that is no rotation and translation, with the pose's number as
    `frame`.
    """
    numbers = np.asarray(values, np.float64).reshape(len(values), -1)
    missing: BoolArray = np.logical_not(np.isfinite(numbers).all(axis=1))
    poses = np.zeros((len(numbers), 4, 4))
    poses[:, 3, 3] = 1
    if numbers.shape[1] == len("xyzxyzw"):
        units = unit_quaternions(numbers[:, 3:])
        missing |= np.isnan(units).any(axis=1)
        poses[:, :3, :3] = rotations_of(units)
        poses[:, :3, 3] = numbers[:, :3]
    else:
        poses[:, :3] = numbers[:, :12].reshape(-1, 3, 4)
        last_rows = np.broadcast_to((0, 0, 0, 1), (len(numbers), 4))
        if numbers.shape[1] > 12:
            last_rows = numbers[:, 12:]
        _check_rigid(poses, last_rows, missing)
    poses[missing] = 0
    return poses, missing


def are_float32(rows: FloatArray) -> BoolArray:
    """Which rows of numbers, [..., D], columns of cameras can have: finite ones of float32."""
    fits: BoolArray = (np.abs(rows) <= np.finfo(np.float32).max).all(axis=-1)
    return fits


def _check_rigid(poses: FloatArray, last_rows: npt.NDArray[Any], missing: BoolArray) -> None:
    """Raise `ClipError` for a matrix that is no rotation and translation."""
    rotations = np.where(missing[:, None, None], np.eye(3), poses[:, :3, :3])
    error = np.abs(rotations @ rotations.swapaxes(1, 2) - np.eye(3)).max(axis=(1, 2), initial=0)
    is_rigid = (error < _RIGID) & (np.linalg.det(rotations) > 0)
    is_rigid &= (last_rows == (0, 0, 0, 1)).all(axis=1) | missing
    if not is_rigid.all():
        number = int(np.argmin(is_rigid))
        raise ClipError(
            "not a rigid pose",
            frame=number,
            expected="a rotation of determinant 1, and a translation",
            got=str(np.concatenate([poses[number, :3], last_rows[number : number + 1]]).tolist()),
        )


def inverted(poses: FloatArray) -> FloatArray:
    """Invert rigid transforms, float64 [..., 4, 4]."""
    inverses = np.zeros_like(poses)
    rotations = poses[..., :3, :3].swapaxes(-1, -2)
    inverses[..., :3, :3] = rotations
    inverses[..., :3, 3] = -(rotations @ poses[..., :3, 3, None])[..., 0]
    inverses[..., 3, 3] = 1
    return inverses


def mirrored(poses: FloatArray) -> FloatArray:
    """S T S of poses T, float64 [..., 4, 4]: of cameras whose images and world are mirrored."""
    return MIRROR @ poses @ MIRROR


# ---- where poses come from


class ImagePoses(NamedTuple):
    """The poses of an image's camera in an episode.

    `feature` has the poses of a body; `body_from_camera`, float64 [4, 4], is the camera's pose in
    the body's frame.
    """

    feature: str
    body_from_camera: FloatArray


@dataclass(frozen=True)
class _Convention:
    """Poses in a format's datasets.

    Attributes:
        features: names of the feature with the poses of an image, the best first.
        body_from_camera: from metadata and image; `KeyError`, `TypeError` or `ValueError` if the
            metadata lacks it.
        needed: what the metadata must have, for messages.
    """

    features: Callable[[str], Sequence[str]]
    body_from_camera: Callable[[Mapping[str, Any], str], FloatArray]
    needed: str = ""


def _named_like_camera(image: str) -> list[str]:
    """`pose_left` of `image_left`, `depth_left`; `pose_lcam_front` of `image_lcam_front`."""
    camera = image.partition("_")[2]
    return [f"pose_{camera}"] if camera else []


def _single(_image: str) -> list[str]:
    return ["pose"]


def _no_change(_metadata: Mapping[str, Any], _image: str) -> FloatArray:
    return AXES["opencv"]


def _from_ned(_metadata: Mapping[str, Any], _image: str) -> FloatArray:
    return AXES["ned"]


def _euroc(metadata: Mapping[str, Any], image: str) -> FloatArray:
    """From the camera's frame to the ground-truth sensor's frame, through the body's."""
    camera = _rigid(metadata["cameras"][image.removeprefix("image_")]["T_BS"])
    truth = metadata.get("ground_truth", {}).get("T_BS")
    return camera if truth is None else inverted(_rigid(truth)) @ camera


def _kitti(metadata: Mapping[str, Any], image: str) -> FloatArray:
    """From the camera's frame to that of `image_0`: P = K [I | t] with its K, so it lies at -t."""
    projection = kitti_projection(metadata, image)
    pose = np.eye(4)
    pose[:3, 3] = -np.linalg.solve(projection[:, :3], projection[:, 3])
    origin = kitti_projection(metadata, "image_0")
    pose[:3, 3] += np.linalg.solve(origin[:, :3], origin[:, 3])
    return pose


def kitti_projection(metadata: Mapping[str, Any], image: str) -> FloatArray:
    """Projection matrix of `image_0` to `image_3`, float64 [3, 4]."""
    numbers = metadata["calibration"][f"P{int(image.removeprefix('image_'))}"]
    return np.array(numbers, np.float64).reshape(3, 4)


def _rigid(matrix: Any) -> FloatArray:
    poses, missing = pose_matrices(np.array(matrix, np.float64).reshape(1, 4, 4))
    if missing.any():
        raise ValueError("numbers that are not finite")
    pose: FloatArray = poses[0]
    return pose


_OPENCV = _Convention(_single, _no_change)
_FORMATS = {
    "TartanAir": _Convention(_named_like_camera, _from_ned),
    "TUM RGB-D": _OPENCV,
    "EuRoC": _Convention(
        _single, _euroc, "T_BS, 4x4, of the camera in `cameras`, from its sensor.yaml"
    ),
    "KITTI odometry": _Convention(_single, _kitti, "P0 to P3 in `calibration`, from calib.txt"),
}
"""By the beginning of `dataset` in the metadata."""

_OPTICAL = re.compile(r"pose\.(.*_)?optical(_frame)?", re.ASCII)


def image_poses(
    image: str,
    metadata: Mapping[str, Any],
    pose_features: Collection[str],
    images: Collection[str],
    *,
    feature: str | None = None,
    axes: str | None = None,
    may_lack: bool = False,
) -> ImagePoses | None:
    """Where an image's camera poses come from, by the metadata of an episode.

    `None` if the dataset has no poses.

    Args:
        image: the feature.
        metadata: the episode's metadata.
        pose_features: features of poses.
        images: the images of the loader, among which poses of a bag must be unambiguous.
        feature: the feature with the poses, instead of the format's.
        axes: a key of `AXES`, if the metadata tells none, or for a given `feature`.
        may_lack: whether an image has no poses, instead of an error, if none are known to be its.

    Raises `ClipError` if the metadata does not tell the convention, or lacks a calibration.
    """
    convention, is_requested = _convention(metadata), feature is not None
    declared = metadata.get(CAMERA_POSES)
    if feature is None:
        if isinstance(declared, Mapping) and declared.get(image) in pose_features:
            return ImagePoses(declared[image], AXES["opencv"])
        feature = _pose_feature(image, convention, pose_features, images)
        if feature is None:
            if may_lack or not pose_features:
                return None
            expected, how = "", ', axes="opencv"'
            if convention is not None:
                names = convention.features(image)
                expected, how = f"a feature {names[0]}; or " if names else "", ""
            expected += f'camera=Camera(poses={{"{image}": "…"}}{how}), the feature of its poses; '
            expected += "or poses={} for none"
            got = f"features of poses: {', '.join(sorted(pose_features))}"
            raise _refused(image, expected, got)
    if axes is not None and (convention is None or is_requested):
        return ImagePoses(feature, AXES[axes])
    if convention is None and _OPTICAL.fullmatch(feature):
        return ImagePoses(feature, AXES["opencv"])
    if convention is None:
        if may_lack:
            return None
        raise _refused(
            image,
            "camera=Camera(axes=…), one of " + ", ".join(AXES) + "; or camera=Camera(poses={}) for "
            f'none; or a metadata `convention` {{"pose": "{OPENCV_POSES}"}}',
            f"poses of feature {feature} without a convention",
        )
    try:
        return ImagePoses(feature, convention.body_from_camera(metadata, image))
    except (KeyError, TypeError, ValueError, AttributeError, np.linalg.LinAlgError) as error:
        raise _refused(image, convention.needed, f"{type(error).__name__}: {error}") from error


def _pose_feature(
    image: str,
    convention: _Convention | None,
    pose_features: Collection[str],
    images: Collection[str],
) -> str | None:
    """The feature with an image's poses, by convention or the names of a bag's frames."""
    if convention is not None:
        candidates = convention.features(image)
        return next((name for name in candidates if name in pose_features), None)
    optical_frames = [name for name in pose_features if _OPTICAL.fullmatch(name)]
    if len(optical_frames) == len(images) == 1:
        return optical_frames[0]
    # A single feature whose axes the user names, see `image_poses`.
    return next(iter(pose_features)) if len(pose_features) == len(images) == 1 else None


def _convention(metadata: Mapping[str, Any]) -> _Convention | None:
    """The convention of an episode's poses; `None` if its metadata does not tell it."""
    stated = metadata.get("convention")
    if isinstance(stated, Mapping) and stated.get("pose") == OPENCV_POSES:
        return _OPENCV
    dataset = metadata.get("dataset")
    if not isinstance(dataset, str):
        return None
    return next((c for name, c in _FORMATS.items() if dataset.startswith(name)), None)


def _refused(image: str, expected: str, got: str) -> ClipError:
    return ClipError(
        "camera: the poses of this image's camera are unknown",
        feature=image,
        expected=expected,
        got=got[:300],
    )
