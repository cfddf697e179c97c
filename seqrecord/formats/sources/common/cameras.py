"""Cameras and poses of originals in one convention.

Pixel centres are at integers: (0, 0) is the middle of the first pixel. Poses are camera-to-world
with OpenCV's axes: x to the right, y down, z forward. Distortion has OpenCV's coefficients in
OpenCV's order, https://docs.opencv.org/4.x/d9/d0c/group__calib3d.html:

- `opencv`: k1 k2 p1 p2 [k3 [k4 k5 k6 [s1 s2 s3 s4 [tx ty]]]], also of ROS
  (`plumb_bob`, `rational_polynomial`)
- `opencv_fisheye`: k1 k2 k3 k4, also of ROS (`equidistant`)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.store.cameras.distortion import (
    COEFFICIENTS,
    FISHEYE,
    MAX_COEFFICIENTS,
    MODEL,
    NUM_COEFFICIENTS,
    OPENCV,
)
from seqrecord.store.cameras.intrinsics import INTRINSICS
from seqrecord.store.cameras.rotations import rotations_of, unit_quaternions

FloatArray: TypeAlias = npt.NDArray[np.float64]

POSE = "camera-to-world, OpenCV axes: x right, y down, z forward"
"""Convention of poses, for the metadata."""

_PLACES = ([0, 1, 0, 1], [0, 1, 2, 2])  # of fx, fy, cx and cy in a matrix
# Other matrices are refused, for example an unfinished one: see
# tests/formats/test_missing_poses.py::test_a_rotation_that_is_none_is_an_error.
_RIGID = 1e-3  # tolerance of rotations, which files print with few digits


@dataclass(frozen=True)
class Camera:
    """A pinhole camera with distortion, for images of `width` x `height` pixels.

    Args:
        model: `OPENCV`, `FISHEYE`, or `None` without distortion.
        coefficients: distortion coefficients of the model.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int
    model: str | None = None
    coefficients: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        numbers: Sequence[float],
        size: Sequence[float],
        path: Path,
        *,
        centre: float = 0.0,
        model: str | None = None,
        coefficients: Sequence[float] = (),
    ) -> Camera:
        """Create from fx, fy, cx, cy and (width, height), which are checked.

        `centre` is the coordinate of the first pixel's middle in the original: 0 or 0.5.
        """
        values = [float(number) for number in (*numbers, *size, *coefficients)]
        fx, fy, cx, cy, width, height, *distortion = values
        is_positive = min(fx, fy) > 0 and min(width, height) >= 1
        if not all(map(math.isfinite, values)) or not is_positive:
            raise SourceError(
                "invalid camera",
                file=str(path),
                expected="finite fx, fy, cx, cy, focal lengths above 0, sizes of 1 pixel or more",
                got=", ".join(f"{value:g}" for value in values),
            )
        if model == OPENCV:
            while len(distortion) > 4 and not distortion[-1]:
                distortion.pop()
            if len(distortion) > MAX_COEFFICIENTS:
                raise SourceError(
                    "invalid camera",
                    file=str(path),
                    expected=f"at most {MAX_COEFFICIENTS} distortion coefficients",
                    got=len(distortion),
                )
            if len(distortion) > NUM_COEFFICIENTS[0]:
                count = min(n for n in NUM_COEFFICIENTS if n >= len(distortion))
                distortion += [0.0] * (count - len(distortion))
            if not any(distortion):
                model = None
        used_coefficients = tuple(distortion) if model else ()
        return cls(
            fx, fy, cx - centre, cy - centre, int(width), int(height), model, used_coefficients
        )

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of images."""
        return self.height, self.width

    @property
    def intrinsics(self) -> tuple[float, float, float, float]:
        """fx, fy, cx, cy in pixels."""
        return self.fx, self.fy, self.cx, self.cy

    def scaled(self, height: int, width: int, path: Path) -> Camera:
        """Return the camera of the same image with another size.

        Raises `SourceError` if the aspect ratios differ by more than the rounding of pixels.
        """
        if (width, height) == (self.width, self.height):
            return self
        if abs(width * self.height - height * self.width) > max(self.width, self.height):
            raise SourceError(
                "the camera's image has another aspect ratio; use images as large as the camera's, "
                "or reduced ones",
                file=str(path),
                expected=f"{self.width} x {self.height} pixels, or a multiple",
                got=f"{width} x {height}",
            )
        x, y = width / self.width, height / self.height
        cx, cy = (self.cx + 0.5) * x - 0.5, (self.cy + 0.5) * y - 0.5
        return replace(
            self, fx=self.fx * x, fy=self.fy * y, cx=cx, cy=cy, width=width, height=height
        )

    def distorted(self, plane: FloatArray) -> FloatArray:
        """Map points [..., 2] of the image plane, x / z and y / z, as the lens does."""
        x, y = plane[..., 0], plane[..., 1]
        k = [*self.coefficients, *[0.0] * MAX_COEFFICIENTS]
        r2 = x * x + y * y
        if self.model == FISHEYE:
            radius = np.sqrt(r2)
            angle = np.arctan(radius)
            distorted_angle = angle * (1 + sum(k[n] * angle ** (2 * n + 2) for n in range(4)))
            scale = np.divide(distorted_angle, radius, out=np.ones_like(radius), where=radius > 0)
            return np.stack([x * scale, y * scale], axis=-1)
        k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4, tx, ty = k[:MAX_COEFFICIENTS]
        scale = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
        scale = scale / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
        dx = 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + r2 * (s1 + r2 * s2)
        dy = p1 * (r2 + 2 * y * y) + 2 * p2 * x * y + r2 * (s3 + r2 * s4)
        lens_points = np.stack([x * scale + dx, y * scale + dy], axis=-1)
        return _tilt(lens_points, tx, ty) if tx or ty else lens_points

    def to_json(self) -> dict[str, Any]:
        """Return the camera for the metadata."""
        values = dict(zip(INTRINSICS, self.intrinsics, strict=True))
        return {**values, "width": self.width, "height": self.height, **self.distortion}

    @property
    def distortion(self) -> dict[str, Any]:
        """Model and coefficients for the metadata; empty without distortion."""
        if self.model is None:
            return {}
        return {
            MODEL: self.model,
            COEFFICIENTS: list(self.coefficients),
        }


def _tilt(plane: FloatArray, tx: float, ty: float) -> FloatArray:
    """Project points [..., 2] to a sensor tilted by these angles in radians, as OpenCV does."""
    (cx, cy), (sx, sy) = np.cos([tx, ty]), np.sin([tx, ty])
    rotation = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]])
    rotation = rotation @ np.array([[1, 0, 0], [0, cx, sx], [0, -sx, cx]])
    depth = rotation[2, 2]
    projection = (
        np.array([[depth, 0, -rotation[0, 2]], [0, depth, -rotation[1, 2]], [0, 0, 1]]) @ rotation
    )
    homogeneous = np.concatenate([plane, np.ones_like(plane[..., :1])], axis=-1) @ projection.T
    projected: FloatArray = homogeneous[..., :2] / homogeneous[..., 2:]
    return projected


def camera_of_matrix(matrix: Any, size: Sequence[float], path: Path, **options: Any) -> Camera:
    """Create a camera from a 3x3 matrix, or the 3x3 part of a 3x4 or 4x4 one.

    Raises `SourceError` for another shape and for skew.
    """
    values = _numbers(matrix)
    pinhole = np.eye(3)
    if values.ndim == 2 and min(values.shape) >= 3:
        pinhole[_PLACES] = values[_PLACES]
    if values.ndim != 2 or min(values.shape) < 3 or not np.array_equal(values[:3, :3], pinhole):
        raise SourceError(
            "not a camera matrix",
            file=str(path),
            expected="[[fx, 0, cx], [0, fy, cy], [0, 0, 1]]",
            got=str(values.tolist())[:200],
        )
    return Camera.of(pinhole[_PLACES].tolist(), size, path, **options)


def pose_of(matrix: Any, path: Path, *, inverse: bool = False, flip: str = "") -> FloatArray:
    """Check a pose of 3x4 or 4x4 numbers and return it camera-to-world, float64 [4, 4].

    With `inverse`, the original is world-to-camera. `flip` names the camera's axes that point the
    other way: "yz" for OpenGL, "xy" for PyTorch3D. Raises `SourceError` unless it is rigid.
    """
    values = _numbers(matrix)
    pose = np.eye(4)
    if values.shape in ((3, 4), (4, 4)):
        pose[: len(values)] = values
    rotation = pose[:3, :3]
    is_rigid = (
        np.abs(rotation @ rotation.T - np.eye(3)).max() < _RIGID and np.linalg.det(rotation) > 0
    )
    if (
        not is_rigid
        or values.shape not in ((3, 4), (4, 4))
        or not np.array_equal(pose[3], (0, 0, 0, 1))
    ):
        raise SourceError(
            "not a rigid pose",
            file=str(path),
            expected="a 3x4 or 4x4 matrix: a rotation of determinant 1, and a translation",
            got=str(values.tolist())[:200],
        )
    if inverse:
        pose = invert(pose)
    for axis in flip:
        pose[:3, "xyz".index(axis)] *= -1
    return pose


def known_pose_of(
    matrix: Any, path: Path, *, inverse: bool = False, flip: str = ""
) -> FloatArray | None:
    """Like `pose_of`, but `None` for a translation of NaN or infinities: tracking failed."""
    values = _numbers(matrix)
    if values.shape in ((3, 4), (4, 4)) and not np.isfinite(values[:3, 3]).all():
        return None
    return pose_of(values, path, inverse=inverse, flip=flip)


def invert(pose: FloatArray) -> FloatArray:
    """Invert a rigid transform, float64 [4, 4]."""
    inverse = np.eye(4)
    inverse[:3, :3] = pose[:3, :3].T
    inverse[:3, 3] = -pose[:3, :3].T @ pose[:3, 3]
    return inverse


def rotation_of(quaternion: Sequence[float]) -> FloatArray:
    """Rotation matrix [3, 3] of a quaternion w, x, y, z, which is normalised.

    NaN, which is no rigid pose, without a length: see `unit_quaternions`.
    """
    w, x, y, z = quaternion
    return rotations_of(unit_quaternions((x, y, z, w)))


def _numbers(value: Any) -> FloatArray:
    try:
        return np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        return np.empty(0)
