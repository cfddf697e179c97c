"""view: a clip as one picture, features in rows and time in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from seqrecord.clips import ClipSpec
from seqrecord.drawing.panels import Kind, draw_panel, draw_plots, kind_of
from seqrecord.drawing.theme import (
    BACKGROUND,
    DIM,
    LINE,
    TEXT,
    font,
    number_text,
    shortened,
    text_width,
)
from seqrecord.errors import ClipError
from seqrecord.reader import Dataset
from seqrecord.storage import local_path

__all__ = ["contact_sheet", "view"]

Frames = Sequence["npt.NDArray[Any] | None"]

DEFAULT_CLIP_LEN = 16

_MARGIN = 16
_GUTTER = 4
_LABEL_WIDTHS = (104, 240)
_LEGEND_WIDTH = 92
_CELL_WIDTHS = (64, 240)  # pixels: narrower cells show nothing, wider ones fill the screen
_PLOT_HEIGHT = 84
_TEXT_HEIGHT = 26
_NAME_SIZE = 14


def view(
    dataset: Dataset,
    path: str | PathLike[str],
    *,
    key: str | None = None,
    start: int = 0,
    clip_len: int | None = None,
    dilation: int = 1,
    max_columns: int = DEFAULT_CLIP_LEN,
) -> Path:
    """Write a picture of a clip to `path`, as PNG; returns it.

    Shows the features that the dataset was opened with; where a frame lacks one its place is
    empty. A clip of more than `max_columns` frames shows that many, evenly spaced.

    Args:
        dataset: an open dataset.
        path: the picture; one that is there is replaced.
        key: the episode, by default the first.
        start: number of the clip's first frame.
        clip_len: frames in the clip; by default 16, or as many as the episode has from `start`.
        dilation: frames from one to the next.
        max_columns: frames shown.

    Raises `ClipError` for an episode that is not there and a clip that is not inside it.
    """
    target = local_path(path, "the picture")
    key = next(iter(dataset.episodes)) if key is None else key
    dataset.find_episodes([key])
    num_frames = len(dataset.episodes[key])
    if not 0 <= start < num_frames:
        raise ClipError(
            "a clip outside its episode",
            episode=key,
            expected=f"a start of 0 to {num_frames - 1}",
            got=start,
        )
    room = (num_frames - 1 - start) // max(dilation, 1) + 1
    spec = ClipSpec(
        min(DEFAULT_CLIP_LEN, room) if clip_len is None else clip_len, dilation=dilation
    )
    if spec.length > room:
        raise ClipError(
            "a clip longer than what is left of its episode",
            episode=key,
            expected=f"a start of at most {max(0, num_frames - spec.span)} and at most "
            f"{room} frames from {start}",
            got=f"{spec.length} frames from {start}, {spec.dilation} apart",
        )
    every = range(start, start + spec.span, spec.dilation)
    shown = [every[i] for i in _spread(spec.length, max_columns)]
    frames: dict[str, Frames] = {}
    for name, feature in dataset.features.items():
        # A plot costs nothing and shows all of the clip.
        wide = kind_of(name, feature.dtype, feature.shape) == "plot"
        frames[name] = _read(dataset.select([name]), key, name, every if wide else shown)
    apart = f", {spec.dilation} apart" if spec.dilation > 1 else ""
    subtitle = f"frames {every[0]} to {every[-1]} of {num_frames}{apart}"
    sheet = contact_sheet(frames, numbers=shown, title=key, subtitle=subtitle)
    sheet.save(target, format="png")
    return target


def contact_sheet(
    frames: Mapping[str, Frames],
    *,
    numbers: Sequence[int] | None = None,
    title: str = "",
    subtitle: str = "",
    max_width: int = 2400,
) -> Image.Image:
    """One row for each feature, one column for each frame.

    Depth (`depth…`) is shown in a ramp of colours, near bright, with its scale in metres; flow
    [H, W, 2] in the Middlebury wheel; masks and segmentations (`mask…`, `seg…`) in a palette; RGB,
    RGBA and 8-bit grey as they are; other [H, W] in a ramp; vectors and scalars as plots; of
    anything else a line says the range. Scales are robust: a percent of outliers at either end is
    clipped, and what is not a number is grey.

    Args:
        frames: for each feature its frames in order, arrays or `None` for one that is missing.
            Features to be plotted may have more frames than there are columns.
        numbers: the frames' numbers, one for each column; by default 0, 1, ….
        title, subtitle: the heading.
        max_width: pixels; columns get narrower to fit, down to 64 pixels.
    """
    drawn = {name: _known(values) for name, values in frames.items()}
    counts = [len(values) for name, values in frames.items() if _kind(name, drawn[name]) != "plot"]
    columns = len(numbers) if numbers is not None else max(counts, default=8)
    layout = _Layout.fit(columns, max_width, frames)
    rows = [_row(name, values, drawn[name], layout) for name, values in frames.items()]
    header = _header(title, subtitle, numbers or range(columns), layout)
    height = header.height + sum(row.height + _MARGIN // 2 for row in rows) + _MARGIN // 2
    sheet = Image.new("RGB", (layout.width, height), BACKGROUND)
    sheet.paste(header, (0, 0))
    y = header.height
    for row in rows:
        sheet.paste(row, (0, y))
        y += row.height + _MARGIN // 2
    return sheet


@dataclass(frozen=True)
class _Layout:
    columns: int
    cell_width: int
    label_width: int

    @classmethod
    def fit(cls, columns: int, max_width: int, names: Iterable[str]) -> _Layout:
        longest = max((text_width(name, _NAME_SIZE) for name in names), default=0)
        label_width = _clamped(longest + _MARGIN, _LABEL_WIDTHS)
        room = max_width - label_width - _LEGEND_WIDTH - 4 * _MARGIN
        return cls(columns, _clamped(room // max(columns, 1) - _GUTTER, _CELL_WIDTHS), label_width)

    def x(self, column: int) -> int:
        """Left edge of a column."""
        return _MARGIN + self.label_width + column * (self.cell_width + _GUTTER)

    @property
    def frames_width(self) -> int:
        return max(self.columns * (self.cell_width + _GUTTER) - _GUTTER, 320)

    @property
    def legend_x(self) -> int:
        return self.x(0) + self.frames_width + _MARGIN

    @property
    def width(self) -> int:
        return self.legend_x + _LEGEND_WIDTH + _MARGIN


def _header(title: str, subtitle: str, numbers: Sequence[int], layout: _Layout) -> Image.Image:
    top = 46 if title or subtitle else 10
    image = Image.new("RGB", (layout.width, top + 24), BACKGROUND)
    draw = ImageDraw.Draw(image)
    title = shortened(title, layout.width - 2 * _MARGIN, 20)
    draw.text((_MARGIN, 30), title, TEXT, font(20), anchor="ls")
    x = _MARGIN + draw.textlength(title, font(20)) + (14 if title else 0)
    draw.text((x, 30), shortened(subtitle, layout.width - x, 14), DIM, font(14), anchor="ls")
    draw.text((_MARGIN, top + 16), "frame", DIM, font(12), anchor="ls")
    for column, number in enumerate(numbers):
        x = layout.x(column) + layout.cell_width / 2
        draw.text((x, top + 16), str(number), DIM, font(12), anchor="ms")
    return image


def _row(
    name: str, frames: Frames, known: Sequence[npt.NDArray[Any]], layout: _Layout
) -> Image.Image:
    kind = _kind(name, known)
    if kind in ("plot", "text"):
        height = _PLOT_HEIGHT if kind == "plot" else _TEXT_HEIGHT
        row = _labelled(name, known, height, layout)
        if kind == "plot":
            row.paste(draw_plots(frames, (layout.frames_width, height)), (layout.x(0), 0))
        else:
            place = (layout.x(0), height // 2)
            ImageDraw.Draw(row).text(place, _description(known), DIM, font(13), anchor="lm")
        return row
    panel = draw_panel(kind, frames, layout.cell_width, _LEGEND_WIDTH)
    height = max(cell.height for cell in panel.cells if cell is not None)
    row = _labelled(name, known, height, layout)
    for column in range(layout.columns):
        cell = panel.cells[column] if column < len(panel.cells) else None
        if cell is not None:
            row.paste(cell, (layout.x(column), 0))
        else:
            _draw_missing(ImageDraw.Draw(row), layout.x(column), layout.cell_width, height)
    if panel.legend is not None:
        row.paste(panel.legend, (layout.legend_x, 0))
    return row


def _labelled(
    name: str, known: Sequence[npt.NDArray[Any]], height: int, layout: _Layout
) -> Image.Image:
    """An empty row with the feature's name, dtype and shape at its left."""
    row = Image.new("RGB", (layout.width, height), BACKGROUND)
    draw = ImageDraw.Draw(row)
    lines = [(name, TEXT, _NAME_SIZE)]
    if known and height > 40:
        shapes = {frame.shape for frame in known}
        shape = " x ".join(map(str, known[0].shape)) if len(shapes) == 1 else "varying"
        lines += [(known[0].dtype.name, DIM, 12), (shape or "scalar", DIM, 12)]
    y = height / 2 - 8.5 * (len(lines) - 1)
    for text, colour, size in lines:
        fitting = shortened(text, layout.label_width - 8, size)
        draw.text((_MARGIN, y), fitting, colour, font(size), anchor="lm")
        y += 17
    return row


