"""Features of a crop window: whose size it has, and which features follow it.

Kinds decide, never shapes alone: a pose [4, 4] has no pixels. Images define the window, or else
other features with pixels. Features with pixels of the same height and width follow::

    image  [480, 640, 3]   defines the window
    depth  [480, 640]      follows
    conf   [480, 640]      follows, with a note: no kind says that it has pixels
    mask   [240, 320]      is refused: it would no longer show what the image shows
    pose   [4, 4]          is unchanged
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from seqrecord.errors import ClipError
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.store.feature_kinds import (
    PIXEL_KINDS,
    VECTOR_KINDS,
    has_pixels,
    is_camera_image,
    known_kind,
    may_have_pixels,
)

FrameSize: TypeAlias = "tuple[int | None, int | None]"
"""Height and width; `None` if it varies."""

_WITHOUT_PIXELS = (*VECTOR_KINDS, "intrinsics", "distortion")
_SCALED_KINDS = ("flow", "disparity")


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

    Raises `ClipError` if no feature has pixels, for images of different sizes, for depth, flow or
    masks of another size than the images, and for requested features without pixels or without one
    common size.
    """
    if requested is None:
        selection = _by_kind({n: s for n, s in arrays.items() if s.mask_of is None}, kinds)
    else:
        selection = _by_name(requested, arrays, kinds)
    return selection._replace(names=(*selection.names, *_padding_masks(selection, arrays)))


class _Feature(NamedTuple):
    """What the kind and shape of a feature say about a window."""

    name: str
    spec: ArraySpec
    kind: str | None
    may_have_pixels: bool
    is_image: bool
    has_pixel_kind: bool

    @classmethod
    def of(cls, name: str, spec: ArraySpec, declared: str | None) -> _Feature:
        kind, may = known_kind(name, spec, declared), may_have_pixels(spec, declared)
        is_image = may and is_camera_image(name, spec, declared)
        return cls(name, spec, kind, may, is_image, kind in PIXEL_KINDS)

    @property
    def size(self) -> FrameSize:
        return _size(self.spec)

    @property
    def is_known(self) -> bool:
        """Whether its kind alone says that it has pixels."""
        return self.is_image or self.has_pixel_kind

    @property
    def is_map(self) -> bool:
        """Whether it has another kind with pixels than images."""
        return self.may_have_pixels and self.has_pixel_kind and not self.is_image

    @property
    def own_kind(self) -> str:
        return "no kind" if self.kind is None else f"kind {self.kind}, not one of this package,"

    def is_doubtful(self, frame: FrameSize | None) -> bool:
        """Whether its variable size may be that of the images, which does not vary."""
        if not self.is_map or frame is None or None in frame:
            return False
        return None in self.size and _common([self.size, frame]) is not None

    def fits(self, sizes: Collection[FrameSize], frame: FrameSize) -> bool:
        """Whether it has a size of the window; of variable ones, if its kind has pixels."""
        if not has_pixels(self.spec):
            return False
        is_variable = None in frame and None in self.size and self.is_known
        return self.size in sizes or (is_variable and _common([frame, self.size]) is not None)


_NOTES = {
    (False, True, False): "{name} is unchanged: kind {kind} has no pixels",
    (False, True, True): "{name} is unchanged: kind {kind} has no pixels",
    (True, True, False): "{name} has {own} and is changed like {first}, by its size",
}
"""Notes by: the feature may have pixels, it has the size of the window, its kind has pixels.

It follows if the first two hold.
"""


