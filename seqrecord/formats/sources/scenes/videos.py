"""Scenes of video datasets: ARKitScenes, RealEstate10K and Co3D.

- ARKitScenes: axis-angle and translation, world-to-camera, in metres; intrinsics per frame in
  `.pincam` files; pixel centres at integers. https://github.com/apple/ARKitScenes
- RealEstate10K: intrinsics as fractions of the image's sides, world-to-camera.
  https://google.github.io/realestate10k/download.html
- Co3D: PyTorch3D's axes (x left, y up) and row vectors, intrinsics in normalised coordinates.
  https://github.com/facebookresearch/co3d
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.aligning import NONE, align
from seqrecord.formats.sources.common.cameras import Camera, known_pose_of, pose_of, rotation_of
from seqrecord.formats.sources.common.images import decode_image, read_image
from seqrecord.formats.sources.common.sequences import DecodedFile, image_size
from seqrecord.formats.sources.common.tables import (
    Rows,
    is_number,
    is_row,
    parse_numbers,
    read_numbers,
    read_rows,
    timed_values,
)
from seqrecord.formats.sources.scenes.views import (
    DEPTH,
    Layout,
    Scene,
    View,
    image_files,
    images_in,
    inside,
    well_formed,
)
from seqrecord.in_place.files import (
    is_directory,
    is_file,
    list_folder,
    opened,
    size_of,
    version_of,
)
from seqrecord.in_place.limits import check_size
from seqrecord.store.cameras.distortion import OPENCV
from seqrecord.store.text import repr_of

_TRAJECTORY = "lowres_wide.traj"
_NEAR = 5_000_000  # nanoseconds between an image and its pose, as in ARKitScenes' loader
_NS = 10**9
_MOST_SECONDS = (1 << 63) // _NS  # of int64 in nanoseconds
_CLIP = re.compile(r"[0-9a-f]{16}")
_MICROSECONDS = re.compile(r"[0-9]{1,19}")
_MOST_MICROSECONDS = ((1 << 63) - 1) // 1000
_ROW = 19  # numbers
_HEAD = 16 << 10  # bytes of a list, about 100 rows
_ANNOTATIONS = "frame_annotations.jgz"
_NAME = re.compile(r"[^/\0]+")
_FREE_BYTES = 16 << 20  # of annotations; decoded, text of JSON takes up to 24 times its size
_MOST_RATIO = 32  # decompressed bytes per stored byte; Co3D's own files have less than 10
_MOST_OF_FRAME = 1 << 16  # characters; Co3D's have about 1,500


def _read_arkit(folder: Path, _exif: str | None) -> Scene:
    images, depths, confidences = (
        images_in(folder / f"lowres_{name}") for name in ("wide", "depth", "confidence")
    )
    confidences = confidences or images_in(folder / "confidence")
    cameras = folder / "lowres_wide_intrinsics"
    camera_names = {name.removesuffix(".pincam") for name, _ in list_folder(cameras)}
    path, views = folder / _TRAJECTORY, []
    times, rows = timed_values(path, (6,))
    stems = sorted(images, key=_seconds)
    clock = np.array([round(_seconds(stem) * _NS) for stem in stems], np.int64)
    pose_rows = align(clock, np.rint(times * _NS).astype(np.int64), "nearest", _NEAR)
    files = [path]
    for stem, row in zip(stems, pose_rows.tolist(), strict=True):
        camera, pose = None, None
        if (name := _near_name(stem, camera_names)) is not None:
            files.append(cameras / f"{name}.pincam")
            camera = _pincam(files[-1])
        if row != NONE:
            pose = np.eye(4)
            angle = float(np.linalg.norm(rows[row, :3]))
            axis = rows[row, :3] / (angle or 1.0) * np.sin(angle / 2)
            pose[:3, :3], pose[:3, 3] = rotation_of([np.cos(angle / 2), *axis]), rows[row, 3:]
            pose = pose_of(pose, path, inverse=True)
        files_by_feature = ((DEPTH, depths), ("confidence", confidences))
        other_files = {name: paths[stem] for name, paths in files_by_feature if stem in paths}
        views.append(View(images[stem], camera, pose, other_files))
    return Scene(
        "world-to-camera, axis-angle, OpenCV axes, metres; first pixel's middle at 0 (ARKitScenes)",
        *(views, files, "m", "mm"),
    )


def _seconds(stem: str) -> float:
    with well_formed(Path(stem), "names such as 41069021_305.365"):
        [seconds] = parse_numbers([stem.rpartition("_")[2]])
        if not 0 <= seconds < _MOST_SECONDS:
            raise ValueError(f"{seconds} seconds")
    return float(seconds)


def _near_name(stem: str, names: set[str]) -> str | None:
    """Return the name with the same time, or a millisecond away, as ARKitScenes' loader does."""
    video, _, time = stem.rpartition("_")
    near_names = (f"{video}_{float(time) + ms / 1000:.3f}" for ms in (-1, 1))
    return next((name for name in (stem, *near_names) if name in names), None)


