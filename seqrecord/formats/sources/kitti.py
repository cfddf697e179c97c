"""Source for KITTI odometry, https://www.cvlibs.net/datasets/kitti/eval_odometry.php.

::

    ROOT/sequences/00/image_0/000000.png     left grey; 1 right grey, 2 and 3 colour
    ROOT/sequences/00/velodyne/000000.bin    float32 [N, 4]: x y z in metres, reflectance
    ROOT/sequences/00/times.txt              seconds, one line per frame
    ROOT/sequences/00/calib.txt              P0 to P3 and Tr, 12 numbers each: 3x4 matrices
    ROOT/poses/00.txt                        12 numbers per line: the left camera's 3x4 pose
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.cameras import camera_of_matrix
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.point_files import read_points
from seqrecord.formats.sources.common.sequence_tables import SequenceTables
from seqrecord.formats.sources.common.sequences import (
    DecodedFile,
    Images,
    SequenceFrames,
    SequenceSource,
    Values,
    image_size,
)
from seqrecord.formats.sources.common.tables import Rows, read_rows
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_file, list_folder
from seqrecord.store.originals.protocol import SourceFormat

_IMAGES = ("image_0", "image_1", "image_2", "image_3")
_SCANS = "velodyne"
_MATRIX = re.compile(r"(P[0-3]|Tr):?", re.ASCII)


@dataclass(frozen=True)
class KittiSource(SequenceSource):
    """KITTI odometry sequences.

    Each line of `times.txt` is a frame. Each folder of images or scans must have a file per frame,
    and `poses/00.txt` a line per frame. Sequences without poses (11 to 21) lack the feature.
    `calib.txt` is stored in the metadata, as is the pinhole camera that all images share
    (`camera`), or one by feature if the intrinsics of P0 to P3 differ. A camera has the size of an
    image, whichever features are selected.

    Features:

    - `image_0`, `image_1` uint8 [H, W]; `image_2`, `image_3` uint8 [H, W, 3]. H and W differ
      between sequences.
    - `velodyne` float32 [?, 4], metres and reflectance
    - `timestamp` float64, seconds
    - `pose` float64 [3, 4], from the left camera to that of the first frame, metres

    Args:
        root: a folder of sequences at any depth, or one sequence.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    expected = "sequences/00/times.txt with image_0/, image_2/ or velodyne/; poses/00.txt"

    def is_sequence(self, folder: Path, names: set[str]) -> bool:  # noqa: ARG002
        return "times.txt" in names and bool(names & {*_IMAGES, _SCANS})

    def key(self, folder: Path) -> str:
        key = super().key(folder)
        parts = [part for part in key.split("/") if part not in ("dataset", "sequences")]
        return "/".join(parts) or key

    def open(self, folder: Path) -> SequenceFrames:
        path = folder / "times.txt"
        metadata = {"dataset": "KITTI odometry", "sequence": folder.name}
        tables = SequenceTables(source=self, folder=folder, unit="s", metadata=metadata)
        if (rows := tables.rows(path, (0,))) is None:
            raise SourceError("sequence without frames", file=str(path))
        times, _ = rows
        names = sorted(name for name, is_folder in list_folder(folder) if is_folder)
        for name in filter((*_IMAGES, _SCANS).__contains__, names):
            tables.places[name] = f"{name}/*"
            if self.wants(name):
                endings = frozenset((".bin",)) if name == _SCANS else IMAGE_ENDINGS
                files = _files(folder / name, len(times), endings)
                tables.files += files
                tables.columns[name] = (
                    Images([*map(_scan, files)], "points", "m") if name == _SCANS else Images(files)
                )
        tables.places["timestamp"] = "times.txt"
        tables.begin(times)
        poses = folder.parent.parent / "poses" / f"{folder.name}.txt"
        if tables.has(poses, pose="poses/*.txt"):
            tables.files.append(poses)
            tables.columns["pose"] = Values(_poses(poses, len(times)), "pose", "m")
        _add_calibration(tables, filter(_IMAGES.__contains__, names))
        return tables

    def is_beside(self, path: Path) -> bool:
        return path.parent.name == "poses" and any(
            path == folder.parent.parent / "poses" / f"{folder.name}.txt"
            for folder in self._folders
        )


FORMAT = SourceFormat("kitti", KittiSource.expected, KittiSource, ("exif",), takes_urls=True)


def _scan(path: Path) -> DecodedFile:
    return DecodedFile(path, "<f4", lambda: (None, 4), lambda _: read_points(path)[""].values)


