"""Columns of cameras: `<image>_pose`, `<image>_K`, `<image>_distortion`, in one convention.

Poses are camera-to-world with OpenCV's axes (x right, y down, z forward), in metres if the unit is
known. All values describe the frames in the batch, resized, cropped and mirrored::

    stored pose -> world_from_camera -> mirrored (S T S) -> recentred -> inverse -> float32
    stored K    -> of the window     -> mirrored         ->                         float32

A mirrored clip shows a mirrored world, S = diag(-1, 1, 1, 1): poses stay rotations, and points x
of the world are at S x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError, located
from seqrecord.loader.engine.crops import IntrinsicsChange, whole_windows
from seqrecord.loader.pipes.camera_frames import BoolArray, FloatArray
from seqrecord.loader.pipes.camera_rigs import EpisodeRigs, ImageCamera, ImageRig
from seqrecord.loader.pipes.camera_values import START
from seqrecord.loader.pipes.columns import BatchClips, ClipColumn, Column
from seqrecord.store.clips.cameras import camera_matrix
from seqrecord.store.clips.distortion import FISHEYE, MAX_COEFFICIENTS, OPENCV, mirror_factors
from seqrecord.store.clips.frames import ClipWindow
from seqrecord.store.clips.grids import IntArray
from seqrecord.store.clips.rigs import inverted, mirrored, pose_matrices
from seqrecord.store.clips.transforms import CropWindows

IS_MISSING = "_is_missing"
"""End of the names of masks: values that the source or frame lacks, which are 0."""

OFFSET, IS_METRIC = "camera_offset", "is_metric"

_GRID = 8192.0  # metres between offsets: float32 rounds half of it to 0.25 mm
_SHAPES = {"pose": (4, 4), "K": (3, 3), "distortion": (MAX_COEFFICIENTS,)}
_MODELS = {1: OPENCV, 2: FISHEYE}


@dataclass(frozen=True, eq=False)
class CameraColumns:
    """The columns of cameras. Picklable.

    `windows` are the frames of each image.
    """

    rigs: EpisodeRigs
    windows: Mapping[str, ClipWindow]

    @property
    def columns(self) -> list[ClipColumn]:
        """Of each image pose, K and distortion, with masks; and offset and unit of all."""
        dtype, columns = np.dtype(self.rigs.camera.dtype), list[ClipColumn]()
        for image in self.rigs.images:
            length = self.windows[image.name].length
            for noun, shape in (
                ("pose", (4, 4)),
                ("K", (3, 3)),
                ("distortion", (MAX_COEFFICIENTS,)),
            ):
                name = f"{image.name}_{noun}"
                columns += [
                    self._column(name, dtype, (length, *shape), per_frame=True),
                    self._column(name + IS_MISSING, np.dtype(bool), (length,), per_frame=True),
                ]
            columns.append(self._column(f"{image.name}_distortion_model", np.dtype(np.int64), ()))
        if self.rigs.camera.recenter is not None:
            columns.append(self._column(OFFSET, np.dtype(np.float64), (3,)))
        columns.append(self._column(IS_METRIC, np.dtype(bool), ()))
        return columns

    def _column(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, per_frame: bool = False
    ) -> ClipColumn:
        return Column(name, dtype, shape, partial(_value, self, name, dtype), per_frame)

    def values(self, batch: BatchClips) -> dict[str, npt.NDArray[Any]]:
        """The values of all columns, by name, for the clips of a batch; floats as float64."""
        clips = _Clips.of(self, batch)
        poses, values = dict[str, tuple[FloatArray, BoolArray]](), dict[str, npt.NDArray[Any]]()
        for image in self.rigs.images:
            poses[image.name] = clips.poses(image)
            values |= {f"{image.name}_{noun}": value for noun, value in clips.lens(image).items()}
        values |= self._delivered(poses)
        values[IS_METRIC] = clips.are_metric
        return values

    def _delivered(
        self, poses: Mapping[str, tuple[FloatArray, BoolArray]]
    ) -> dict[str, npt.NDArray[Any]]:
        """Poses in the requested form, and the offset."""
        camera, values = self.rigs.camera, dict[str, npt.NDArray[Any]]()
        offset = self._offset([*poses.values()])
        if camera.recenter is not None:
            values[OFFSET] = offset
        for name, (matrices, is_missing) in poses.items():
            matrices[..., :3, 3] -= offset[:, None]
            delivered = inverted(matrices) if camera.inverse else matrices
            delivered[is_missing] = 0
            values |= {f"{name}_pose": delivered, f"{name}_pose{IS_MISSING}": is_missing}
        return values

    def _offset(self, poses: Sequence[tuple[FloatArray, BoolArray]]) -> FloatArray:
        """The offset of n clips, float64[n, 3], by their first known position."""
        recenter = self.rigs.camera.recenter
        positions = np.concatenate([matrices[..., :3, 3] for matrices, _ in poses], axis=1)
        is_known = ~np.concatenate([is_missing for _, is_missing in poses], axis=1)
        if recenter is None:
            return np.zeros((len(positions), 3))
        start = positions[np.arange(len(positions)), is_known.argmax(axis=1)]
        start = np.where(is_known.any(axis=1, keepdims=True), start, 0.0)
        return start if recenter == START else np.rint(start / _GRID) * _GRID + 0.0


def _value(
    columns: CameraColumns, name: str, dtype: np.dtype[Any], batch: BatchClips
) -> npt.NDArray[Any]:
    values: Mapping[str, npt.NDArray[Any]] = batch.once(columns, lambda: columns.values(batch))
    return np.array(values[name], dtype)  # a copy, which users may change


@dataclass(frozen=True, eq=False)
class _Clips:
    """The clips of a batch: rows of their episodes, int64[n], and the cameras of each."""

    rigs: EpisodeRigs
    batch: BatchClips
    rows: IntArray
    of_clips: Sequence[Mapping[str, ImageRig]]

    @classmethod
    def of(cls, columns: CameraColumns, batch: BatchClips) -> _Clips:
        rows = batch.episodes.rows(batch.clips.episode)
        of_row = {row: columns.rigs.of_episode(row) for row in dict.fromkeys(rows.tolist())}
        return cls(columns.rigs, batch, rows, [of_row[row] for row in rows.tolist()])

    @property
    def are_metric(self) -> BoolArray:
        """Whether the positions of all images with poses are in metres, for each clip."""
        flags = [
            [rig.is_metric for rig in rigs.values() if rig.poses is not None]
            for rigs in self.of_clips
        ]
        return np.array([bool(of_clip) and all(of_clip) for of_clip in flags], np.bool_)

    def poses(self, image: ImageCamera) -> tuple[FloatArray, BoolArray]:
        """Camera-to-world [n, T, 4, 4] in metres, of a mirrored world in flipped clips; and which
        are missing, bool [n, T].
        """
        frames, is_unknown = self._frames(image)
        matrices, is_missing = np.zeros((*frames.shape, 4, 4)), np.ones(frames.shape, np.bool_)
        for clip, rigs in enumerate(self.of_clips):
            rig = rigs[image.name]
            if rig.poses is None:
                continue
            stored, present = self._stored(rig.poses.feature, clip, frames)
            stored[~present] = np.nan
            with self._located(clip, rig.poses.feature):
                poses, is_missing[clip] = pose_matrices(stored)
            matrices[clip] = poses @ rig.poses.body_from_camera
            matrices[clip, :, :3, 3] *= rig.scale
        flipped = self._flipped(image)
        matrices[flipped] = mirrored(matrices[flipped])
        return matrices, is_missing | is_unknown

    def lens(self, image: ImageCamera) -> dict[str, npt.NDArray[Any]]:
        """`K`, `distortion` and `distortion_model` of n clips, and masks."""
        frames, is_unknown = self._frames(image)
        matrices, no_matrix = np.zeros((*frames.shape, 3, 3)), np.ones(frames.shape, np.bool_)
        coefficients = np.zeros((*frames.shape, MAX_COEFFICIENTS))
        no_lens, models = np.ones(frames.shape, np.bool_), np.zeros(len(frames), np.int64)
        for clip, rigs in enumerate(self.of_clips):
            rig = rigs[image.name]
            if image.intrinsics is not None:
                stored, present = self._stored(image.intrinsics, clip, frames)
                matrices[clip], no_matrix[clip] = _matrices(stored, present)
            elif rig.matrix is not None:
                matrices[clip], no_matrix[clip] = rig.matrix, False
            if image.distortion is not None:
                stored, present = self._stored(image.distortion, clip, frames)
                count = stored.shape[1]
                number = self.rigs.lens_number(image, int(self.rows[clip]), count)
                present &= np.isfinite(stored).all(axis=1)
                if number is not None:
                    coefficients[clip, :, :count] = np.where(present[:, None], stored, 0)
                    models[clip], no_lens[clip] = number, ~present
            elif rig.lens is not None:
                models[clip], coefficients[clip] = rig.lens
                no_lens[clip] = False
        for number, model in _MODELS.items():
            mirror = self._flipped(image) & (models == number)
            coefficients[mirror] *= mirror_factors(model, MAX_COEFFICIENTS)
        no_matrix, no_lens = no_matrix | is_unknown, no_lens | is_unknown
        matrices = self._of_windows(image, matrices)
        matrices[no_matrix], coefficients[no_lens] = 0, 0
        return {
            "K": matrices,
            f"K{IS_MISSING}": no_matrix,
            "distortion": coefficients + 0.0,  # no negative zeros
            f"distortion{IS_MISSING}": no_lens,
            "distortion_model": models,
        }

    def _of_windows(self, image: ImageCamera, matrices: FloatArray) -> FloatArray:
        """Convert matrices of stored frames to frames in the batch, [n, T, 3, 3].

        Matrices of the metadata describe resized frames already.
        """
        count, resized = len(matrices), None
        if image.size is not None and image.intrinsics is not None:
            height, width = image.frame
            if height is None or width is None:
                raise ClipError(
                    "per-frame intrinsics cannot follow resize= of frames whose size varies",
                    file=self.rigs.dataset.url,
                    feature=image.intrinsics,
                    expected="a Resize as clip_transform instead",
                )
            resized = whole_windows((height, width), image.size, count)
        change = IntrinsicsChange.of(self._windows(image), resized, count)
        offsets = torch.from_numpy(change.factor), torch.from_numpy(change.offset)
        made: FloatArray = change.apply(torch.from_numpy(matrices), *offsets).numpy()
        return made

    def _windows(self, image: ImageCamera) -> CropWindows | None:
        crop = self.batch.drawn.crop
        return None if crop is None or image.name not in crop.parts else crop.parts[image.name][1]

    def _flipped(self, image: ImageCamera) -> BoolArray:
        windows = self._windows(image)
        return np.zeros(len(self.rows), np.bool_) if windows is None else windows.flipped

    def _frames(self, image: ImageCamera) -> tuple[IntArray, BoolArray]:
        """The frames of an image in the stored episodes, int64[n, T], and which have no value."""
        batch = self.batch
        if (excerpts := batch.episodes.excerpts) is not None:
            frames = batch.once("filled", lambda: excerpts.filled_of(batch.clips.row))
            return frames, np.zeros(frames.shape, np.bool_)
        window = batch.window(image.name)
        frames = window.frames[:, : batch.num_frames]
        if window.age is None:
            return frames, np.zeros(frames.shape, np.bool_)
        return frames, window.age[:, : batch.num_frames] < 0

    def _stored(self, feature: str, clip: int, frames: IntArray) -> tuple[FloatArray, BoolArray]:
        """The values of a clip's frames, float64 [T, …], and which have one, bool [T]."""
        return self.rigs.values.find(feature, int(self.rows[clip]), frames[clip])

    def _located(self, clip: int, feature: str) -> Any:
        key = self.rigs.dataset.contents.index.key(int(self.rows[clip]))
        return located(ClipError, file=self.rigs.dataset.url, episode=key, feature=feature)


def _matrices(stored: FloatArray, present: BoolArray) -> tuple[FloatArray, BoolArray]:
    """K of stored intrinsics, [T, 4] or [T, 3, 3], and which are missing; these are 0."""
    numbers = stored.reshape(len(stored), -1)
    is_missing = ~(present & np.isfinite(numbers).all(axis=1))
    numbers = np.where(is_missing[:, None], 0.0, numbers)
    if stored.ndim == 2:
        return camera_matrix(numbers, np.zeros(len(numbers))), is_missing
    return numbers.reshape(-1, 3, 3), is_missing
