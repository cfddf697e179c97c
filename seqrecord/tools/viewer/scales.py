"""Colors of depth, flow, labels and other numbers per pixel, and the ranges of their scales."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_SAMPLES = 200_000  # values sampled for a scale
_NEAR_LIMIT = 50  # times the lower quartile; farther pixels are sky
_UNKNOWN_FLOW = 1e9


def depth_range(frames: Sequence[Array]) -> tuple[float, float, bool]:
    """Range of the positive depths, without the sky, and whether values lie beyond its end."""
    values = finite_sample(frames)
    values = values[values > 0]
    if not len(values):
        return 1.0, 1.0, False
    low, quartile = np.percentile(values, [1, 25]).tolist()
    high = min(_robust_max(values), _NEAR_LIMIT * quartile)
    return low, high, float(values.max()) > high


def is_logarithmic(low: float, high: float) -> bool:
    """Whether a depth scale is logarithmic, so that near depths differ in color."""
    return high > 6 * low


def value_range(frames: Sequence[Array]) -> tuple[float, float]:
    """The 1st and 99th percentile of the finite values."""
    values = finite_sample(frames)
    low, high = np.percentile(values, [1, 99]).tolist() if len(values) else (0.0, 1.0)
    return low, high


def longest_flow(frames: Sequence[Array]) -> float:
    """Length of flow with full color."""
    lengths = [np.hypot(frame[..., 0], frame[..., 1]) for frame in floats(frames)]
    values = finite_sample(lengths)
    values = values[values < _UNKNOWN_FLOW]
    return max(_robust_max(values) if len(values) else 1.0, 1e-3)


def floats(frames: Sequence[Array]) -> list[Array]:
    """The frames as float64."""
    return [np.asarray(frame, np.float64) for frame in frames]


def thinned(frame: Array, count: int) -> Array:
    """Evenly spaced values of a frame; fewer if there are more frames."""
    flat = frame.ravel()
    return flat[:: max(1, len(flat) * count // _SAMPLES)]


def finite_sample(frames: Sequence[Array]) -> npt.NDArray[np.float64]:
    """Finite values of the frames, evenly spaced."""
    sample = np.concatenate([thinned(f, len(frames)).astype(np.float64) for f in frames])
    finite: npt.NDArray[np.float64] = sample[np.isfinite(sample)]
    return finite


def _robust_max(values: npt.NDArray[np.float64]) -> float:
    """Maximum, limited to 1.25 times the 99th percentile."""
    return min(float(values.max()), 1.25 * float(np.percentile(values, 99)))


def label_colours(labels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Map labels to 255 colors, repeated for larger numbers; 0 is dark."""
    numbers = labels.astype(np.int64)
    colours: npt.NDArray[np.uint8] = _PALETTE[
        np.where(numbers == 0, 0, (numbers - 1) % (len(_PALETTE) - 1) + 1)
    ]
    return colours


def _make_palette() -> npt.NDArray[np.uint8]:
    """Hues in steps of the golden angle, in three shades, so that adjacent labels differ."""
    shades = ((0.55, 0.85), (0.85, 0.75), (0.45, 1.0))  # saturation, value
    hues = [number * (3 - math.sqrt(5)) / 2 % 1 for number in range(255)]
    colours = [colorsys.hsv_to_rgb(hue, *shades[i // 3 % 3]) for i, hue in enumerate(hues)]
    return np.concatenate([[[36, 40, 47]], np.round(255 * np.array(colours))]).astype(np.uint8)


_PALETTE = _make_palette()
