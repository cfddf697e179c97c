"""Views of a scene, which every layout of scenes provides, and their columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.cameras import POSE, Camera, FloatArray
from seqrecord.formats.sources.common.frame_names import (
    FRAME_NAME,
    FRAME_NUMBER,
    TIMESTAMP,
    frame_files,
    time_note,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.originals import natural_order
from seqrecord.formats.sources.common.sequences import (
    Column,
    DecodedFile,
    Images,
    SequenceFrames,
    Values,
    image_size,
    path_of,
)
from seqrecord.in_place.files import is_directory, json_object, list_folder, read_bytes
from seqrecord.store.clips.distortion import FISHEYE, OPENCV

IMAGE, DEPTH = "image", "depth"
_KINDS = {IMAGE: IMAGE, DEPTH: DEPTH, "mask": "mask", "depth_mask": "mask"}
_MAX_JSON = 1 << 28
_WRONG_VALUES = (
    *(ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError),
)


@dataclass(frozen=True)
class View:
    """An image with its camera and pose, camera-to-world, float64 [4, 4]; `None` if unknown.

    `other_files` are its further files by feature, such as `depth`; `time` is in nanoseconds.
    """

    image: Path
    camera: Camera | None = None
    pose: FloatArray | None = None
    other_files: Mapping[str, Path | DecodedFile] = field(default_factory=dict)
    time: int | None = None


@dataclass(frozen=True)
class Scene:
    """The views of a scene, in any order.

    Args:
        convention: poses and pixel centres of the original, for the metadata.
        views: all views in the lists. Views without an image file are left out, and counted.
        files: lists that were read, the file of the poses first.
        unit: unit of poses, `None` for an unknown scale.
        depth_unit: unit of `depth`, if the format has one.
        cameras: cameras of further files with intrinsics of their own, by feature.
    """

    convention: str
    views: Sequence[View]
    files: Collection[Path]
    unit: str | None = None
    depth_unit: str | None = None
    cameras: Mapping[str, Camera] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    split: str | None = None


@dataclass(frozen=True)
class Layout:
    """A layout of scenes.

    Args:
        name: value of the option `layout`, and of `dataset` in the metadata.
        expected: description of its files, for errors.
        fits: whether a folder with these entry names contains scenes.
        holds: the same by the contents of the files, where names do not suffice.
        read: reads the scene at a place of `places`.
        places: scenes in a folder: suffix of the key to place; by default the folder itself.
    """

    name: str
    expected: str
    fits: Callable[[set[str]], bool]
    read: Callable[[Path], Scene]
    places: Callable[[Path], Mapping[str, Path]] = lambda folder: {"": folder}
    holds: Callable[[Path], bool] = lambda _: True


def sequence_of(
    scene: Scene, layout: str, folder: Path, wants: Callable[..., bool]
) -> SequenceFrames:
    """Make the columns of a scene, in the order of the images' names."""
    views, names, notes = _order_views(_existing_views(scene))
    files: dict[str, list[Path | DecodedFile | None]] = {IMAGE: [view.image for view in views]}
    for name in dict.fromkeys(name for view in views for name in view.other_files):
        files[name] = [view.other_files.get(name) for view in views]
    metadata: dict[str, Any] = {"dataset": layout, **scene.metadata}
    metadata["convention"] = {"pose": POSE, "original": scene.convention}
    metadata["views_without_image"] = len(scene.views) - len(views)
    columns: dict[str, Column] = {}
    cameras: dict[str, list[Camera | None]] = {}
    for name, paths in files.items():
        metadata[f"frames_without_{name}"] = paths.count(None)
        file_camera = scene.cameras.get(name)
        view_cameras = [view.camera if file_camera is None else file_camera for view in views]
        samples: dict[
            tuple[int, int] | None, Path | DecodedFile
        ] = {}  # files of cameras may differ in size
        for path, camera in zip(paths, view_cameras, strict=True):
            if path is not None:
                samples.setdefault(camera.size if camera else None, path)
        cameras[name] = _scale_cameras(view_cameras, samples)
        unit = scene.depth_unit if name == DEPTH else None
        columns[name] = Images(paths, _KINDS.get(name), unit, [*samples.values()])
    camera_columns, camera_metadata = _camera_columns(cameras, scene)
    columns |= camera_columns
    if camera_metadata:
        metadata["camera"] = camera_metadata
    has_pose = np.array([view.pose is not None for view in views], np.bool_)
    metadata["frames_without_pose"] = int(np.count_nonzero(~has_pose))
    if has_pose.any():
        poses = np.stack([np.eye(4) if view.pose is None else view.pose for view in views])
        columns["pose"] = Values(poses, "pose", scene.unit, has_pose)
    if all(view.time is not None for view in views):
        times = np.array([view.time for view in views], np.int64)
        columns[TIMESTAMP] = Values(times, TIMESTAMP, "ns")
    lists = [*scene.files]
    images = (path_of(item) for items in files.values() for item in items if item is not None)
    places = dict.fromkeys(names, "file names") | {
        name: _pattern(files[name], folder) if name in files else os.path.relpath(lists[0], folder)
        for name in columns
    }
    columns |= names
    return SequenceFrames(
        len(views),
        {name: column for name, column in columns.items() if wants(name)},
        places,
        [*lists, *images],
        {name: value for name, value in metadata.items() if value != 0},
        notes=[*notes, *scene.notes],
        split=scene.split,
    )


