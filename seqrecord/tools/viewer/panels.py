"""Images of frames: arguments of `Axes.imshow`, and legends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Circle, Patch

from seqrecord.store.text import number_text
from seqrecord.tools.viewer.kinds import NEUTRAL, Kind, flow_colours
from seqrecord.tools.viewer.page import LINE, SMALL, Page, text_width
from seqrecord.tools.viewer.scales import (
    depth_range,
    floats,
    is_logarithmic,
    label_colours,
    longest_flow,
    thinned,
    value_range,
)

Array = npt.NDArray[Any]
Legend = Callable[[Page, float, float, float], None]  # x, y and the height of the row

LEGEND_WIDTH = 0.66  # inches

_BAR_WIDTH = 0.08
_MIN_BAR = 0.36  # inches with room for three numbers


@dataclass(frozen=True)
class Panel:
    """`images` [H, W] or [H, W, 3 or 4] for `Axes.imshow`, with common `options`."""

    images: list[Array]
    options: dict[str, Any] = field(default_factory=dict)
    legend: Legend | None = None


def make_panel(kind: Kind, frames: Sequence[Array], unit: str | None) -> Panel:
    """Convert one or more frames to images with a common scale; `kind` is an image type."""
    return _PANELS[kind](frames, f" {unit}" if unit else "")


def _picture(frames: Sequence[Array], _: str) -> Panel:
    return Panel(list(frames), {"cmap": "gray", "vmin": 0, "vmax": 255})


def _depth(frames: Sequence[Array], unit: str) -> Panel:
    """Color map of depth; near is bright."""
    low, high, beyond = depth_range(frames)
    log = is_logarithmic(low, high)
    norm = LogNorm(low, high) if log else _linear(low, high)
    middle = float(np.sqrt(low * high)) if log else (low + high) / 2
    positive = [np.where(frame > 0, frame, np.nan) for frame in floats(frames)]
    return _scaled(positive, norm, "inferno_r", (low, middle, high), unit, beyond=beyond)


def _scale(frames: Sequence[Array], unit: str) -> Panel:
    low, high = value_range(frames)
    ticks = (low, (low + high) / 2, high)
    return _scaled(floats(frames), _linear(low, high), "inferno", ticks, unit)


def _scaled(
    frames: Sequence[Array],
    norm: Normalize,
    colours: str,
    ticks: tuple[float, float, float],
    unit: str,
    *,
    beyond: bool = False,
) -> Panel:
    """Frames with a color map and a color bar; `beyond` marks values above its upper end."""
    ramp = colormaps[colours].with_extremes(bad=_hex(NEUTRAL))
    finite = [np.where(np.isfinite(frame), frame, np.nan) for frame in frames]

    def legend(page: Page, x: float, y: float, height: float) -> None:
        axes = page.axes(x, y, _BAR_WIDTH, height, "scale")
        page.figure.colorbar(
            ScalarMappable(norm, ramp), axes, extend="max" if beyond else "neither"
        )
        shown_ticks = ticks if height >= _MIN_BAR else ticks[::2]
        axes.set_yticks(
            shown_ticks, [f"{number_text(tick)}{unit}" for tick in shown_ticks], minor=False
        )
        axes.set_yticks([], minor=True)
        axes.tick_params(length=0, pad=3)
        lowest, *_, highest = axes.get_yticklabels()
        lowest.set_verticalalignment("bottom" if len(shown_ticks) == 3 else "center")
        highest.set_verticalalignment("top" if len(shown_ticks) == 3 else "center")

    return Panel(finite, {"cmap": ramp, "norm": norm}, legend)


def _flow(frames: Sequence[Array], unit: str) -> Panel:
    longest = longest_flow(frames)

    def legend(page: Page, x: float, y: float, height: float) -> None:
        side = min(LEGEND_WIDTH - 0.06, height - 0.13)
        if side < 0.1:
            return
        top = y + (height - side - 0.13) / 2
        axes = page.axes(x, top, side, side, "wheel")
        axes.set_axis_off()
        across, down = np.meshgrid(*[np.linspace(-1, 1, 256)] * 2)
        wheel = flow_colours(np.stack([across, down], axis=-1), 1.0)
        disc = axes.imshow(wheel, extent=(-1, 1, 1, -1))
        disc.set_clip_path(Circle((0, 0), 1, transform=axes.transData))
        text = f"rim {number_text(longest)}{unit}"
        middle = max(side, text_width(text, SMALL)) / 2
        page.text(x + middle, top + side + 0.04, text, ha="center", va="top")

    return Panel([flow_colours(frame, longest) for frame in frames], legend=legend)


def _labels(frames: Sequence[Array], _: str) -> Panel:
    sample = np.concatenate([thinned(frame, len(frames)) for frame in frames])
    values, counts = np.unique(sample, return_counts=True)
    common = values[np.argsort(-counts, kind="stable")]

    def legend(page: Page, x: float, y: float, height: float) -> None:
        """Draw the most frequent labels."""
        room = max(1, int(height / 0.113))
        shown_labels = np.sort(common[: room if len(common) <= room else room - 1])
        patches = [
            Patch(facecolor=_hex(label_colours(value)), edgecolor=LINE, linewidth=0.5)
            for value in shown_labels
        ]
        names = [str(int(value)) for value in shown_labels]
        if len(shown_labels) < len(common):
            patches.append(Patch(alpha=0))
            names.append(f"+{len(common) - len(shown_labels)}")
        axes = page.axes(x, y, LEGEND_WIDTH, height, "legend")
        axes.set_axis_off()
        axes.legend(patches, names, loc="upper left", labelspacing=0.25, fontsize=SMALL)

    # Labels must not be interpolated.
    images = [label_colours(frame) for frame in frames]
    return Panel(images, {"interpolation": "nearest"}, legend)


_PANELS: dict[Kind, Callable[[Sequence[Array], str], Panel]] = {
    "picture": _picture,
    "labels": _labels,
    "depth": _depth,
    "flow": _flow,
    "scale": _scale,
}


def _hex(colour: Sequence[int] | Array) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def _linear(low: float, high: float) -> Normalize:
    return Normalize(low, high if high > low else low + 1, clip=True)
