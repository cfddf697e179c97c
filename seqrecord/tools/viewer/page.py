"""A figure with a layout in inches from its upper left corner, and the style of all plots."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from seqrecord.store.processes.forks import PerProcess

BACKGROUND = "#16181c"
TEXT = "#e4e7ec"
DIM = "#8a909a"
LINE = "#3c414a"

DPI = 150
SMALL = 6.0
"""In points."""

_FONT = "DejaVu Sans"  # included in matplotlib: plots are the same on all machines
_UNKNOWN = "\N{WHITE SQUARE}"

_STYLE = {
    "axes.edgecolor": LINE,
    "axes.facecolor": BACKGROUND,
    "axes.linewidth": 0.5,
    "figure.facecolor": BACKGROUND,
    "font.family": _FONT,
    "font.size": SMALL,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0,
    "legend.frameon": False,
    "legend.handleheight": 1,
    "legend.handlelength": 1,
    "legend.handletextpad": 0.5,
    "text.color": TEXT,
    "text.parse_math": False,  # keys may contain dollar signs
    "xtick.color": DIM,
    "ytick.color": LINE,
    "ytick.labelcolor": TEXT,
}


_lock = PerProcess(threading.Lock)  # matplotlib settings are global


class _Picture(Figure):
    """A figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi="figure")
        return file.getvalue()


class Page:
    """A figure with a size in inches. Positions are in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        # Whole pixels; others would be cut off.
        self.width, self.height = math.ceil(width * DPI) / DPI, math.ceil(height * DPI) / DPI
        self.figure: Figure = _Picture(figsize=(self.width, self.height), dpi=DPI)

    def axes(self, x: float, y: float, width: float, height: float, label: str = "") -> Axes:
        """Add axes without ticks, with the upper left corner at (x, y)."""
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        axes = self.figure.add_axes(box, label=label)
        axes.set_xticks([])
        axes.set_yticks([])
        return axes

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        room: float = math.inf,
        size: float = SMALL,
        color: str = TEXT,
        ha: str = "left",
        va: str = "center",
    ) -> Text:
        """Add a line of text at (x, y), shortened by an ellipsis to `room` inches."""
        line = _shortened(_drawable(text), room, size)
        at = (x / self.width, 1 - y / self.height)
        return self.figure.text(*at, line, size=size, color=color, ha=ha, va=va)


@contextmanager
def styled() -> Iterator[None]:
    """Context with the style of plots; the user's matplotlib settings do not apply."""
    with _lock.get(), style.context(["default", _STYLE]):
        yield


def text_width(text: str, size: float) -> float:
    """Width in inches of a line with a font size in points."""
    font = FontProperties(family=_FONT, size=size)
    width: float = TextToPath().get_text_width_height_descent(text, font, ismath=False)[0]
    return width / 72


def _shortened(text: str, room: float, size: float) -> str:
    if text_width(text, size) <= room:
        return text
    while text and text_width(f"{text}…", size) > room:
        text = text[:-1]
    return f"{text}…"


def _drawable(text: str) -> str:
    """Replace characters that the font lacks by a square; matplotlib would warn about each."""
    characters = _characters()
    return "".join(c if ord(c) in characters else _UNKNOWN for c in text)


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())
