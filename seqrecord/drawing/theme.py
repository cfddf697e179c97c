"""Colours, fonts and numbers of a contact sheet."""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

from PIL import ImageFont

__all__ = [
    "BACKGROUND",
    "DIM",
    "LINE",
    "TEXT",
    "font",
    "number_text",
    "range_text",
    "shortened",
    "text_width",
]

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

BACKGROUND = (22, 24, 28)
TEXT = (228, 231, 236)
DIM = (138, 144, 154)
LINE = (60, 65, 74)


@cache
def font(size: int) -> Font:
    """The font that comes with Pillow."""
    return ImageFont.load_default(size)


def number_text(value: float) -> str:
    """About three digits: `0.0123`, `12.3`, `1230`, `1.2e+06`."""
    if 100 <= abs(value) < 100_000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def range_text(low: float, high: float) -> str:
    """Both ends with as many decimals as tell them apart: `-27.21 to -27.03`."""
    span = high - low
    if not span or max(abs(low), abs(high)) >= 100_000 or span < 1e-4:
        return number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}"
    decimals = min(max(1 - math.floor(math.log10(span)), 0), 4)
    # Adding zero makes a rounded -0.0 a plain 0.
    return " to ".join(f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (low, high))


def shortened(text: str, width: float, size: int) -> str:
    """`text`, cut with an ellipsis where it is wider than `width` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…"


def text_width(text: str, size: int) -> float:
    """Pixels."""
    return font(size).getlength(text)
