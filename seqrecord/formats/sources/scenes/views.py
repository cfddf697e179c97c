"""Views of a scene, which every layout of scenes provides, and their columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
from seqrecord.store.cameras.distortion import COEFFICIENTS, FISHEYE, MODEL, OPENCV

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

    def file(self, name: str) -> Path | DecodedFile | None:
        """Return the image, or a further file; `None` if there is none."""
        return self.image if name == IMAGE else self.other_files.get(name)


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
        read: reads the scene at a place of `places`. Its second argument is the source's `exif`,
            which decides the sizes of images.
        places: scenes in a folder: suffix of the key to place; by default the folder itself.
    """

    name: str
    expected: str
    fits: Callable[[set[str]], bool]
    read: Callable[[Path, str | None], Scene]
    places: Callable[[Path], Mapping[str, Path]] = lambda folder: {"": folder}
    holds: Callable[[Path], bool] = lambda _: True


def sequence_of(
    scene: Scene, layout: str, folder: Path, wants: Callable[..., bool], *, exif: str | None
) -> SequenceFrames:
    """Make the columns of a scene, in the order of the images' names."""
    views, names, notes = _order_views(_existing_views(scene))
    file_names = dict.fromkeys([IMAGE, *chain.from_iterable(view.other_files for view in views)])
    files = {name: [view.file(name) for view in views] for name in file_names}
    columns: dict[str, Column] = {}
    cameras: dict[str, _FrameCameras] = {}
    units = {DEPTH: scene.depth_unit}
    for name, paths in files.items():
        file_camera = scene.cameras.get(name)
        columns[name], cameras[name] = _file_column(
            *(name, paths, [file_camera or view.camera for view in views]),
            unit=units.get(name),
            exif=exif,
        )
    camera_columns, camera_metadata = _camera_columns(cameras, str(next(iter(scene.files))))
    columns |= camera_columns
    columns |= _view_columns(views, scene.unit)
    metadata: dict[str, Any] = {
        "dataset": layout,
        **scene.metadata,
        "convention": {"pose": POSE, "original": scene.convention},
        "views_without_image": len(scene.views) - len(views),
        **{f"frames_without_{name}": paths.count(None) for name, paths in files.items()},
        "camera": camera_metadata or 0,
        "frames_without_pose": sum(view.pose is None for view in views),
    }
    lists = [*scene.files]
    used_files: Iterator[Path | DecodedFile] = filter(None, chain.from_iterable(files.values()))
    places = dict.fromkeys(names, "file names") | {
        name: _pattern(files[name], folder) if name in files else os.path.relpath(lists[0], folder)
        for name in columns
    }
    columns |= names
    clock = columns.get(TIMESTAMP)
    return SequenceFrames(
        len(views),
        {name: columns[name] for name in filter(wants, columns)},
        places,
        [*lists, *map(path_of, used_files)],
        {name: value for name, value in metadata.items() if value != 0},
        notes=[*notes, *scene.notes],
        split=scene.split,
        clock=clock if isinstance(clock, Values) else None,
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


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder; none if the folder is missing."""
    names = list_folder(folder) if is_directory(folder) else ()
    paths = (folder / name for name, is_folder in names if not is_folder)
    return [path for path in paths if path.suffix.lower() in IMAGE_ENDINGS]


def images_in(folder: Path) -> dict[str, Path]:
    """Return the images in a folder by name without ending; none if the folder is missing.

    Raises `SourceError` for two images of one name.
    """
    paths: dict[str, Path] = {}
    for path in image_files(folder):
        if (other_path := paths.setdefault(path.stem, path)) is not path:
            raise SourceError(
                "two images have the same name; move one to another folder",
                file=str(folder),
                got=" and ".join(sorted((other_path.name, path.name))),
            )
    return paths


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
    if not scene.views:
        raise SourceError("a list of images without images", file=path, expected="one or more")
    if not views:
        raise SourceError(
            "no image of the list exists",
            file=path,
            expected=str(scene.views[0].image),
            got="no file",
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


@dataclass(frozen=True)
class _FrameCameras:
    """The cameras of a feature's frames; `None` where a camera is unknown."""

    cameras: Sequence[Camera | None]

    @cached_property
    def distinct(self) -> list[Camera]:
        """Different cameras, in order."""
        return [*dict.fromkeys(camera for camera in self.cameras if camera is not None)]

    @property
    def has_camera(self) -> npt.NDArray[np.bool_]:
        return np.array([camera is not None for camera in self.cameras], np.bool_)

    @property
    def is_constant(self) -> bool:
        """Whether all frames have the same known camera."""
        return len(self.distinct) == 1 and None not in self.cameras

    @property
    def filled(self) -> list[Camera]:
        """Cameras with the first known one in place of unknown ones."""
        return [camera or self.distinct[0] for camera in self.cameras]

    def intrinsics(self) -> Values:
        values = np.array([camera.intrinsics for camera in self.filled], np.float64)
        return Values(values, "intrinsics", "px", self.has_camera)

    def distortion(self) -> tuple[str | None, npt.NDArray[np.float64]]:
        """Return the model, and coefficients [T, n] padded by 0; n is 0 without distortion.

        Raises `SourceError` for models that cannot be one feature.
        """
        models = {camera.model for camera in self.distinct}
        if len(models) > 1 and FISHEYE in models:
            raise SourceError(
                "cameras of several distortion models; undistort them, or split the scene",
                expected=f"{OPENCV} or {FISHEYE} for all images",
                got=", ".join(sorted(str(model or "pinhole") for model in models)),
            )
        count = max(len(camera.coefficients) for camera in self.distinct)
        rows = [[*camera.coefficients, *[0.0] * count][:count] for camera in self.filled]
        return max(models, key=str), np.array(rows, np.float64)


def _file_column(
    name: str,
    paths: Sequence[Path | DecodedFile | None],
    cameras: Sequence[Camera | None],
    unit: str | None,
    exif: str | None,
) -> tuple[Images, _FrameCameras]:
    """Return the column of a feature's files, and the files' cameras scaled to their sizes."""
    samples: dict[tuple[int, int] | None, Path | DecodedFile] = {}  # their sizes may differ
    for path, camera in zip(paths, cameras, strict=True):
        if path is not None:
            samples.setdefault(camera.size if camera else None, path)
    sizes = {key: image_size(path, exif) for key, path in samples.items()}
    scaled_cameras: dict[Camera | None, Camera | None] = {None: None}
    for camera in cameras:
        if camera is not None and camera not in scaled_cameras:
            path = samples.get(camera.size)
            scaled_cameras[camera] = (
                camera if path is None else camera.scaled(*sizes[camera.size], path_of(path))
            )
    required_sizes = [sizes.get(camera.size) if camera else None for camera in cameras]
    column = Images(paths, _KINDS.get(name), unit, [*samples.values()], sizes=required_sizes)
    return column, _FrameCameras([scaled_cameras[camera] for camera in cameras])


def _camera_columns(
    cameras: Mapping[str, _FrameCameras], file: str
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return columns of intrinsics and distortion that vary, and the metadata `camera`.

    Cameras that all features share have no prefix. Else each feature has its own values, also equal
    ones: `--undistort` and crops of a mask find them by its name. `file` is named in errors.
    """
    image_cameras = cameras[IMAGE]
    if all(feature_cameras == image_cameras for feature_cameras in cameras.values()):
        cameras = {"": image_cameras}
    columns: dict[str, Column] = {}
    metadata: dict[str, Any] = {}
    for name, feature_cameras in cameras.items():
        if feature_cameras.is_constant:
            metadata[name] = feature_cameras.distinct[0].to_json()
            continue
        if not feature_cameras.distinct:
            continue
        prefix = f"{name}_" if name else ""
        columns[f"{prefix}intrinsics"] = feature_cameras.intrinsics()
        with located(SourceError, file=file):
            model, coefficients = feature_cameras.distortion()
        if not coefficients.size:
            continue
        metadata[name] = {MODEL: model}
        if (coefficients == coefficients[0]).all():
            metadata[name][COEFFICIENTS] = coefficients[0].tolist()
        else:
            columns[f"{prefix}distortion"] = Values(
                coefficients, "distortion", None, feature_cameras.has_camera
            )
    return columns, metadata.get("", metadata)


def _view_columns(views: Sequence[View], unit: str | None) -> dict[str, Column]:
    """Return the columns of poses, if any view has one, and of times, if all views have one."""
    columns: dict[str, Column] = {}
    poses = [view.pose for view in views]
    has_pose = np.array([pose is not None for pose in poses], np.bool_)
    if has_pose.any():
        filled_poses = np.stack([np.eye(4) if pose is None else pose for pose in poses])
        columns["pose"] = Values(filled_poses, "pose", unit, has_pose)
    times = [view.time for view in views if view.time is not None]
    if len(times) == len(views):
        columns[TIMESTAMP] = Values(np.array(times, np.int64), TIMESTAMP, "ns")
    return columns


def _pattern(items: Sequence[Path | DecodedFile | None], folder: Path) -> str:
    paths = [path_of(item) for item in items if item is not None]
    parent = os.path.relpath(os.path.commonpath([path.parent for path in paths]), folder)
    return os.path.normpath(f"{parent}/*{paths[0].suffix}")
