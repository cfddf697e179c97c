"""Kinds and units of features: list of kinds, kinds from names, conversion of units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from seqrecord.errors import SchemaError
from seqrecord.store.text import repr_of
from seqrecord.store.value_kinds import Frames

if TYPE_CHECKING:
    from seqrecord.store.schema import FeatureSpec, Schema

KINDS = tuple(
    "image depth disparity flow normals mask segmentation points pose action state imu timestamp "  # noqa: SIM905
    "reward audio text frame_number frame_name intrinsics distortion".split()
)
"""Kinds that this package assigns or uses. Datasets may have others."""

PIXEL_KINDS = ("image", "depth", "disparity", "flow", "normals", "mask", "segmentation")
LABEL_KINDS = ("mask", "segmentation")
VECTOR_KINDS = ("action", "state", "pose", "imu")
OTHER_KINDS = frozenset(KINDS).difference(PIXEL_KINDS)
"""Kinds of features that never have a value per pixel, whatever their shape."""
MAX_VECTOR = 256  # numbers in a frame of an action, a state, a pose or IMU values
_CHANNELS = {"image": (1, 3, 4), "flow": (2,), "normals": (3,)}  # by kind
_LEAST_SIDE = 32  # pixels of an image whose feature has no kind and a name that implies none
_WORDS = {  # words of feature names, by kind; the first match wins: a depth mask is a mask
    "mask": "mask masks",
    "segmentation": "seg segm segmentation segmentations semantic semantics instance instances "
    "panoptic label labels annotation annotations",
    "disparity": "disp disparity disparities",
    "normals": "normal normals",
    "flow": "flow flows",
    "depth": "depth depths",
}
_POSE_WORDS = frozenset(
    "pose poses traj trajs trajectory trajectories extrinsic extrinsics odom odometry".split()  # noqa: SIM905
)
_POSE_SHAPES = ((6,), (7,), (12,), (16,), (3, 4), (4, 4))
_TIMED_POSE_SHAPES = ((8,), (13,), (17,))  # with a time or a number before
_KIND_OF_WORD = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_PAIRS = {  # name of the left camera of a stereo pair, and name of the right one
    "left": "right", "lcam": "rcam", "l": "r", "cam0": "cam1", "camera0": "camera1", "0": "1",
    "image0": "image1", "2": "3", "image2": "image3", "00": "01", "02": "03", "infra1": "infra2",
    "im0": "im1", "cama": "camb", "leftcam": "rightcam", "ir1": "ir2",
}  # fmt: skip
_IMAGES = frozenset("image images img rgb".split())  # noqa: SIM905

_BASE = {  # SI dimension, and size in SI units
    "m": ("m", 1.0),
    "s": ("s", 1.0),
    "g": ("g", 1.0),
    "px": ("px", 1.0),
    "rad": ("rad", 1.0),
    "deg": ("rad", math.pi / 180),
    "min": ("s", 60.0),
    "h": ("s", 3600.0),
    "ft": ("m", 0.3048),
    "in": ("m", 0.0254),
    "%": ("", 0.01),
    "degC": ("degC", 1.0),
    "dB": ("dB", 1.0),
    "rpm": ("rad/s", 2 * math.pi / 60),
} | {name: (name, 1.0) for name in "N Nm J W Hz V A K T Pa G bar lx Ohm C F mol cd lm".split()}  # noqa: SIM905
_PREFIXED = frozenset("m s g rad N Nm J W Hz V A K T Pa G bar Ohm C F mol".split())  # noqa: SIM905
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2, "d": 1e-1, "k": 1e3, "M": 1e6, "G": 1e9}
_FACTOR = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)(?:/([0-9.]+))?\s+(.+)", re.ASCII)
_POWER = re.compile(r"([A-Za-z%]+)(?:\^(-?[0-9]))?", re.ASCII)


class Unit(NamedTuple):
    """A unit: `size` times a product of SI base units, as pairs of name and power."""

    size: float
    powers: tuple[tuple[str, int], ...]


def parse_unit(text: str) -> Unit | None:
    """Parse a unit such as `mm`, `m/s^2` or `1/5000 m`; `None` if invalid."""
    size = 1.0
    if match := _FACTOR.fullmatch(text):
        try:
            size = float(match[1]) / float(match[2] or 1)
        except (ValueError, ZeroDivisionError):
            return None
        text = match[3]
    if not 0 < size < math.inf:
        return None
    powers: dict[str, int] = {}
    for place, part in enumerate(text.replace("*", " ").split("/")):
        for word in part.split(" "):
            if word == "1" and not place:
                continue  # 1/s
            match = _POWER.fullmatch(word)
            if match is None or (base_unit := _base_unit(match[1])) is None:
                return None
            power = int(match[2] or 1) * (-1 if place else 1)
            size *= base_unit[1] ** power
            powers[base_unit[0]] = powers.get(base_unit[0], 0) + power
    return Unit(size, tuple(sorted((name, power) for name, power in powers.items() if power)))


def size_in(text: str | None, base: str) -> float | None:
    """Size of a unit in a base unit such as `m` or `s`; `None` if not convertible."""
    unit = None if text is None else parse_unit(text)
    return unit.size if unit is not None and unit.powers == ((base, 1),) else None


def same_unit(left: str, right: str) -> bool:
    """Whether two texts are the same unit, such as `mm` and `1/1000 m`."""
    if left == right:
        return True
    left_unit, right_unit = parse_unit(left), parse_unit(right)
    if left_unit is None or right_unit is None or left_unit.powers != right_unit.powers:
        return False
    return math.isclose(left_unit.size, right_unit.size, rel_tol=1e-9)


def check_kinds_and_units(
    schema: Schema,
    kinds: Mapping[str, str | None] | None,
    units: Mapping[str, str | None] | None,
    *,
    fits: bool = True,
) -> dict[str, dict[str, str | None]]:
    """Check kinds and units by feature name; `None` is an unknown kind or unit.

    Returns the given values, `{feature: {"kind": …, "unit": …}}`. Raises `SchemaError` for an
    unknown feature, an unknown kind or unit, and, with `fits`, for a kind that does not match the
    feature's dtype and shape.
    """
    described: dict[str, dict[str, str | None]] = {}
    texts: Any  # unchecked user input
    name: Any
    for what, texts in (("kind", kinds), ("unit", units)):
        if texts is None:
            continue
        if not isinstance(texts, Mapping):
            example = '{"mask": "segmentation"}' if what == "kind" else '{"depth": "mm"}'
            raise SchemaError(
                f"{what}s is not a dict", expected=f"for example {example}", got=repr_of(texts, 100)
            )
        for name, value in texts.items():
            if name not in schema.active:
                raise SchemaError(
                    f"cannot set the {what}: no such feature",
                    feature=name if isinstance(name, str) else repr_of(name, 50),
                    expected=f"any of {', '.join(schema.active)}",
                )
            if value is not None and what == "kind":
                _check_kind(schema[name], value, fits=fits)
            elif value is not None:
                _check_unit(schema[name], value)
            described.setdefault(name, {})[what] = value
    changes: Mapping[str, Any] = described
    for name in changes:
        check_depth(replace(schema[name], **changes[name]))
    return described


def check_depth(spec: FeatureSpec) -> None:
    """Raise `SchemaError` for depth with a unit in the channels of a picture."""
    is_picture = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] != 1
    if spec.kind == "depth" and spec.unit is not None and is_picture:
        raise SchemaError(
            "a picture with channels has no depth in a unit; store depth as uint16 or float32 "
            "[H, W], or leave the unit out",
            feature=spec.name,
            expected="numbers [height, width]",
            got=str(spec).partition(": ")[2],
        )


def _check_kind(spec: FeatureSpec, kind: object, *, fits: bool) -> None:
    if not isinstance(kind, str) or kind not in KINDS:
        raise SchemaError(
            "unknown kind",
            feature=spec.name,
            expected=f"{_guess(kind, KINDS)}any of {', '.join(KINDS)}",
            got=repr_of(kind, 50),
        )
    expected, has_form = _FORMS.get(kind, _ANY_FORM)
    if fits and not has_form(spec):
        raise SchemaError(
            f"kind {kind} does not fit the feature",
            feature=spec.name,
            expected=expected,
            got=str(spec).partition(": ")[2],
        )


def _are_numbers(spec: FeatureSpec, dtypes: str = "biuf") -> bool:
    dtype = spec.value_kind.number_dtype(spec)
    return dtype is not None and dtype.kind in dtypes


def _has_channels(spec: FeatureSpec, count: int) -> bool:
    """Whether frames are numbers [height, width, channels] with at least so many channels."""
    is_grid = _are_numbers(spec) and len(spec.shape) == 3
    return is_grid and (spec.shape[2] is None or spec.shape[2] >= count)


INTRINSICS_SHAPES = "floats [4], fx, fy, cx and cy, or [3, 3]"
_DISTORTION_SHAPES = "floats [4], [5], [8], [12] or [14], distortion coefficients"

_Form: TypeAlias = "tuple[str, Callable[[FeatureSpec], bool]]"
"""What errors expect of a feature, and whether it is so."""

_ANY_FORM: _Form = "an array", lambda spec: spec.value_kind.number_dtype(spec) is not None
_PIXEL_FORM: _Form = (
    "numbers [height, width] or [height, width, channels]",
    lambda spec: _are_numbers(spec) and len(spec.shape) in (2, 3),
)
_TEXT_FORM: _Form = "text", lambda spec: spec.value == "text"
_FORMS: Mapping[str, _Form] = {
    **dict.fromkeys(PIXEL_KINDS, _PIXEL_FORM),
    "flow": ("numbers [height, width, 2 or more]", lambda spec: _has_channels(spec, 2)),
    "normals": ("numbers [height, width, 3 or more]", lambda spec: _has_channels(spec, 3)),
    "timestamp": ("integers or floats", lambda spec: _are_numbers(spec, "iuf")),
    "intrinsics": (INTRINSICS_SHAPES, lambda spec: are_intrinsics(spec)),
    "distortion": (_DISTORTION_SHAPES, lambda spec: are_coefficients(spec)),
    "text": _TEXT_FORM,
    "frame_name": _TEXT_FORM,
}
"""Feature forms by kind; other kinds have `_ANY_FORM`."""


def _check_unit(spec: FeatureSpec, unit: object) -> None:
    parts = unit.split(", ") if isinstance(unit, str) else [""]  # one per array element
    if unknown_parts := [part for part in parts if parse_unit(part) is None]:
        raise SchemaError(
            "unknown unit",
            feature=spec.name,
            expected=f"{_guess(unknown_parts[0], _SPELT)}a unit such as m, mm, px, rad, deg, s, "
            "ns, m/s^2, or a multiple of one such as 1/5000 m",
            got=repr_of(unit, 50),
        )
    if spec.value_kind.number_dtype(spec) is None:
        raise SchemaError(
            "only numbers have a unit", feature=spec.name, expected="an array", got=spec.value
        )


_SPELT = {
    "meter": "m", "meters": "m", "metre": "m", "metres": "m", "millimeter": "mm",
    "millimeters": "mm", "millimetres": "mm", "centimeters": "cm", "pixel": "px", "pixels": "px",
    "second": "s", "seconds": "s", "sec": "s", "milliseconds": "ms", "msec": "ms",
    "microseconds": "us", "nanoseconds": "ns", "nsec": "ns", "radian": "rad", "radians": "rad",
    "degree": "deg", "degrees": "deg", "M": "m", "MM": "mm",
}  # fmt: skip


def _guess(got: object, vocabulary: Sequence[str] | Mapping[str, str]) -> str:
    if not isinstance(got, str):
        return ""
    if isinstance(vocabulary, Mapping) and got in vocabulary:
        return f"{vocabulary[got]}; "
    matches = get_close_matches(got.lower()[:50], list(vocabulary), 1, 0.75)
    if not matches:
        return ""
    return f"{vocabulary[matches[0]] if isinstance(vocabulary, Mapping) else matches[0]}; "


def _base_unit(word: str) -> tuple[str, float] | None:
    if word in _BASE:
        return _BASE[word]
    prefix, symbol = word[:1], word[1:]
    if prefix in _PREFIXES and symbol in _PREFIXED:
        name, size = _BASE[symbol]
        return name, size * _PREFIXES[prefix]
    return None


def pixel_kind(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """Infer the kind of an image-like feature from its name.

    Returns `mask`, `segmentation`, `disparity`, `normals`, `flow`, `depth`, `image`, or `None` if
    the name implies no kind. The shape must be [H, W] or [H, W, C]. An image is [H, W, C] with 1,
    3 or 4 channels, and is uint8 or has a word such as `rgb` in its name.
    """
    if len(shape) not in (2, 3) or dtype.kind not in "biuf":
        return None
    words = words_of(name)
    kinds = {*map(_KIND_OF_WORD.get, words)}
    channels = shape[2] if len(shape) == 3 else 1
    for kind in filter(kinds.__contains__, _WORDS):
        if kind in ("mask", "segmentation"):
            return kind if channels in (1, 3, 4, None) else None
        min_channels = {"flow": 2, "normals": 3}.get(kind, 1)
        is_coloured = kind == "flow" and dtype == np.uint8  # a colour rendering of flow
        if (channels is None or channels >= min_channels) and not is_coloured:
            return kind
    is_image = dtype == np.uint8 or is_named_image(name)
    return "image" if len(shape) == 3 and channels in (1, 3, 4) and is_image else None


def is_named_image(name: str) -> bool:
    """Whether a name has a word such as `rgb`."""
    return not _IMAGES.isdisjoint(words_of(name))


def words_of(name: str) -> list[str]:
    """Words of a feature's name, in lower case."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def unknown_pose_kinds(schema: Schema) -> Iterator[str]:
    """Notes on features that may be poses by name and shape, and have no kind.

    The name does not tell the convention (for example the order of a quaternion), so the kind is
    not guessed.
    """
    for name, spec in schema.active.items():
        may_be_poses = spec.kind is None and spec.dtype.kind == "f"
        if not may_be_poses or _POSE_WORDS.isdisjoint(words_of(name)):
            continue
        if spec.shape in _POSE_SHAPES:
            yield f"feature {name}: no kind; if these are poses, --kind {name}=pose says so"
        elif spec.shape in _TIMED_POSE_SHAPES:
            yield (
                f"feature {name}: no kind, and {spec.shape[0]} numbers, one more than a pose has; "
                "if the first is a time or a number, move it to a file of its own, and "
                f"--kind {name}=pose says that the others are poses"
            )


