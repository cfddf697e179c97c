"""Drawings of the results, one idea each, with labels on what they label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.grid import AXES
from benchmarks.tartanair.loaders.base import Settings

__all__ = ["draw_all"]

# Okabe and Ito's colours, which people with any colour vision tell apart.
OURS, OTHERS, THIRD = "#D55E00", "#8C8C8C", "#0072B2"

Row = Mapping[str, Any]


def draw_all(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """The plots that these rows are enough for; none without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    folder.mkdir(exist_ok=True)
    ran = [row for row in rows if "clips_per_second" in row]
    drawings = {
        "loaders-in-order": _bars(ran, "off", "Clips a second, in order"),
        "loaders-shuffled": _bars(ran, "shuffled", "Clips a second, shuffled as well as each can"),
        "clip-length": _columns(ran, "clip_len", "frames of a clip"),
        "features": _columns(ran, "features", "features of a frame"),
        "stride": _columns(ran, "stride", "frames from clip to clip"),
        "storage": _storages(ran),
        "epoch": _epoch(ran),
    }
    written = []
    for name, figure in drawings.items():
        if figure is not None:
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=150, bbox_inches="tight")
    return written


def _plain(row: Row, *axes: str) -> bool:
    """Whether all but these axes are at their defaults."""
    default = Settings()
    free = {*axes, "shuffle_buffer", "seed"}
    settings = row["settings"]
    return ("consumer" in axes or row["consumer"] == "touch") and all(
        _same(settings[name], getattr(default, name)) for name in settings if name not in free
    )


def _same(one: Any, other: Any) -> bool:
    return bool(
        (list(one) if isinstance(one, (list, tuple)) else one)
        == (list(other) if isinstance(other, (list, tuple)) else other)
    )


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bars(rows: Sequence[Row], shuffle: str, title: str) -> Any:
    """The best of each loader over its workers, the fastest on top."""
    best: dict[str, Row] = {}
    for row in rows:
        shuffled = row["settings"]["shuffle"] != "off"
        if _plain(row, "workers", "shuffle") and shuffled == (shuffle != "off"):
            known = best.get(row["loader"])
            if known is None or row["clips_per_second"] > known["clips_per_second"]:
                best[row["loader"]] = row
    if len(best) < 2:
        return None
    chosen = sorted(best.values(), key=lambda row: float(row["clips_per_second"]))
    figure, axes = _figure(8, 0.8 + 0.32 * len(chosen))
    rates = [row["clips_per_second"] for row in chosen]
    colours = [OURS if row["loader"].startswith("seqrecord") else OTHERS for row in chosen]
    axes.barh([row["loader"] for row in chosen], rates, color=colours)
    for place, row in enumerate(chosen):
        settings = row["settings"]
        text = f" {row['clips_per_second']:.0f}"
        if shuffle != "off":
            text += f", {settings['shuffle']}"
        if settings["workers"]:
            text += f", {settings['workers']} workers"
        axes.text(row["clips_per_second"], place, text, va="center", fontsize=9)
    axes.set_xlim(0, max(rates) * 1.25)
    axes.set_title(title, loc="left")
    axes.set_xlabel("clips a second, the best number of workers of each")
    return figure


def _columns(rows: Sequence[Row], axis: str, label: str) -> Any:
    """Gigabytes a second of our own along one axis."""
    points = {}
    for row in rows:
        shuffled = row["settings"]["shuffle"] != "off"
        if row["loader"] == "seqrecord" and _plain(row, axis, "shuffle") and shuffled:
            value = row["settings"][axis]
            points[len(value) if isinstance(value, (list, tuple)) else value] = row
    if len(points) < 2:
        return None
    figure, axes = _figure(6, 3.5)
    places = sorted(points)
    rates = [points[place]["bytes_per_second"] / 1e9 for place in places]
    axes.bar([str(place) for place in places], rates, color=OURS)
    for number, (place, rate) in enumerate(zip(places, rates, strict=True)):
        text = f"{points[place]['clips_per_second']:.0f} clips/s"
        axes.text(number, rate, text, ha="center", va="bottom", fontsize=9)
    axes.set_xlabel(label)
    axes.set_ylabel("GB a second")
    axes.set_title(f"seqrecord, shuffled, by {label}", loc="left")
    return figure


def _storages(rows: Sequence[Row]) -> Any:
    """Our epoch's seconds by where the data lies."""
    seconds = {
        row["settings"]["storage"]: row["epoch_seconds"]
        for row in rows
        if row["loader"] == "seqrecord"
        and _plain(row, "storage", "shuffle")
        and row["settings"]["shuffle"] != "off"
    }
    names = [name for name in AXES["storage"] if name in seconds]
    if len(names) < 2:
        return None
    figure, axes = _figure(6, 3.5)
    values = [seconds[name] for name in names]
    axes.bar(names, values, color=[THIRD if n in ("local", "cold") else OURS for n in names])
    for place, value in enumerate(values):
        axes.text(place, value, f"{value:.1f} s", ha="center", va="bottom", fontsize=9)
    axes.set_ylabel("seconds of an epoch")
    axes.set_title("seqrecord, shuffled: an epoch by storage", loc="left")
    return figure


def _epoch(rows: Sequence[Row]) -> Any:
    """Batches along an epoch: ours and the baseline."""
    chosen = {
        row["loader"]: row
        for row in rows
        if row["loader"] in ("seqrecord", "original")
        and _plain(row, "shuffle")
        and row["settings"]["shuffle"] != "off"
        and len(row.get("steps", [])) > 1
    }
    if len(chosen) < 2:
        return None
    figure, axes = _figure(7, 3.5)
    for name, row in chosen.items():
        steps = row["steps"]
        colour = OURS if name == "seqrecord" else OTHERS
        axes.plot(range(len(steps)), steps, color=colour, linewidth=1)
        axes.annotate(
            name, (len(steps) - 1, steps[-1]), (4, 0), textcoords="offset points", color=colour
        )
    axes.set_yscale("log")
    axes.set_xlabel("step of an epoch")
    axes.set_ylabel("clips a second")
    axes.set_title("Clips a second along an epoch", loc="left")
    return figure
