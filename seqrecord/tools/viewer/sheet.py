"""A contact sheet: features in rows, frames in columns, curves over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from seqrecord.store.text import first_of, number_text, one_line, range_text, shape_text
from seqrecord.tools.viewer.kinds import Kind, kind_of_frames
from seqrecord.tools.viewer.page import (
    DIM,
    DPI,
    LINE,
    SMALL,
    TEXT,
    Page,
    styled,
    text_width,
)
from seqrecord.tools.viewer.panels import LEGEND_WIDTH, Panel, make_panel

Array = npt.NDArray[Any]
Frames = Sequence["Array | str | bytes | None"]

# Inches
_WIDTH = 16.0
_MARGIN = 0.11
_GUTTER = 0.027
_ROW_GAP = 0.055
_LABEL_WIDTHS = (0.7, 1.6)
_CELL_WIDTHS = (0.43, 1.6)  # minimum and maximum
_MIN_WIDTH = 2.2  # of all columns together, for curves and texts
_TEXT_HEIGHT = 0.17
_HEADER_HEIGHT = 0.47
_LINE_HEIGHT = 0.115
_ASPECTS = (0.2, 1.5)  # height / width of a cell; other images get margins
_PLOT_HEIGHT = 0.56  # including the title
_TITLE_HEIGHT = 0.12
_PLOT_GAP = 0.08
_MAX_PLOTS = 12
_MAX_MARKERS = 64  # points; more would overlap

_TITLE_SIZE, _SUBTITLE_SIZE, _NAME_SIZE = 10.0, 7.0, 7.0  # points


@dataclass(frozen=True)
class Strip:
    """Frames of a feature (`None` if missing), its declared kind, and its unit."""

    frames: Frames
    kind: str | None = None
    unit: str | None = None


def draw_sheet(
    strips: Mapping[str, Strip],
    *,
    numbers: Sequence[int],
    shown: Sequence[int],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw one row per feature and one column per frame in `shown`.

    Args:
        strips: by feature, frames for each column; for curves, for each of `numbers`.
        numbers: frame numbers of the clip.
        shown: frame numbers with a column.
        title, subtitle: heading.
    """
    layout = _Layout.fit(len(shown), strips)
    rows = [_Row.of(name, strip, layout) for name, strip in strips.items()]
    height = _HEADER_HEIGHT + sum(row.height + _ROW_GAP for row in rows) + _ROW_GAP
    with styled():
        page = Page(layout.width, height)
        _draw_header(page, title, subtitle, shown, layout)
        y = _HEADER_HEIGHT
        for row in rows:
            row.draw(page, y, layout, numbers, shown)
            y += row.height + _ROW_GAP
    return page.figure


@dataclass(frozen=True)
class _Layout:
    columns: int
    cell_width: float
    label_width: float

    @classmethod
    def fit(cls, columns: int, names: Iterable[str]) -> _Layout:
        longest = max((text_width(name, _NAME_SIZE) for name in names), default=0)
        label_width = _clamped(longest + _MARGIN, _LABEL_WIDTHS)
        room = _WIDTH - label_width - LEGEND_WIDTH - 3 * _MARGIN
        return cls(columns, _clamped(room / columns - _GUTTER, _CELL_WIDTHS), label_width)

    @property
    def left(self) -> float:
        """Left edge of the columns."""
        return _MARGIN + self.label_width

    def offset(self, column: int) -> float:
        """Left edge of a column, relative to the first one."""
        return column * (self.cell_width + _GUTTER)

    @property
    def frames_width(self) -> float:
        return max(self.offset(self.columns) - _GUTTER, _MIN_WIDTH)

    @property
    def legend_x(self) -> float:
        return self.left + self.frames_width + _MARGIN

    @property
    def width(self) -> float:
        return self.legend_x + LEGEND_WIDTH + _MARGIN

    def limits(self, shown: Sequence[int]) -> tuple[float, float]:
        """Frame numbers at both ends of a plot whose points lie below the columns' middles."""
        step = (shown[-1] - shown[0]) / max(len(shown) - 1, 1) or 1.0
        scale = step / (self.cell_width + _GUTTER)  # frames an inch
        left_number = shown[0] - scale * self.cell_width / 2
        return left_number, left_number + scale * self.frames_width


def _draw_header(
    page: Page, title: str, subtitle: str, shown: Sequence[int], layout: _Layout
) -> None:
    full_width = page.width - 2 * _MARGIN
    room = max(full_width - text_width(subtitle, _SUBTITLE_SIZE) - 0.1, full_width / 2)
    heading = page.text(_MARGIN, 0.2, title, room=room, size=_TITLE_SIZE, va="baseline")
    x = _MARGIN + text_width(heading.get_text(), _TITLE_SIZE) + 0.1 * bool(title)
    room = page.width - _MARGIN - x
    page.text(x, 0.2, subtitle, room=room, size=_SUBTITLE_SIZE, color=DIM, va="baseline")
    y = _HEADER_HEIGHT - 0.04
    page.text(_MARGIN, y, "frame", color=DIM, va="baseline")
    for column, number in enumerate(shown):
        x = layout.left + layout.offset(column) + layout.cell_width / 2
        page.text(x, y, str(number), color=DIM, ha="center", va="baseline")