def are_intrinsics(spec: Frames) -> bool:
    """Whether frames can be intrinsics: fx, fy, cx and cy in pixels, or a camera matrix."""
    return spec.dtype.kind == "f" and spec.shape in ((4,), (3, 3))


_COEFFICIENTS = (4, 5, 8, 12, 14)


def are_coefficients(spec: Frames) -> bool:
    """Whether frames can be distortion coefficients in OpenCV's order."""
    is_vector = spec.dtype.kind == "f" and len(spec.shape) == 1
    return is_vector and spec.shape[0] in _COEFFICIENTS


def is_distortion(name: str, spec: Frames, kind: str | None) -> bool:
    """Whether frames are distortion coefficients, by kind, or by name without a kind."""
    is_named = kind is None and (name == "distortion" or name.endswith("_distortion"))
    return (kind == "distortion" or is_named) and are_coefficients(spec)


def has_pixels(spec: Frames) -> bool:
    """Whether frames are [H, W, …], with fixed dimensions after the first two."""
    shape = spec.value_kind.value_shape(spec.shape)
    return len(shape) >= 2 and None not in shape[2:]


def known_kind(name: str, spec: Frames, kind: str | None) -> str | None:
    """The kind of a feature: the declared one, else the kind that its name implies.

    Returns no `image` for undeclared kinds: `is_image` decides these by dtype and shape.
    """
    if kind is not None:
        return kind
    implied_kind = pixel_kind(name, spec.dtype, spec.value_kind.value_shape(spec.shape))
    return None if implied_kind == "image" else implied_kind