def inside(folder: Path, name: object, path: Path) -> Path:
    """Return a file below `folder` that the list `path` names.

    Raises `SourceError` for paths that lead out of the folder.
    """
    if isinstance(name, str):
        relative_path = os.path.normpath(name)
        if name and not relative_path.startswith(("/", "..")):
            return folder / relative_path
    raise SourceError(
        "the path leads out of the scene's folder; correct the list",
        file=str(path),
        expected="a path relative to the scene's folder",
        got=str(name)[:200],
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `SourceError` for any other file."""
    with located(SourceError, file=str(path)):
        return json_object(read_bytes(path, _MAX_JSON))


@contextmanager
def well_formed(path: Path, expected: str) -> Iterator[None]:
    """Raise `SourceError` for missing or wrong values that the block reads."""
    try:
        yield
    except _WRONG_VALUES as error:
        raise SourceError(
            "missing or wrong value",
            file=str(path),
            expected=expected,
            got=f"{type(error).__name__}: {error}"[:200],
        ) from error


def images_in(folder: Path) -> dict[str, Path]:
    """Return the images in a folder by name without ending; none if the folder is missing."""
    names = list_folder(folder) if is_directory(folder) else ()
    paths = (folder / name for name, is_folder in names if not is_folder)
    return {path.stem: path for path in paths if path.suffix.lower() in IMAGE_ENDINGS}


def existing_files(paths: Collection[Path]) -> set[Path]:
    """Return the paths that exist, from one listing of each folder."""
    folders = filter(is_directory, {path.parent for path in paths})
    names = ((folder, *entry) for folder in folders for entry in list_folder(folder))
    return {folder / name for folder, name, is_folder in names if not is_folder}.intersection(paths)


def _existing_views(scene: Scene) -> list[View]:
    """Return the views whose images exist. Raises `SourceError` if none does, or for duplicates."""
    existing_images = existing_files([view.image for view in scene.views])
    views = [view for view in scene.views if view.image in existing_images]
    path = str(next(iter(scene.files)))
    if not views:
        first_image = next((str(view.image) for view in scene.views), "no image")
        raise SourceError(
            "no image of the list exists", file=path, expected=first_image, got="no file"
        )
    for image, count in Counter(view.image for view in views).items():
        if count > 1:
            raise SourceError("an image is listed twice", file=path, got=str(image))
    return views


def _order_views(views: Sequence[View]) -> tuple[list[View], dict[str, Column], list[str]]:
    """Sort views by the names of their images; return also columns of the names, and notes."""
    root = Path(os.path.commonpath([view.image.parent for view in views]))
    by_name = {view.image.relative_to(root).as_posix(): view for view in views}
    notes = ["the order of frames is that of the images' names"]
    files = frame_files(by_name) if all("/" not in name for name in by_name) else None
    if files is None or len(files.names) < len(views):
        order = sorted(by_name, key=natural_order)
        stems = [Path(name).with_suffix("").as_posix() for name in order]
        return [by_name[n] for n in order], {FRAME_NAME: Values(np.array(stems), FRAME_NAME)}, notes
    columns: dict[str, Column] = {}
    if files.pattern is not None:
        columns[FRAME_NUMBER] = Values(np.array([*files.names], np.int64), FRAME_NUMBER)
    else:
        stems = [Path(name).stem for name in files.names.values()]
        columns[FRAME_NAME] = Values(np.array(stems), FRAME_NAME)
    if files.times is not None:
        files.check(root, IMAGE)
        columns[TIMESTAMP] = Values(np.array(files.times.values), TIMESTAMP, "ns")
        notes.append(time_note(files.times.unit))
    return [by_name[name] for name in files.names.values()], columns, notes


def _scale_cameras(
    cameras: Sequence[Camera | None], samples: Mapping[tuple[int, int] | None, Path | DecodedFile]
) -> list[Camera | None]:
    """Return the cameras of files that have the size of the `samples`, by size of the camera."""
    sizes = {key: image_size(path) for key, path in samples.items()}
    scaled_cameras: dict[Camera | None, Camera | None] = {None: None}
    for camera in cameras:
        if camera is not None and camera not in scaled_cameras:
            path = samples.get(camera.size)
            scaled_cameras[camera] = (
                camera if path is None else camera.scaled(*sizes[camera.size], path_of(path))
            )
    return [scaled_cameras[camera] for camera in cameras]


def _camera_columns(
    cameras: Mapping[str, Sequence[Camera | None]], scene: Scene
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return columns of intrinsics and distortion that vary, and the metadata `camera`.

    Cameras that all features share have no prefix.
    """
    are_shared = all(feature_cameras == cameras[IMAGE] for feature_cameras in cameras.values())
    columns: dict[str, Column] = {}
    metadata: dict[str, Any] = {}
    for name, feature_cameras in {"": cameras[IMAGE]}.items() if are_shared else cameras.items():
        distinct_cameras = list(
            dict.fromkeys(camera for camera in feature_cameras if camera is not None)
        )
        if len(distinct_cameras) == 1 and None not in feature_cameras:
            metadata[name] = distinct_cameras[0].to_json()
        elif distinct_cameras and (name in ("", IMAGE) or feature_cameras != cameras[IMAGE]):
            prefix = f"{name}_" if name else ""
            has_camera = np.array([camera is not None for camera in feature_cameras], np.bool_)
            filled_cameras = [camera or distinct_cameras[0] for camera in feature_cameras]
            values = np.array([camera.intrinsics for camera in filled_cameras], np.float64)
            columns[f"{prefix}intrinsics"] = Values(values, "intrinsics", "px", has_camera)
            models = {camera.model for camera in distinct_cameras}
            if len(models) > 1 and FISHEYE in models:
                raise SourceError(
                    "cameras of several distortion models; undistort them, or split the scene",
                    file=str(next(iter(scene.files))),
                    expected=f"{OPENCV} or {FISHEYE} for all images",
                    got=", ".join(sorted(str(model or "pinhole") for model in models)),
                )
            count = max(len(camera.coefficients) for camera in distinct_cameras)
            padded_coefficients = [
                [*camera.coefficients, *[0.0] * count][:count] for camera in filled_cameras
            ]
            if count:
                metadata[name] = {"distortion_model": max(models, key=str)}
                if all(row == padded_coefficients[0] for row in padded_coefficients):
                    metadata[name]["distortion_coefficients"] = padded_coefficients[0]
                else:
                    columns[f"{prefix}distortion"] = Values(
                        np.array(padded_coefficients), "distortion", None, has_camera
                    )
    return columns, metadata.get("", metadata)


def _pattern(items: Sequence[Path | DecodedFile | None], folder: Path) -> str:
    paths = [path_of(item) for item in items if item is not None]
    parent = os.path.relpath(os.path.commonpath([path.parent for path in paths]), folder)
    return os.path.normpath(f"{parent}/*{paths[0].suffix}")
