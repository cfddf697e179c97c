"""ScanNet's exports, and ScanNet++'s iPhone recordings.

ScanNet: color, depth, pose and intrinsic, as `SensReader` exports them,
https://github.com/ScanNet/ScanNet. ScanNet++: rgb and depth, as `iphone.prepare_iphone_data`
extracts them, or `depth.bin`, with `pose_intrinsic_imu.json`,
https://github.com/scannetpp/scannetpp. Both have poses camera-to-world with OpenCV's axes, in
metres, depth in millimetres, and pixel centres at integers: their own readers unproject so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from seqrecord.formats.sources.common.cameras import (
    Camera,
    FloatArray,
    camera_of_matrix,
    known_pose_of,
)
from seqrecord.formats.sources.common.sequences import DecodedFile, image_size
from seqrecord.formats.sources.common.tables import read_numbers
from seqrecord.formats.sources.scenes.packed_depth import METRIC_NOTE, packed_depth
from seqrecord.formats.sources.scenes.views import (
    DEPTH,
    IMAGE,
    Layout,
    Scene,
    View,
    images_in,
    read_json,
    well_formed,
)
from seqrecord.in_place.files import is_file

_CONVENTION = "camera-to-world, OpenCV axes, metres; first pixel's middle at 0"
_IPHONE = "pose_intrinsic_imu.json"


def _scannet_places(folder: Path) -> Mapping[str, Path]:
    paths = (folder / "intrinsic" / f"intrinsic_{name}.txt" for name in ("color", "depth"))
    return {"": folder} if any(map(is_file, paths)) else {}


def _read_scannet(folder: Path, exif: str | None) -> Scene:
    colors, depths = (images_in(folder / name) for name in ("color", "depth"))
    cameras: dict[str, Camera] = {}
    files = []
    for feature, name, images in ((IMAGE, "color", colors), (DEPTH, "depth", depths)):
        path = folder / "intrinsic" / f"intrinsic_{name}.txt"
        if images and is_file(path):
            files.append(path)
            height, width = image_size(next(iter(images.values())), exif)
            matrix = read_numbers(path).matrix()
            cameras[feature] = camera_of_matrix(matrix, (width, height), path)
    color, views = cameras.pop(IMAGE, None), []
    for stem, image in colors.items():
        path, pose = folder / "pose" / f"{stem}.txt", None
        if is_file(path):
            files.append(path)
            pose = _pose(path)
        other_files = {DEPTH: depths[stem]} if stem in depths else {}
        views.append(View(image, color, pose, other_files))
    return Scene(_CONVENTION, views, files or [folder / "pose"], "m", "mm", cameras)


def _pose(path: Path) -> FloatArray | None:
    """Return the pose of a frame; `None` if tracking failed, which is -inf."""
    numbers = read_numbers(path).matrix()
    return None if np.isinf(numbers).any() else known_pose_of(numbers, path)


def _read_iphone(folder: Path, exif: str | None) -> Scene:
    path = folder / _IPHONE
    images, depths, masks = (images_in(folder / name) for name in ("rgb", "depth", "rgb_masks"))
    size = image_size(next(iter(images.values())), exif)[::-1] if images else (0, 0)
    views, notes, poses = [], ["values of IMU are not packed"], read_json(path)
    depth_of: Mapping[str, Path | DecodedFile] = depths
    if not depths and is_file(depth := folder / "depth.bin"):
        depth_of, is_metric = packed_depth(depth, len(poses))
        notes += [f"{depth.name}: {METRIC_NOTE}"] if is_metric else []
    for stem, frame in poses.items():
        with well_formed(path, "aligned_pose, 16 numbers, and intrinsic, 9 numbers, of each frame"):
            pose = known_pose_of(np.reshape(frame["aligned_pose"], (4, 4)), path)
            image = images.get(stem, folder / "rgb" / f"{stem}.jpg")
            matrix = np.reshape(frame["intrinsic"], (3, 3))
        camera = camera_of_matrix(matrix, size, path) if images else None
        files_by_feature = ((DEPTH, depth_of), ("mask", masks))
        other_files = {name: paths[stem] for name, paths in files_by_feature if stem in paths}
        views.append(View(image, camera, pose, other_files))
    return Scene(_CONVENTION, views, [path], "m", "mm", notes=notes)


SCANNET = Layout(
    "scannet",
    "SCENE/color/, pose/, intrinsic/intrinsic_color.txt (ScanNet)",
    {"color", "pose", "intrinsic"}.issubset,
    *(_read_scannet, _scannet_places),
)
IPHONE = Layout(
    "scannetpp", f"SCENE/iphone/{_IPHONE} with rgb/ (ScanNet++)", {_IPHONE}.issubset, _read_iphone
)