def is_image(spec: Frames, kind: str | None) -> bool:
    """Whether resizing interpolates; other features take the nearest pixel.

    `kind` is the result of `known_kind`.
    """
    if kind is not None or len(spec.shape) != 3:
        return kind == "image" and spec.dtype.kind in "uif"
    return spec.dtype == np.uint8 and spec.shape[2] in (3, 4)


def may_have_pixels(spec: Frames, kind: str | None) -> bool:
    """Whether frames may have a value per pixel: [H, W, …] of a pixel kind, of no kind, or of a
    kind that this package does not know.

    A pose [4, 4], a state [5, 2] or points [480, 3] never have, whatever their shape.
    """
    return has_pixels(spec) and kind not in OTHER_KINDS


def is_camera_image(name: str, spec: Frames, kind: str | None) -> bool:
    """Whether frames are a camera's images: by kind, or by name, dtype and shape without a kind."""
    if kind is not None or not has_pixels(spec):
        return kind == "image" and has_pixels(spec)
    implied = pixel_kind(name, spec.dtype, spec.shape)
    is_grey = len(spec.shape) == 2 and spec.dtype in (np.uint8, np.uint16)
    is_named = is_grey and implied is None and is_named_image(name)
    return implied == "image" or is_named or is_image(spec, known_kind(name, spec, kind))


