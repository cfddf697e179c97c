"""Flips of whole worlds: with `camera=`, all cameras of a clip are mirrored together, or none.

A mirrored left camera is to the right of a mirrored right one. So the features of a stereo pair are
exchanged in flipped clips: the mirrored `image_right` becomes `image_left`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipWindow
from seqrecord.loader.clips.transforms import HorizontalFlip
from seqrecord.loader.engine.crops import ClipCrops, ValuesChange
from seqrecord.loader.frames.array_specs import ArraySpec, mask_name
from seqrecord.loader.pipes.registered_columns import Flips
from seqrecord.store.feature_kinds import is_camera_image, is_distortion, is_picture, partner_of

_XYZ = 3


@dataclass(frozen=True, eq=False)
class PointsChange(ValuesChange):
    """From points of a world to the mirrored world: `factor` for x, y or z, by its number."""

    @staticmethod
    def apply(values: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        del offset  # 0
        factor = factor.to(values.dtype).reshape(-1, *(1 for _ in values.shape[1:]))
        x = values[..., :1] * factor + 0.0  # no negative zeros
        return torch.cat((x, values[..., 1:]), dim=-1)


class WorldFlips(Flips):
    """The features that flips of a whole world change beside images."""

    @classmethod
    def of(
        cls,
        crops: Sequence[ClipCrops],
        arrays: Mapping[str, ArraySpec],
        kinds: Mapping[str, str | None],
        windows: Mapping[str, ClipWindow],
        renamed: Mapping[str, str],
    ) -> WorldFlips:
        """Find the features that flips change. `renamed` has present names by stored names.

        Raises `ClipError` for flips that would mirror a part of a clip: some images only, cameras
        with draws of their own, one camera of a stereo pair.
        """
        flips = {name: _flips_of(camera) for camera in crops for name in camera.features}
        if not any(flips.values()):
            return cls()
        pictures = [
            name
            for name, spec in arrays.items()
            if spec.mask_of is None and is_picture(name, spec, kinds.get(name))
        ]
        if unlike := [name for name in pictures if flips.get(name) != max(flips.values())]:
            _refuse_part(unlike, flips)
        if len({id(camera) for camera in crops if _flips_of(camera)}) > 1:
            _check_shared(crops)
        partners = _partners(pictures, arrays, kinds, windows, renamed)
        for name, spec in arrays.items():
            if spec.mask_of is not None and spec.mask_of in partners:
                partners[name] = mask_name(partners[spec.mask_of])
        points = [name for name in arrays if kinds.get(name) == "points"]
        for name in points:
            _check_points(name, arrays[name])
        return cls(partners, points)

    def changes(self, flipped: npt.NDArray[np.bool_]) -> dict[str, PointsChange]:
        """The changes of clips, of which these are flipped, bool[n]."""
        factor = np.where(flipped, -1.0, 1.0)[:, None]
        return {name: PointsChange(factor, np.zeros_like(factor)) for name in self.points}


def _flips_of(camera: ClipCrops) -> tuple[float, ...]:
    """The probabilities of a camera's flips, in order."""
    return tuple(s.p for s in camera.steps if isinstance(s, HorizontalFlip) and s.p)


def _refuse_part(unlike: Sequence[str], flips: Mapping[str, tuple[float, ...]]) -> None:
    """Raise `ClipError` for pictures that the flips of other pictures leave as they are."""
    mirrored = [name for name, of_feature in flips.items() if of_feature and name not in unlike]
    raise ClipError(
        "camera: a flip of one camera alone; the cameras of a clip see one world",
        feature=", ".join(unlike),
        expected="the same HorizontalFlip for all features with pixels; or features without it",
        got=f"HorizontalFlip of {', '.join(sorted(mirrored))}",
    )


def _check_shared(crops: Sequence[ClipCrops]) -> None:
    """Raise `ClipError` for flips of several cameras with draws of their own."""
    for camera in crops:
        flips = [step for step in camera.steps if isinstance(step, HorizontalFlip)]
        if any(not step.shared and 0 < step.p < 1 for step in flips):
            raise ClipError(
                "camera: flips of cameras with draws of their own; the cameras of a clip see one "
                "world",
                feature=camera.name or min(camera.features),
                expected="HorizontalFlip without shared=False",
                got=", ".join(map(repr, camera.steps)),
            )


def _partners(
    pictures: Sequence[str],
    arrays: Mapping[str, ArraySpec],
    kinds: Mapping[str, str | None],
    windows: Mapping[str, ClipWindow],
    renamed: Mapping[str, str],
) -> dict[str, str]:
    """The features of stereo pairs by their partners. Raises `ClipError` for half a pair."""
    partners = dict[str, str]()
    for left in pictures:
        if (right := partner_of(left, pictures)) is None:
            continue
        has_same_frames = windows[left].key == windows[right].key
        if arrays[left] != arrays[right] or not has_same_frames:
            raise ClipError(
                "camera: a flip exchanges the features of a stereo pair, and these differ",
                feature=left,
                expected=f"dtype, shape and window of {right}: {arrays[right]}",
                got=str(arrays[left]) if has_same_frames else "a window of other frames",
            )
        partners |= {left: right, right: left}
    if partners:
        _check_sides(partners, pictures, arrays, kinds, renamed)
    return partners


def _check_sides(
    partners: Mapping[str, str],
    pictures: Sequence[str],
    arrays: Mapping[str, ArraySpec],
    kinds: Mapping[str, str | None],
    renamed: Mapping[str, str],
) -> None:
    """Raise `ClipError` for features of one side of a stereo pair, which have no partner."""
    # A feature that keeps its stored name names an image as it is stored.
    stored_images = [old for old, new in renamed.items() if new in partners]
    for name in arrays:
        spec, kind = arrays[name], kinds.get(name)
        images = partners if name in renamed.values() else (*partners, *stored_images)
        is_alone = name in pictures and name not in partners
        is_alone = is_alone and not is_camera_image(name, spec, kind)
        is_of_side = kind == "intrinsics" or is_distortion(name, spec, kind)
        is_of_side = is_of_side and any(name.startswith(f"{image}_") for image in images)
        if is_alone or is_of_side:
            raise ClipError(
                "camera: a flip exchanges the cameras of a stereo pair, and this feature has no "
                "partner",
                feature=name,
                expected="features without it"
                + (", as <image>_K has it; or one camera of the pair" if is_of_side else "")
                + ("; or one camera of the pair" if is_alone else ""),
                got=", ".join(f"{left} and {right}" for left, right in partners.items()),
            )


def _check_points(name: str, spec: ArraySpec) -> None:
    """Raise `ClipError` for points without x, y and z."""
    channels = spec.shape[-1] if spec.shape else None
    if spec.dtype.kind != "f" or channels is None or channels < _XYZ:
        raise ClipError(
            "camera: HorizontalFlip of points without x, y and z as floats",
            feature=name,
            expected=f"floats […, 3 or more]; another kind: `seqrecord edit describe PATH --kind "
            f"{name}=state`; or features without it",
            got=str(spec),
        )
