"""Features of a crop window: whose size it has, and which features follow it.

Kinds decide, never shapes alone: a pose [4, 4] has no pixels. Images define the window, or else
other features with pixels. Features with pixels of the same height and width follow::

    image  [480, 640, 3]   defines the window
    depth  [480, 640]      follows
    conf   [480, 640]      follows, with a note: no kind says that it has pixels
    mask   [240, 320]      is unchanged, with a note
    pose   [4, 4]          is unchanged
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from seqrecord.errors import ClipError
from seqrecord.store.feature_kinds import (
    PIXEL_KINDS,
    VECTOR_KINDS,
    has_pixels,
    is_camera_image,
    known_kind,
    may_have_pixels,
)
from seqrecord.store.reading.array_specs import ArraySpec

FrameSize: TypeAlias = "tuple[int | None, int | None]"
"""Height and width; `None` if it varies."""

_WITHOUT_PIXELS = (*VECTOR_KINDS, "intrinsics", "distortion")


class CropFeatures(NamedTuple):
    """Features that share a window, and their height and width.

    `note` names features whose size alone decided whether they follow.
    """

    names: tuple[str, ...]
    frame: FrameSize
    note: str | None = None


def crop_features(
    requested: Collection[str] | None,
    arrays: Mapping[str, ArraySpec],
    kinds: Mapping[str, str | None],
) -> CropFeatures:
    """Find the features of a window.

    Args:
        requested: names of the features; `None` finds them by kind and size.
        arrays: arrays of a frame, by feature.
        kinds: declared kinds, by feature.

    Raises `ClipError` if no feature has pixels, for images of different sizes, and for requested
    features without pixels or without one common size.
    """
    if requested is None:
        chosen = _by_kind({n: s for n, s in arrays.items() if s.mask_of is None}, kinds)
    else:
        chosen = _by_name(requested, arrays, kinds)
    return chosen._replace(names=(*chosen.names, *_padding_masks(chosen, arrays)))


def _by_kind(arrays: Mapping[str, ArraySpec], kinds: Mapping[str, str | None]) -> CropFeatures:
    pixels = {n: s for n, s in arrays.items() if may_have_pixels(s, kinds.get(n))}
    images = [n for n, s in pixels.items() if is_camera_image(n, s, kinds.get(n))]
    of_pixel_kind = [n for n, s in pixels.items() if known_kind(n, s, kinds.get(n)) in PIXEL_KINDS]
    sources = images or of_pixel_kind
    if not sources:
        raise ClipError(
            "clip_transform: no feature is an image, or has another kind with pixels",
            expected="steps with features=[…], names of frames [height, width, …]; or their kind: "
            "`seqrecord edit describe PATH --kind NAME=image`",
            got=_listed(arrays, arrays, kinds) or "no arrays",
        )
    sized = [n for n in sources if None in _size(arrays[n])]
    if not sized:
        largest = max((_size(arrays[n]) for n in sources), key=_area)
        sized = [n for n in sources if _size(arrays[n]) == largest]
    frame = _common(_size(arrays[n]) for n in sized)
    doubtful = [
        n for n in of_pixel_kind if n not in images and _is_doubtful(_size(arrays[n]), frame)
    ]
    others = [n for n in images if n not in sized] + doubtful
    if frame is None or others:
        raise ClipError(
            "clip_transform: images of different sizes",
            expected='a dict of steps by feature, such as {"front": RandomCrop(224), "wrist": '
            f"Resize(224)}}; or steps with features={sized}, which do not change the others",
            got=_listed([*sized, *others], arrays, kinds),
        )
    sizes = {_size(arrays[n]) for n in sized}
    is_variable = None in frame
    followers, notes = [], []
    for name, spec in arrays.items():
        size: tuple[int | None, ...] = _size(spec) if has_pixels(spec) else ()
        kind = known_kind(name, spec, kinds.get(name))
        has_kind = name in images or kind in PIXEL_KINDS
        matches = size in sizes or (
            has_kind and is_variable and None in size and _common([frame, size]) is not None
        )
        if name not in pixels:
            if matches:
                notes.append(f"{name} is unchanged: kind {kind} has no pixels")
        elif matches:
            followers.append(name)
            if not has_kind:
                own = "no kind" if kind is None else f"kind {kind}, not one of this package,"
                notes.append(f"{name} has {own} and is changed like {sized[0]}, by its size")
        elif has_kind:
            notes.append(f"{name} {spec} is unchanged: its size is not that of {sized[0]}")
    return CropFeatures(tuple(followers), frame, "; ".join(notes) or None)


def _by_name(
    requested: Collection[str],
    arrays: Mapping[str, ArraySpec],
    kinds: Mapping[str, str | None],
) -> CropFeatures:
    if unknown := [name for name in requested if name not in arrays]:
        raise ClipError(
            "clip_transform: the loader does not read this feature",
            expected=", ".join(arrays),
            got=", ".join(unknown),
        )
    for name in requested:
        if kinds.get(name) in _WITHOUT_PIXELS:
            raise ClipError(
                f"clip_transform: a feature of kind {kinds[name]} has no pixels",
                feature=name,
                expected="features with pixels; or another kind, if it has: `seqrecord edit "
                f"describe PATH --kind {name}=image`",
                got=str(arrays[name]),
            )
    specs = [arrays[name] for name in requested]
    frame = _common(_size(spec) for spec in specs) if all(map(has_pixels, specs)) else None
    if frame is None or len({spec.is_fixed for spec in specs}) > 1:
        raise ClipError(
            "clip_transform: features without one common height and width",
            expected="frames [height, width, …]; a dict of steps for different sizes",
            got=", ".join(f"{name}: {arrays[name]}" for name in requested) or "none",
        )
    return CropFeatures(tuple(requested), frame)


def _padding_masks(chosen: CropFeatures, arrays: Mapping[str, ArraySpec]) -> list[str]:
    """The masks of padded features among these.

    Raises `ClipError` for masks of one side: rows or columns of a window have no mask.
    """
    masks = {
        name: spec
        for name, spec in arrays.items()
        if spec.mask_of in chosen.names and name not in chosen.names
    }
    for spec in masks.values():
        if not has_pixels(spec) or _size(spec) != chosen.frame:
            raise ClipError(
                "clip_transform: the padding of one side cannot follow a crop or flip",
                feature=spec.mask_of,
                expected='ragged="list": crops and Resize make frames of one size',
                got=f"a mask {spec}",
            )
    return list(masks)


def _size(spec: ArraySpec) -> FrameSize:
    height, width = spec.shape[:2]
    return height, width


def _area(size: FrameSize) -> int:
    return math.prod(side or 0 for side in size)


def _common(sizes: Iterable[Sequence[int | None]]) -> FrameSize | None:
    """The size of frames that have all these sizes; `None` if they contradict each other.

    A side varies if it varies in any.
    """
    sides = [{*lengths} for lengths in zip(*sizes, strict=True)]
    if any(len(lengths - {None}) > 1 for lengths in sides):
        return None
    height, width = (None if None in lengths else lengths.pop() for lengths in sides)
    return height, width


def _is_doubtful(size: FrameSize, frame: FrameSize | None) -> bool:
    """Whether frames of a variable size may have that of images, which does not vary."""
    if frame is None or None in frame:
        return False
    return None in size and _common([size, frame]) is not None


def _listed(
    names: Iterable[str], arrays: Mapping[str, ArraySpec], kinds: Mapping[str, str | None]
) -> str:
    declared = {n: f" of kind {kinds[n]}" if kinds.get(n) else "" for n in names}
    return ", ".join(f"{name}: {arrays[name]}{kind}" for name, kind in declared.items())
