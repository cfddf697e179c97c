"""Columns of cameras: `<image>_pose`, `<image>_K`, `<image>_distortion`, in one convention.

Poses are camera-to-world with OpenCV's axes (x right, y down, z forward), in metres if the unit is
known. All values describe the frames in the batch, resized, cropped and mirrored::

    stored pose -> world_from_camera -> mirrored (S T S) -> recentred -> inverse -> float32
    stored K    -> of the window     -> mirrored         ->                         float32

A mirrored clip shows a mirrored world, S = diag(-1, 1, 1, 1): poses are rotations again, and points
x of the world are at S x.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.camera.conventions import (
    BoolArray,
    FloatArray,
    are_float32,
    inverted,
    mirrored,
    pose_matrices,
)
from seqrecord.camera.flips import WorldFlips
from seqrecord.camera.relative import ClipPoses, mean_translations, relative_poses
from seqrecord.camera.rigs import (
    LENS_NUMBERS,
    EpisodeRigs,
    ImageCamera,
    ImageRig,
    intrinsics_matrices,
)
from seqrecord.camera.values import MEAN_TRANSLATION, MEDIAN_DEPTH, START, Camera
from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipWindow
from seqrecord.loader.engine.crops import ClipCrops, IntrinsicsChange, whole_windows
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.columns import BatchClips, ClipColumn, Column
from seqrecord.loader.pipes.registered_columns import ImageColumns
from seqrecord.store.cameras.crop_windows import CropWindows
from seqrecord.store.cameras.distortion import MAX_COEFFICIENTS, mirror_factors
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import IntArray

IS_MISSING = "_is_missing"
"""End of mask names: values that the source or frame lacks, which are 0."""

OFFSET, SCALE, IS_METRIC = "camera_offset", "camera_scale", "is_metric"

_GRID = 8192.0  # metres between offsets: float32 rounds half of it to 0.25 mm
_SHAPES: Mapping[str, tuple[int, ...]] = {
    "pose": (4, 4),
    "K": (3, 3),
    "distortion": (MAX_COEFFICIENTS,),
}


@dataclass(frozen=True, eq=False)
class CameraColumns(ImageColumns):
    """The columns of cameras. Picklable.

    `windows` are the frames of each image.
    """

    rigs: EpisodeRigs
    windows: Mapping[str, ClipWindow]

    @property
    def columns(self) -> list[ClipColumn]:
        """Of each image pose, K and distortion, with masks; and offset and unit of all.

        Without a feature of poses, none of poses and positions: a mix fills them for such sources.
        """
        dtype, columns = np.dtype(self.rigs.camera.dtype), list[ClipColumn]()
        shapes = {
            noun: shape for noun, shape in _SHAPES.items() if noun != "pose" or self._has_poses
        }
        for image in self.rigs.images:
            length = self.windows[image.name].length
            for noun, shape in shapes.items():
                name = f"{image.name}_{noun}"
                columns += [
                    self._column(name, dtype, (length, *shape), per_frame=True),
                    self._column(name + IS_MISSING, np.dtype(bool), (length,), per_frame=True),
                ]
            columns.append(self._column(f"{image.name}_distortion_model", np.dtype(np.int64), ()))
        if not self._has_poses:
            return columns
        if self.rigs.camera.relative is not None:
            columns.append(self._column(SCALE, np.dtype(np.float64), ()))
            columns.append(self._column(SCALE + IS_MISSING, np.dtype(bool), ()))
        elif self.rigs.camera.recenter is not None:
            columns.append(self._column(OFFSET, np.dtype(np.float64), (3,)))
        columns.append(self._column(IS_METRIC, np.dtype(bool), ()))
        return columns

    @property
    def images(self) -> list[str]:
        """See `ImageColumns`."""
        return [image.name for image in self.rigs.images]

    def principal_points(self, image: str, rows: IntArray, frames: IntArray) -> FloatArray:
        """See `ImageColumns`."""
        return self.rigs.principal_points(image, rows, frames)

    def flips(
        self,
        crops: Sequence[ClipCrops],
        arrays: Mapping[str, ArraySpec],
        kinds: Mapping[str, str | None],
    ) -> WorldFlips:
        """See `ImageColumns`."""
        renamed = self.rigs.dataset.contents.names
        return WorldFlips.of(crops, arrays, kinds, self.windows, renamed)

    def of_features(self, names: Collection[str]) -> Camera | None:
        """See `ImageColumns`."""
        if not any(image in names for image in self.images):
            return None
        camera = self.rigs.camera
        if (poses := camera.poses) is not None:
            poses = {image: feature for image, feature in poses.items() if image in names}
        return replace(camera, poses=poses)

    @property
    def _has_poses(self) -> bool:
        """Whether the dataset has features of poses, also if some images have none of them."""
        return bool(self.rigs.pose_features)

    def _column(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, per_frame: bool = False
    ) -> ClipColumn:
        make = partial(_value, self, name, dtype)
        return Column(name, dtype, shape, make, per_frame, default=name.endswith(IS_MISSING))

    def values(self, batch: BatchClips) -> dict[str, npt.NDArray[Any]]:
        """The values of all columns, by name, for the clips of a batch; floats as float64."""
        clips = _Clips.of(self.rigs, batch)
        clips.read_ahead()
        cameras = {image.name: clips.stored(image) for image in self.rigs.images}
        clips.exchange(cameras)
        values = dict[str, npt.NDArray[Any]]()
        for name, camera in cameras.items():
            clips.move(name, camera)
            values |= {
                f"{name}_K": camera.matrices,
                f"{name}_K{IS_MISSING}": camera.no_matrix,
                f"{name}_distortion": camera.coefficients,
                f"{name}_distortion{IS_MISSING}": camera.no_lens,
                f"{name}_distortion_model": camera.models,
            }
        if not self._has_poses:
            return values
        poses = {
            name: ClipPoses(c.poses, c.no_pose, c.is_pad, c.frames) for name, c in cameras.items()
        }
        values |= self._delivered(poses, clips)
        values[IS_METRIC] = clips.are_metric
        return values

    def _delivered(
        self, cameras: Mapping[str, ClipPoses], clips: _Clips
    ) -> dict[str, npt.NDArray[Any]]:
        """Poses in the requested form, and their offset or scale."""
        camera, values = self.rigs.camera, dict[str, npt.NDArray[Any]]()
        if (relative := camera.relative) is not None:
            cameras = relative_poses(cameras, relative.to)
            scale = np.ones(len(clips.rows))
            if relative.scale == MEAN_TRANSLATION:
                scale = mean_translations(cameras, relative.to)
            elif relative.scale == MEDIAN_DEPTH:
                scale = clips.median_depths()
            is_unknown = ~((scale > 0) & (scale < np.inf))
            values[SCALE] = scale = np.where(is_unknown, 1.0, scale)
            values[SCALE + IS_MISSING] = is_unknown
            for poses, *_ in cameras.values():
                poses[..., :3, 3] /= scale[:, None, None]
        elif camera.recenter is not None:
            values[OFFSET] = offset = self._offset([*cameras.values()])
            for poses, *_ in cameras.values():
                poses[..., :3, 3] -= offset[:, None]
        for name, (poses, is_missing, *_) in cameras.items():
            delivered = inverted(poses) if camera.inverse else poses
            is_missing = is_missing | ~are_float32(delivered[..., :3, 3])
            delivered[is_missing] = 0
            values |= {f"{name}_pose": delivered, f"{name}_pose{IS_MISSING}": is_missing}
        return values

    def _offset(self, poses: Sequence[ClipPoses]) -> FloatArray:
        """The offset of n clips, float64[n, 3], by their first known position."""
        positions = np.concatenate([matrices[..., :3, 3] for matrices, *_ in poses], axis=1)
        is_known = ~np.concatenate([camera.is_missing for camera in poses], axis=1)
        start = positions[np.arange(len(positions)), is_known.argmax(axis=1)]
        start = np.where(is_known.any(axis=1, keepdims=True), start, 0.0)
        return start if self.rigs.camera.recenter == START else np.rint(start / _GRID) * _GRID + 0.0


def _value(
    columns: CameraColumns, name: str, dtype: np.dtype[Any], batch: BatchClips
) -> npt.NDArray[Any]:
    values: Mapping[str, npt.NDArray[Any]] = batch.once(columns, lambda: columns.values(batch))
    return np.array(values[name], dtype)  # a copy, which users may change


@dataclass(eq=False)
class _Cameras:
    """The cameras of an image in n clips of T frames.

    Attributes:
        poses: camera-to-world, float64 [n, T, 4, 4], in metres where known.
        matrices: K, float64 [n, T, 3, 3].
        coefficients: distortion, float64 [n, T, 14].
        models: numbers of their models, int64 [n].
        frames: numbers of the frames in the episode, int64 [n, T].
        no_pose, no_matrix, no_lens: which values are missing, and 0; bool [n, T].
        is_pad: which frames repeat another one as padding, bool [n, T].
    """

    poses: FloatArray
    matrices: FloatArray
    coefficients: FloatArray
    models: IntArray
    frames: IntArray
    no_pose: BoolArray
    no_matrix: BoolArray
    no_lens: BoolArray
    is_pad: BoolArray

    @classmethod
    def missing(cls, shape: tuple[int, ...]) -> _Cameras:
        """Cameras of n clips with T frames about which nothing is known."""
        poses, matrices = np.zeros((*shape, 4, 4)), np.zeros((*shape, 3, 3))
        models, coefficients = np.zeros(shape[0], np.int64), np.zeros((*shape, MAX_COEFFICIENTS))
        masks = (np.ones(shape, np.bool_) for _ in range(4))
        return cls(poses, matrices, coefficients, models, np.zeros(shape, np.int64), *masks)

    def exchange(self, other: _Cameras, clips: BoolArray) -> None:
        """Exchange the cameras of these clips, bool [n]."""
        for field in fields(self):
            values, other_values = getattr(self, field.name), getattr(other, field.name)
            values[clips], other_values[clips] = other_values[clips], values[clips]


@dataclass(frozen=True, eq=False)
class _Clips:
    """The clips of a batch: rows of their episodes, int64[n], and the cameras of each."""

    rigs: EpisodeRigs
    batch: BatchClips
    rows: IntArray
    of_row: Mapping[int, Mapping[str, ImageRig]]

    @classmethod
    def of(cls, rigs: EpisodeRigs, batch: BatchClips) -> _Clips:
        rows = batch.episodes.rows(batch.clips.episode)
        of_row = {row: rigs.of_episode(row) for row in dict.fromkeys(rows.tolist())}
        return cls(rigs, batch, rows, of_row)

    @cached_property
    def _clips_of_row(self) -> dict[int, IntArray]:
        """The clip numbers of each episode, by its row."""
        return {row: np.flatnonzero(self.rows == row) for row in self.of_row}

    @property
    def are_metric(self) -> BoolArray:
        """Whether the positions of all images with poses are in metres, for each clip."""
        are_metric = np.zeros(len(self.rows), np.bool_)
        for row, rigs in self.of_row.items():
            flags = [rig.is_metric for rig in rigs.values() if rig.poses is not None]
            are_metric[self._clips_of_row[row]] = bool(flags) and all(flags)
        return are_metric

    # ---- of stored frames

    def read_ahead(self) -> None:
        """Read the values of all images and episodes at once, from remote storage."""
        requests = list[tuple[str, int, IntArray]]()
        if self.rigs.values.is_local:
            return
        for image in self.rigs.images:
            frames, _ = self._frames(image)
            for row, rigs in self.of_row.items():
                poses = rigs[image.name].poses
                own = None if poses is None else poses.feature
                features = filter(None, (own, image.intrinsics, image.distortion))
                requests += [(name, row, frames[self._clips_of_row[row]]) for name in features]
        self.rigs.values.read_ahead(requests)

    def stored(self, image: ImageCamera) -> _Cameras:
        """The cameras of an image's frames, as stored, or resized on reading."""
        frames, is_unknown = self._frames(image)
        cameras = _Cameras.missing(frames.shape)
        cameras.frames = frames.copy()  # flips exchange images
        stored_poses = (rigs[image.name].poses for rigs in self.of_row.values())
        features = [poses.feature for poses in stored_poses if poses is not None]
        for feature in dict.fromkeys(features):
            self._fill_poses(cameras, image, frames, feature)
        for row in self.of_row:
            self._fill_lenses(cameras, image, frames, row)
        is_pad = self.batch.window(image.name).is_pad
        cameras.is_pad = is_pad[:, : self.batch.num_frames].copy()
        if image.size is not None and image.intrinsics is not None:  # else they are resized
            resized = self._resized(image, image.size)
            cameras.matrices = _moved(cameras.matrices, None, resized)
        if image.intrinsics is not None:
            for row, rigs in self.of_row.items():
                _fill_missing(cameras, rigs[image.name], self._clips_of_row[row])
        for mask in (cameras.no_pose, cameras.no_matrix, cameras.no_lens):
            mask |= is_unknown
        return cameras

    def _fill_poses(
        self, cameras: _Cameras, image: ImageCamera, frames: IntArray, feature: str
    ) -> None:
        """Set the poses of clips whose stored poses have this name, all at once."""
        bodies, scales = np.tile(np.eye(4), (len(frames), 1, 1)), np.ones(len(frames))
        parts, clips = list[FloatArray](), list[IntArray]()
        for row, rigs in self.of_row.items():
            rig = rigs[image.name]
            if rig.poses is None or rig.poses.feature != feature:
                continue
            some = self._clips_of_row[row]
            stored, present = self.rigs.values.find(feature, row, frames[some].reshape(-1))
            stored[~present] = np.nan
            parts.append(stored)
            clips.append(some)
            bodies[some], scales[some] = rig.poses.body_from_camera, rig.scale
        chosen = np.concatenate(clips)
        with self._located(chosen, frames, feature):
            poses, is_missing = pose_matrices(np.concatenate(parts))
        shape = len(chosen), frames.shape[1]
        cameras.no_pose[chosen] = is_missing.reshape(shape)
        cameras.poses[chosen] = poses.reshape(*shape, 4, 4) @ bodies[chosen, None]
        cameras.poses[chosen, :, :3, 3] *= scales[chosen, None, None]

    @contextmanager
    def _located(self, clips: IntArray, frames: IntArray, feature: str) -> Iterator[None]:
        """Add the place of a pose for these clips, which errors number as `frame`."""
        try:
            yield
        except ClipError as error:
            clip, place = divmod(error.frame or 0, frames.shape[1])
            error.frame = int(frames[clips[clip], place])
            contents = self.rigs.dataset.contents
            key = contents.index.key(int(self.rows[clips[clip]]))
            raise error.located(file=contents.storage.url, episode=key, feature=feature) from None

    def _fill_lenses(
        self, cameras: _Cameras, image: ImageCamera, frames: IntArray, row: int
    ) -> None:
        """Set K and distortion for an episode's clips."""
        rig, clips, shape = self.of_row[row][image.name], self._clips_of_row[row], frames.shape[1]
        numbers = frames[clips].reshape(-1)
        if image.intrinsics is not None:
            stored, present = self.rigs.values.find(image.intrinsics, row, numbers)
            matrices, is_missing = intrinsics_matrices(stored, present)
            cameras.matrices[clips] = matrices.reshape(-1, shape, 3, 3)
            cameras.no_matrix[clips] = is_missing.reshape(-1, shape)
        elif rig.matrix is not None:
            cameras.matrices[clips], cameras.no_matrix[clips] = rig.matrix, False
        if image.distortion is not None:
            stored, present = self.rigs.values.find(image.distortion, row, numbers)
            count = stored.shape[1]
            model = self.rigs.lens_number(image, row, count)
            present &= are_float32(stored)
            if model is not None:
                coefficients = np.where(present[:, None], stored, 0).reshape(-1, shape, count)
                cameras.coefficients[clips, :, :count] = coefficients
                cameras.models[clips], cameras.no_lens[clips] = model, ~present.reshape(-1, shape)
        elif rig.lens is not None:
            cameras.models[clips], cameras.coefficients[clips] = rig.lens
            cameras.no_lens[clips] = False

    def _resized(self, image: ImageCamera, size: tuple[int, int]) -> CropWindows:
        height, width = image.frame
        if height is None or width is None:
            raise ClipError(
                "per-frame intrinsics cannot follow resize= of frames whose size varies",
                file=self.rigs.dataset.url,
                feature=image.intrinsics,
                expected="a Resize as clip_transform instead",
            )
        return whole_windows((height, width), size, len(self.rows))

    def _frames(self, image: ImageCamera) -> tuple[IntArray, BoolArray]:
        """The frames of an image in the stored episodes, int64[n, T], and which have no value."""
        batch = self.batch
        if (lists := batch.episodes.lists) is not None:
            frames = batch.once("filled", lambda: lists.filled_of(batch.clips.row))
            return frames, np.zeros(frames.shape, np.bool_)
        window = batch.window(image.name)
        frames = window.frames[:, : batch.num_frames]
        if window.age is None:
            return frames, np.zeros(frames.shape, np.bool_)
        return frames, window.age[:, : batch.num_frames] < 0

    def median_depths(self) -> FloatArray:
        """The median depth of each clip's first frame of the first image, float64 [n]."""
        images = {image.name: image for image in self.rigs.images}
        name, depths = self.rigs.images[0].name, np.full(len(self.rows), np.nan)
        crop, flipped = self.batch.drawn.crop, self._flipped(name)
        partner = name if crop is None else crop.partners.get(name, name)
        frames, _ = self._frames(images[name])
        for clip, row in enumerate(self.rows.tolist()):
            depth = images[partner if flipped[clip] else name].depth
            if depth is not None:
                depths[clip] = self.rigs.depths.find(depth, row, int(frames[clip, 0]))
        return depths

    # ---- of frames in the batch

    def exchange(self, cameras: Mapping[str, _Cameras]) -> None:
        """Exchange the cameras of stereo pairs in flipped clips, as their images are.

        An image whose partner has no camera has none then.
        """
        crop = self.batch.drawn.crop
        for name, partner in ({} if crop is None else crop.partners).items():
            if (camera := cameras.get(name)) is None:
                continue
            if partner not in cameras:
                camera.exchange(_Cameras.missing(camera.no_pose.shape), self._flipped(name))
            elif name < partner:
                camera.exchange(cameras[partner], self._flipped(name))

    def move(self, image: str, cameras: _Cameras) -> None:
        """Move cameras with the windows of an image, and into the mirrored world in flips."""
        flipped = self._flipped(image)
        cameras.poses[flipped] = mirrored(cameras.poses[flipped])
        for model, number in LENS_NUMBERS.items():
            mirror = flipped & (cameras.models == number)
            cameras.coefficients[mirror] *= mirror_factors(model, MAX_COEFFICIENTS)
        cameras.coefficients += 0.0  # no negative zeros
        if (windows := self._windows(image)) is not None:
            cameras.matrices = _moved(cameras.matrices, windows, None)
        cameras.matrices[cameras.no_matrix] = 0
        cameras.coefficients[cameras.no_lens] = 0

    def _windows(self, image: str) -> CropWindows | None:
        crop = self.batch.drawn.crop
        return None if crop is None or image not in crop.parts else crop.parts[image][1]

    def _flipped(self, image: str) -> BoolArray:
        windows = self._windows(image)
        return np.zeros(len(self.rows), np.bool_) if windows is None else windows.flipped


def _fill_missing(cameras: _Cameras, rig: ImageRig, clips: IntArray) -> None:
    """Set K of frames without per-frame intrinsics to that of their episode's metadata.

    Some episodes of a dataset may have a camera per frame, and others one camera, with its lens.
    """
    if rig.matrix is None:
        return
    is_missing = cameras.no_matrix[clips]
    cameras.matrices[clips] = np.where(
        is_missing[..., None, None], rig.matrix, cameras.matrices[clips]
    )
    cameras.no_matrix[clips] = False
    if rig.lens is not None:
        whole_clips = clips[is_missing.all(axis=1) & cameras.no_lens[clips].all(axis=1)]
        cameras.models[whole_clips], cameras.coefficients[whole_clips] = rig.lens
        cameras.no_lens[whole_clips] = False


def _moved(
    matrices: FloatArray, windows: CropWindows | None, resized: CropWindows | None
) -> FloatArray:
    """K of frames, [n, T, 3, 3], as K of their windows; of frames that were `resized` before."""
    change = IntrinsicsChange.of(windows, resized, len(matrices))
    numbers = torch.from_numpy(change.factor), torch.from_numpy(change.offset)
    moved: FloatArray = change.apply(torch.from_numpy(matrices), *numbers).numpy()
    return moved
