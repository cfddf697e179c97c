"""How a feature looks on a contact sheet: its frames as pictures, and the legend beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from seqrecord.drawing.colours import flow_colours, label_colours, ramp_colours
from seqrecord.drawing.theme import BACKGROUND, DIM, LINE, TEXT, font, number_text, range_text

__all__ = ["Kind", "Panel", "draw_panel", "draw_plots", "kind_of"]

Kind = Literal["picture", "depth", "flow", "labels", "ramp", "plot", "text"]
Array = npt.NDArray[Any]

_SAMPLES = 200_000  # values that a scale is worked out from
_MAX_PLOTS = 12
_LEAST_SIDE = 8  # pixels; a smaller array is no picture
_NEAR_LIMIT = 50  # times the lower quartile: what is farther is sky


def kind_of(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Kind:
    """How to show a feature, from the beginning of its name, its dtype and its frames' shape."""
    grid = len(shape) >= 2 and all(n is None or n >= _LEAST_SIDE for n in shape[:2])
    if grid and len(shape) == 2 and dtype.kind in "biuf":
        if dtype.kind == "b" or (name.startswith(("mask", "seg", "label")) and dtype.kind != "f"):
            return "labels"
        if name.startswith("depth"):
            return "depth"
        return "picture" if dtype == np.uint8 else "ramp"
    if grid and len(shape) == 3 and dtype == np.uint8 and shape[2] in (3, 4):
        return "picture"
    if grid and len(shape) == 3 and dtype.kind == "f" and shape[2] == 2:
        return "flow"
    if len(shape) <= 1 and dtype.kind in "biuf" and None not in shape:
        return "plot"
    return "text"


@dataclass(frozen=True)
class Panel:
    """One row: a picture for each column, `None` where the frame lacks the feature."""

    cells: list[Image.Image | None]
    legend: Image.Image | None


