"""Intrinsics of clips: cameras of the metadata `camera`, and features of kind `intrinsics`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from seqrecord.clips.grids import IntArray
from seqrecord.clips.transforms import CropWindows, FloatArray
from seqrecord.errors import ClipError

INTRINSICS = ("fx", "fy", "cx", "cy")


class EpisodeCamera(NamedTuple):
    """A camera of the metadata `camera`.

    `name` is a feature, or `None` for a camera that features share. `frame` is height and width of
    stored frames, `None` if they vary; `size` is height and width of frames resized on reading.
    """

    name: str | None
    frame: tuple[int | None, ...]
    size: tuple[int, int] | None = None

    @property
    def column(self) -> str:
        """Column of the intrinsics in batches."""
        return "intrinsics" if self.name is None else f"{self.name}_intrinsics"

    def intrinsics(self, cameras: Sequence[Any], frames: IntArray | None = None) -> FloatArray:
        """fx, fy, cx, cy in pixels of (resized) frames, NaN if unknown; float64[n, 4].

        `cameras` are the episodes' metadata; `frames`, int64[n, 2], the sizes of variable frames.
        """
        sizes = [self.frame] * len(cameras) if frames is None else frames.tolist()
        found = [self._find(camera, *size) for camera, size in zip(cameras, sizes, strict=True)]
        table = np.array(found, np.float64).reshape(-1, len(INTRINSICS) + 2)
        intrinsics: FloatArray = table[:, : len(INTRINSICS)]
        if self.size is None:
            return intrinsics
        sides: Any = table[:, len(INTRINSICS) :].T  # NaN where unknown
        return replace(CropWindows.whole(*sides), size=self.size).intrinsics(intrinsics)

    def _find(self, camera: Any, height: int | None, width: int | None) -> list[float]:
        """fx, fy, cx, cy, and height and width of the stored frame; NaN where unknown."""
        if isinstance(camera, Mapping):
            own = camera.get(self.name, camera)
            camera = own if isinstance(own, Mapping) else camera
            values = [camera.get(name) for name in INTRINSICS]
            size = {"height": height, "width": width}
            fits = all(n is None or camera.get(side, n) == n for side, n in size.items())
            if fits and all(type(value) in (int, float) for value in values):
                known = [camera.get(side) if n is None else n for side, n in size.items()]
                return [n if type(n) in (int, float) else float("nan") for n in (*values, *known)]
        return [float("nan")] * (len(INTRINSICS) + 2)


OWN_INTRINSICS = "_intrinsics"


def followed_feature(
    name: str, others: Collection[str], images: Mapping[str, Hashable], names: Collection[str]
) -> str | None:
    """The feature whose windows the per-frame intrinsics `name` follow; `None` without images.

    `X_intrinsics` follows the feature X. A single feature of another name follows all images.

    Args:
        others: all features of kind `intrinsics`.
        images: of each feature with pixels, what equals for those with equal intrinsics.
        names: all features of the dataset.

    Raises `ClipError` if images differ in their crops or sizes, or the feature X is not read.
    """
    owner = name.removesuffix(OWN_INTRINSICS)
    if owner != name and owner in {*names, *images}:
        if owner not in images:
            raise ClipError(
                "per-frame intrinsics of an image that the loader does not read",
                feature=name,
                expected=f"{owner} in features, or features without {name}",
                got=", ".join(images) or "no image",
            )
        return owner
    alone = [each for each in others if each.removesuffix(OWN_INTRINSICS) not in images]
    if len({*images.values()}) > 1 or (images and len(alone) > 1):
        raise ClipError(
            "per-frame intrinsics, and images of several cameras or sizes",
            feature=name,
            expected=f"a name such as {min(images)}{OWN_INTRINSICS} (rename=, or `seqrecord edit "
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
    found = [EpisodeCamera(name, *sizes.get(name, (frame,))) for name in sorted(features)]
    if may_share and len({camera[1:] for camera in found}) == 1:
        found.insert(0, found[0]._replace(name=None))
    known = [one for one in found if not np.isnan(one.intrinsics([camera])).any()]
    return known[:1] if known and known[0].name is None else known