def _by_kind(arrays: Mapping[str, ArraySpec], kinds: Mapping[str, str | None]) -> CropFeatures:
    features = [_Feature.of(n, spec, kinds.get(n)) for n, spec in arrays.items()]
    sources = _sources(features)
    if not sources:
        raise ClipError(
            "clip_transform: no feature is an image, or has another kind with pixels",
            expected="steps with features=[…], names of frames [height, width, …]; or their kind: "
            "`seqrecord edit describe PATH --kind NAME=image`",
            got=_listed(arrays, arrays, kinds) or "no arrays",
        )
    names, sizes = [feature.name for feature in sources], {feature.size for feature in sources}
    frame = _common(feature.size for feature in sources)
    unfit = [feature.name for feature in features if feature.is_image and feature.name not in names]
    unfit += [feature.name for feature in features if feature.is_doubtful(frame)]
    if frame is None or unfit:
        raise ClipError(
            "clip_transform: images of different sizes",
            expected='a dict of steps by feature, such as {"front": RandomCrop(224), "wrist": '
            f"Resize((224, 224))}}; or steps with features={names}, which do not change the others",
            got=_listed([*names, *unfit], arrays, kinds),
        )
    followers, notes = [], []
    for feature in features:
        fits = feature.fits(sizes, frame)
        if fits and feature.may_have_pixels:
            followers.append(feature.name)
        if note := _NOTES.get((feature.may_have_pixels, fits, feature.is_known)):
            words = {
                "name": feature.name,
                "spec": feature.spec,
                "kind": feature.kind,
                "own": feature.own_kind,
            }
            notes.append(note.format(**words, first=names[0]))
    _check_maps(features, followers, names, frame)
    return CropFeatures(tuple(followers), frame, "; ".join(notes) or None)


def _check_maps(
    features: Sequence[_Feature], followers: Sequence[str], names: Sequence[str], frame: FrameSize
) -> None:
    """Raise `ClipError` for depth, flow or masks that do not follow the features `names`, of size
    `frame`, as `followers` do.

    They would show another place than the images from then on.
    """
    unfit = [feature for feature in features if feature.is_map and feature.name not in followers]
    if not unfit:
        return
    # `resize=` takes no flow and no disparity, whose values depend on the size.
    resized, size = [unfit[0].name], frame
    if unfit[0].kind in _SCALED_KINDS:
        resized, size = [*followers], unfit[0].size
    way = f"resize={dict.fromkeys(resized, size)} of the loader, which makes them one size; or "
    raise ClipError(
        f"clip_transform moves {names[0]}, and not {unfit[0].name}: their sizes differ",
        feature=unfit[0].name,
        expected=("" if None in size else way)
        + f"steps with features={followers}, which leave the others as they are",
        got=", ".join(
            f"{feature.name}: {feature.spec}"
            for feature in features
            if feature in unfit or feature.name in names
        ),
    )


def _sources(features: Sequence[_Feature]) -> list[_Feature]:
    """The features that define the window: of variable size, or else of the largest one."""
    images = [feature for feature in features if feature.is_image]
    sources = images or [feature for feature in features if feature.is_map]
    largest = max((feature.size for feature in sources), key=_area, default=None)
    return [feature for feature in sources if None in feature.size] or [
        feature for feature in sources if feature.size == largest
    ]


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
    if frame is None or len({spec.value_kind for spec in specs}) > 1:
        raise ClipError(
            "clip_transform: features without one common height and width",
            expected="frames [height, width, …]; a dict of steps for different sizes",
            got=", ".join(f"{name}: {arrays[name]}" for name in requested) or "none",
        )
    return CropFeatures(tuple(requested), frame)


def _padding_masks(selection: CropFeatures, arrays: Mapping[str, ArraySpec]) -> list[str]:
    """The masks of padded features among these.

    Raises `ClipError` for masks of one side: rows or columns of a window have no mask.
    """
    masks = {
        name: spec
        for name, spec in arrays.items()
        if spec.mask_of in selection.names and name not in selection.names
    }
    for spec in masks.values():
        if not has_pixels(spec) or _size(spec) != selection.frame:
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


def _listed(
    names: Iterable[str], arrays: Mapping[str, ArraySpec], kinds: Mapping[str, str | None]
) -> str:
    declared = {n: f" of kind {kinds[n]}" if kinds.get(n) else "" for n in names}
    return ", ".join(f"{name}: {arrays[name]}{kind}" for name, kind in declared.items())
