"""The cameras of a loader's images, by episode: sources of poses, intrinsics and distortion."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from seqrecord.camera.conventions import (
    POSE_SHAPES,
    BoolArray,
    FloatArray,
    ImagePoses,
    are_float32,
    image_poses,
)
from seqrecord.camera.frames import FrameValues, MedianDepths
from seqrecord.camera.values import MEDIAN_DEPTH, Camera
from seqrecord.errors import ClipError, located
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.store.cameras.distortion import (
    FISHEYE,
    MAX_COEFFICIENTS,
    OPENCV,
    lens_model,
    lens_of,
)
from seqrecord.store.cameras.intrinsics import (
    OWN_DISTORTION,
    OWN_INTRINSICS,
    EpisodeCamera,
    image_of,
)
from seqrecord.store.feature_kinds import (
    are_intrinsics,
    has_pixels,
    is_camera_image,
    is_distortion,
    known_kind,
    size_in,
)
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.tables.grids import IntArray

LENS_NUMBERS = {OPENCV: 1, FISHEYE: 2}
"""The models in the column `<image>_distortion_model`; 0 is no distortion."""

_MAX_EPISODES = 1 << 14  # with rigs in memory


class Lens(NamedTuple):
    """Number of the model, and coefficients, float64 [14], in OpenCV's order."""

    model: int
    coefficients: FloatArray


class ImageRig(NamedTuple):
    """The camera of an image in an episode.

    `poses` is `None` if it has none; positions are multiplied by `scale`, which gives metres if
    `is_metric`. `matrix` and `lens` come from the metadata, for resized frames; `None` if unknown.
    """

    poses: ImagePoses | None
    scale: float
    is_metric: bool
    matrix: FloatArray | None
    lens: Lens | None


@dataclass(frozen=True)
class ImageCamera:
    """An image of the loader, and the features with its camera's values per frame.

    `frame` is height and width of stored frames, `size` of frames resized on reading.
    `stored_name` is its name in the record files, which metadata refers to.
    """

    name: str
    stored_name: str
    frame: tuple[int | None, ...]
    size: tuple[int, int] | None
    intrinsics: str | None
    distortion: str | None
    depth: str | None

    @property
    def episode_camera(self) -> EpisodeCamera:
        """Its camera in the metadata `camera`, which may have cameras by feature."""
        return EpisodeCamera(self.name, self.frame, self.size)


