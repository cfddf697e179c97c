"""Read the frames of one TartanAir trajectory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.format.references import ReferencedFile
from seqrecord.originals.files import is_file, list_folder, read_bytes
from seqrecord.schema import EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.sources.common.array_files import read_array
from seqrecord.sources.common.tables import read_rows
from seqrecord.sources.tartanair.layout import IMU_ROWS, PixelFiles, Size, check_rgb
from seqrecord.sources.tartanair.tree import Trajectory


def read_frames(
    trajectory: Trajectory,
    schema: Schema,
    size: Size,
    *,
    keep_encoded: bool,
    in_place: bool = False,
    exif: str | None = None,
) -> Iterator[Frame]:
    """Yield the features of `schema` frame by frame; pixels are [H, W, ...] of `size`.

    With `in_place`, kept images are a `ReferencedFile`. Raises `SourceError` before the first frame
    if the frame lists of features disagree.
    """
    lists = TrajectoryFrames(trajectory)
    lists.check()
    pixels = {
        files: lists.names(files)
        for files in trajectory.pixels
        if any(feature.name in schema for feature in files.features) and not lists.lacks(files)
    }
    for files, names in pixels.items():
        _check_ids(names, lists.wanted(files), trajectory.path / files.folder, lists.origin)
    rows = _read_rows(trajectory, schema, len(lists.ids))
    if not pixels and not rows:
        raise SourceError(
            "the trajectory has none of the selected features",
            file=str(trajectory.path),
            expected=f"files of {', '.join(schema)}",
        )
    for index, frame_id in enumerate(lists.ids):
        frame: dict[str, Any] = {}
        for files, names in pixels.items():
            if frame_id in names:
                path = trajectory.path / files.folder / names[frame_id]
                if in_place and files.kept(exif):
                    frame[files.features[0].name] = ReferencedFile(str(path))
                    continue
                with located(SourceError, feature=files.features[0].name, frame=index):
                    frame.update(_read_pixels(files, path, size, keep_encoded, exif))
        for name, values in rows.items():
            if index < len(values):
                frame[name] = values[index]
        yield {name: frame[name] for name in schema if name in frame}


class TrajectoryFrames:
    """File names of a trajectory's frames; each folder is listed once, on demand.

    `ids` are the frames that every folder must have, from the first folder with one file per frame,
    even if its feature is not selected: the frames must not depend on the selected features.
    `origin` names that folder, for errors.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._listed: dict[str, dict[PixelFiles, dict[int, str]]] = {}
        self.ids, self.origin = self._reference()

    def names(self, files: PixelFiles) -> dict[int, str]:
        """Return file names by frame id, ascending; for pairs of frames by the first id."""
        if files.folder not in self._listed:
            kinds = [other for other in self._trajectory.pixels if other.folder == files.folder]
            listed = list_frames(self._trajectory.path / files.folder, kinds)
            self._listed[files.folder] = dict(zip(kinds, listed, strict=True))
        return self._listed[files.folder][files]

    def wanted(self, files: PixelFiles) -> Sequence[int]:
        """Return the ids that a kind of files must have.

        Files between two frames may also exist for the last frame; they refer to a frame that
        TartanAir dropped.
        """
        is_whole = not files.between or self.ids[-1] in self.names(files)
        return self.ids if is_whole else self.ids[:-1]

    def lacks(self, files: PixelFiles) -> bool:
        """Return whether a folder shared with another feature has only the other feature's files.

        For example, optical flow and its mask share a folder and are downloaded separately.
        """
        if self.names(files):
            return False
        return any(self._listed[files.folder].values())

    def check(self) -> None:
        """Raise `SourceError` for no frames and for a gap in the ids."""
        folder = str(self._trajectory.path)
        if not self.ids:
            raise SourceError("trajectory without frames", file=folder)
        for one, other in pairwise(self.ids):
            if other != one + 1:
                raise SourceError(
                    "gap in the frame ids; the download may be incomplete",
                    file=folder,
                    expected=f"frame {one + 1} {self.origin}",
                    got=f"frame {other} after {one}",
                )

    def _reference(self) -> tuple[list[int], str]:
        for files in sorted(self._trajectory.pixels, key=lambda files: files.between):
            ids = list(self.names(files))
            if ids:
                if files.between and self._num_poses()[0] != len(ids):
                    ids.append(ids[-1] + 1)
                return ids, f"as in {files.folder}/"
        count, origin = self._num_poses()
        return list(range(count)), origin

    def _num_poses(self) -> tuple[int, str]:
        """Return the number of lines of the first pose file and its origin for errors; 0 without
        one."""
        layout = self._trajectory.layout
        for *_, file in layout.poses if layout else ():
            if file in self._trajectory.entries:
                return len(_read_poses(self._trajectory.path / file)), f"as in {file}"
        return 0, ""