def _pincam(path: Path) -> Camera:
    numbers = np.atleast_1d(read_numbers(path).matrix())
    if numbers.shape != (6,):
        raise SourceError(
            "not a camera", file=str(path), expected="w h fx fy cx cy", got=str(numbers.tolist())
        )
    return Camera.of(numbers[2:].tolist(), numbers[:2].tolist(), path)


def _is_re10k(names: set[str]) -> bool:
    return any(name.endswith(".txt") and name.removesuffix(".txt") in names for name in names)


def _re10k_places(folder: Path) -> Mapping[str, Path]:
    names = {name for name, _ in list_folder(folder)}
    stems = {name.removesuffix(".txt") for name in names if name.endswith(".txt")} & names
    # The dataset's own names need no look into the lists, so that an empty one is an error.
    clips = {stem for stem in stems if _CLIP.fullmatch(stem) or _has_rows(folder / f"{stem}.txt")}
    if clips:
        for stem in stems - clips:
            if any(_MICROSECONDS.fullmatch(path.stem) for path in image_files(folder / stem)):
                clips.add(stem)
    return {name: folder / f"{name}.txt" for name in sorted(clips)}


def _has_rows(path: Path) -> bool:
    """Return whether one of the first three lines of a list is a row of RealEstate10K.

    A line of the URL and a broken row may be above it. Comments do not count.
    """
    if not is_file(path):
        return False
    with opened(path) as file:
        lines = file.read(_HEAD).decode("ascii", "replace").splitlines()
    words_of_lines = (line.split() for line in lines if is_row(line.strip()))
    return any(len(words) == _ROW and _is_re10k_row(words) for words in islice(words_of_lines, 3))


def _is_re10k_row(words: Sequence[str]) -> bool:
    """Return whether all words are numbers, the first one a time in microseconds."""
    try:
        parse_numbers(words)
    except ValueError:
        return False
    return _MICROSECONDS.fullmatch(words[0]) is not None


def _read_re10k(path: Path, exif: str | None) -> Scene:
    folder = path.with_suffix("")
    images = images_in(folder)
    size = image_size(next(iter(images.values())), exif) if images else (0, 0)
    rows, url = read_rows(path), ""
    # A line of mostly numbers is a row, perhaps a broken one, of a list without its URL.
    if rows.words and 2 * sum(map(is_number, rows.words[0])) <= len(rows.words[0]):
        url = " ".join(rows.words[0])
        rows = Rows(path, rows.words[1:], rows.lines[1:])
    if not rows.words:
        raise SourceError(
            "clip without frames",
            file=str(path),
            expected="a URL, then a time in microseconds and 18 numbers a line",
            got=f"{url[:100]!r} alone" if url else "no row",
        )
    views = []
    numbers = rows.numbers(_ROW)
    for words, line, row in zip(rows.words, rows.lines, numbers, strict=True):
        if not _MICROSECONDS.fullmatch(words[0]) or (time := int(words[0])) > _MOST_MICROSECONDS:
            raise rows.invalid(line, words, "a time in whole microseconds, and 18 numbers")
        image = images.get(words[0], folder / f"{words[0]}.png")
        scale, camera = np.array([size[1], size[0]] * 2), None
        if images:
            intrinsics = (row[1:5] * scale).tolist()
            distortion = [*row[5:7].tolist(), 0.0, 0.0]
            camera = Camera.of(
                *(intrinsics, size[::-1], path), centre=0.5, model=OPENCV, coefficients=distortion
            )
        pose = pose_of(row[7:].reshape(3, 4), path, inverse=True)
        views.append(View(image, camera, pose, time=time * 1000))
    return Scene(
        "world-to-camera, OpenCV axes, no scale; intrinsics as fractions of the sides "
        "(RealEstate10K)",
        *(views, [path]),
        metadata={"url": url} if url else {},
        notes=["the file names are times in us"],
    )


def _co3d_places(folder: Path) -> Mapping[str, Path]:
    return {name: folder / name for name in _annotations(folder / _ANNOTATIONS)}


def _annotations(path: Path) -> dict[str, list[Any]]:
    """Return the frames of a category by sequence."""
    return _annotations_of(path, version_of(path))


@lru_cache(maxsize=1)  # each sequence of a category asks for them
def _annotations_of(path: Path, _version: Hashable) -> dict[str, list[Any]]:
    frames_by_sequence: dict[str, list[Any]] = {}
    with (
        well_formed(path, "a gzip file of a JSON list of frames"),
        located(SourceError, file=str(path)),
    ):
        for frame in _elements(_unzip(path)):
            name = frame["sequence_name"]
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
                raise SourceError(
                    "sequence_name is not the name of a folder",
                    expected="a name without /",
                    got=repr_of(name, 100),
                )
            description = {key: frame.get(key) for key in ("image", "viewpoint", "mask", "depth")}
            frames_by_sequence.setdefault(name, []).append(description)
    return frames_by_sequence