@dataclass(frozen=True, eq=False)
class EpisodeRigs:
    """The cameras of images in each episode. Picklable.

    Attributes:
        dataset: the dataset of the loader.
        camera: the argument of the loader.
        images: the images that have cameras.
        pose_features: features of poses by their stored names.
        values: values per frame: poses, intrinsics, distortion.
        depths: medians of depth maps.
    """

    dataset: Dataset
    camera: Camera
    images: Sequence[ImageCamera]
    pose_features: Mapping[str, FeatureSpec]
    values: FrameValues
    depths: MedianDepths
    _rigs: PerProcess[dict[int, dict[str, ImageRig]]] = field(
        default_factory=lambda: PerProcess(dict), repr=False
    )

    @classmethod
    def of(
        cls, camera: Camera, dataset: Dataset, arrays: Mapping[str, ArraySpec], row: int
    ) -> EpisodeRigs:
        """Find the cameras of the images among `arrays`, by the episode in `row` of the index.

        Raises `ClipError` if no image has a pose or intrinsics, and for poses of an unknown
        convention.
        """
        schema = dataset.contents.index.schema.active
        requested = camera.poses or {}
        for name, feature in requested.items():
            with located(ClipError, file=dataset.url, feature=name):
                _check_requested(name, feature, schema, arrays)
        names = _images(camera, dataset, arrays)
        are_alike = len({dataset.features[name].stored.shape[:2] for name in names}) == 1
        images = [_image(name, dataset, schema, may_share=are_alike) for name in names]
        pose_features = {
            dataset.contents.stored_name(name): spec
            for name, spec in schema.items()
            if (spec.kind == "pose" or name in requested.values()) and _are_poses(spec)
        }
        features = dict.fromkeys(spec.name for spec in pose_features.values())
        for image in images:
            features |= dict.fromkeys(filter(None, (image.intrinsics, image.distortion)))
        stored, sizes = dataset.resized(None), _depth_sizes(images, schema)
        values = FrameValues(stored.select([*features]) if features else stored)
        depths = MedianDepths(stored.select([*sizes]) if sizes else stored, sizes)
        rigs = cls(dataset, camera, images, pose_features, values, depths)
        rigs = replace(rigs, images=rigs._with_cameras(row))
        if camera.relative is not None and camera.relative.scale == MEDIAN_DEPTH:
            rigs._check_depth(row)
        return rigs

    def _check_depth(self, row: int) -> None:
        """Raise `ClipError` without a depth map of the first image in the unit of its poses."""
        image = self.images[0]
        spec = self.dataset.contents.index.schema.get(image.depth or "")
        is_metric = spec is not None and size_in(spec.unit, "m") is not None
        if spec is None or is_metric != self.of_episode(row)[image.name].is_metric:
            depth = "no depth map" if spec is None else f"{spec.name} in {spec.unit}"
            raise ClipError(
                "scale='median_depth' needs a depth map of the first image, in the unit of poses",
                file=self.dataset.url,
                feature=image.name,
                expected="a feature of kind depth, such as depth_left for image_left, whose unit "
                "is a length where that of poses is: `seqrecord edit describe`",
                got=depth,
            )

    def _with_cameras(self, row: int) -> list[ImageCamera]:
        """The images that have a pose or intrinsics in an episode."""
        rigs = self.of_episode(row)
        present, absent = list[ImageCamera](), list[str]()
        for image in self.images:
            rig = rigs[image.name]
            has_matrix = rig.matrix is not None or image.intrinsics is not None
            if rig.poses is not None or has_matrix:
                present.append(image)
            else:
                absent.append(image.name)
        if present:
            if absent:
                key = self.dataset.contents.index.key(row)
                warn_once(
                    f"{self.dataset.url}: camera: no pose and no intrinsics of "
                    f"{', '.join(absent)} in episode {key}, whose images with cameras get columns"
                )
            return present
        # resize= scales the intrinsics of frames of varying size by the metadata's size.
        needs_size = any(i.size is not None and None in i.frame for i in self.images)
        sides = ', "height": …, "width": …' if needs_size else ""
        raise ClipError(
            "camera: no image has a pose or intrinsics",
            file=self.dataset.url,
            episode=self.dataset.contents.index.key(row),
            expected="a feature of kind pose; a feature of kind intrinsics; or metadata `camera` "
            f'{{"fx": …, "fy": …, "cx": …, "cy": …{sides}}} of frames of this size',
            got=f"images: {', '.join(absent) or 'none'}; features of poses: "
            f"{', '.join(self.pose_features) or 'none'}",
        )

    def of_episode(self, row: int) -> dict[str, ImageRig]:
        """The cameras in the episode in this row of the index, by image.

        Raises `ClipError` for poses of an unknown convention.
        """
        cache = self._rigs.get()
        if (rigs := cache.get(row)) is None:
            index = self.dataset.contents.index
            with located(ClipError, file=self.dataset.url, episode=index.key(row)):
                metadata = index.episode_metadata(row)
                rigs = {image.name: self._rig(image, metadata) for image in self.images}
            if len(cache) > _MAX_EPISODES:  # another thread may clear it meanwhile
                cache.clear()
            cache[row] = rigs
        return rigs

    def _rig(self, image: ImageCamera, metadata: Mapping[str, Any]) -> ImageRig:
        contents = self.dataset.contents
        requested = (self.camera.poses or {}).get(image.name)
        poses = image_poses(
            image.stored_name,
            metadata,
            list(self.pose_features),
            [other.stored_name for other in self.images],
            feature=None if requested is None else contents.stored_name(requested),
            axes=self.camera.axes,
            may_lack=self.camera.poses is not None,
        )
        scale = None
        if poses is not None:
            spec = self.pose_features[poses.feature]
            unit = None if spec.unit is None else spec.unit.partition(",")[0]  # one per number
            scale, poses = size_in(unit, "m"), poses._replace(feature=spec.name)
        matrix, lens = _camera_of(image, self.dataset.contents.camera_of(metadata))
        return ImageRig(poses, scale or 1.0, scale is not None, matrix, lens)

    def principal_points(self, name: str, rows: IntArray, frames: IntArray) -> FloatArray:
        """cx and cy of an image in frames of episodes, float64 [n, 2], in pixels of frames that are
        stored, or resized on reading.

        `rows` and `frames` are int64[n]. Raises `ClipError` if they are unknown.
        """
        image = next((image for image in self.images if image.name == name), None)
        points = np.full((len(rows), 2), np.nan)
        for clip, (row, frame) in enumerate(zip(rows.tolist(), frames.tolist(), strict=True)):
            if image is None or image.intrinsics is None:
                break
            stored, present = self.values.find(image.intrinsics, row, np.array([frame]))
            matrices, is_missing = intrinsics_matrices(stored, present)
            if not is_missing[0]:
                points[clip] = matrices[0, :2, 2]
        if image is not None and image.intrinsics is not None and image.size is not None:
            sides = np.array(image.frame, np.float64)[::-1]
            points = (points + 0.5) * np.array(image.size)[::-1] / sides - 0.5
        if image is not None:  # the camera of the episode, of frames resized on reading
            for clip in np.flatnonzero(np.isnan(points).any(axis=1)).tolist():
                matrix = self.of_episode(int(rows[clip]))[name].matrix
                points[clip] = np.nan if matrix is None else matrix[:2, 2]
        unknown = np.isnan(points).any(axis=1)
        if unknown.any():
            clip = int(np.argmax(unknown))
            raise ClipError(
                "around='principal_point', and the intrinsics of a clip are unknown",
                file=self.dataset.url,
                episode=self.dataset.contents.index.key(int(rows[clip])),
                feature=name,
                expected="metadata `camera`, a feature of kind intrinsics, or other episodes=",
            )
        return points

    def lens_number(self, image: ImageCamera, row: int, count: int) -> int | None:
        """The model of `count` coefficients per frame; `None` if unknown."""
        metadata = self.dataset.contents.index.episode_metadata(row)
        camera = image.episode_camera.camera_in(self.dataset.contents.camera_of(metadata))
        model = lens_model(camera, count)
        return None if model is None else LENS_NUMBERS[model]


