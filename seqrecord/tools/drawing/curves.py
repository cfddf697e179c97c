"""Vectors and scalars: each component over time, in axes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes

from seqrecord.text import range_text
from seqrecord.tools.drawing.page import DIM, SMALL, TEXT, Page, text_width

__all__ = ["PLOT_HEIGHT", "draw_curves"]

PLOT_HEIGHT = 0.56  # inches, with the line of text above it

_TITLE_HEIGHT = 0.12
_GAP = 0.08
_MAX_PLOTS = 12
_MAX_MARKERS = 64  # points; more run into each other


def draw_curves(
    page: Page,
    box: tuple[float, float, float],
    name: str,
    frames: Sequence[npt.NDArray[Any] | None],
    numbers: Sequence[int],
    limits: tuple[float, float],
) -> None:
    """Plots side by side in `box`, which is (x, y, width) in inches, each in its own scale.

    Above each stand the component's number and its range. More than a dozen components are drawn
    into one plot. `numbers` are the frames'; one plot alone spans `limits` of them.
    """
    x, y, width = box
    shape = next(frame.shape for frame in frames if frame is not None)
    lacking = np.full(int(np.prod(shape)), np.nan)
    values = np.stack([lacking if f is None else f.astype(np.float64).ravel() for f in frames])
    values[~np.isfinite(values)] = np.nan
    count = values.shape[1]
    groups = [range(i, i + 1) for i in range(count)] if count <= _MAX_PLOTS else [range(count)]
    each = (width - _GAP * (len(groups) - 1)) / len(groups)
    for place, group in enumerate(groups):
        left = x + place * (each + _GAP)
        height = PLOT_HEIGHT - _TITLE_HEIGHT
        label = f"{name}[{place}]" if len(groups) > 1 else name
        axes = page.axes(left, y + _TITLE_HEIGHT, each, height, label)
        _plot(axes, numbers, values, group)
        if len(groups) == 1:
            axes.set_xlim(limits)
        _title(axes, values[:, group], group, count, each)


def _plot(
    axes: Axes, numbers: Sequence[int], values: npt.NDArray[np.float64], group: Sequence[int]
) -> None:
    colours = colormaps["Set3"].colors  # type: ignore[attr-defined]  # a ListedColormap
    marker = 2.0 if len(numbers) <= _MAX_MARKERS else 0.5  # a point alone has no line
    for component in group:
        colour = colours[component % len(colours)]
        # Not cut: where there are few points, the outer ones lie close to the border.
        axes.plot(
            numbers,
            values[:, component],
            "o-",
            color=colour,
            linewidth=1,
            markersize=marker,
            clip_on=False,
        )
    axes.margins(x=0.03, y=0.12)


def _title(
    axes: Axes, values: npt.NDArray[np.float64], group: Sequence[int], count: int, width: float
) -> None:
    first, last = group[0], group[-1]
    name = "" if count == 1 else f"[{first}]" if first == last else f"[{first} to {last}]"
    axes.set_title(name, loc="left", size=SMALL, color=TEXT, pad=2)
    known = values[np.isfinite(values)]
    between = range_text(float(known.min()), float(known.max())) if len(known) else "not finite"
    if text_width(f"{name} {between}", SMALL) < width:
        axes.set_title(between, loc="right", size=SMALL, color=DIM, pad=2)
