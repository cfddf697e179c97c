"""Values of the loaders' argument `camera`, checked when they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqrecord.camera.conventions import AXES
from seqrecord.loader.pipes.registered_columns import ColumnOptions
from seqrecord.store.units import are_names, check, check_flag, raise_if

LARGE, START = "large", "first"

FIRST, CONSECUTIVE = "first", "consecutive"
METRIC, MEDIAN_DEPTH, MEAN_TRANSLATION = "metric", "median_depth", "mean_translation"

_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class RelativePose:
    """Poses relative to another frame of the clip, and their scale: `relative` of a `Camera`.

    Example:
        camera = seqrecord.Camera(
            poses={"image": "pose"},
            axes="opencv",
            relative=seqrecord.RelativePose("consecutive", scale="mean_translation"),
        )
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, camera=camera)
        batch = next(iter(pipe))
        motion = batch["image_pose"][:, 1:]  # [2, 3, 4, 4]: frame t in the camera of frame t - 1
        metres = motion[..., :3, 3] * batch["camera_scale"][:, None, None]

    Args:
        to: "first" (default): poses of a clip's cameras in the first frame of the first image,
            whose own pose is the identity; cameras keep their poses in each other's frame.
            "consecutive": the pose of each frame in the camera of the frame before it; the first
            frame has none.
        scale: the length by which positions are divided; `camera_scale` has it. "metric" (default):
            1. "mean_translation": the mean distance of the known poses, without padding, steps from
            padding, and the reference itself. "median_depth": the median of the depth map of the
            first frame of the first image, where it is above 0; this frame is read for each clip,
            also if the depth is not in `features`. A scale that is 0 or unknown is 1, and true in
            `camera_scale_is_missing`.
    """

    to: str = FIRST
    scale: str = METRIC

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        _check_word("to", self.to, (FIRST, CONSECUTIVE), "RelativePose")
        scales = (METRIC, MEDIAN_DEPTH, MEAN_TRANSLATION)
        _check_word("scale", self.scale, scales, "RelativePose")


@dataclass(frozen=True)
class Camera(ColumnOptions):
    """Cameras in batches: the argument `camera` of loaders.

    Example:
        camera = seqrecord.Camera(poses={"image": "pose"}, axes="opencv", inverse=True)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, camera=camera)
        batch = next(iter(pipe))
        print(batch["image_pose"].shape)  # [2, 4, 4, 4]

    Args:
        dtype: dtype of the columns, "float32" (default) or "float64". They are computed as float64.
        inverse: deliver world-to-camera (extrinsics) instead of camera-to-world.
        recenter: the offset that is subtracted from the positions of a clip, of all its cameras.
            "large" (default): the multiples of 8192 m that are nearest to the clip's first known
            position. They are 0 within 4096 m of the origin; beyond, float32 would round positions
            to millimetres and more. "first": the clip's first known position. The column
            `camera_offset` has it. `None`: none, and no such column.
        poses: features with the poses of images, by image, for datasets whose metadata does not
            tell. An image without poses by its metadata that is not named here has none. Features
            named here get columns even if they are no images, for example depth maps.
        axes: camera axes of stored poses, where the metadata does not tell, and of `poses`:
            "opencv" (x right, y down, z forward), "opengl" (y up, z backward), "ned" (x forward, y
            right, z down) or "ros" (x forward, y left, z up). Poses are camera-to-world.
        relative: a `RelativePose`: poses relative to another frame of the clip. Batches have
            `camera_scale`, float64 [batch], instead of `camera_offset`.
    """

    dtype: str = "float32"
    inverse: bool = False
    recenter: str | None = LARGE
    poses: Mapping[str, str] | None = None
    axes: str | None = None
    relative: RelativePose | None = None

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        _check_word("dtype", self.dtype, _DTYPES)
        object.__setattr__(self, "inverse", check_flag("inverse of a Camera", self.inverse))
        _check_word("recenter", self.recenter, (LARGE, START, None))
        _check_word("axes", self.axes, (*AXES, None))
        relative: Any = self.relative
        is_right = relative is None or isinstance(relative, RelativePose)
        check("relative of a Camera", relative, is_right, "a seqrecord.RelativePose(…)")
        if self.poses is not None:
            poses: Any = self.poses
            is_right = isinstance(poses, Mapping) and are_names(poses)
            is_right = is_right and are_names([*poses.values()])
            expected = 'a dict of features by image, such as {"image": "pose"}'
            object.__setattr__(
                self, "poses", {**check("poses of a Camera", poses, is_right, expected)}
            )


def _check_word(
    argument: str, value: Any, words: tuple[str | None, ...], owner: str = "Camera"
) -> None:
    is_word = value is None or isinstance(value, str)
    expected = " or ".join(map(repr, words))
    problem = f"invalid {argument} of a {owner}"
    raise_if(not (is_word and value in words), problem, expected, value)
