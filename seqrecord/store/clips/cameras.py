"""Cameras of clips: those of the metadata `camera`, and features of intrinsics and distortion."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.store.clips.distortion import MAX_COEFFICIENTS, lens_of, mirror_factors
from seqrecord.store.clips.grids import IntArray
from seqrecord.store.clips.transforms import CropWindows, FloatArray
from seqrecord.store.units import is_integer

INTRINSICS = ("fx", "fy", "cx", "cy")


class EpisodeCamera(NamedTuple):
    """A camera of the metadata `camera`.

    `name` is a feature, or `None` for a camera that features share. `frame` is height and width of
    stored frames, `None` if they vary; `size` is height and width of frames resized on reading.
    """

    name: str | None
    frame: tuple[int | None, ...]
    size: tuple[int, int] | None = None
    has_distortion: bool = False
    has_skew: bool = False

    @property
    def column(self) -> str:
        """Column of the intrinsics in batches."""
        return self._column_name("intrinsics")

    @property
    def lens_column(self) -> str:
        """Column of the distortion in batches."""
        return self._column_name("distortion")

    @property
    def skew_column(self) -> str:
        """Column of the skew in batches."""
        return self._column_name("skew")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a clip's values in the result of `columns`."""
        shapes: dict[str, tuple[int, ...]] = {self.column: (len(INTRINSICS),)}
        if self.has_distortion:
            shapes[self.lens_column] = (MAX_COEFFICIENTS,)
        if self.has_skew:
            shapes[self.skew_column] = ()
        return shapes

    def _column_name(self, noun: str) -> str:
        return noun if self.name is None else f"{self.name}_{noun}"

    def columns(
        self,
        windows: CropWindows | None,
        cameras: Sequence[Any],
        frames: IntArray | None = None,
        partner: EpisodeCamera | None = None,
    ) -> dict[str, FloatArray]:
        """The columns of n clips in batches: intrinsics, and distortion and skew if it has them.

        Distortion is float64[n, 14] in OpenCV's order, zeros behind the camera's own coefficients,
        and skew float64[n] in pixels. NaN if unknown. `cameras` and `frames` as for `intrinsics`.
        Flipped clips show the image of `partner` if that is given, and have its camera.
        """
        intrinsics = self.intrinsics(cameras, frames)
        is_unknown = np.isnan(intrinsics.sum(axis=1))
        flipped = np.zeros(len(cameras), np.bool_) if windows is None else windows.flipped
        columns = {self.column: intrinsics}
        if windows is not None:
            columns[self.column] = windows.intrinsics(intrinsics)
        own_cameras = [self.camera_in(camera) for camera in cameras]
        if self.has_distortion:
            table = np.full((len(cameras), MAX_COEFFICIENTS), np.nan)
            for clip, lens in enumerate(map(lens_of, own_cameras)):
                if lens is not None and not is_unknown[clip]:
                    model, numbers = lens
                    factors = mirror_factors(model, len(numbers)) if flipped[clip] else 1.0
                    table[clip] = 0
                    table[clip, : len(numbers)] = np.multiply(numbers, factors) + 0.0
            columns[self.lens_column] = table
        if self.has_skew:
            skews = np.array([_skew_of(camera) for camera in own_cameras], np.float64)
            skews[is_unknown] = np.nan
            if self.size is not None:
                skews *= [self.size[1] / self._find(camera, *self.frame)[-1] for camera in cameras]
            if windows is not None:
                skews *= windows.scale[0] * np.where(flipped, -1.0, 1.0)
            columns[self.skew_column] = skews + 0.0
        if partner is not None:
            partner_columns = partner.columns(windows, cameras, frames)
            for values, partner_values in zip(
                columns.values(), partner_columns.values(), strict=True
            ):
                values[flipped] = partner_values[flipped]
        return columns

    def partner(self, name: str, stored_frame: tuple[int | None, ...]) -> EpisodeCamera:
        """The camera of the feature `name`, an image of the same size in batches."""
        return self._replace(name=name, frame=self.frame if self.size is None else stored_frame)

    def camera_in(self, camera: Any) -> Any:
        """The camera of this feature in an episode's metadata `camera`; `None` if invalid."""
        if not isinstance(camera, Mapping):
            return None
        feature_camera = camera.get(self.name, camera)
        return feature_camera if isinstance(feature_camera, Mapping) else camera

    def intrinsics(self, cameras: Sequence[Any], frames: IntArray | None = None) -> FloatArray:
        """fx, fy, cx, cy in pixels of (resized) frames, NaN if unknown; float64[n, 4].

        `cameras` are the episodes' metadata; `frames`, int64[n, 2], the sizes of variable frames.
        """
        sizes = [self.frame] * len(cameras) if frames is None else frames.tolist()
        rows = [self._find(camera, *size) for camera, size in zip(cameras, sizes, strict=True)]
        table = np.array(rows, np.float64).reshape(-1, len(INTRINSICS) + 2)
        intrinsics: FloatArray = table[:, : len(INTRINSICS)]
        if self.size is None:
            return intrinsics
        sides: Any = table[:, len(INTRINSICS) :].T  # NaN where unknown
        return replace(CropWindows.whole(*sides), size=self.size).intrinsics(intrinsics)

    def _find(self, camera: Any, height: int | None, width: int | None) -> list[float]:
        """fx, fy, cx, cy, and height and width of the stored frame; NaN where unknown."""
        if (camera := self.camera_in(camera)) is not None:
            values = [camera.get(name) for name in INTRINSICS]
            size = {"height": height, "width": width}
            fits = all(n is None or camera.get(side, n) == n for side, n in size.items())
            if fits and all(type(value) in (int, float) for value in values):
                sides = [camera.get(side) if n is None else n for side, n in size.items()]
                return [n if type(n) in (int, float) else float("nan") for n in (*values, *sides)]
        return [float("nan")] * (len(INTRINSICS) + 2)


