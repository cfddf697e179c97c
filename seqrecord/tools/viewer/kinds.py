"""Plot types of features, and colors of optical flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from seqrecord.store.feature_kinds import OTHER_KINDS

Kind = Literal["picture", "depth", "flow", "labels", "scale", "curves", "samples", "text"]

MOST_CURVES = 64
"""Largest number of values plotted as curves."""

_MIN_SIDE = 8  # pixels; smaller arrays are not images
_MAX_AXES = 12  # axes of an IMU, or channels of audio
_SAMPLED = ("imu", "audio")
_PICTURE_FORMS: dict[tuple[int | None, ...], str] = {
    (): "plane",
    (2,): "vectors",
    (3,): "colors",
    (4,): "colors",
}  # by channels
_NUMBERS = ("b", "i", "u", "f")  # dtypes, as `dtype.str` has them
_RULES: tuple[tuple[Kind, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("samples", "rows", _NUMBERS, _SAMPLED),
    ("labels", "plane", ("b",), ("",)),
    ("labels", "plane", ("i", "u"), ("mask", "seg", "label")),
    ("depth", "plane", _NUMBERS, ("depth",)),
    ("picture", "plane", ("u1",), ("",)),
    ("scale", "plane", _NUMBERS, ("",)),
    ("picture", "colors", ("u1",), ("",)),
    ("flow", "vectors", ("f",), ("",)),
    ("curves", "numbers", _NUMBERS, ("",)),
)
"""Plot type by frame form, dtypes and beginnings of the name; the first match counts."""


def kind_of(
    name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...], declared: str | None = None
) -> Kind:
    """Plot type of a feature, from its kind in the schema, dtype and frame shape.

    The beginning of the name counts if no kind is declared. A pose, a state or points are no
    picture, whatever their shape. Samples are rows [n, C] of an IMU or of audio between two frames;
    n may vary.
    """
    name = declared or name
    form = _form_of(name, shape, may_be_picture=declared not in OTHER_KINDS)
    for kind, rule_form, dtypes, prefixes in _RULES:
        is_of_dtype = dtype.str[1:].startswith(dtypes)
        if form == rule_form and is_of_dtype and name.startswith(prefixes):
            return kind
    return "text"


def _form_of(name: str, shape: tuple[int | None, ...], *, may_be_picture: bool) -> str:
    """The form of frames in `_RULES`; "" for none of these."""
    if len(shape) == 2 and name.startswith(_SAMPLED):
        return "rows" if shape[1] is not None and shape[1] <= _MAX_AXES else ""
    is_large = len(shape) >= 2 and all(n is None or n >= _MIN_SIDE for n in shape[:2])
    if may_be_picture and is_large:
        return _PICTURE_FORMS.get(shape[2:], "")
    sizes: Any = shape  # without `None` where they are multiplied
    is_few = None not in shape and (
        len(shape) < 2 or (len(shape) == 2 and math.prod(sizes) <= MOST_CURVES)
    )
    return "numbers" if is_few else ""


def kind_of_frames(
    name: str, frames: Sequence[npt.NDArray[Any] | str | bytes], declared: str | None = None
) -> Kind:
    """Plot type of frames with possibly different shapes."""
    arrays = [frame for frame in frames if not isinstance(frame, str | bytes)]
    if len(arrays) < len(frames) or len({frame.ndim for frame in arrays}) != 1:
        return "text"
    sizes = zip(*(frame.shape for frame in arrays), strict=True)
    shape = tuple(size[0] if len(set(size)) == 1 else None for size in sizes)
    return kind_of(name, arrays[0].dtype, shape, declared)


Colours = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

NEUTRAL = (72, 76, 84)
"""Color of NaN, infinite and unknown values."""

# Baker, Scharstein, Lewis, Roth, Black, Szeliski: A Database and Evaluation Methodology for Optical
# Flow, IJCV 2011; colorcode.cpp of https://vision.middlebury.edu/flow/. Arcs of the wheel: number
# of steps, changing channel, and whether it increases.
_WHEEL_ARCS = ((15, 1, True), (6, 0, False), (4, 2, True), (11, 1, False), (13, 0, True))
_WHEEL_LAST = (6, 2, False)
_UNKNOWN_FLOW = 1e9


def flow_colours(flow: Floats, longest: float) -> Colours:
    """Map flow [..., 2] in (x, y) to the Middlebury color wheel: direction to hue, length to
    saturation.

    White is no motion; a vector of length `longest` has full color; longer ones are darkened.
    Unknown flow (not finite, or 1e9 and more) is `NEUTRAL`.
    """
    flow = np.asarray(flow, np.float32)
    is_known: npt.NDArray[np.bool_] = np.all(np.abs(flow) < _UNKNOWN_FLOW, axis=-1)
    x, y = np.moveaxis(np.where(is_known[..., None], flow, 0), -1, 0)
    length = np.hypot(x, y) / max(longest, 1e-9)
    position = (np.arctan2(-y, -x) / np.pi + 1) / 2 * (len(_WHEEL) - 1)
    step = position.astype(np.intp)
    part = (position - step)[..., None]
    hue = (1 - part) * _WHEEL[step] + part * _WHEEL[(step + 1) % len(_WHEEL)]
    is_inside = (length <= 1)[..., None]
    colours = np.where(is_inside, 1 - length[..., None] * (1 - hue), hue * 0.75)
    pixels: Colours = (colours * 255 + 0.5).astype(np.uint8)
    pixels[~is_known] = NEUTRAL
    return pixels


def _make_wheel() -> npt.NDArray[np.float64]:
    colour = np.array([1.0, 0.0, 0.0])
    wheel = []
    for steps, channel, rises in (*_WHEEL_ARCS, _WHEEL_LAST):
        for i in range(steps):
            colour[channel] = i / steps if rises else 1 - i / steps
            wheel.append(colour.copy())
        colour[channel] = 1.0 if rises else 0.0
    return np.array(wheel)


_WHEEL = _make_wheel()
