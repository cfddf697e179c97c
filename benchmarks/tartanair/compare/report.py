"""Results as JSON, CSV, a Markdown table and TensorBoard scalars."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tartanair.compare.cell import Cell, differing
from benchmarks.tartanair.compare.limits import bound
from benchmarks.tartanair.compare.plots import draw_all
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import USUAL, Settings
from benchmarks.tartanair.timing import machine, markdown

__all__ = [
    "Row",
    "about",
    "describe",
    "limits_table",
    "medians",
    "reasons_table",
    "table",
    "write_all",
    "wrong_table",
]

Row = dict[str, Any]
"""`cell` and figures, or `cell` and `skipped` or `error`."""


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row a cell: the medians over its repeats; in the order of first appearance."""
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row)
    merged = []
    for runs in by_key.values():
        good = [run for run in runs if "clips_per_second" in run]
        row = dict(runs[-1] if not good else good[-1])
        for name, value in row.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                row[name] = statistics.median(run[name] for run in good or runs if name in run)
        row["repeats"] = len(good)
        merged.append(row)
    return merged


def with_limits(row: Row, limits: Mapping[str, float | None]) -> Row:
    """The row with what binds it and its share of that."""
    if "clips_per_second" not in row:
        return row
    settings = row["settings"]
    name, part = bound(row, limits, settings["storage"], row.get("needed_bytes", 0))
    return {**row, "bound": name, "share": part}


def about(recordings: Recordings, max_seconds: float) -> dict[str, Any]:
    """What holds for all rows: the machine and its cores, what was read, when epochs were cut.

    `episodes` are how many frames each has, and `frame_bytes` a frame with all features.
    """
    return {
        "cores": os.cpu_count(),
        "max_seconds": max_seconds,
        "machine": f"{machine()}, {psutil.virtual_memory().total / 1e9:.0f} GB of memory",
        "features": list(recordings.features),
        "frame_bytes": recordings.frame_nbytes(list(recordings.features)),
        "episodes": [episode.num_frames for episode in recordings.episodes],
    }


def write_all(
    folder: Path,
    rows: Sequence[Row],
    limits: Mapping[str, float | None],
    said: Mapping[str, Any],
) -> str:
    """Write every form of the results into a folder; returns the table. `said` is of `about`."""
    merged = [with_limits(row, limits) for row in medians(rows)]
    document = {**said, "limits": limits, "rows": merged}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    _write_csv(folder / "results.csv", merged)
    parts = [f"Machine: {said['machine']}", limits_table(limits), table(merged)]
    parts += [reasons_table(merged), wrong_table(merged)]
    text = "\n\n".join(filter(None, parts)) + "\n"
    (folder / "results.md").write_text(text)
    _write_scalars(folder / "tensorboard", merged)
    draw_all(folder / "plots", merged)
    return text


def table(rows: Sequence[Mapping[str, Any]], base: Settings = USUAL) -> str:
    """The main figures of the rows that ran, and which settings are not as in `base`."""
    columns = [
        "loader",
        "settings",
        "clips/s",
        "GB/s",
        "epoch s",
        "first batch s",
        "peak MB",
        "CPU s",
        "waiting",
        "bound by",
        "share",
    ]
    lines = [
        [
            row["loader"],
            differing(Settings.of(row["settings"]), base),
            f"{row['clips_per_second']:.1f}",
            f"{row['bytes_per_second'] / 1e9:.2f}",
            f"{row['epoch_seconds']:.1f}" + ("" if row["complete"] == 1 else "*"),
            f"{row['first_batch_seconds']:.2f}",
            f"{row['peak_memory_bytes'] / 1e6:.0f}",
            f"{row['cpu_seconds']:.1f}",
            f"{1 - row['busy']:.0%}",
            row["bound"],
            f"{row['share']:.2f}",
        ]
        for row in rows
        if "clips_per_second" in row
    ]
    return f"{markdown(columns, lines)}\n\n\\* scaled from the part of an epoch that was run"


def reasons_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why rows did not run; empty if all did."""
    reasons: dict[tuple[str, str], int] = {}
    for row in rows:
        if "clips_per_second" not in row:
            reason = row.get("skipped") or row.get("error") or "; ".join(row.get("problems", ["?"]))
            reasons[row["loader"], reason] = reasons.get((row["loader"], reason), 0) + 1
    if not reasons:
        return ""
    lines = [[name, reason, str(count)] for (name, reason), count in reasons.items()]
    return markdown(["did not run", "why", "rows"], lines)


def wrong_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows that delivered other clips than they should; empty if none did."""
    wrong = [row for row in rows if "clips_per_second" in row and row.get("problems")]
    if not wrong:
        return ""
    return markdown(
        ["wrong clips", "what"], [[row["title"], "; ".join(row["problems"])] for row in wrong]
    )


def describe(cell: Cell) -> Row:
    """What a row says of its cell, and of which code it is."""
    return {
        "key": cell.key,
        "commit": commit(),
        "title": cell.title,
        "loader": cell.loader,
        "settings": asdict(cell.settings),
    }


@cache
def commit() -> str:
    """What is checked out, as git names it; ends in `-dirty` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def limits_table(limits: Mapping[str, float | None]) -> str:
    """What the machine can do at best."""
    return markdown(
        ["limit", "GB/s"],
        [
            [name, "unknown" if rate is None else f"{rate / 1e9:.2f}"]
            for name, rate in limits.items()
        ],
    )


def _flat(row: Row) -> Row:
    flat = {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
    settings = {
        name: "+".join(value) if isinstance(value, (list, tuple)) else value
        for name, value in row["settings"].items()
    }
    return {**flat, **settings, "problems": "; ".join(row.get("problems", []))}


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(flat)


def _write_scalars(folder: Path, rows: Sequence[Row]) -> None:
    """Each row a run: clips a second along its last epoch, and its figures."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return  # it comes with the extra `bench`
    for row in rows:
        if "clips_per_second" not in row:
            continue
        name = "".join(c if c.isalnum() or c in "-_=+." else "_" for c in row["title"])
        with SummaryWriter(str(folder / name), write_to_disk=True) as writer:
            for step, rate in enumerate(row.get("steps", [])):
                writer.add_scalar("clips_per_second_of_step", rate, step)
            for key, value in row.items():
                if isinstance(value, float):
                    writer.add_scalar(f"row/{key}", value, 0)