def camera_matrix(intrinsics: FloatArray, skew: FloatArray) -> FloatArray:
    """Camera matrices K, float64[n, 3, 3], of fx, fy, cx, cy, [n, 4], and the skew, [n]."""
    matrices = np.zeros((len(intrinsics), 3, 3))
    matrices[:, 0, 0], matrices[:, 1, 1] = intrinsics[:, 0], intrinsics[:, 1]
    matrices[:, :2, 2], matrices[:, 0, 1], matrices[:, 2, 2] = intrinsics[:, 2:], skew, 1
    return matrices


OWN_INTRINSICS = "_intrinsics"
OWN_DISTORTION = "_distortion"


def image_of(name: str, ending: str, renamed: Mapping[str, str]) -> str:
    """Present name of the image to which a name of intrinsics or distortion refers; without this
    `ending`, the name.

    A feature that keeps its stored name refers to that of its image. `renamed` has the
    present names by stored names.
    """
    image = name.removesuffix(ending)
    is_kept = image != name and name not in renamed.values()
    return renamed.get(image, image) if is_kept else image


def _skew_of(camera: Any) -> float:
    """The skew of a camera in pixels, 0 if it has none; NaN if invalid."""
    skew: Any = None if camera is None else camera.get("skew", 0.0)
    return float(skew) if isinstance(skew, float) or is_integer(skew) else float("nan")


def followed_feature(
    name: str,
    siblings: Collection[str],
    images: Mapping[str, Hashable],
    names: Collection[str],
    ending: str = OWN_INTRINSICS,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """The feature whose windows per-frame intrinsics or distortion follow; `None` without images.

    `X_intrinsics` follows the feature X. A single feature of another name follows all images.

    Args:
        name: the feature of intrinsics or distortion.
        siblings: all features of its kind.
        images: of each feature with pixels, what equals for those with equal intrinsics.
        names: all features of the dataset.
        ending: end of the names that have their image's, `_intrinsics` or `_distortion`.
        renamed: present names of features by their stored names, if some are renamed.

    Raises `ClipError` if images differ in their crops or sizes, or the feature X is not read.
    """
    noun, owner = ending[1:], image_of(name, ending, renamed)
    if owner != name and owner in {*names, *images}:
        if owner not in images:
            raise ClipError(
                f"per-frame {noun} of an image that the loader does not read",
                feature=name,
                expected=f"{owner} in features, or features without {name}",
                got=", ".join(images) or "no image",
            )
        return owner
    owners = {sibling: image_of(sibling, ending, renamed) for sibling in siblings}
    shared_names = [sibling for sibling, image in owners.items() if image not in images]
    if len({*images.values()}) > 1 or (images and len(shared_names) > 1):
        raise ClipError(
            f"per-frame {noun}, and images of several cameras or sizes",
            feature=name,
            expected=f"a name such as {min(images)}{ending} (rename=, or `seqrecord edit "
            "rename --feature`), or features without it",
            got=", ".join(images),
        )
    return min(images, default=None)


def known_cameras(
    features: Collection[str],
    frame: tuple[int | None, ...],
    sizes: Mapping[str, tuple[Any, Any]],
    camera: Any,
    *,
    may_share: bool,
) -> list[EpisodeCamera]:
    """Cameras of features with one crop window, if the episode's `camera` has all their intrinsics.

    Only the shared camera, if it is complete and `may_share` (features of one stored size). `frame`
    is (height, width) of frames; `sizes` maps resized features to their stored and resized size.
    """
    cameras = [EpisodeCamera(name, *sizes.get(name, (frame,))) for name in sorted(features)]
    if may_share and len({camera[1:] for camera in cameras}) == 1:
        cameras.insert(0, cameras[0]._replace(name=None))
    complete_cameras = [
        candidate for candidate in cameras if not np.isnan(candidate.intrinsics([camera])).any()
    ]
    if complete_cameras and complete_cameras[0].name is None:
        complete_cameras = complete_cameras[:1]
    return [
        candidate._replace(
            has_distortion=bool(
                (lens_of(feature_camera := candidate.camera_in(camera)) or ("", []))[1]
            ),
            has_skew=bool(_skew_of(feature_camera)),
        )
        for candidate in complete_cameras
    ]