def draw_panel(
    kind: Kind, frames: Sequence[Array | None], cell_width: int, legend_width: int
) -> Panel:
    """The frames as pictures `cell_width` wide, in one scale that is the same for all of them.

    `frames` are at least one array of a kind other than `plot` and `text`, and any number of
    `None`.
    """
    known = [frame for frame in frames if frame is not None]
    height, width = known[0].shape[:2]
    # An image's own proportions, within reason.
    cell = (cell_width, round(cell_width * min(max(height / width, 0.2), 1.5)))
    steps = [max(1, min(f.shape[0] // (2 * cell[1]), f.shape[1] // (2 * cell[0]))) for f in known]
    thinned = [f[::step, ::step] for f, step in zip(known, steps, strict=True)]
    paint, legend = _PAINTERS[kind](thinned, (legend_width, cell[1]))
    # What is painted by value must not be mixed with its neighbours.
    sharp = kind == "labels"
    pictures = iter([_fit(paint(frame), cell, sharp) for frame in thinned])
    return Panel([None if frame is None else next(pictures) for frame in frames], legend)


_Painter = Callable[[Array], npt.NDArray[np.uint8]]
_Painted = tuple[_Painter, "Image.Image | None"]


def _paint_picture(frames: Sequence[Array], size: tuple[int, int]) -> _Painted:  # noqa: ARG001
    def paint(frame: Array) -> npt.NDArray[np.uint8]:
        if frame.ndim == 3 and frame.shape[2] == 4:
            alpha = frame[..., 3:].astype(np.float32) / 255
            mixed = frame[..., :3] * alpha + np.array(BACKGROUND) * (1 - alpha)
            return (mixed + 0.5).astype(np.uint8)
        return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, axis=2)

    return paint, None


def _paint_depth(frames: Sequence[Array], size: tuple[int, int]) -> _Painted:
    values = _finite_sample(frames)
    values = values[values > 0]
    low, high = 1.0, 1.0
    if len(values):
        low, quartile = np.percentile(values, [1, 25]).tolist()
        high = min(_robust_max(values), _NEAR_LIMIT * quartile)
    # Near is bright. Where depths span more than a few times the nearest, equal ratios get equal
    # steps of colour, so that the near half is not all one colour.
    log = high > 6 * low

    def paint(frame: Array) -> npt.NDArray[np.uint8]:
        depth = frame.astype(np.float32)
        depth = np.where(depth > 0, depth, np.float32(np.nan))
        return ramp_colours(1 - _scaled(depth, low, high, log))

    middle = float(np.sqrt(low * high)) if log else (low + high) / 2
    beyond = ">" if len(values) and float(values.max()) > high else ""
    ticks = [f"{beyond}{number_text(high)} m", f"{number_text(middle)} m", f"{number_text(low)} m"]
    return paint, _ramp_legend(size, ticks, bright_on_top=False)


def _paint_ramp(frames: Sequence[Array], size: tuple[int, int]) -> _Painted:
    values = _finite_sample(frames)
    low, high = np.percentile(values, [1, 99]).tolist() if len(values) else (0.0, 1.0)

    def paint(frame: Array) -> npt.NDArray[np.uint8]:
        return ramp_colours(_scaled(frame.astype(np.float32), low, high, log=False))

    ticks = [number_text(value) for value in (high, (low + high) / 2, low)]
    return paint, _ramp_legend(size, ticks, bright_on_top=True)


def _paint_flow(frames: Sequence[Array], size: tuple[int, int]) -> _Painted:
    lengths = [np.hypot(*np.moveaxis(np.asarray(f, np.float32), -1, 0)) for f in frames]
    values = _finite_sample(lengths)
    values = values[values < 1e9]
    longest = max(_robust_max(values) if len(values) else 1.0, 1e-3)
    return (lambda frame: flow_colours(frame, longest)), _wheel_legend(size, longest)


def _paint_labels(frames: Sequence[Array], size: tuple[int, int]) -> _Painted:
    sample = np.concatenate([_thinned(frame, len(frames)) for frame in frames])
    values, counts = np.unique(sample, return_counts=True)
    common = values[np.argsort(-counts, kind="stable")]
    return label_colours, _swatch_legend(size, common)


_PAINTERS: dict[str, Callable[[Sequence[Array], tuple[int, int]], _Painted]] = {
    "picture": _paint_picture,
    "depth": _paint_depth,
    "flow": _paint_flow,
    "labels": _paint_labels,
    "ramp": _paint_ramp,
}


def draw_plots(frames: Sequence[Array | None], size: tuple[int, int]) -> Image.Image:
    """Each component of a vector over time, side by side, each in its own scale.

    Above each plot stand the component's number and its range. More than a dozen components are
    drawn into one plot in one scale.
    """
    width, height = size
    shape = next(frame.shape for frame in frames if frame is not None)
    lacking = np.full(int(np.prod(shape)), np.nan)
    values = np.stack([lacking if f is None else f.astype(np.float64).ravel() for f in frames])
    values[~np.isfinite(values)] = np.nan
    sheet = Image.new("RGB", size, BACKGROUND)
    groups = [[i] for i in range(values.shape[1])]
    if len(groups) > _MAX_PLOTS:
        groups = [list(range(values.shape[1]))]
    gap = 12
    each = (width - gap * (len(groups) - 1)) / len(groups)
    for position, group in enumerate(groups):
        left = round(position * (each + gap))
        box = (left, 16, left + int(each) - 1, height - 1)
        _draw_plot(ImageDraw.Draw(sheet), box, values[:, group], group, len(groups) > 1)
    return sheet


def _draw_plot(
    draw: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    values: npt.NDArray[np.float64],
    group: Sequence[int],
    many: bool,
) -> None:
    """Components `group` of a vector in one plot; `many` where there are other plots."""
    left, top, right, bottom = box
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    name = f"[{group[0]} to {group[-1]}]" if len(group) > 1 else f"[{group[0]}]" if many else ""
    draw.text((left, top - 4), name, TEXT, font(11), anchor="ls")
    between = range_text(low, high)
    if draw.textlength(f"{name} {between}", font(11)) < right - left:
        draw.text((right, top - 4), between, DIM, font(11), anchor="rs")
    draw.rectangle(box, outline=LINE)
    margin = 5
    room = high - low or 1.0
    x = np.linspace(left + margin, right - margin, max(len(values), 2))
    y = (bottom - margin) - (values - low) / room * (bottom - top - 2 * margin)
    if low == high:
        y = np.where(np.isfinite(values), (top + bottom) / 2, np.nan)
    for column in range(values.shape[1]):
        colour = tuple(label_colours(np.array(group[column] + 1)).tolist())
        for start, stop in _runs(np.isfinite(y[:, column])):
            points = [(float(x[i]), float(y[i, column])) for i in range(start, stop)]
            if len(points) > 1:
                draw.line(points, colour, width=2, joint="curve")
            for px, py in points if len(values) <= 64 or len(points) == 1 else []:
                draw.ellipse((px - 2, py - 2, px + 2, py + 2), colour)


def _runs(known: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open runs of true values."""
    edges = np.diff(np.concatenate([[0], known.astype(np.int8), [0]]))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _fit(colours: npt.NDArray[np.uint8], size: tuple[int, int], sharp: bool) -> Image.Image:
    """The picture in a box of `size`, whole and undistorted."""
    image = Image.fromarray(np.ascontiguousarray(colours))
    scale = min(size[0] / image.width, size[1] / image.height)
    fitting = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    method = Image.Resampling.NEAREST if sharp or scale > 1 else Image.Resampling.LANCZOS
    image = image.resize(fitting, method)
    if fitting == size:
        return image
    box = Image.new("RGB", size, BACKGROUND)
    box.paste(image, ((size[0] - fitting[0]) // 2, (size[1] - fitting[1]) // 2))
    return box


def _scaled(
    values: npt.NDArray[np.float32], low: float, high: float, log: bool
) -> npt.NDArray[np.float32]:
    """`low` as 0 and `high` as 1."""
    if log:
        values, low, high = np.log(np.maximum(values, np.float32(low))), np.log(low), np.log(high)
    scaled: npt.NDArray[np.float32] = (values - np.float32(low)) / np.float32(max(high - low, 1e-9))
    return scaled


def _robust_max(values: npt.NDArray[np.float64]) -> float:
    """The greatest value, or what is a quarter above all but a percent of them."""
    return min(float(values.max()), 1.25 * float(np.percentile(values, 99)))


def _finite_sample(frames: Sequence[Array]) -> npt.NDArray[np.float64]:
    sample = np.concatenate([_thinned(f, len(frames)).astype(np.float64) for f in frames])
    finite: npt.NDArray[np.float64] = sample[np.isfinite(sample)]
    return finite


def _thinned(frame: Array, count: int) -> Array:
    flat = frame.ravel()
    return flat[:: max(1, len(flat) * count // _SAMPLES)]


def _ramp_legend(
    size: tuple[int, int], ticks: Sequence[str], *, bright_on_top: bool
) -> Image.Image:
    """A bar with three numbers: at the top, in the middle, at the bottom."""
    image = Image.new("RGB", size, BACKGROUND)
    height = size[1]
    steps = np.linspace(0, 1, height)
    bar = ramp_colours((steps[::-1] if bright_on_top else steps)[:, None].repeat(12, axis=1))
    image.paste(Image.fromarray(bar), (0, 0))
    draw = ImageDraw.Draw(image)
    places = ((0, "lt"), (height // 2, "lm"), (height - 1, "lb"))
    room = height // 18  # lines of text
    for (y, anchor), text in list(zip(places, ticks, strict=True))[:: 1 if room >= 3 else 2]:
        draw.text((18, y), text, TEXT, font(12), anchor=anchor)
    return image


def _wheel_legend(size: tuple[int, int], longest: float) -> Image.Image:
    image = Image.new("RGB", size, BACKGROUND)
    side = min(size[0] - 8, size[1] - 20, 84)
    if side >= 16:
        fine = 4 * side
        axis = (np.arange(fine) + 0.5) / fine * 2 - 1
        x, y = np.meshgrid(axis, axis)
        wheel = Image.fromarray(flow_colours(np.stack([x, y], axis=-1), 1.0))
        disc = Image.fromarray(((np.hypot(x, y) <= 1) * np.uint8(255)).astype(np.uint8))
        small = (side, side)
        top = (size[1] - side - 20) // 2
        image.paste(wheel.resize(small), (0, top), disc.resize(small))
        place = (side / 2, top + side + 5)
        text = f"rim {number_text(longest)} px"
        draw = ImageDraw.Draw(image)
        half = draw.textlength(text, font(12)) / 2
        draw.text((max(place[0], half), place[1]), text, TEXT, font(12), anchor="mt")
    return image


def _swatch_legend(size: tuple[int, int], values: Array) -> Image.Image:
    """The most common labels, as many as there is room for in two columns."""
    image = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(image)
    line = 17
    rows = max(1, size[1] // line)
    room = rows if len(values) <= rows else 2 * rows
    shown = np.sort(values[: room if len(values) <= room else room - 1])
    for position, value in enumerate(shown.tolist()):
        x, y = position // rows * (size[0] // 2), position % rows * line
        colour = tuple(label_colours(np.array(value)).tolist())
        draw.rectangle((x, y + 1, x + 11, y + 12), colour, LINE)
        draw.text((x + 17, y + 7), str(int(value)), TEXT, font(12), anchor="lm")
    if len(shown) < len(values):
        place = (size[0] // 2, (rows - 1) * line + 7)
        draw.text(place, f"+{len(values) - len(shown)}", DIM, font(12), anchor="lm")
    return image
