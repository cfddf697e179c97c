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

from tests.formats.format_cases import scenes
from tests.formats.format_cases.scenes import CORNERS, quaternion, save
from tests.kit import bags
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


FREIBURG1 = (517.3, 516.5, 318.6, 255.3)  # of TUM's calibration
LENS1 = (0.2624, -0.9531, -0.0054, 0.0026, 1.1633)


def write_tum(folder: Path, name: str = "freiburg1_desk") -> dict[str, Rendered]:
    """One camera, whose poses are stored as they are."""
    camera = Rendered(path(3), FREIBURG1, (480, 640), lens=LENS1)
    lines: dict[str, list[str]] = {"rgb": [], "depth": [], "groundtruth": []}
    for t, pose in enumerate(camera.poses):
        stamp = f"{1305031102 + 0.05 * t:.4f}"
        save(folder / name / "rgb" / f"{stamp}.png", camera.rgb(t))
        depth = np.rint(camera.depth(t) * 5000).astype(np.uint16)
        save(folder / name / "depth" / f"{stamp}.png", depth)
        for kind in ("rgb", "depth"):
            lines[kind].append(f"{stamp} {kind}/{stamp}.png")
        lines["groundtruth"].append(" ".join([stamp, *map(repr, xyz_quaternion(pose).tolist())]))
    for kind, rows in lines.items():
        (folder / name / f"{kind}.txt").write_text("\n".join(["# a comment", *rows, ""]))
    return {"image": camera}


def rigid(x: float, y: float, z: float, *angles: float) -> Array:
    """A pose by position and rotations about x, y and z, in radians."""
    pose = np.eye(4)
    for axis, angle in enumerate(angles):
        turn = np.eye(3)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn[[i, j, i, j], [i, j, j, i]] = (
            *(np.cos([angle, angle])),
            *(np.sin([angle, angle]) * (-1, 1)),
        )
        pose[:3, :3] = pose[:3, :3] @ turn
    pose[:3, 3] = x, y, z
    return pose


def write_euroc(folder: Path) -> dict[str, Rendered]:
    """Two cameras of a body, and the ground truth of another sensor of the body."""
    sensors = {"cam0": rigid(0.02, -0.06, 0.01, 0.2, -0.1, 1.5)}
    sensors["cam1"] = sensors["cam0"] @ rigid(0.2, 0.004, -0.002, 0.01, 0.02, -0.01)
    truth = rigid(0.1, 0.3, -0.2, -0.5, 0.7, 0.1)
    lens = (-0.28340811, 0.07395907, 0.00019359, 1.76187114e-05)
    numbers = {"cam0": (58.654, 57.296, 63.5, 47.25), "cam1": (57.587, 56.134, 65.5, 46.75)}
    middle = Rendered(path(), numbers["cam0"], (96, 128), lens=lens)
    bodies = middle.poses @ np.linalg.inv(sensors["cam0"])
    mav, base, cameras = folder / "V1_01" / "mav0", 1403636579763555584, dict[str, Rendered]()
    for name, sensor in sensors.items():
        camera = replace(middle, poses=bodies @ sensor, numbers=numbers[name])
        cameras[f"image_{name}"], rows = camera, ["#timestamp [ns],filename"]
        for t in range(len(bodies)):
            stamp = base + t * 50_000_000
            save(mav / name / "data" / f"{stamp}.png", camera.image(t))
            rows.append(f"{stamp},{stamp}.png")
        (mav / name / "data.csv").write_text("\n".join([*rows, ""]))
        (mav / name / "sensor.yaml").write_text(
            f"T_BS:\n  cols: 4\n  rows: 4\n  data: {sensor.ravel().tolist()}\nrate_hz: 20\n"
            f"resolution: [128, 96]\ncamera_model: pinhole\nintrinsics: {[*numbers[name]]}\n"
            f"distortion_model: radial-tangential\ndistortion_coefficients: {[*lens]}\n"
        )
    state, rows = mav / "state_groundtruth_estimate0", ["#timestamp, p_RS_R_x [m]"]
    for t, body in enumerate(bodies):
        x, y, z, *axis, w = xyz_quaternion(body @ truth).tolist()
        rows.append(",".join(map(repr, [base + t * 50_000_000, x, y, z, w, *axis, *[0.0] * 9])))
    state.mkdir()
    (state / "data.csv").write_text("\n".join([*rows, ""]))
    (state / "sensor.yaml").write_text(
        f"T_BS:\n  cols: 4\n  rows: 4\n  data: {truth.ravel().tolist()}\n"
    )
    return cameras


