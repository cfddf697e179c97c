"""COLMAP models, text and binary, https://colmap.github.io/format.html.

Poses are world-to-camera with OpenCV's axes and no scale; the middle of the first pixel is at 0.5.
Points are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.cameras import Camera, known_pose_of, rotation_of
from seqrecord.formats.sources.common.tables import is_row, parse_numbers, row_of, text_lines
from seqrecord.formats.sources.scenes.views import Layout, Scene, View, inside, well_formed
from seqrecord.in_place.files import is_directory, is_file, list_folder, opened
from seqrecord.in_place.limits import check_size
from seqrecord.store.cameras.distortion import FISHEYE, OPENCV
from seqrecord.store.text import counted

_MODELS: tuple[tuple[str, int, str | None, str], ...] = (
    ("SIMPLE_PINHOLE", 1, None, ""),
    ("PINHOLE", 2, None, ""),
    ("SIMPLE_RADIAL", 1, OPENCV, "k1"),
    ("RADIAL", 1, OPENCV, "k1 k2"),
    ("OPENCV", 2, OPENCV, "k1 k2 p1 p2"),
    ("OPENCV_FISHEYE", 2, FISHEYE, "k1 k2 k3 k4"),
    ("FULL_OPENCV", 2, OPENCV, "k1 k2 p1 p2 k3 k4 k5 k6"),
    ("FOV", 2, "", ""),
    ("SIMPLE_RADIAL_FISHEYE", 1, FISHEYE, "k1"),
    ("RADIAL_FISHEYE", 1, FISHEYE, "k1 k2"),
)
"""Names by number, with the number of focal lengths, and OpenCV's model and coefficients.

FOV has none in OpenCV.
"""

_KNOWN = {name: (focal, model, text) for name, focal, model, text in _MODELS if model != ""}
_LEAST = {OPENCV: 4, FISHEYE: 4, None: 0}  # coefficients
_IMAGES = ("images", "rgb", "resized_images")
_CONVENTION = "world-to-camera, OpenCV axes, no scale; first pixel's middle at 0.5 (COLMAP)"
_CAMERA, _IMAGE = struct.Struct("<IiQQ"), struct.Struct("<I7dI")
_MAX_NAME = 4096
_POINT = 24  # bytes of a point in an image
_HEAD = 1 << 12  # bytes of a text file with the comments above its entries
_DECLARED = re.compile(rb"^# Number of (?:cameras|images): (\d{1,9})\b", re.MULTILINE)


def _fits(names: set[str]) -> bool:
    model = {f"{name}.{end}" for name in ("cameras", "images") for end in ("bin", "txt")}
    has_model = bool({"sparse", "colmap"} & names) or len(model & names) > 1
    return has_model and not names.isdisjoint(_IMAGES)


def _places(folder: Path) -> Mapping[str, Path]:
    for subfolder in ("", "sparse", "colmap/sparse", "colmap"):
        model = folder / subfolder
        if subfolder and not is_directory(model):
            continue
        if _ending(model):
            return {"": model}
        names = (name for name, is_folder in list_folder(model) if is_folder)
        number_names = [name for name in names if name.isascii() and name.isdigit()]
        models = {
            name: model / name for name in sorted(number_names, key=int) if _ending(model / name)
        }
        if subfolder and models:
            return {"": next(iter(models.values()))} if len(models) == 1 else models
    return {}


def _ending(model: Path) -> str:
    """Return the ending of a model's files; "" without a model."""
    endings = (".bin", ".txt")
    return next((e for e in endings if is_file(model / f"cameras{e}")), "")


def _read(model: Path, _exif: str | None) -> Scene:
    ending = _ending(model)
    paths = [model / f"images{ending}", model / f"cameras{ending}"]
    read_cameras, read_images = (_bin_cameras, _bin_images) if ending == ".bin" else (
        _text_cameras, _text_images
    )  # fmt: skip
    folders = (parent / name for parent in (model, *model.parents[:3]) for name in _IMAGES)
    folder = next(filter(is_directory, folders), model)
    cameras, views = {}, []
    with opened(paths[1]) as file, well_formed(paths[1], "a camera's ID, model, size, parameters"):
        for number, name, size, numbers in read_cameras(file):
            if number in cameras:
                raise SourceError("two cameras have the same ID; remove one of them", got=number)
            cameras[number] = _camera(name, size, numbers, paths[1])
    with opened(paths[0]) as file, well_formed(paths[0], "an image's pose, camera and name"):
        for numbers, camera, name in read_images(file):
            matrix = np.eye(4)
            matrix[:3, :3], matrix[:3, 3] = rotation_of(numbers[:4]), numbers[4:]
            pose = known_pose_of(matrix, paths[0], inverse=True)
            if camera not in cameras:
                raise SourceError(f"the camera of an image is not in {paths[1].name}", got=camera)
            views.append(View(inside(folder, name, paths[0]), cameras[camera], pose))
    notes: list[str] = []
    if ending == ".txt":
        notes += _count_notes(paths[0], "image", len(views))
        notes += _count_notes(paths[1], "camera", len(cameras))
    return Scene(_CONVENTION, views, paths, notes=notes)


