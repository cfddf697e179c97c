"""Originals with cameras: spots at known points, rendered and written in each format's convention.

The truth is independent of the package: poses are camera-to-world with OpenCV's axes, and each
writer turns them into poses of its format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.formats.format_cases.scenes import quaternion
from tests.kit.lenses import project
from tests.kit.trees import write_v1, write_v2

Array = npt.NDArray[Any]

POINTS: Array = np.array(
    [[-1.0, -0.6, 0.2], [0.9, -0.8, -0.7], [-0.7, 0.9, -0.4], [0.8, 0.7, 0.9], [0.1, -0.2, -0.9]]
)
"""Points of the world; no mirror image of itself."""

_SIGMA = 1.3  # pixels of a spot


@dataclass(frozen=True)
class Rendered:
    """A moving camera: poses [T, 4, 4], and fx, fy, cx, cy with pixel centres at integers."""

    poses: Array
    numbers: Sequence[float]
    size: tuple[int, int] = (72, 96)
    model: str = "opencv"
    lens: Sequence[float] = ()

    def pixels(self, frame: int) -> tuple[Array, Array]:
        """Pixels [P, 2] and depths [P] of the points."""
        inverse = np.linalg.inv(self.poses[frame])
        points = POINTS @ inverse[:3, :3].T + inverse[:3, 3]
        return project(points, self.numbers, self.lens, self.model), points[:, 2]

    def image(self, frame: int) -> Array:
        """A bright spot at each point, uint8 [H, W]."""
        rows, columns = np.mgrid[: self.size[0], : self.size[1]]
        total = np.zeros(self.size)
        for x, y in self.pixels(frame)[0]:
            total += 250 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 2 / _SIGMA**2)
        return np.clip(np.rint(total), 0, 255).astype(np.uint8)

    def rgb(self, frame: int) -> Array:
        return np.repeat(self.image(frame)[..., None], 3, axis=2)

    def depth(self, frame: int) -> Array:
        """Depth in metres around each point, float32 [H, W]; 0 elsewhere."""
        rows, columns = np.mgrid[: self.size[0], : self.size[1]]
        depth = np.zeros(self.size, np.float32)
        for (x, y), z in zip(*self.pixels(frame), strict=True):
            depth[(np.abs(columns - x) < 3) & (np.abs(rows - y) < 3)] = z
        return depth

    def moved(self, transform: Array) -> Rendered:
        """A camera that is fixed to this one, by its pose in this one's frame."""
        return replace(self, poses=self.poses @ transform)


def shifted(x: float) -> Array:
    """The pose of a camera to the right by `x` metres."""
    pose = np.eye(4)
    pose[0, 3] = x
    return pose


def path(count: int = 5, radius: float = 3.4) -> Array:
    """Poses [T, 4, 4] on an arc around the points, looking at the origin."""
    poses = np.tile(np.eye(4), (count, 1, 1))
    for pose, angle in zip(poses, np.linspace(0.3, 1.5, count), strict=True):
        pose[:3, 3] = radius * np.array([np.cos(angle), 0.3 + 0.1 * angle, np.sin(angle)])
        forward = -pose[:3, 3] / np.linalg.norm(pose[:3, 3])
        right = np.cross(forward, [0.1, 1, 0.05])
        right /= np.linalg.norm(right)
        pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    return poses


def xyz_quaternion(pose: Array) -> Array:
    """x y z and a quaternion x y z w of a pose [4, 4]."""
    w, *axis = quaternion(pose[:3, :3])
    return np.array([*pose[:3, 3], *axis, w])


def write_tartanair(folder: Path, *, v2: bool) -> dict[str, Rendered]:
    """Two cameras, 0.25 m apart. Their axes: x forward, y right, z down."""
    sides = ("lcam_front", "rcam_front") if v2 else ("left", "right")
    size, centre = (96, 128), 0.5 if v2 else 0.0
    left = Rendered(path(), (64.0, 64.0, 64 - centre, 48 - centre), size)
    cameras = {
        f"image_{side}": left.moved(shifted(x)) for side, x in zip(sides, (0, 0.25), strict=True)
    }
    frames = []
    for t in range(len(left.poses)):
        frame = dict[str, Any]()
        for side in sides:
            camera = cameras[f"image_{side}"]
            frame[f"image_{side}"], frame[f"depth_{side}"] = camera.rgb(t), camera.depth(t)
            ned = camera.poses[t].copy()
            ned[:3, :3] = ned[:3, [2, 0, 1]]  # forward, right, down
            frame[f"pose_{side}"] = xyz_quaternion(ned)
        frames.append(frame)
    write = write_v2 if v2 else write_v1
    write(folder / "house" / ("Data_easy" if v2 else "Easy") / "P000", frames)
    return cameras


@dataclass(frozen=True)
class Original:
    """How an original is written, and its images; `points` are in its world."""

    write: Callable[[Path], object]
    images: Sequence[str]
    points: Array = field(default_factory=lambda: POINTS)
    is_metric: bool = True


ORIGINALS: Mapping[str, Original] = {
    "tartanair": Original(partial(write_tartanair, v2=False), ("image_left", "image_right")),
    "tartanair 2": Original(
        partial(write_tartanair, v2=True), ("image_lcam_front", "image_rcam_front")
    ),
}