@dataclass(frozen=True)
class _Row:
    """One feature. `panel` is there for what is shown as pictures."""

    name: str
    strip: Strip
    kind: Kind
    height: float
    panel: Panel | None = None

    @property
    def arrays(self) -> list[Array]:
        """Frames that are arrays."""
        return [f for f in self.strip.frames if f is not None and not isinstance(f, str | bytes)]

    @classmethod
    def of(cls, name: str, strip: Strip, layout: _Layout) -> _Row:
        frames = [frame for frame in strip.frames if frame is not None]
        kind = kind_of_frames(name, frames, strip.kind)
        row = cls(name, strip, kind, _TEXT_HEIGHT if kind == "text" else _PLOT_HEIGHT)
        if kind in ("text", "curves", "samples"):
            return row
        arrays = row.arrays
        width = layout.cell_width
        height = width * _clamped(arrays[0].shape[0] / arrays[0].shape[1], _ASPECTS)
        panel = make_panel(kind, [_thinned(f, width, height) for f in arrays], strip.unit)
        return replace(row, height=height, panel=panel)

    def draw(
        self, page: Page, y: float, layout: _Layout, numbers: Sequence[int], shown: Sequence[int]
    ) -> None:
        self._draw_label(page, y, layout)
        if self.panel is not None:
            self._draw_cells(page, y, layout, self.panel)
            if self.panel.legend is not None:
                self.panel.legend(page, layout.legend_x, y, self.height)
        elif self.kind != "text":
            frame_numbers = numbers if len(self.strip.frames) == len(numbers) else shown
            points = _samples if self.kind == "samples" else _components
            box = (layout.left, y, layout.frames_width)
            _draw_curves(
                page, box, self, points(self.strip.frames, frame_numbers), layout.limits(shown)
            )
        else:
            self._draw_texts(page, y + self.height / 2, layout)

    def _draw_texts(self, page: Page, y: float, layout: _Layout) -> None:
        """Draw texts below their frames, merging equal neighbors; for other values, one line."""
        frames: Sequence[Any] = self.strip.frames
        if self.arrays or all(frame is None for frame in frames):
            frames = [_description(self.arrays)]
        column = 0
        for text, group in groupby(map(_text_of, frames)):
            left_edge, column = layout.offset(column), column + len(list(group))
            right_edge = (
                layout.offset(column) if column < len(frames) else layout.width - layout.left
            )
            room = right_edge - left_edge - _MARGIN
            page.text(layout.left + left_edge, y, text, room=room, color=DIM)

    def _draw_label(self, page: Page, y: float, layout: _Layout) -> None:
        """Draw the feature's name, dtype and shape."""
        arrays = self.arrays
        lines = [self.name]
        if arrays and self.height > 3 * _LINE_HEIGHT:
            shapes = {frame.shape for frame in arrays}
            shape = shape_text(arrays[0].shape) if len(shapes) == 1 else "varying"
            lines += [arrays[0].dtype.name, shape]
        line = y + self.height / 2 - _LINE_HEIGHT * (len(lines) - 1) / 2
        for place, text in enumerate(lines):
            style: dict[str, Any] = {"color": DIM} if place else {"size": _NAME_SIZE}
            page.text(_MARGIN, line, text, room=layout.label_width - 0.05, **style)
            line += _LINE_HEIGHT

    def _draw_cells(self, page: Page, y: float, layout: _Layout, panel: Panel) -> None:
        # Units of these axes are inches, from the upper left corner.
        axes = page.axes(layout.left, y, layout.frames_width, self.height, self.name)
        axes.set_axis_off()
        images = iter(panel.images)
        for column, frame in enumerate(self.strip.frames):
            left_edge = layout.offset(column)
            if frame is None:
                box = Rectangle(
                    (left_edge, 0), layout.cell_width, self.height, fill=False, ec=LINE, lw=1
                )
                axes.add_patch(box)
                middle = (left_edge + layout.cell_width / 2, self.height / 2)
                axes.text(*middle, "missing", color=DIM, ha="center", va="center")
                continue
            image = next(images)
            extent = _inside(image.shape, left_edge, layout.cell_width, self.height)
            axes.imshow(
                image, extent=extent, aspect="auto", interpolation_stage="rgba", **panel.options
            )
        axes.set_xlim(0, layout.frames_width)
        axes.set_ylim(self.height, 0)