def is_picture(name: str, spec: Frames, kind: str | None) -> bool:
    """Whether frames have a value for each pixel of a camera, by kind, name, dtype and shape."""
    implied_kind = known_kind(name, spec, kind)
    return has_pixels(spec) and (implied_kind in PIXEL_KINDS or is_image(spec, implied_kind))


def is_vector(spec: FeatureSpec) -> bool:
    """Whether frames are an action, a state, a pose, IMU values, or similar floats.

    NaN and infinities are mistakes in these features. Without a kind, frames have at most one
    dimension.
    """
    nbytes = spec.value_kind.constant_nbytes(spec)
    if not _are_numbers(spec, "f") or nbytes is None:
        return False
    is_meant = spec.kind in VECTOR_KINDS or (spec.kind is None and len(spec.shape) <= 1)
    return is_meant and nbytes <= MAX_VECTOR * spec.dtype.itemsize


def doubtful_forms(schema: Schema) -> list[str]:
    """Notes on features with pixels that are probably in a wrong form."""
    notes = []
    for name, spec in schema.items():
        shape = spec.shape
        if len(shape) not in (2, 3):
            continue
        sizes = [size or 0 for size in shape]
        turned = spec.kind or pixel_kind(name, spec.dtype, (*shape[1:], shape[0]))
        if len(shape) == 3 and shape[0] in _CHANNELS.get(str(turned), ()) and sizes[2] > 4:
            notes.append(
                f"feature {spec} seems to have its channels first; expected [height, width, "
                "channels]: append value.transpose(1, 2, 0)"
            )
        kind = spec.kind or pixel_kind(name, spec.dtype, shape) or turned
        is_large = shape[-1] in (1, 3, 4) and min(sizes[:2]) >= _LEAST_SIDE
        has_pictures = is_large if kind is None else kind in PIXEL_KINDS
        if spec.dtype == np.float64 and has_pictures:
            notes.append(
                f"feature {spec} takes 8 bytes per number; images are usually uint8, and depth or "
                'flow float32: append value.astype("uint8") or value.astype("float32")'
            )
    return notes