def _count_notes(path: Path, noun: str, count: int) -> Iterator[str]:
    """Yield a note if the head of a text file declares another number of entries.

    It is no error: a list edited by hand keeps its head.
    """
    with opened(path) as file:
        declared = _DECLARED.search(file.read(_HEAD))
    if declared is not None and int(declared[1]) != count:
        yield (
            f"{path.name}: {counted(count, noun)}, but its head declares {int(declared[1]):,}; "
            "truncated, or edited by hand"
        )


def _num_parameters(name: str) -> int:
    focal, _, coefficients = _KNOWN[name]
    return focal + 2 + len(coefficients.split())


def _camera(name: str, size: tuple[int, int], numbers: list[float], path: Path) -> Camera:
    if name not in _KNOWN:
        raise SourceError(
            "camera model without a formula of OpenCV; undistort the images (`colmap "
            "image_undistorter`)",
            file=str(path),
            expected=f"any of {', '.join(_KNOWN)}",
            got=name,
        )
    focal, model, _ = _KNOWN[name]
    coefficients = numbers[focal + 2 :]
    coefficients += [0.0] * (_LEAST[model] - len(coefficients))
    intrinsics = [numbers[0], numbers[focal - 1], *numbers[focal : focal + 2]]
    return Camera.of(intrinsics, size, path, centre=0.5, model=model, coefficients=coefficients)


_Cameras = Iterator[tuple[int, str, tuple[int, int], list[float]]]
_Images = Iterator[tuple[list[float], int, str]]


def _text_cameras(file: BinaryIO) -> _Cameras:
    for line, text in text_lines(file):
        if is_row(text):
            with row_of(line, text, "CAMERA_ID MODEL WIDTH HEIGHT PARAMETERS"):
                words = text.split()
                number, width, height = parse_numbers([words[0], words[2], words[3]], int)
                parameters = parse_numbers(words[4:])
                if words[1] in _KNOWN and len(parameters) != _num_parameters(words[1]):
                    raise ValueError(f"{len(parameters)} parameters of {words[1]}")
            yield number, words[1], (width, height), parameters


def _text_images(file: BinaryIO) -> _Images:
    """Read lines of images, each followed by a line of its points, which may be empty."""
    lines = text_lines(file)
    for line, text in lines:
        if not is_row(text):
            continue
        with row_of(line, text, "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"):
            words = text.split(maxsplit=9)
            _, camera = parse_numbers([words[0], words[8]], int)
            pose, name = parse_numbers(words[1:8]), words[9]
        line, text = next(lines, (0, ""))
        expected = "points of the image above, X Y POINT3D_ID of each, or an empty line"
        with row_of(line, text, expected):
            numbers = text.split()
            (
                parse_numbers(numbers[::3]),
                parse_numbers(numbers[1::3]),
                parse_numbers(numbers[2::3], int),
            )
            if len(numbers) % 3:
                raise ValueError(f"{len(numbers)} numbers")
        yield pose, camera, name


def _bin_cameras(file: BinaryIO) -> _Cameras:
    for _ in range(_unpack(file, struct.Struct("<Q"))[0]):
        number, model, width, height = _unpack(file, _CAMERA)
        name, focal, _, names = (
            _MODELS[model] if 0 <= model < len(_MODELS) else (f"{model}", 0, None, "")
        )
        count = focal + 2 + len(names.split())
        yield number, name, (width, height), [*_unpack(file, struct.Struct(f"<{count}d"))]


def _bin_images(file: BinaryIO) -> _Images:
    for _ in range(_unpack(file, struct.Struct("<Q"))[0]):
        _, *numbers, camera = _unpack(file, _IMAGE)
        name = bytearray()
        while (byte := _unpack(file, struct.Struct("c"))[0]) != b"\0":
            name += byte
            check_size("name of an image", len(name), _MAX_NAME)
        file.seek(_unpack(file, struct.Struct("<Q"))[0] * _POINT, 1)
        yield numbers, camera, name.decode()
    if (place := file.tell()) != (size := file.seek(0, 2)):
        raise SourceError("truncated file, or data behind it", expected=place, got=size)


def _unpack(file: BinaryIO, values: struct.Struct) -> tuple[Any, ...]:
    data = file.read(values.size)
    if len(data) < values.size:
        raise SourceError(
            "truncated file", expected=f"{values.size} more bytes", got=f"{len(data)} bytes"
        )
    return values.unpack(data)


LAYOUT = Layout(
    "colmap", "SCENE/images/ with sparse/0/cameras.bin or .txt (COLMAP)", _fits, _read, _places
)
