"""Results as JSON, CSV, a Markdown table and TensorBoard scalars."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.grid import Cell
from benchmarks.tartanair.compare.limits import bound
from benchmarks.tartanair.compare.plots import draw_all
from benchmarks.tartanair.timing import markdown

__all__ = ["Row", "medians", "table", "write_all"]

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


def write_all(
    folder: Path, rows: Sequence[Row], limits: Mapping[str, float | None], machine: str
) -> str:
    """Write every form of the results into a folder; returns the table."""
    merged = [with_limits(row, limits) for row in medians(rows)]
    document = {"machine": machine, "limits": limits, "rows": merged}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    _write_csv(folder / "results.csv", merged)
    text = "\n\n".join([f"Machine: {machine}", _limits(limits), table(merged)]) + "\n"
    (folder / "results.md").write_text(text)
    _write_scalars(folder / "tensorboard", merged)
    draw_all(folder / "plots", merged)
    return text


def table(rows: Sequence[Row]) -> str:
    """The main figures of the rows that ran, then the reasons of those that did not."""
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
            row["title"].partition(" ")[2],
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
    parts = [markdown(columns, lines), "\\* scaled from the part of an epoch that was run"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "clips_per_second" not in row:
            reason = row.get("skipped") or row.get("error") or "; ".join(row.get("problems", ["?"]))
            reasons.setdefault((row["loader"], reason), []).append(row["title"])
    if reasons:
        parts.append(
            markdown(
                ["did not run", "why", "rows"],
                [[name, reason, str(len(rs))] for (name, reason), rs in reasons.items()],
            )
        )
    wrong = [row for row in rows if "clips_per_second" in row and row.get("problems")]
    if wrong:
        parts.append(
            markdown(
                ["wrong clips", "what"], [[r["title"], "; ".join(r["problems"])] for r in wrong]
            )
        )
    return "\n\n".join(parts)


def describe(cell: Cell) -> Row:
    """What a row says of its cell."""
    return {
        "key": cell.key,
        "title": cell.title,
        "loader": cell.loader,
        "consumer": cell.consumer,
        "settings": asdict(cell.settings),
    }


def _limits(limits: Mapping[str, float | None]) -> str:
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
