"""How a feature is shown: as what, and flow and labels in colours, which matplotlib has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["NEUTRAL", "Kind", "flow_colours", "kind_of", "kind_of_frames", "label_colours"]

Kind = Literal["picture", "depth", "flow", "labels", "scale", "curves", "text"]

_LEAST_SIDE = 8  # pixels; a smaller array is no picture


def kind_of(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Kind:
    """How to show a feature, from the beginning of its name, its dtype and its frames' shape."""
    grid = len(shape) >= 2 and all(n is None or n >= _LEAST_SIDE for n in shape[:2])
    if grid and len(shape) == 2 and dtype.kind in "biuf":
        if dtype.kind == "b" or (name.startswith(("mask", "seg", "label")) and dtype.kind != "f"):
            return "labels"
        if name.startswith("depth"):
            return "depth"
        return "picture" if dtype == np.uint8 else "scale"
    if grid and len(shape) == 3 and dtype == np.uint8 and shape[2] in (3, 4):
        return "picture"
    if grid and len(shape) == 3 and dtype.kind == "f" and shape[2] == 2:
        return "flow"
    if len(shape) <= 1 and dtype.kind in "biuf" and None not in shape:
        return "curves"
    return "text"


def kind_of_frames(name: str, frames: Sequence[npt.NDArray[Any]]) -> Kind:
    """The same from the frames themselves, whose shapes may differ."""
    if len({frame.ndim for frame in frames}) != 1:
        return "text"
    sizes = zip(*(frame.shape for frame in frames), strict=True)
    shape = tuple(size[0] if len(set(size)) == 1 else None for size in sizes)
    return kind_of(name, frames[0].dtype, shape)


Colours = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

NEUTRAL = (72, 76, 84)
"""What is not a number, is infinite, or is unknown."""

# Baker, Scharstein, Lewis, Roth, Black, Szeliski: A Database and Evaluation Methodology for Optical
# Flow, IJCV 2011; colorcode.cpp of https://vision.middlebury.edu/flow/. Colours from one corner to
# the next: (steps, which channel changes, and whether it rises).
_WHEEL_ARCS = ((15, 1, True), (6, 0, False), (4, 2, True), (11, 1, False), (13, 0, True))
_WHEEL_LAST = (6, 2, False)
_UNKNOWN_FLOW = 1e9


def flow_colours(flow: Floats, longest: float) -> Colours:
    """The Middlebury colour wheel for flow [..., 2] in (x, y): direction as hue, length as colour.

    White is no motion, full colour a vector of length `longest`; longer ones are darkened. Unknown
    flow, which is not finite or beyond 1e9, is `NEUTRAL`.
    """
    flow = np.asarray(flow, np.float32)
    known: npt.NDArray[np.bool_] = np.all(np.abs(flow) < _UNKNOWN_FLOW, axis=-1)
    x, y = np.moveaxis(np.where(known[..., None], flow, 0), -1, 0)
    length = np.hypot(x, y) / max(longest, 1e-9)
    position = (np.arctan2(-y, -x) / np.pi + 1) / 2 * (len(_WHEEL) - 1)
    before = position.astype(np.intp)
    part = (position - before)[..., None]
    hue = (1 - part) * _WHEEL[before] + part * _WHEEL[(before + 1) % len(_WHEEL)]
    inside = (length <= 1)[..., None]
    colours = np.where(inside, 1 - length[..., None] * (1 - hue), hue * 0.75)
    result: Colours = (colours * 255 + 0.5).astype(np.uint8)
    result[~known] = NEUTRAL
    return result


def label_colours(labels: npt.NDArray[Any]) -> Colours:
    """A colour of its own for each class of 255; 0 is dark, and larger numbers begin again."""
    numbers = labels.astype(np.int64)
    colours: Colours = _PALETTE[np.where(numbers == 0, 0, (numbers - 1) % (len(_PALETTE) - 1) + 1)]
    return colours


def _make_wheel() -> npt.NDArray[np.float64]:
    colour = np.array([1.0, 0.0, 0.0])
    wheel = []
    for steps, channel, rises in (*_WHEEL_ARCS, _WHEEL_LAST):
        for i in range(steps):
            colour[channel] = i / steps if rises else 1 - i / steps
            wheel.append(colour.copy())
        colour[channel] = 1.0 if rises else 0.0
    return np.array(wheel)


def _make_palette() -> Colours:
    """Hues that turn by the golden angle, in three shades, so that neighbours are far apart."""
    number = np.arange(255)
    hue = number * np.pi * (3 - np.sqrt(5)) + 0.5
    lightness = np.array([0.72, 0.56, 0.86])[number // 3 % 3]
    chroma = np.array([0.16, 0.15, 0.11])[number // 3 % 3]
    # OKLab to sRGB, Björn Ottosson: https://bottosson.github.io/posts/oklab/
    a, b = chroma * np.cos(hue), chroma * np.sin(hue)
    cone = np.stack(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    ) @ (cone**3)
    linear = np.clip(linear, 0, 1).T
    colours = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.concatenate([[[36, 40, 47]], np.round(colours * 255)]).astype(np.uint8)


_WHEEL = _make_wheel()
_PALETTE = _make_palette()
