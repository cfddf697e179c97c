"""Intrinsics of clips, from the metadata `camera` of their episodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from seqrecord.clips.grids import IntArray
from seqrecord.clips.transforms import CropWindows, FloatArray

_INTRINSICS = ("fx", "fy", "cx", "cy")


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
        """The column of its intrinsics in batches."""
        return "intrinsics" if self.name is None else f"{self.name}_intrinsics"

    def intrinsics(self, cameras: Sequence[Any], frames: IntArray | None = None) -> FloatArray:
        """fx, fy, cx, cy in pixels of (resized) frames, NaN if unknown; float64[n, 4].

        `cameras` are the episodes' metadata; `frames`, int64[n, 2], the sizes of variable frames.
        """
        sizes = [self.frame] * len(cameras) if frames is None else frames.tolist()
        found = [self._find(camera, *size) for camera, size in zip(cameras, sizes, strict=True)]
        table = np.array(found, np.float64).reshape(-1, len(_INTRINSICS) + 2)
        intrinsics: FloatArray = table[:, : len(_INTRINSICS)]
        if self.size is None:
            return intrinsics
        sides: Any = table[:, len(_INTRINSICS) :].T  # NaN where unknown
        return replace(CropWindows.whole(*sides), size=self.size).intrinsics(intrinsics)

    def _find(self, camera: Any, height: int | None, width: int | None) -> list[float]:
        """fx, fy, cx, cy, and height and width of the stored frame; NaN where unknown."""
        if isinstance(camera, Mapping):
            own = camera.get(self.name, camera)
            camera = own if isinstance(own, Mapping) else camera
            values = [camera.get(one) for one in _INTRINSICS]
            size = {"height": height, "width": width}
            fits = all(n is None or camera.get(one, n) == n for one, n in size.items())
            if fits and all(type(value) in (int, float) for value in values):
                known = [camera.get(one) if n is None else n for one, n in size.items()]
                return [n if type(n) in (int, float) else float("nan") for n in (*values, *known)]
        return [float("nan")] * (len(_INTRINSICS) + 2)


def known_cameras(
    features: Collection[str],
    frame: tuple[int | None, ...],
    sizes: Mapping[str, tuple[Any, Any]],
    camera: Any,
    *,
    may_share: bool,
) -> list[EpisodeCamera]:
    """The cameras of features with one crop window whose intrinsics an episode's `camera` contains.

    This is the shared camera alone, if it is known and features of one stored size `may_share` it.
    `frame` is the size of frames; `sizes` has stored and resized sizes of resized features.
    """
    found = [EpisodeCamera(name, *sizes.get(name, (frame,))) for name in sorted(features)]
    if may_share and len({one[1:] for one in found}) == 1:
        found.insert(0, found[0]._replace(name=None))
    known = [one for one in found if not np.isnan(one.intrinsics([camera])).any()]
    return known[:1] if known and known[0].name is None else known