def imu_counts(num_frames: int) -> tuple[int, int]:
    """Return the two valid numbers of rows of an IMU file.

    Samples are taken between frames, so the last frame usually has none.
    """
    return IMU_ROWS * (num_frames - 1), IMU_ROWS * num_frames


def list_frames(folder: Path, kinds: Sequence[PixelFiles]) -> list[dict[int, str]]:
    """Return file names by id for each kind of files in `folder`; other names are ignored."""
    found: list[dict[int, str]] = [{} for _ in kinds]
    for name, _ in list_folder(folder):
        for files, names in zip(kinds, found, strict=True):
            match = files.pattern.fullmatch(name)
            if match is None:
                continue
            first, *second = map(int, match.groups())
            if second and second[0] != first + 1:
                raise SourceError(
                    "the file connects frames that are not consecutive",
                    file=str(folder / name),
                    expected=f"frames {first} and {first + 1}",
                    got=f"{first} and {second[0]}",
                )
            if first in names:
                raise SourceError(
                    "two files have the same frame number",
                    file=str(folder / name),
                    got=f"{names[first]} too",
                )
            names[first] = name
    return [dict(sorted(names.items())) for names in found]


def _check_ids(ids: Collection[int], want: Sequence[int], folder: Path, origin: str) -> None:
    missing = sorted(set(want).difference(ids))
    extra = sorted(set(ids).difference(want))
    if missing or extra:
        span = f"frames {want[0]} to {want[-1]}" if want else "no frame"
        facts = [f"{len(ids)} files"]
        facts += [f"frame {missing[0]} missing"] if missing else []
        facts += [f"frame {extra[0]} too many"] if extra else []
        raise SourceError(
            "the features have different frames",
            file=str(folder),
            expected=f"{len(want)} files, {span}, {origin}",
            got=", ".join(facts),
        )


def _read_pixels(
    files: PixelFiles, path: Path, size: Size, keep_encoded: bool, exif: str | None
) -> dict[str, npt.NDArray[Any] | EncodedImage]:
    if keep_encoded and files.is_image:
        data = read_bytes(path)
        kept = replace(files.features[0], codec=files.kept(None))
        check_rgb(data, path, size, kept, exif)
        return {files.features[0].name: EncodedImage(data)}
    arrays = files.read(path, size, files.features, exif)
    return {feature.name: array for feature, array in zip(files.features, arrays, strict=True)}


def _read_rows(
    trajectory: Trajectory, schema: Schema, num_frames: int
) -> dict[str, npt.NDArray[Any]]:
    """Read features stored as one file per episode: values by frame."""
    rows: dict[str, npt.NDArray[Any]] = {}
    layout = trajectory.layout
    for spec, _, file in layout.poses if layout else ():
        if spec.name in schema and file in trajectory.entries:
            rows[spec.name] = _poses(trajectory.path / file, spec.name, num_frames)
    for feature, file, _ in layout.imu if layout else ():
        path = trajectory.path / "imu" / file
        if feature in schema and is_file(path):
            rows[feature] = _read_imu(path, schema[feature], num_frames)
    return rows


def _poses(path: Path, feature: str, num_frames: int) -> npt.NDArray[np.float64]:
    poses = _read_poses(path)
    if len(poses) != num_frames:
        raise SourceError(
            "the number of poses differs from the number of frames",
            file=str(path),
            feature=feature,
            expected=f"{num_frames} lines",
            got=f"{len(poses)} lines",
        )
    return poses


def _read_imu(path: Path, spec: FeatureSpec, num_frames: int) -> npt.NDArray[Any]:
    counts = imu_counts(num_frames)
    samples = read_array(path, spec.dtype)
    if samples.shape not in [(count, 3) for count in counts]:
        raise SourceError(
            "wrong shape",
            file=str(path),
            feature=spec.name,
            expected=f"[{counts[0]} or {counts[1]}, 3]",
            got=list(samples.shape),
        )
    return samples.reshape(-1, IMU_ROWS, 3)


def _read_poses(path: Path) -> npt.NDArray[np.float64]:
    """Read poses, float64 [T, 7]: metres, then a quaternion."""
    return read_rows(path).numbers(7)
