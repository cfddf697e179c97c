"""Rendered scenes of a cube in the layouts of 3-D vision, written after their own readers.

The truth is independent of the package: poses are camera-to-world with OpenCV's axes, and an image
covers [0, width] x [0, height], so that the middle of pixel i is at i + 0.5.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
from PIL import Image

from seqrecord.sources import SceneSource
from tests.formats.cases import Case, Episodes, Frames

Array = npt.NDArray[Any]

CORNERS: Array = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
SIZE = (72, 96)  # height and width
_SIGMA = 1.3


@dataclass(frozen=True)
class Truth:
    """Poses [T, 4, 4], fx, fy, cx, cy of each frame [T, 4], and images; depth in mm."""

    poses: Array
    numbers: Array
    distort: Callable[[Array], Array] | None = None

    def points(self, frame: int) -> tuple[Array, Array]:
        """Pixels [8, 2] of the corners, with the first pixel's middle at 0.5, and depths [8]."""
        inverse = np.linalg.inv(self.poses[frame])
        seen = CORNERS @ inverse[:3, :3].T + inverse[:3, 3]
        plane = seen[:, :2] / seen[:, 2:]
        plane = plane if self.distort is None else self.distort(plane)
        fx, fy, cx, cy = self.numbers[frame]
        return plane * (fx, fy) + (cx, cy), seen[:, 2]

    def image(self, frame: int, scale: int = 1) -> Array:
        """A bright spot at each corner; `scale` reduces the image."""
        height, width = SIZE[0] // scale, SIZE[1] // scale
        rows, columns = np.mgrid[:height, :width] + 0.5
        total = np.zeros((height, width))
        for x, y in self.points(frame)[0] / scale:
            total += 250 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 2 / _SIGMA**2)
        return np.repeat(np.clip(total, 0, 255).astype(np.uint8)[..., None], 3, axis=2)

    def depth(self, frame: int, scale: int = 1) -> Array:
        distance = np.linalg.norm(self.poses[frame][:3, 3])
        return np.full((SIZE[0] // scale, SIZE[1] // scale), round(distance * 1000), np.uint16)


def truth(*, varies: bool = False, count: int = 5, **more: Any) -> Truth:
    """Cameras on a circle around the cube; with `varies`, each has its own intrinsics."""
    poses = []
    for angle in np.linspace(0.3, 2.5, count):
        place = np.array([5 * np.cos(angle), 1.7 + 0.3 * angle, 5 * np.sin(angle)])
        forward = -place / np.linalg.norm(place)
        right = np.cross(forward, [0.1, 1, 0.0])
        right /= np.linalg.norm(right)
        pose = np.eye(4)
        pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
        pose[:3, 3] = place
        poses.append(pose)
    numbers = np.tile([88.0, 90.0, 46.3, 37.2], (count, 1))
    if varies:
        numbers += np.arange(count)[:, None] * (1.5, 1.25, 0.75, -0.5)
    return Truth(np.stack(poses), numbers, **more)


def save(path: Path, pixels: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def write_nerfstudio(
    folder: Path, seed: int = 0, *, varies: bool = False, depth_scale: int = 1
) -> Truth:
    """With images in another order than their names, an absent image, depth and masks."""
    found = truth(varies=varies, count=5 + seed)
    opengl = np.diag([1.0, -1.0, -1.0, 1.0])
    frames: list[dict[str, Any]] = []
    names = ("fl_x", "fl_y", "cx", "cy")
    for i in np.random.default_rng(seed).permutation(len(found.poses)).tolist():
        for name, pixels in (
            (f"images/frame_{i + 1:05d}.png", found.image(i)),
            (f"depths/frame_{i + 1:05d}.png", found.depth(i, depth_scale)),
            (f"masks/frame_{i + 1:05d}.png", np.full(SIZE, 255 * (i % 2), np.uint8)),
        ):
            save(folder / name, pixels)
        frame: dict[str, Any] = {"file_path": f"./images/frame_{i + 1:05d}.png", "sharpness": 9.5}
        frame |= {"depth_file_path": f"depths/frame_{i + 1:05d}.png"}
        frame |= {"mask_path": f"masks/frame_{i + 1:05d}.png"}
        frame["transform_matrix"] = (found.poses[i] @ opengl).tolist()
        if varies:
            frame |= dict(zip(names, found.numbers[i].tolist(), strict=True))
        frames.append(frame)
    frames.append({**frames[0], "file_path": "images/frame_99999.png"})
    whole: dict[str, Any] = {"camera_model": "OPENCV", "w": SIZE[1], "h": SIZE[0], "k1": 0.0}
    if not varies:
        whole |= dict(zip(names, found.numbers[0].tolist(), strict=True))
    whole |= {"applied_transform": np.eye(4)[:3].tolist(), "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(whole))
    (folder / "sparse_pc.ply").write_text("ply\n")
    return found


def quaternion(rotation: Array) -> Array:
    """w, x, y, z: the eigenvector of Bar-Itzhack's matrix."""
    ((xx, xy, xz), (yx, yy, yz), (zx, zy, zz)) = rotation
    matrix = np.array(
        [
            [xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, yy - xx - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, zz - xx - yy],
        ]
    )
    found: Array = np.linalg.eigh(matrix)[1][:, -1]
    return found


def write_colmap(
    folder: Path,
    seed: int = 0,
    *,
    text: bool = False,
    scale: int = 1,
    lens: tuple[str, tuple[float, ...]] = ("PINHOLE", ()),
    **more: Any,
) -> Truth:
    """A model in sparse/0; the camera's images are `scale` times as large as the stored ones."""
    found = truth(count=5 + seed, **more)
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    numbers, (height, width) = found.numbers[0] * scale, np.array(SIZE) * scale
    images = []
    for i in np.random.default_rng(seed).permutation(len(found.poses)).tolist():
        save(folder / "images" / f"IMG_{i:04d}.png", found.image(i))
        inverse = np.linalg.inv(found.poses[i])
        pose = *quaternion(inverse[:3, :3]), *inverse[:3, 3]
        images.append((i + 7, pose, f"IMG_{i:04d}.png"))
    if text:
        shown = " ".join(map(repr, [*numbers.tolist(), *lens[1]]))
        (model / "cameras.txt").write_text(f"# cameras\n3 {lens[0]} {width} {height} {shown}\n")
        lines = [
            f"{n} {' '.join(f'{v:.17g}' for v in pose)} 3 {name}\n\n" for n, pose, name in images
        ]
        (model / "images.txt").write_text("".join(["# images\n", *lines]))
        return found
    cameras = struct.pack("<QIiQQ4d", 1, 3, 1, width, height, *numbers)
    (model / "cameras.bin").write_bytes(cameras)
    data = struct.pack("<Q", len(images))
    for number, pose, name in images:
        data += struct.pack("<I7dI", number, *pose, 3) + name.encode() + b"\0"
        data += struct.pack("<Q2dq", 1, 4.5, 5.5, -1)
    (model / "images.bin").write_bytes(data)
    return found


def _matrix(path: Path, matrix: Array, newline: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(newline.join(" ".join(f"{v:.9f}" for v in row) for row in matrix) + newline)


def _camera(numbers: Array, size: int = 4, centre: float = 0.5) -> Array:
    """A camera matrix whose first pixel's middle is at 0."""
    found = np.eye(size)
    found[[0, 1, 0, 1], [0, 1, 2, 2]] = numbers - (0, 0, centre, centre)
    return found


def write_scannet(folder: Path, seed: int = 0) -> Truth:
    """As SensReader exports a scene; tracking failed in frame 1, and frame 2 has no depth."""
    found = truth(count=5 + seed)
    for i, pose in enumerate(found.poses):
        save(folder / "color" / f"{i}.png", found.image(i))
        if i != 2:
            save(folder / "depth" / f"{i}.png", found.depth(i, 2))
        _matrix(folder / "pose" / f"{i}.txt", np.full((4, 4), -np.inf) if i == 1 else pose)
    for name, scale in (("color", 1), ("depth", 2)):
        small = found.numbers[0] / scale
        _matrix(folder / "intrinsic" / f"intrinsic_{name}.txt", _camera(small))
        _matrix(folder / "intrinsic" / f"extrinsic_{name}.txt", np.eye(4))
    return found


def write_scannetpp(folder: Path, seed: int = 0, packed: str | None = None) -> Truth:
    """Each second image, as its toolbox extracts them; poses of all frames.

    Depth of image i is extracted, or frame 2 i + 1 of depth.bin, see `pack_depth`.
    """
    found = truth(varies=True, count=5 + seed)
    values: dict[str, Any] = {}
    for i, pose in enumerate(found.poses):
        stem = f"frame_{2 * i + 1:06d}"
        save(folder / "iphone" / "rgb" / f"{stem}.png", found.image(i))
        if packed is None:
            save(folder / "iphone" / "depth" / f"{stem}.png", found.depth(i, 2))
        frame = {"aligned_pose": pose.tolist(), "pose": np.eye(4).tolist(), "imu": {}}
        frame["intrinsic"] = _camera(found.numbers[i], 3).tolist()
        values |= {f"frame_{2 * i:06d}": frame, stem: frame}
    (folder / "iphone" / "pose_intrinsic_imu.json").write_text(json.dumps(values))
    if packed is not None:
        frames = [iphone_depth(found, n / 2) for n in range(len(values))]
        (folder / "iphone" / "depth.bin").write_bytes(pack_depth(frames, packed))
    return found


def iphone_depth(found: Truth, frame: float) -> Array:
    """Depth [192, 256] in mm, other in each row and frame."""
    depth = np.full((192, 256), found.depth(int(frame)).max() + int(1000 * (frame % 1)), np.uint16)
    return depth + np.arange(192, dtype=np.uint16)[:, None]


def pack_depth(frames: Sequence[Array], form: str) -> bytes:
    """Frames as depth.bin of ScanNet++: LZ4 or DEFLATE of each, or one stream, which is refused."""
    if form == "lz4":
        blobs = [numcodecs.LZ4().encode(np.ascontiguousarray(frame))[4:] for frame in frames]
    else:
        metres = [(frame + 0.25).astype(np.float32) / np.float32(1000) for frame in frames]
        if form == "stream":
            return _deflated(np.stack(metres))
        blobs = [_deflated(frame) for frame in metres]
    return b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)


def _deflated(array: Array) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(array.tobytes()) + stream.flush()


def write_arkitscenes(folder: Path, seed: int = 0) -> Truth:
    """Times of poses a few ms away; the first image has no pose, one camera is 1 ms off."""
    found = truth(varies=True, count=5 + seed)
    rows = []
    for i, pose in enumerate(found.poses):
        time = 305.365 + 0.1 * i
        stem = f"41069021_{time:.3f}"
        save(folder / "lowres_wide" / f"{stem}.png", found.image(i))
        save(folder / "lowres_depth" / f"{stem}.png", found.depth(i))
        camera = f"{SIZE[1]} {SIZE[0]} " + " ".join(
            map(repr, (found.numbers[i] - (0, 0, 0.5, 0.5)).tolist())
        )
        path = folder / "lowres_wide_intrinsics" / f"41069021_{time + (i == 3) / 1000:.3f}.pincam"
        path.parent.mkdir(exist_ok=True)
        path.write_text(camera)
        inverse = np.linalg.inv(pose)
        w, *axis = quaternion(inverse[:3, :3]) * np.sign(quaternion(inverse[:3, :3])[0])
        length = np.linalg.norm(axis)
        turn = np.array(axis) / length * 2 * np.arctan2(length, w)
        if i:
            rows.append((time + 0.0021, *turn, *inverse[:3, 3]))
    _matrix(folder / "lowres_wide.traj", np.array(rows))
    return found


def write_realestate10k(folder: Path, seed: int = 0) -> Truth:
    found = truth(varies=True, count=5 + seed)
    name, lines = f"{seed:016x}", ["https://www.youtube.com/watch?v=abc"]
    for i, pose in enumerate(found.poses):
        time = 45979267 + i * 33367
        save(folder / name / f"{time}.png", found.image(i))
        numbers = found.numbers[i] / (SIZE[1], SIZE[0], SIZE[1], SIZE[0])
        row = [*numbers, 0, 0, *np.linalg.inv(pose)[:3].ravel()]
        lines.append(f"{time} " + " ".join(f"{value:.9f}" for value in row))
    lines.append(lines[-1].replace(lines[-1][:8], "99999999"))  # without an image
    (folder / f"{name}.txt").write_text("\n".join(lines))
    return found


def co3d_depth(frame: int) -> Array:
    """Depth before scaling, float16; the first row has none."""
    depth = np.linspace(0.25, 9 + frame, SIZE[0] * SIZE[1]).astype(np.float16).reshape(SIZE)
    depth[0, :3] = np.nan, np.inf, 0
    return depth


def write_co3d(folder: Path, seed: int = 0) -> Truth:
    """Two sequences of a category, one for each format of intrinsics; depth has no masks."""
    found = truth(varies=True, count=5 + seed)
    (height, width), frames = SIZE, []
    for form in ("ndc_isotropic", "ndc_norm_image_bounds"):
        sequence = f"{seed}_{form[4:8]}"
        half = np.array([width, height]) / 2
        scale = np.full(2, half.min()) if form == "ndc_isotropic" else half
        for i, pose in enumerate(found.poses):
            path = f"apple/{sequence}/images/frame{i + 1:06d}.png"
            save(folder / path, found.image(i))
            mask = path.replace("images", "masks")
            save(folder / mask, np.full(SIZE, 9, np.uint8))
            depth = {"path": f"apple/{sequence}/depths/frame{i + 1:06d}.jpg.geometric.png"}
            depth |= {"mask_path": path.replace("images", "depth_masks")}
            save(folder / depth["path"], co3d_depth(i).view(np.uint16))
            turned = np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.linalg.inv(pose)  # x left, y up
            view = {"R": turned[:3, :3].T.tolist(), "T": turned[:3, 3].tolist()}
            view["focal_length"] = (found.numbers[i, :2] / scale).tolist()
            view["principal_point"] = ((half - found.numbers[i, 2:]) / scale).tolist()
            frame = {"sequence_name": sequence, "image": {"path": path, "size": [*SIZE]}}
            frame["depth"] = {**depth, "scale_adjustment": 1.5 + i}
            frame["viewpoint"] = {**view, "intrinsics_format": form}
            frames.append({**frame, "frame_number": i + 1, "mask": {"path": mask, "mass": 1.0}})
    with gzip.open(folder / "apple" / "frame_annotations.jgz", "wt") as file:
        json.dump(frames, file)
    return found


def spot_errors(image: Array, points: Sequence[Any] | Array) -> list[float]:
    """Distances in pixels of spots from `points` [N, 2], with pixel centres at integers.

    Only of points away from the border and from each other.
    """
    points, values, found = np.asarray(points), image[..., 0].astype(float), []
    for x, y in points:
        others = np.abs(points - (x, y)).max(axis=1)
        row, column, r = round(y), round(x), 4
        if np.sort(others)[1] < 2.5 * r or not (
            r <= row < image.shape[0] - r and r <= column < image.shape[1] - r
        ):
            continue
        part = values[row - r : row + r + 1, column - r : column + r + 1]
        rows, columns = np.mgrid[row - r : row + r + 1, column - r : column + r + 1]
        centre = np.array([(columns * part).sum(), (rows * part).sum()]) / max(part.sum(), 1)
        found.append(float(np.hypot(*(centre - (x, y)))))
    return found


def _scenes(
    folder: Path,
    write: Callable[[Path, int], Truth],
    more: Callable[[Truth, int], dict[str, Any]],
) -> Episodes:
    """Two scenes; `more` are a frame's features besides image, pose and number."""
    found = Episodes()
    for number, name in enumerate("ab"):
        made = write(folder / name, number)
        frames: Frames = [{"image": made.image(i), "pose": p} for i, p in enumerate(made.poses)]
        found[name] = [frame | more(made, i) for i, frame in enumerate(frames)]
    return found


def _nerfstudio(made: Truth, frame: int) -> dict[str, Any]:
    mask = np.full(SIZE, 255 * (frame % 2), np.uint8)
    return {"depth": made.depth(frame), "mask": mask, "frame_number": np.int64(frame + 1)}


_case = partial(Case, source="SceneSource", bad="b", kept={"image": "png"}, close={"pose": 1e-9})

CASES = {
    "nerfstudio": _case(
        write=partial(_scenes, write=write_nerfstudio, more=_nerfstudio),
        file="b/images/frame_00002.png",
        referred={"image": "png", "depth": "png", "mask": "png"},
        inventory=f"""
format    scenes: 2 sequences: {SceneSource.expected}
feature   image  uint8 [72, 96, 3]  image  from images/*.png
feature   depth  uint16 [72, 96]  depth, mm  from depths/*.png
feature   mask  uint8 [72, 96]  mask  from masks/*.png
feature   pose  float64 [4, 4]  pose, m  from transforms.json
feature   frame_number  int64 []  frame_number  from file names
left out  a/sparse_pc.ply: 1 file, no reader
left out  b/sparse_pc.ply: 1 file, no reader
note      2 views without image
note      the order of frames is that of the images' names (2 of 2 sequences)
note      unit of depth assumed: mm, and so m for poses, as by nerfstudio's reader (2 of 2 sequences)
note      values of frames that are not packed: sharpness (2 of 2 sequences)
""",  # noqa: E501
    ),
    "colmap": _case(
        write=partial(
            _scenes, write=write_colmap, more=lambda _, frame: {"frame_number": np.int64(frame)}
        ),
        file="b/sparse/0/images.bin",
        referred={"image": "png"},
        inventory=f"""
format    scenes: 2 sequences: {SceneSource.expected}
feature   image  uint8 [72, 96, 3]  image  from images/*.png
feature   pose  float64 [4, 4]  pose  from sparse/0/images.bin
feature   frame_number  int64 []  frame_number  from file names
note      the order of frames is that of the images' names (2 of 2 sequences)
""",
    ),
}
