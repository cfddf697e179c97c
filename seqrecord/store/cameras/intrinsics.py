"""Cameras of clips: those of the metadata `camera`, and features of intrinsics and distortion."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.store.cameras.crop_windows import CropWindows, FloatArray
from seqrecord.store.units import is_integer

INTRINSICS = ("fx", "fy", "cx", "cy")

CAMERA_POSES = "camera_poses"
"""Entry of the metadata: features with poses of cameras, in OpenCV's axes, by image."""


class EpisodeCamera(NamedTuple):
    """The camera of a feature in the metadata `camera`.

    `name` is the feature. `frame` is height and width of stored frames, `None` if they vary; `size`
    is height and width of frames resized on reading.
    """

    name: str
    frame: tuple[int | None, ...]
    size: tuple[int, int] | None = None

    def camera_in(self, camera: Any) -> Any:
        """The camera of this feature in an episode's metadata `camera`; `None` if invalid."""
        if not isinstance(camera, Mapping):
            return None
        feature_camera = camera.get(self.name, camera)
        return feature_camera if isinstance(feature_camera, Mapping) else camera

    def intrinsics(self, camera: Any) -> FloatArray:
        """fx, fy, cx, cy in pixels of (resized) frames, NaN if unknown; float64[4].

        `camera` is that of an episode's metadata.
        """
        numbers = np.array([self._find(camera)], np.float64)
        intrinsics: FloatArray = numbers[:, : len(INTRINSICS)]
        if self.size is not None:
            sides: Any = numbers[:, len(INTRINSICS) :].T  # NaN where unknown
            intrinsics = replace(CropWindows.whole(*sides), size=self.size).intrinsics(intrinsics)
        return intrinsics.reshape(-1)

    def skew(self, camera: Any) -> float:
        """The skew in pixels of (resized) frames, 0 if the camera has none; NaN if unknown."""
        own_camera = self.camera_in(camera)
        skew: Any = None if own_camera is None else own_camera.get("skew", 0.0)
        if not (isinstance(skew, float) or is_integer(skew)):
            return float("nan")
        if self.size is not None:
            skew = skew * (self.size[1] / self._find(camera)[-1])
        return float(skew) + 0.0  # no negative zero

    def _find(self, camera: Any) -> list[float]:
        """fx, fy, cx, cy, and height and width of the stored frame; NaN where unknown."""
        if (camera := self.camera_in(camera)) is not None:
            values = [camera.get(name) for name in INTRINSICS]
            size = dict(zip(("height", "width"), self.frame, strict=True))
            fits = all(n is None or camera.get(side, n) == n for side, n in size.items())
            if fits and all(type(value) in (int, float) for value in values):
                sides = [camera.get(side) if n is None else n for side, n in size.items()]
                return [n if type(n) in (int, float) else float("nan") for n in (*values, *sides)]
        return [float("nan")] * (len(INTRINSICS) + 2)


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