def _files(folder: Path, count: int, endings: Collection[str]) -> list[Path]:
    """Return the frames' files, numbered from 0."""
    names = _numbered_names(folder, endings)
    names_by_number = {int(Path(name).stem): name for name in names}
    missing_frame = next((number for number in range(count) if number not in names_by_number), None)
    if missing_frame is not None or len(names) != count:
        raise SourceError(
            "the number of files differs from times.txt",
            file=str(folder),
            frame=missing_frame,
            expected=f"{count} files, from 0 to {count - 1}",
            got=f"{len(names)} files",
        )
    return [folder / names_by_number[number] for number in range(count)]


def _first_image(folder: Path) -> Path:
    """Return the image of the smallest number. Raises `SourceError` if there is none."""
    names = _numbered_names(folder, IMAGE_ENDINGS)
    if not names:
        raise SourceError("folder without images", file=str(folder))
    return folder / min(names, key=lambda name: int(Path(name).stem))


def _numbered_names(folder: Path, endings: Collection[str]) -> list[str]:
    """Return the names of files with these endings that are numbers."""
    return [
        name
        for name, is_folder in list_folder(folder)
        if not is_folder and Path(name).suffix.lower() in endings and Path(name).stem.isdecimal()
    ]


def _poses(path: Path, count: int) -> npt.NDArray[np.float64]:
    values = read_rows(path).numbers(12)
    if len(values) != count:
        raise SourceError(
            "the number of poses differs from times.txt",
            file=str(path),
            expected=f"{count} lines",
            got=f"{len(values)} lines",
        )
    return values.reshape(count, 3, 4)


def _add_calibration(tables: SequenceTables, folders: Iterable[str]) -> None:
    """Add the matrices of `calib.txt` and, from them, the metadata `camera`.

    It is the camera of all images, as in KITTI, or has one by feature if their intrinsics differ.
    `folders` are those with images. An image without a matrix has P0.
    """
    path = tables.folder / "calib.txt"
    matrices: dict[str, Any] = {}
    if is_file(path):
        tables.files.append(path)
        matrices = _matrices(path)
    if matrices:
        tables.metadata["calibration"] = matrices
    projections = {name: matrices.get(f"P{name[-1]}", matrices.get("P0")) for name in folders}
    if "P0" not in matrices and not any(projections.values()):
        tables.notes.append("camera unknown: no P0 in calib.txt")
        return
    is_shared = len({_pinhole(projection) for projection in projections.values()}) == 1
    cameras = _cameras(tables, projections, path, is_shared=is_shared)
    if cameras:
        tables.metadata["camera"] = next(iter(cameras.values())) if is_shared else cameras
    else:
        tables.notes.append("camera unknown: no image has its size")


def _cameras(
    tables: SequenceTables,
    projections: Mapping[str, Sequence[float] | None],
    path: Path,
    *,
    is_shared: bool,
) -> dict[str, Any]:
    """Return cameras by feature, with the sizes of their first images; one if it `is_shared`.

    Features that are not selected count too, but their broken files are ignored.
    """
    columns = tables.columns.items()
    selected_images = {n: c.paths[0] for n, c in columns if isinstance(c, Images)}
    cameras: dict[str, Any] = {}
    for name in sorted(projections, key=lambda name: name not in selected_images):
        if (projection := projections[name]) is None:
            continue
        is_selected = name in selected_images
        context: AbstractContextManager[None] = (
            nullcontext() if is_selected else skipping_unreadable()
        )
        with context:
            image = selected_images[name] if is_selected else _first_image(tables.folder / name)
            height, width = image_size(image, tables.source.exif)
            camera = camera_of_matrix(np.reshape(projection, (3, 4)), (width, height), path)
            cameras[name] = camera.to_json()
            if not is_selected:
                tables.files.append(image)
        if is_shared and cameras:
            break
    return {name: cameras[name] for name in projections if name in cameras}


def _pinhole(projection: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the intrinsics of a projection matrix: without its last column, the baseline."""
    return None if projection is None else (*projection[:3], *projection[4:7], *projection[8:11])


def _matrices(path: Path) -> dict[str, Any]:
    """Return the named matrices, 12 numbers each."""
    matrices: dict[str, Any] = {}
    rows = read_rows(path)
    for number, words in zip(rows.lines, rows.words, strict=True):
        if not words[0][:1].isalpha():  # else a matrix or another named value
            raise rows.invalid(number, words, "a name such as P0:, and its numbers")
        if name := _MATRIX.fullmatch(words[0]):
            if name[1] in matrices:
                raise rows.invalid(number, words, f"{name[1]} once")
            matrices[name[1]] = Rows(path, [words], [number]).numbers(12, 1)[0].tolist()
    return matrices
