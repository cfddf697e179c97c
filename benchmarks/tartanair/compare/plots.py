"""Drawings of the results, one idea each, with labels on what they label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.picking import (
    Row,
    best_by_loader,
    best_by_workers,
    fastest,
    is_plain,
    ran,
    rate,
)
from benchmarks.tartanair.compare.plot_style import (
    COLOURS,
    GREY,
    OURS,
    label_ends,
    new_figure,
    number,
    plain_log,
    save,
)
from benchmarks.tartanair.compare.published import CLIPS, scaled_minutes
from benchmarks.tartanair.compare.services import AZURE
from benchmarks.tartanair.loaders.base import STORAGES

__all__ = ["CAPTIONS", "draw_all", "draw_bars"]

ALONG_EPOCH = ("seqrecord", "webdataset", "memmap", "original")

_NAMES = {
    "local": "disk, warm",
    "cold": "disk, cold",
    "mount": "FUSE mount",
    "adlfs": "Azure, adlfs",
    "obstore": "Azure, obstore",
    "blobfile": "Azure, blobfile",
    "own": "Azure, own client",
}


def draw_all(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """The plots that these rows are enough for; none without matplotlib."""
    good = ran(rows)
    return _draw(folder, {name: partial(draw, good) for name, draw in _DRAWINGS.items()})


def draw_bars(folder: Path, name: str, panels: Mapping[str, Mapping[str, Row]]) -> list[Path]:
    """One plot of bars, as `draw_all`; a panel for each heading, with a row of each loader."""
    return _draw(folder, {name: partial(_bars, panels)})


def _draw(folder: Path, drawings: Mapping[str, Callable[[], Any]]) -> list[Path]:
    """What these give, by their names; some give none."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in drawings.items():
        figure = draw()
        if figure is not None:
            written.append(save(figure, folder / f"{name}.png"))
    return written


def _loaders(rows: Sequence[Row]) -> Any:
    return _bars({"Clips a second, shuffled, as well as each can": best_by_workers(rows)})


