"""Features of kind `intrinsics`: the image that each follows through crops and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqrecord.clips.cameras import followed_feature
from seqrecord.clips.transforms import CropWindows
from seqrecord.engine.crops import ClipCrops, IntrinsicsChange, whole_windows
from seqrecord.errors import ClipError
from seqrecord.feature_kinds import (
    INTRINSICS_SHAPES,
    are_intrinsics,
    is_picture,
)
from seqrecord.reading.array_specs import ArraySpec
from seqrecord.reading.dataset import Dataset


@dataclass(frozen=True)
class FrameIntrinsics:
    """Per-frame intrinsics `name` of the feature `image`.

    `resized` are its stored and resized (height, width), `None` if not resized on reading.
    """

    name: str
    image: str
    resized: tuple[tuple[int, int], tuple[int, int]] | None

    def change(
        self, parts: Mapping[str, tuple[ClipCrops, CropWindows]], count: int
    ) -> IntrinsicsChange:
        """The change for `count` clips with these windows."""
        windows = parts[self.image][1] if self.image in parts else None
        resized = None if self.resized is None else whole_windows(*self.resized, count)
        return IntrinsicsChange.of(windows, resized, count)


def intrinsics_of(
    crops: Sequence[ClipCrops],
    sizes: Mapping[str, tuple[Any, Any]],
    arrays: Mapping[str, ArraySpec],
    dataset: Dataset,
) -> list[FrameIntrinsics]:
    """The intrinsics among `arrays` that change, by crops or by resized features in `sizes`.

    Raises `ClipError` if it is unclear which image one belongs to, or for stored sizes that vary.
    """
    kinds = {name: spec.kind for name, spec in dataset.features.items()}
    names = [name for name in arrays if kinds.get(name) == "intrinsics"]
    changed = {*sizes}.union(*(each.features for each in crops))
    if not names or not changed:
        return []
    images = {
        name: (next((at for at, c in enumerate(crops) if name in c.features), -1), sizes.get(name))
        for name, spec in arrays.items()
        if name in changed or is_picture(name, spec, kinds.get(name))
    }
    found, stored = [], dataset.contents.index.schema.active
    for name in names:
        if not are_intrinsics(arrays[name]):
            raise ClipError(
                "not intrinsics", feature=name, expected=INTRINSICS_SHAPES, got=str(arrays[name])
            )
        image = followed_feature(name, names, images, stored)
        if image not in changed:
            continue
        assert image is not None, "an image that changed"
        resized = sizes.get(image)
        if resized is not None and None in resized[0]:
            raise ClipError(
                "per-frame intrinsics cannot follow resize= of frames whose size varies",
                feature=name,
                expected="a Resize as clip_transform instead, or features without it",
                got=f"{image}: {dataset.features[image].stored}",
            )
        found.append(FrameIntrinsics(name, image, resized))
    return found