def _draw_missing(draw: ImageDraw.ImageDraw, x: int, width: int, height: int) -> None:
    draw.rectangle((x, 0, x + width - 1, height - 1), outline=LINE)
    draw.text((x + width / 2, height / 2), "missing", DIM, font(12), anchor="mm")


def _description(known: Sequence[npt.NDArray[Any]]) -> str:
    if not known:
        return "missing in all of these frames"
    shapes = sorted({frame.shape for frame in known})
    shown = ", ".join(str(list(shape)) for shape in shapes[:4]) + (", …" if shapes[4:] else "")
    text = f"{known[0].dtype.name} {shown}"
    if known[0].dtype.kind in "biuf":
        values = np.concatenate([frame.ravel().astype(np.float64) for frame in known])
        values = values[np.isfinite(values)]
        if len(values):
            text += f", {number_text(values.min())} to {number_text(values.max())}"
    return text


def _known(values: Frames) -> list[npt.NDArray[Any]]:
    return [value for value in values if value is not None]


def _kind(name: str, known: Sequence[npt.NDArray[Any]]) -> Kind:
    if len({frame.ndim for frame in known}) != 1:
        return "text"
    sizes = zip(*(frame.shape for frame in known), strict=True)
    shape = tuple(size[0] if len(set(size)) == 1 else None for size in sizes)
    return kind_of(name, known[0].dtype, shape)


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced, the first and last among them."""
    if count <= most:
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, max(most, 1)).round()]


def _read(dataset: Dataset, key: str, name: str, numbers: Sequence[int]) -> Frames:
    """These frames of one feature, `None` for those that lack it."""
    episode = dataset.episodes[key]
    present = episode.present(name)
    there = [number for number in numbers if present[number]]
    arrays = iter(episode.read(there)[name]) if there else iter(())
    return [next(arrays) if present[number] else None for number in numbers]


def _clamped(value: float, limits: tuple[int, int]) -> int:
    return int(min(max(value, limits[0]), limits[1]))