def write_kitti(folder: Path) -> dict[str, Rendered]:
    """Four cameras side by side; poses of the first one."""
    sequence, numbers = folder / "sequences" / "00", (64.0, 64.0, 63.25, 47.75)
    origin = Rendered(path(), numbers, (96, 128))
    fx, fy, cx, cy = numbers
    matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    cameras, lines = dict[str, Rendered](), list[str]()
    places = ((0.0, 0, 0), (0.5, 0, 0), (-0.06, 0.001, -0.003), (0.47, -0.002, 0.002))
    for number, place in enumerate(places):
        pose = np.eye(4)
        pose[:3, 3] = place
        camera = cameras[f"image_{number}"] = origin.moved(pose)
        for t in range(len(origin.poses)):
            pixels = camera.image(t) if number < 2 else camera.rgb(t)
            save(sequence / f"image_{number}" / f"{t:06d}.png", pixels)
        projection = matrix @ np.linalg.inv(pose)[:3]
        lines.append(f"P{number}: " + " ".join(map(repr, projection.ravel().tolist())))
    (sequence / "calib.txt").write_text("\n".join([*lines, ""]))
    (sequence / "times.txt").write_text("".join(f"{0.1 * t:e}\n" for t in range(len(origin.poses))))
    (folder / "poses").mkdir()
    rows = [" ".join(map(repr, pose[:3].ravel().tolist())) for pose in origin.poses]
    (folder / "poses" / "00.txt").write_text("\n".join([*rows, ""]))
    return cameras


BAG_LENS = (0.1, -0.2, 0.001, 0.002, 0.0)  # of `bags.camera_info`


def write_bag(folder: Path) -> dict[str, Rendered]:
    """Two cameras on a robot, by the transforms of their optical frames."""
    base = rigid(0.1, 0.2, -0.3, 0.1, 0.2, 0.3)
    mounts = {"left": np.linalg.inv(base), "right": np.linalg.inv(base) @ rigid(0.2, 0, 0, 0, 0.05)}
    left = Rendered(path(), (60.0, 61.0, 63.25, 47.75), (96, 128), lens=BAG_LENS)
    messages: list[bags.Timed] = []
    transforms = partial(bags.message, "tf2_msgs/msg/TFMessage")
    cameras = dict[str, Rendered]()
    start, step = 1_700_000_000_000_000_000, 100_000_000
    for side, mount in mounts.items():
        fixed = bags.transform("base", f"{side}_optical", xyz_quaternion(mount).tolist(), start)
        messages.append(("/tf_static", start, transforms([fixed])))
        cameras[f"{side}.image_raw"] = replace(left, poses=left.poses @ base @ mount)
    for t, pose in enumerate(left.poses):
        time = start + step * t
        moving = bags.transform("map", "base", xyz_quaternion(pose @ base).tolist(), time)
        messages.append(("/tf", time, transforms([moving])))
        for side in mounts:
            info = bags.camera_info(left.size, left.numbers, time=time)
            info = replace(info, header=bags.header(time, f"{side}_optical"))
            messages.append((f"/{side}/camera_info", time, info))
            pixels = cameras[f"{side}.image_raw"].rgb(t)
            messages.append((f"/{side}/image_raw", time, bags.image(pixels, "rgb8")))
    folder.mkdir(parents=True)
    bags.write_bag(folder / "drive", messages)
    return cameras


@dataclass(frozen=True)
class Original:
    """How an original is written, and its images; `points` are in its world.

    `options` are of `open_source`. With `may_lack`, some frames have no pose. `in_place` is whether
    its images can stay where they are.
    """

    write: Callable[[Path], object]
    images: Sequence[str]
    points: Array = field(default_factory=lambda: POINTS)
    is_metric: bool = True
    may_lack: bool = False
    in_place: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


_scene = partial(Original, images=("image",), points=CORNERS)
_BAG = {
    "clock": "/left/image_raw",
    "poses": "left_optical,right_optical",
    "root_frame": "map",
}


ORIGINALS: Mapping[str, Original] = {
    "tartanair": Original(partial(write_tartanair, v2=False), ("image_left", "image_right")),
    "tartanair 2": Original(
        partial(write_tartanair, v2=True), ("image_lcam_front", "image_rcam_front")
    ),
    "tum": Original(write_tum, ("image",)),
    "euroc": Original(write_euroc, ("image_cam0", "image_cam1")),
    "kitti": Original(write_kitti, [f"image_{number}" for number in range(4)]),
    "bag": Original(write_bag, ("left.image_raw", "right.image_raw"), in_place=False, options=_BAG),
    "nerfstudio": _scene(scenes.write_nerfstudio),
    "nerfstudio, varying": _scene(partial(scenes.write_nerfstudio, varies=True)),
    "colmap": _scene(scenes.write_colmap, is_metric=False),
    "scannet": _scene(scenes.write_scannet, may_lack=True),
    "scannetpp": _scene(scenes.write_scannetpp),
    "arkitscenes": _scene(scenes.write_arkitscenes, may_lack=True),
    "realestate10k": _scene(scenes.write_realestate10k, is_metric=False),
    "co3d": _scene(scenes.write_co3d, is_metric=False),
}