def _bars(panels: Mapping[str, Mapping[str, Row]]) -> Any:
    """A panel for each heading, with one row of each loader from the top down."""
    count = sum(map(len, panels.values()))
    if count < 2:
        return None
    heights = [len(rows) + 0.2 for rows in panels.values()]  # bars are as thick in every panel
    figure, axes = new_figure(
        8,
        0.5 + 0.5 * len(panels) + 0.27 * count,
        rows=len(panels),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for one, (heading, rows), height in zip(axes[:, 0], panels.items(), heights, strict=True):
        names = list(rows)[::-1]
        rates = [rate(rows[name]) for name in names]
        one.barh(names, rates, color=[_colour(name) for name in names])
        for place, row in enumerate(rows[name] for name in names):
            one.text(rate(row), place, f" {_words(row)}", va="center", fontsize=9)
        one.set_ylim(-0.6, height - 0.6)
        one.set_title(heading, loc="left")
    most = max(rate(row) for rows in panels.values() for row in rows.values())
    axes[0, 0].set_xlim(0, most * 1.22)
    axes[-1, 0].xaxis.set_major_formatter("{x:,g}")
    axes[-1, 0].set_xlabel("clips a second, with the best number of workers of each")
    return figure


def _words(row: Row) -> str:
    """What is beside a bar: clips a second, the kind of shuffle, workers."""
    settings = row["settings"]
    words = [number(rate(row)), settings["shuffle"]]
    words += [f"{settings['workers']} workers"] * bool(settings["workers"])
    return ", ".join(words)


def _by_storage(rows: Sequence[Row]) -> Any:
    """A panel for each storage, with the loaders in the same places."""
    titles = {_NAMES[name]: (name,) for name in ("local", "cold", "mount")}
    found = {
        title: best_by_loader(
            row
            for row in rows
            if is_plain(row, "storage", "workers") and row["settings"]["storage"] in storages
        )
        for title, storages in {**titles, "Azure, best client": AZURE}.items()
    }
    panels = {title: best for title, best in found.items() if best}
    if len(panels) < 2:
        return None
    loaders = list(dict.fromkeys(name for best in panels.values() for name in best))
    loaders.sort(key=lambda name: max(rate(best.get(name, {})) for best in panels.values()))
    figure, axes = new_figure(
        2 + 2.3 * len(panels), 1 + 0.27 * len(loaders), len(panels), sharey=True, sharex=True
    )
    most = max(rate(row) for best in panels.values() for row in best.values())
    for one, (title, best) in zip(axes, panels.items(), strict=True):
        rates = [rate(best.get(name, {})) for name in loaders]
        one.barh(loaders, rates, color=[_colour(name) for name in loaders])
        for place, name in enumerate(loaders):
            words = number(rate(best[name])) if name in best else "-"
            one.text(rate(best.get(name, {})), place, f" {words}", va="center", fontsize=9)
        one.set_title(title, loc="left", fontsize=11)
        one.set_xlim(0, most * 1.25)
        one.set_ylim(-0.6, len(loaders) - 0.4)
    figure.supxlabel("clips a second, shuffled; - was not run", fontsize=10)
    return figure


def _along_epoch(rows: Sequence[Row]) -> Any:
    """Batches a second along one epoch, over the time since it began."""
    chosen = best_by_loader(
        row
        for row in rows
        if row["loader"] in ALONG_EPOCH and is_plain(row) and len(row.get("steps", [])) > 1
    )
    if len(chosen) < 2:
        return None
    figure, axes = new_figure(9, 4)
    ends: dict[str, tuple[float, float]] = {}
    longest = 0.0
    for name, row in chosen.items():
        rates = np.array(row["steps"]) / row["settings"]["batch_size"]  # the last is a part of one
        times = np.cumsum(1 / rates)
        # A step lasts from one time to the next at its rate.
        axes.stairs(rates, np.concatenate([[0.0], times]), baseline=None, color=COLOURS[name])
        words = name if row["complete"] == 1 else f"{name} …"
        ends[words] = (float(times[-1]), float(np.median(rates[-5:])))
        longest = max(longest, float(times[-1]))
    plain_log(axes)
    axes.set_xlim(0, longest * 1.25)
    axes.set_xlabel("seconds of the epoch; … goes on")
    axes.set_ylabel("batches a second")
    axes.set_title("Batches a second along an epoch, shuffled", loc="left")
    label_ends(axes, ends)
    return figure


def _cloud(rows: Sequence[Row]) -> Any:
    """Minutes of the published epoch by storage, of ours and of the baseline."""
    bars: list[tuple[str, str, Row]] = []
    for loader in ("seqrecord", "original"):
        for storage in STORAGES:
            own = [
                row
                for row in rows
                if row["loader"] == loader
                and row["settings"]["storage"] == storage
                and is_plain(row, "storage", "workers")
            ]
            if own:
                bars.append((loader, _NAMES[storage], fastest(own)))
    if len({row["settings"]["storage"] for _, _, row in bars}) < 2:
        return None
    bars.reverse()
    figure, axes = new_figure(8, 1 + 0.34 * len(bars))
    minutes = [scaled_minutes(row) for _, _, row in bars]
    axes.barh(range(len(bars)), minutes, color=[COLOURS[loader] for loader, _, _ in bars])
    axes.set_yticks(range(len(bars)), [f"{loader}: {storage}" for loader, storage, _ in bars])
    for place, value in enumerate(minutes):
        axes.text(value, place, f" {number(value)} min", va="center", fontsize=9)
    axes.set_xlim(0, max(minutes) * 1.15)
    axes.set_xlabel(f"minutes for {CLIPS:,} clips, shuffled, with the best number of workers")
    axes.set_title("An epoch from the disk, a mount and Azure", loc="left")
    return figure


_DRAWINGS: dict[str, Callable[[Sequence[Row]], Any]] = {
    "loaders-shuffled": _loaders,
    "storage": _by_storage,
    "epoch": _along_epoch,
    "cloud": _cloud,
}

CAPTIONS = {
    "loaders-shuffled": "Clips a second of every loader, shuffled",
    "storage": "Clips a second by loader and storage",
    "epoch": "Batches a second along an epoch",
    "cloud": "Minutes of the published epoch, local against cloud",
}
"""What each plot shows, in the order in which a document shows them."""


def _colour(loader: str) -> str:
    return OURS if loader.startswith("seqrecord") else GREY
