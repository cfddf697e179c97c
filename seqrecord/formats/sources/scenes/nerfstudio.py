"""`transforms.json` of nerfstudio and instant-ngp, and NeRF's synthetic scenes.

Formats: https://docs.nerf.studio/quickstart/data_conventions.html and instant-ngp's
`docs/nerf_dataset_tips.md`. Poses are camera-to-world with OpenGL's axes; both readers shoot rays
through pixel + 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.cameras import Camera, known_pose_of
from seqrecord.formats.sources.common.sequences import image_size
from seqrecord.formats.sources.scenes.views import (
    DEPTH,
    Layout,
    Scene,
    View,
    existing_files,
    inside,
    read_json,
    well_formed,
)
from seqrecord.in_place.files import is_file, opened
from seqrecord.store.cameras.distortion import FISHEYE, OPENCV
from seqrecord.store.text import repr_of

_FILE = "transforms.json"
_SPLITS = {f"transforms_{split}.json": split for split in ("train", "val", "test")}
_PERSPECTIVE = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "PERSPECTIVE")
_FISHEYE = ("OPENCV_FISHEYE", "FISHEYE")
_NUMBERS = ("fl_x", "fl_y", "cx", "cy", "w", "h", "k1", "k2", "k3", "k4", "p1", "p2")
_CAMERA = {*_NUMBERS, "camera_angle_x", "camera_angle_y", "camera_model", "is_fisheye"}
_FRAME = {*_CAMERA, "file_path", "transform_matrix", "depth_file_path", "mask_path"}
_OTHER_FILES = {DEPTH: "depth_file_path", "mask": "mask_path"}
_DEPTH_SCALE = "integer_depth_scale"
_HEAD = 1 << 16
_MOST_NUMBERS, _MOST_LEVELS = 16, 3  # of a value that is kept in the metadata


def _fits(names: set[str]) -> bool:
    return _FILE in names or "transforms_train.json" in names


def _places(folder: Path) -> Mapping[str, Path]:
    names = {"": _FILE} if is_file(folder / _FILE) else {s: name for name, s in _SPLITS.items()}
    paths = {split: folder / name for split, name in names.items()}
    return {split: path for split, path in paths.items() if is_file(path) and _has_frames(path)}


def _has_frames(path: Path) -> bool:
    """Whether a JSON file begins like a scene; other tools use the name too."""
    with opened(path) as file:
        return b'"frames"' in file.read(_HEAD)


@dataclass(frozen=True)
class _FrameFiles:
    """Files of a frame: the image, and others by feature."""

    image: Path
    other_files: Mapping[str, Path]

    @classmethod
    def of(cls, frame: Mapping[str, Any], at: int, path: Path) -> _FrameFiles:
        """Raises `SourceError` for a frame without an image, or files outside of the folder."""
        if not isinstance(frame.get("file_path"), str):
            raise SourceError(
                "frame without an image",
                file=str(path),
                frame=at,
                expected="file_path, a path relative to the scene's folder",
                got=repr_of(frame.get("file_path"), 100),
            )
        with located(SourceError, frame=at):
            image = inside(path.parent, frame["file_path"], path)
            other_files = {
                name: inside(path.parent, frame[key], path)
                for name, key in _OTHER_FILES.items()
                if frame.get(key) is not None
            }
        return cls(image if image.suffix else image.with_suffix(".png"), other_files)


def _read(path: Path, exif: str | None) -> Scene:
    content = read_json(path)
    with well_formed(path, "frames, a list of objects with file_path and transform_matrix"):
        if not isinstance(content["frames"], list):
            raise TypeError(f"frames are {repr_of(content['frames'], 100)}")
        frames = [{**frame} for frame in content["frames"]]
        shared_values = {name: value for name, value in content.items() if name in _CAMERA}
    frame_files = [_FrameFiles.of(frame, at, path) for at, frame in enumerate(frames)]
    images = [files.image for files in frame_files]
    existing_images = existing_files(images)
    sizes = (image_size(image, exif) for image in images if image in existing_images)
    size = next(sizes, None)
    views = []
    cameras: dict[str, Camera | None] = {}
    for at, (frame, files) in enumerate(zip(frames, frame_files, strict=True)):
        frame_values = {name: value for name, value in frame.items() if name in _CAMERA}
        with located(SourceError, file=str(path), frame=at):
            _check_intrinsics(frame_values, shared_values)
        with well_formed(path, "numbers fl_x, fl_y, cx, cy, w, h, or camera_angle_x"):
            if (key := repr(frame_values)) not in cameras:  # values of JSON, unlike dicts, hash
                cameras[key] = _camera({**shared_values, **frame_values}, size, path)
            pose = known_pose_of(frame["transform_matrix"], path, flip="yz")
        views.append(View(files.image, cameras[key], pose, files.other_files))
    return _scene(path, content, frames, views)


def _check_intrinsics(values: Mapping[str, Any], shared_values: Mapping[str, Any]) -> None:
    """Raise `SourceError` if a frame's intrinsics contradict the scene's."""
    common = sorted(values.keys() & shared_values.keys())
    for name in [name for name in common if values[name] != shared_values[name]][:1]:
        raise SourceError(
            "a frame's intrinsics contradict those of the whole scene; remove one of them",
            expected=f"{name} {shared_values[name]}",
            got=values[name],
        )


def _scene(path: Path, content: dict[str, Any], frames: list[Any], views: list[View]) -> Scene:
    has_depth = any(DEPTH in view.other_files for view in views)
    kept_values = {
        name: v for name, v in content.items() if name not in (*_CAMERA, "frames") and _is_kept(v)
    }
    notes = []
    depth_unit = "mm" if has_depth and _DEPTH_SCALE not in content else None
    if depth_unit is not None:
        notes.append("unit of depth assumed: mm, and so m for poses, as by nerfstudio's reader")
    if unread_names := sorted({name for frame in frames for name in frame} - _FRAME):
        notes.append(f"values of frames that are not packed: {', '.join(unread_names)}")
    if unread_names := sorted(content.keys() - kept_values.keys() - _CAMERA - {"frames"}):
        notes.append(f"values of the scene that are not packed: {', '.join(unread_names)}")
    return Scene(
        "camera-to-world, OpenGL axes: x right, y up, z backward; first pixel's middle at 0.5",
        *(views, [path], "m" if depth_unit else None, depth_unit),
        metadata={"transforms": kept_values} if kept_values else {},
        notes=notes,
        split=_SPLITS.get(path.name),
    )


def _is_kept(value: Any, level: int = 0) -> bool:
    """Whether a value is small: text, a number, or a matrix such as `applied_transform`."""
    if isinstance(value, list):
        is_small = len(value) <= _MOST_NUMBERS and level < _MOST_LEVELS
        return is_small and all(_is_kept(element, level + 1) for element in value)
    return not isinstance(value, dict)


def _camera(values: Mapping[str, Any], size: tuple[int, int] | None, path: Path) -> Camera | None:
    """Return the camera of a frame; `size` is (height, width) of the first image."""
    if not values.keys() & {"fl_x", "camera_angle_x"}:
        return None
    model = values.get("camera_model", "OPENCV_FISHEYE" if values.get("is_fisheye") else "OPENCV")
    height, width = (float(values.get(n, d)) for n, d in zip("hw", size or (0, 0), strict=True))
    if "fl_x" in values:
        fx = float(values["fl_x"])
        fy = float(values.get("fl_y", fx))
    else:
        fx = fy = width / 2 / math.tan(float(values["camera_angle_x"]) / 2)
        if "camera_angle_y" in values:
            fy = height / 2 / math.tan(float(values["camera_angle_y"]) / 2)
    cx, cy = float(values.get("cx", width / 2)), float(values.get("cy", height / 2))
    k1, k2, k3, k4, p1, p2 = (float(values.get(name, 0)) for name in _NUMBERS[6:])
    is_fisheye = model in _FISHEYE
    if model not in (*_PERSPECTIVE, *_FISHEYE) or (k4 and not is_fisheye):
        raise SourceError(
            "unsupported camera model",
            file=str(path),
            expected=f"{', '.join(_PERSPECTIVE)} with k1 to k3, or {', '.join(_FISHEYE)}",
            got=f"{model}" + (f" with k4 {k4:g}" if k4 else ""),
        )
    return Camera.of(
        *((fx, fy, cx, cy), (width, height), path),
        centre=0.5,
        model=FISHEYE if is_fisheye else OPENCV,
        coefficients=(k1, k2, k3, k4) if is_fisheye else (k1, k2, p1, p2, k3),
    )


LAYOUT = Layout(
    "nerfstudio",
    "SCENE/transforms.json (nerfstudio, instant-ngp), or transforms_train.json",
    *(_fits, _read, _places),
)
