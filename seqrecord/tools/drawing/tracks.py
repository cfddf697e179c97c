"""A timeline as a figure: rows of time from left to right, what they say beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, StepPatch
from matplotlib.ticker import MaxNLocator

from seqrecord.tools.drawing.page import BACKGROUND, DIM, TEXT, Page, styled
from seqrecord.tools.drawing.timeline import MEANINGS, Row, Section, Timeline

# Okabe and Ito's palette, which colour-blind people tell apart: https://jfly.uni-koeln.de/color/
_COLOURS = {
    "fetch": "#56b4e9",
    "decode": "#e69f00",
    "gather": "#009e73",
    "device": "#cc79a7",
    "consumer": "#f0e442",
    "other": "#a0a6b0",
    "wait": "#484e5a",
    "starve": "#d55e00",
}
_EMPTY = "#1f2228"  # of a row where nothing happens

# Inches
_WIDTH = 16.0
_LEFT, _RIGHT = 1.66, 1.64
_MARGIN = 0.16
_TOP = 0.92
_BOTTOM = 0.58
_GAP = 0.04  # between rows
_BETWEEN = 0.06  # sections, if the second has no heading
_HEADING = 0.28
_HEIGHTS = {"any thread": 0.16, "counters": 0.42}
_HEIGHT = 0.3

_TITLE_SIZE, _TEXT_SIZE = 13.0, 8.5  # points
_MAX_TICKS = 14


def draw_tracks(timeline: Timeline, *, title: str) -> Figure:
    """The figure. Its axes have seconds to the right and inches down."""
    heights = [_heading(s) + (_height(s) + _GAP) * len(s.rows) for s in timeline.sections]
    height = _TOP + sum(heights) + _BOTTOM
    with styled():
        page = Page(_WIDTH, height)
        page.text(_MARGIN, 0.24, title, room=_WIDTH / 2, size=_TITLE_SIZE)
        facts = "   ·   ".join(timeline.facts)
        page.text(_MARGIN, 0.5, facts, room=_WIDTH - 2 * _MARGIN, size=_TEXT_SIZE, color=DIM)
        axes = page.axes(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, sum(heights), "timeline")
        axes.set_xlim(timeline.edges[0], timeline.edges[-1])
        axes.set_ylim(sum(heights), 0)
        _draw_ticks(axes)
        y = 0.0
        for section in timeline.sections:
            y += _heading(section)
            if _has_heading(section):
                page.text(_MARGIN, _TOP + y - 0.09, section.name, size=_TEXT_SIZE, color=DIM)
            for row in section.rows:
                _draw_row(page, axes, timeline, row, y, _height(section))
                y += _height(section) + _GAP
        _draw_legend(page, timeline)
    return page.figure


def _has_heading(section: Section) -> bool:
    return section.name != "consumer"  # which needs no name but its rows'


def _heading(section: Section) -> float:
    return _HEADING if _has_heading(section) else _BETWEEN


def _height(section: Section) -> float:
    return _HEIGHTS.get(section.name, _HEIGHT)


def _draw_ticks(axes: Axes) -> None:
    begin, end = axes.get_xlim()
    axes.spines[:].set_visible(False)
    ticks = np.array(MaxNLocator(_MAX_TICKS, steps=[1, 2, 5, 10]).tick_values(begin, end))
    step = ticks[1] - ticks[0]
    ticks = ticks[(ticks >= begin - 1e-6 * step) & (ticks <= end + 1e-6 * step)]
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    scale, name = next((unit for unit in units if end * unit[0] >= 1), units[-1])
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    labels = [f"{tick * scale + 0.0:.{decimals}f} {name}" for tick in ticks.tolist()]
    axes.set_xticks(ticks, labels, size=_TEXT_SIZE)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def _draw_row(
    page: Page, axes: Axes, timeline: Timeline, row: Row, y: float, height: float
) -> None:
    edges = timeline.edges
    bottom = y + height
    flat: dict[str, Any] = {"fill": True, "linewidth": 0, "antialiased": False}
    # As `Axes.stairs`, without looking for the limits of data, which are known.
    axes.add_artist(StepPatch([y], edges[[0, -1]], baseline=bottom, color=_EMPTY, **flat))
    colours = [_COLOURS[kind] for kind in MEANINGS] if len(row.shares) > 1 else [DIM]
    # What takes any time at all shows: it is at least a pixel high.
    visible = np.where(row.shares > 0, np.maximum(row.shares, 1 / 30), 0)
    tops = np.minimum(np.cumsum(visible, axis=0), 1)
    below = np.zeros(len(edges) - 1)
    for top, colour in zip(tops, colours, strict=True):
        if (top > below).any():
            low, high = bottom - height * below, bottom - height * top
            flat["baseline"] = low  # an array, which matplotlib takes and its types do not say
            axes.add_artist(StepPatch(high, edges, color=colour, **flat))
        below = top
    axes.vlines(row.seams, y, bottom, color=BACKGROUND, linewidth=0.5, alpha=0.6)
    middle, gap = _TOP + y + height / 2, 0.08
    page.text(_MARGIN, middle, row.name, room=_LEFT - _MARGIN - gap, size=_TEXT_SIZE)
    colour = _COLOURS["starve"] if row.alarm else TEXT
    page.text(_WIDTH - _RIGHT + gap, middle, row.note, size=_TEXT_SIZE, color=colour)


def _draw_legend(page: Page, timeline: Timeline) -> None:
    page.figure.legend(
        [Patch(color=_COLOURS[kind]) for kind in timeline.kinds],
        [MEANINGS[kind] for kind in timeline.kinds],
        loc="lower left",
        bbox_to_anchor=(_LEFT / _WIDTH, 0.18 / page.height),
        ncols=len(timeline.kinds),
        columnspacing=1.6,
        fontsize=_TEXT_SIZE,
    )