def camera_matrix(intrinsics: FloatArray, skew: FloatArray) -> FloatArray:
    """Camera matrices K, float64[n, 3, 3], of fx, fy, cx, cy, [n, 4], and the skew, [n]."""
    matrices = np.zeros((len(intrinsics), 3, 3))
    matrices[:, 0, 0], matrices[:, 1, 1] = intrinsics[:, 0], intrinsics[:, 1]
    matrices[:, :2, 2], matrices[:, 0, 1], matrices[:, 2, 2] = intrinsics[:, 2:], skew, 1
    return matrices


def intrinsics_matrices(stored: FloatArray, present: BoolArray) -> tuple[FloatArray, BoolArray]:
    """K of stored intrinsics, [T, 4] or [T, 3, 3], and which are missing; these are 0."""
    numbers = stored.reshape(len(stored), -1)
    is_missing = ~(present & are_float32(numbers))
    numbers = np.where(is_missing[:, None], 0.0, numbers)
    if stored.ndim == 2:
        return camera_matrix(numbers, np.zeros(len(numbers))), is_missing
    return numbers.reshape(-1, 3, 3), is_missing


def _camera_of(image: ImageCamera, cameras: Any) -> tuple[FloatArray | None, Lens | None]:
    """Matrix and lens of an image's camera in the metadata `camera`, of resized frames."""
    camera = image.episode_camera
    matrix: FloatArray | None = None
    intrinsics, skew = camera.intrinsics(cameras), np.array([camera.skew(cameras)])
    if are_float32(np.array([[*intrinsics, *skew]])).all():
        matrix = camera_matrix(intrinsics[None], skew)[0]
    # Sources declare distortion: a camera without an entry has none.
    lens = lens_of(camera.camera_in(cameras) or {})
    if lens is None or (matrix is None and image.intrinsics is None):
        return matrix, None
    coefficients = np.zeros(MAX_COEFFICIENTS)
    coefficients[: len(lens[1])] = lens[1]
    return matrix, Lens(LENS_NUMBERS[lens[0]] if any(lens[1]) else 0, coefficients)