def is_flow(name: str, spec: Frames, kind: str | None) -> bool:
    """Whether the first two channels are displacements along x and y, in pixels."""
    if kind is not None and kind != "flow":
        return False
    is_named = kind == "flow" or "flow" in name.lower()
    if not is_named or len(spec.shape) != 3 or spec.shape[2] is None or spec.shape[2] < 2:
        return False
    return spec.dtype.kind in "fi"


def is_normals(spec: Frames, kind: str | None) -> bool:
    """Whether the first of the channels is a normal's x; `kind` is the result of `known_kind`."""
    return kind == "normals" and len(spec.shape) > 2


def partner_of(name: str, names: Collection[str]) -> str | None:
    """Name of a left camera's right one, if `names` has it; else `None`.

    For example `image_right` for `image_left`, `image_rcam_front` for `image_lcam_front`,
    `image_cam1` for `image_cam0`, `image_3` for `image_2`.
    """
    parts = re.split(r"([^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z]))", name)
    for place in range(0, len(parts), 2):
        right = _PAIRS.get(parts[place].lower())
        for word in () if right is None else (right, right.upper(), right.capitalize()):
            partner = "".join([*parts[:place], word, *parts[place + 1 :]])
            if partner in names:
                return partner
    partner = name.replace("left", "right")
    return partner if partner != name and partner in names else None


def differences(left: FeatureSpec, right: FeatureSpec) -> dict[str, bool]:
    """Differences in `kind` and `unit` between two features that are to be merged.

    Returns a bool by name of each attribute that differs: true for a contradiction, false if a
    value is unknown.
    """
    contradictions: dict[str, bool] = {}
    for what in ("kind", "unit"):
        texts = getattr(left, what), getattr(right, what)
        if texts[0] == texts[1] or (what == "unit" and all(texts) and same_unit(*texts)):
            continue
        contradictions[what] = None not in texts
    return contradictions
