"""How all plots look: colours, sizes, labels beside what they label."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COLOURS", "GREY", "OURS", "label_ends", "new_figure", "number", "plain_log", "save"]

# Okabe and Ito's colours, which people with any colour vision tell apart:
# https://jfly.uni-koeln.de/color/
OURS, GREY = "#D55E00", "#8C8C8C"
COLOURS = {
    "seqrecord": OURS,
    "original": "#000000",
    "webdataset": "#009E73",
    "memmap": "#0072B2",
}
"""Of loaders that have lines: the same in every plot."""

_TEXT = 9.0  # points


def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1, **shared: Any
) -> tuple[Any, Any]:
    """A figure of so many inches, and its axes: one, or an array of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, **shared)
    for one in np.atleast_1d(axes).reshape(-1):
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=_TEXT)
    return figure, axes


def number(value: float) -> str:
    """With the digits that matter: `7.2`, `185`, `45,196`."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def plain_log(axes: Any) -> None:
    """A logarithmic scale along y, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def save(figure: Any, path: Path) -> Path:
    """As a small PNG."""
    from PIL import Image

    figure.savefig(path, dpi=120)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path


def label_ends(axes: Any, ends: Mapping[str, tuple[float, float]]) -> None:
    """Write each line's name beside its last point (x, y), moved where texts would overlap.

    The name's first word is its loader's. Limits and scales of the axes must be set before.
    """
    figure = axes.get_figure()
    figure.canvas.draw()  # places are known only then
    points = axes.transData.transform(list(ends.values()))
    apart = 1.35 * _TEXT * figure.dpi / 72
    for (name, end), pixel, place in zip(
        ends.items(), points, _spread(points[:, 1], apart), strict=True
    ):
        axes.annotate(
            name,
            end,
            (6, (place - pixel[1]) * 72 / figure.dpi),
            textcoords="offset points",
            color=COLOURS[name.split(" ")[0]],
            fontsize=_TEXT,
            va="center",
            annotation_clip=False,
        )


def _spread(places: npt.NDArray[np.float64], apart: float) -> list[float]:
    """Places in the same order, at least `apart`, moved as little as it takes going up."""
    moved = np.array(places, float)
    order = np.argsort(moved, kind="stable")
    for _ in range(len(moved)):  # neighbours push each other away by half of what is lacking
        for lower, upper in pairwise(order):
            lacking = apart - (moved[upper] - moved[lower])
            if lacking > 0:
                moved[lower] -= lacking / 2
                moved[upper] += lacking / 2
    values: list[float] = moved.tolist()
    return values