def _images(camera: Camera, dataset: Dataset, arrays: Mapping[str, ArraySpec]) -> list[str]:
    """The images of the loader, or without any its depth maps; and features of `Camera.poses`."""
    specs = {name: spec for name, spec in dataset.features.items() if name in arrays}
    images = [name for name, spec in specs.items() if is_camera_image(name, spec, spec.kind)]
    if not images:
        images = [n for n, spec in specs.items() if known_kind(n, spec, spec.kind) == "depth"]
    return list(dict.fromkeys([*images, *(camera.poses or {})]))


def _image(name: str, dataset: Dataset, schema: Schema, *, may_share: bool) -> ImageCamera:
    """`may_share`: whether a feature of intrinsics or distortion may be that of all images."""
    stored_name, spec = dataset.contents.stored_name(name), dataset.features[name]
    size = dataset.contents.sizes.get(name)
    (height, width), place = spec.stored.shape[:2], (schema, dataset.contents.names)
    return ImageCamera(
        name,
        stored_name,
        (height, width),
        size,
        _feature_of(name, OWN_INTRINSICS, _intrinsics(schema), *place, may_share=may_share),
        _feature_of(name, OWN_DISTORTION, _distortions(schema), *place, may_share=may_share),
        _depth_of(name, stored_name, *place),
    )


def _depth_of(
    name: str, stored_name: str, schema: Schema, renamed: Mapping[str, str]
) -> str | None:
    """The depth map of an image: of its name with `depth` for `image`, or the only one.

    A depth map that keeps its stored name preferably belongs to the image with that stored name.
    """
    depths = [depth for depth, spec in schema.items() if spec.kind == "depth"]
    fitting = [
        (depth, image)
        for image in (name, stored_name)
        for depth in depths
        if depth in (image, _depth_name(image))
    ]
    own = [d for d, image in fitting if image == (name if d in renamed.values() else stored_name)]
    own += [depth for depth, _ in fitting]
    return next(iter(own), depths[0] if len(depths) == 1 else None)


def _depth_name(image: str) -> str:
    return re.sub("image|rgb|color|colour", "depth", image, count=1)


def _depth_sizes(images: Sequence[ImageCamera], schema: Schema) -> dict[str, float]:
    """Metres per stored number of the images' depth maps; 1 where the unit is unknown."""
    depths = [image.depth for image in images if image.depth is not None]
    return {name: size_in(schema[name].unit, "m") or 1.0 for name in depths}


def _intrinsics(schema: Schema) -> list[str]:
    return [n for n, spec in schema.items() if spec.kind == "intrinsics" and are_intrinsics(spec)]


def _distortions(schema: Schema) -> list[str]:
    return [n for n, spec in schema.items() if is_distortion(n, spec, spec.kind)]


def _feature_of(
    image: str,
    ending: str,
    features: Sequence[str],
    schema: Collection[str],
    renamed: Mapping[str, str],
    *,
    may_share: bool,
) -> str | None:
    """The feature with values per frame of an image's camera: its own, or a shared one."""
    images = {name: image_of(name, ending, renamed) for name in features}
    own = [name for name in features if images[name] == image != name]
    shared = [name for name in features if images[name] not in {*schema} - {name}]
    return next(iter(own), shared[0] if may_share and len(shared) == 1 else None)


def _are_poses(spec: FeatureSpec) -> bool:
    return spec.dtype.kind == "f" and spec.shape in POSE_SHAPES


def _check_requested(
    name: str, feature: str, schema: Schema, arrays: Mapping[str, ArraySpec]
) -> None:
    """Raise `ClipError` for an entry of `Camera.poses` that is no image, or no feature of poses."""
    if name not in arrays or name not in schema or not has_pixels(schema[name]):
        pixel_features = [n for n in arrays if n in schema and has_pixels(schema[n])]
        raise ClipError(
            "camera: not an image of the loader",
            expected=f"one of {', '.join(pixel_features) or 'its images'}",
            got=name,
        )
    if feature not in schema or not _are_poses(schema[feature]):
        poses = [n for n, spec in schema.items() if _are_poses(spec)]
        raise ClipError(
            "camera: not a feature of poses",
            expected="a feature of floats [7], [12], [16], [3, 4] or [4, 4]: "
            f"{', '.join(poses) or 'this dataset has none'}",
            got=str(schema.get(feature, feature)),
        )