def _unzip(path: Path) -> str:
    """Decompress a list of annotations, within a budget: its frames take more memory than text."""
    limit = max(_FREE_BYTES, _MOST_RATIO * size_of(path))
    with opened(path) as file:
        try:
            data = gzip.GzipFile(fileobj=file).read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError("not a gzip file", got=str(error)[:200]) from error
    check_size("annotations", len(data), limit)
    return data.decode()


def _elements(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list one by one, so that anything else ends it at once."""
    decode, at = json.JSONDecoder().raw_decode, _after(text, 0, "[")
    while not text.startswith("]", at):
        value, end = decode(text, at)
        if not isinstance(value, dict) or end - at > _MOST_OF_FRAME:
            raise ValueError(f"expected an object of a frame at character {at}")
        yield value
        at = _after(text, end, "")
        if not text.startswith("]", at):
            at = _after(text, at, ",")
            if text.startswith("]", at):
                raise ValueError(f"expected an object of a frame at character {at}")
    if text[at + 1 :].strip():
        raise ValueError(f"text after the list, at character {at + 1}")


def _after(text: str, at: int, mark: str) -> int:
    """Return the place after a mark and the spaces around it."""
    match = re.compile(rf"\s*{re.escape(mark)}\s*").match(text, at)
    if match is None:
        raise ValueError(f"expected {mark} at character {at}")
    return match.end()


def _read_co3d(place: Path, _exif: str | None) -> Scene:
    path, views, missing_names = place.parent / _ANNOTATIONS, [], set[str]()
    for frame in _annotations(path)[place.name]:
        with well_formed(path, "image, viewpoint and mask of each frame"):
            height, width = frame["image"]["size"]
            view = frame["viewpoint"]
            half = np.array([width, height]) / 2
            if (form := view.get("intrinsics_format", "ndc_norm_image_bounds")) == "ndc_isotropic":
                scale = np.full(2, half.min())
            elif form == "ndc_norm_image_bounds":
                scale = half
            else:
                raise ValueError(f"intrinsics_format {form}")
            focal, centre = (np.array(view[n]) for n in ("focal_length", "principal_point"))
            intrinsics = [*(focal * scale).tolist(), *(half - centre * scale).tolist()]
            camera = Camera.of(intrinsics, (width, height), path, centre=0.5)
            matrix = np.column_stack([np.transpose(view["R"]), view["T"]])
            root = place.parent.parent
            mask, depth = frame.get("mask") or {}, frame.get("depth") or {}
            listed_paths = {"mask": mask.get("path"), "depth_mask": depth.get("mask_path")}
            listed_paths[DEPTH] = depth.get("path")
            other_files: dict[str, Path | DecodedFile] = {}
            for name, file in listed_paths.items():
                file_path = None if file is None else inside(root, file, path)
                if file_path is not None and not is_directory(file_path.parent):
                    missing_names.add(name)
                elif file_path is not None and name == DEPTH:
                    read_depth = partial(_co3d_depth, file_path, float(depth["scale_adjustment"]))
                    # Encoded values cannot be turned by EXIF.
                    size_of_depth = partial(image_size, file_path, exif=None)
                    other_files[name] = DecodedFile(file_path, "<f4", size_of_depth, read_depth)
                elif file_path is not None:
                    other_files[name] = file_path
            image = inside(root, frame["image"]["path"], path)
        views.append(
            View(image, camera, known_pose_of(matrix, path, inverse=True, flip="xy"), other_files)
        )
    return Scene(
        "world-to-camera, PyTorch3D axes: x left, y up, z forward; no scale (Co3D)",
        *(views, [path]),
        notes=[f"{name}: listed, but its folder does not exist" for name in sorted(missing_names)],
    )


def _co3d_depth(path: Path, scale: float, exif: str | None) -> npt.NDArray[np.float32]:
    """Depth float32 [H, W] from a 16-bit PNG with the bits of float16; 0 where there is none."""
    bits = decode_image(read_image(path), path, exif=exif)
    if bits.dtype != np.uint16 or bits.ndim != 2:
        raise SourceError(
            "not a depth map", expected="PNG, grey, 16 bits", got=f"{bits.dtype} {bits.shape}"
        )
    depth: npt.NDArray[np.float32] = bits.view(np.float16).astype(np.float32) * np.float32(scale)
    depth[~np.isfinite(depth)] = 0
    return depth


ARKIT = Layout(
    "arkitscenes",
    f"SCENE/{_TRAJECTORY} with lowres_wide/ and lowres_wide_intrinsics/ (ARKitScenes)",
    {_TRAJECTORY, "lowres_wide", "lowres_wide_intrinsics"}.issubset,
    _read_arkit,
)
RE10K = Layout(
    "realestate10k",
    "CLIP.txt with CLIP/TIME.png (RealEstate10K)",
    *(_is_re10k, _read_re10k, _re10k_places),
    holds=lambda folder: bool(_re10k_places(folder)),
)
CO3D = Layout(
    "co3d",
    f"CATEGORY/{_ANNOTATIONS} with SEQUENCE/images/ (Co3D)",
    {_ANNOTATIONS}.issubset,
    *(_read_co3d, _co3d_places),
)