def _inside(
    shape: tuple[int, ...], cell_left: float, width: float, height: float
) -> tuple[float, float, float, float]:
    """Extent of an image in its cell, undistorted: left, right, bottom, top."""
    scale = min(width / shape[1], height / shape[0])
    x, y = (width - scale * shape[1]) / 2, (height - scale * shape[0]) / 2
    return cell_left + x, cell_left + width - x, height - y, y


def _thinned(frame: Array, width: float, height: float) -> Array:
    """Subsample a frame with more than twice the pixels of its cell."""
    rows, columns = frame.shape[:2]
    step = max(1, min(int(rows / (2 * height * DPI)), int(columns / (2 * width * DPI))))
    return frame[::step, ::step]


def _description(arrays: Sequence[Array]) -> str:
    if not arrays:
        return "missing in all frames"
    shapes = sorted({frame.shape for frame in arrays})
    text = f"{arrays[0].dtype.name} {first_of([list(shape) for shape in shapes], 4)}"
    if arrays[0].dtype.kind in "biuf":
        values = np.concatenate([frame.ravel().astype(np.float64) for frame in arrays])
        values = values[np.isfinite(values)]
        if len(values):
            text += f", {number_text(values.min())} to {number_text(values.max())}"
    return text


def _text_of(frame: str | bytes | None) -> str:
    if frame is None:
        return "missing"
    return one_line(frame) if isinstance(frame, str) else f"{len(frame)} bytes"


def _clamped(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _draw_curves(
    page: Page,
    box: tuple[float, float, float],
    row: _Row,
    points: tuple[Array, Array],
    limits: tuple[float, float],
) -> None:
    """Draw plots side by side in `box` (x, y, width in inches), each with its own scale.

    Each has the component's number and range as title. More than 12 components share one plot.
    `points` are frame numbers [n] and values [n, C]; a single plot spans `limits` of the frame
    numbers.
    """
    x, y, width = box
    numbers, values = points
    values[~np.isfinite(values)] = np.nan
    count = values.shape[1]
    groups = [range(i, i + 1) for i in range(count)] if count <= _MAX_PLOTS else [range(count)]
    plot_width = (width - _PLOT_GAP * (len(groups) - 1)) / len(groups)
    for place, group in enumerate(groups):
        left_edge = x + place * (plot_width + _PLOT_GAP)
        height = _PLOT_HEIGHT - _TITLE_HEIGHT
        label = f"{row.name}[{place}]" if len(groups) > 1 else row.name
        axes = page.axes(left_edge, y + _TITLE_HEIGHT, plot_width, height, label)
        _plot(axes, numbers, values, group)
        if len(groups) == 1:
            axes.set_xlim(limits)
        _title(axes, values[:, group], group, count, plot_width, row.strip.unit)


def _components(frames: Sequence[Any], numbers: Sequence[int]) -> tuple[Array, Array]:
    """Points of frames: one per frame, with all values flattened."""
    lacking = np.full(next(frame.size for frame in frames if frame is not None), np.nan)
    rows = [lacking if f is None else f.astype(np.float64).ravel() for f in frames]
    return np.array(numbers), np.stack(rows)


def _samples(frames: Sequence[Any], numbers: Sequence[int]) -> tuple[Array, Array]:
    """Points of samples: one per row, evenly spaced up to the next frame."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    lacking = np.full((1, next(frame.shape[1] for frame in frames if frame is not None)), np.nan)
    rows = [lacking if f is None else f.astype(np.float64) for f in frames]
    places = [n + step * np.arange(len(r)) / len(r) for n, r in zip(numbers, rows, strict=True)]
    return np.concatenate(places), np.concatenate(rows)


def _plot(
    axes: Axes, numbers: Array, values: npt.NDArray[np.float64], group: Sequence[int]
) -> None:
    colours = colormaps["Set3"].colors  # type: ignore[attr-defined]  # a ListedColormap
    marker = 2.0 if len(numbers) <= _MAX_MARKERS else 0.5  # single points have no line
    for component in group:
        colour = colours[component % len(colours)]
        # Not clipped: with few points, the outer ones are near the border.
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
    axes: Axes,
    values: npt.NDArray[np.float64],
    group: Sequence[int],
    count: int,
    width: float,
    unit: str | None,
) -> None:
    first_component, last_component = group[0], group[-1]
    name = (
        ""
        if count == 1
        else f"[{first_component}]"
        if first_component == last_component
        else f"[{first_component} to {last_component}]"
    )
    axes.set_title(name, loc="left", size=SMALL, color=TEXT, pad=2)
    finite_values = values[np.isfinite(values)]
    value_range = (
        range_text(float(finite_values.min()), float(finite_values.max()))
        if len(finite_values)
        else "not finite"
    )
    value_range += f" {unit}" if unit and len(finite_values) else ""
    if text_width(f"{name} {value_range}", SMALL) < width:
        axes.set_title(value_range, loc="right", size=SMALL, color=DIM, pad=2)
