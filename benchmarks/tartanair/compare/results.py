"""Writes RESULTS.md and its plots from a run of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER]

FOLDER is one of `python -m benchmarks.tartanair.compare`; every figure comes from its results.json,
and from those of other workloads below it. What is always the same is in results_template.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.tartanair.compare.picking import Row, best_by_loader, is_plain, is_shuffled, ran
from benchmarks.tartanair.compare.plots import CAPTIONS, draw_all
from benchmarks.tartanair.compare.published import BATCH_SIZE, TABLES, batch_sizes, table_text
from benchmarks.tartanair.compare.report import (
    limits_table,
    reasons_table,
    table,
    wrong_table,
)
from benchmarks.tartanair.loaders.base import Settings
from benchmarks.tartanair.loaders.registry import all_loaders

__all__ = ["document", "write"]

TO = Path(__file__).parents[1]
_TEMPLATE = Path(__file__).with_name("results_template.md")
_TIMELINE = "What each thread does: the baseline with two workers, and ours"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="of RESULTS.md and plots/")
    options = parser.parse_args(arguments)
    print(write(options.folder, options.to))


def write(folder: Path, to: Path) -> Path:
    """RESULTS.md of the run in `folder`, written into `to` with `plots` beside it."""
    results = _load(folder / "results.json")
    plots = to / "plots"
    draw_all(plots, results["rows"])
    shown = {name: words for name, words in CAPTIONS.items() if (plots / f"{name}.png").exists()}
    if (plots / "timeline.png").exists():  # of `compare.timeline`
        shown["timeline"] = _TIMELINE
    others = {file.parent.name: _load(file) for file in sorted(folder.glob("*/results.json"))}
    path = to / "RESULTS.md"
    path.write_text(document(results, shown, others))
    return path


def document(
    results: Mapping[str, Any],
    plots: Mapping[str, str],
    others: Mapping[str, Mapping[str, Any]],
) -> str:
    """The text: `results` of TartanAir, captions by plots' names, other workloads' results."""
    rows: list[Row] = results["rows"]
    base, by_key = Settings(), {row["key"]: row for row in rows}
    groups = _groups(rows)
    return Template(_TEMPLATE.read_text()).substitute(
        machine=results["machine"],
        cores=_counted(results["cores"], "core"),
        commits=", ".join(sorted({f"`{row['commit']}`" for row in rows})) or "none",
        frames=f"{sum(results['episodes']):,}",
        episodes=_counted(len(results["episodes"]), "episode"),
        lengths=_range(results["episodes"]),
        gigabytes=f"{sum(results['episodes']) * results['frame_bytes'] / 1e9:.1f}",
        features=", ".join(results["features"]),
        cut=f"{results['max_seconds']:g}",
        summary=_summary(rows),
        published="\n\n".join(
            f"### {part.title}\n\nPublished: {part.where}.\n\n{table_text(part, by_key, base)}"
            for part in TABLES
        ),
        batches=_batches(by_key, base),
        lossy=", ".join(f"`{n}`" for n, loader in all_loaders().items() if not loader.lossless),
        limits=limits_table(results["limits"]),
        main=_table(groups["main"]),
        rgb=_table(groups["rgb"]),
        rest=_table(groups["rest"]),
        reasons="\n\n".join(filter(None, [reasons_table(rows), wrong_table(rows)]))
        or "All rows ran.",
        plots="\n\n".join(f"![{words}](plots/{name}.png)" for name, words in plots.items()),
        others="\n\n".join(map(_workload, others, others.values())),
    )


def _load(file: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(file.read_text())
    return results


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All settings as usual but the workers; the same with RGB alone; the rest."""
    image = list(Settings().features[:1])
    kinds: dict[str, Callable[[Row], bool]] = {
        "main": lambda row: is_plain(row, "workers"),
        "rgb": lambda row: is_plain(row, "features") and list(row["settings"]["features"]) == image,
        "rest": lambda _row: True,
    }
    groups: dict[str, list[Row]] = {name: [] for name in kinds}
    for row in rows:
        groups[next(name for name, belongs in kinds.items() if belongs(row))].append(row)
    for group in groups.values():
        group.sort(key=lambda row: -row.get("clips_per_second", 0))
    return groups


def _table(rows: Sequence[Row]) -> str:
    return table(rows) if ran(rows) else "No row ran."


def _summary(rows: Sequence[Row]) -> str:
    """Ours, the best of the others and the baseline, shuffled and from a warm disk."""
    best = best_by_loader(row for row in ran(rows) if is_plain(row, "workers") and is_shuffled(row))
    rates = {name: row["clips_per_second"] for name, row in best.items()}
    others = {name: rate for name, rate in rates.items() if not name.startswith("seqrecord")}
    if "seqrecord" not in rates or not others:
        return "Too few loaders ran to compare them."
    ours, name = rates["seqrecord"], max(others, key=lambda n: others[n])
    words = (
        f"Shuffled, from a warm disk, each with its best number of workers: `seqrecord` gives "
        f"{ours:.0f} clips a second, {best['seqrecord']['share']:.0%} of what the machine can copy."
        f" The next of other loaders is `{name}` with {others[name]:.0f}"
    )
    if "original" in rates:
        words += f", the data set's own loader gives {rates['original']:.1f}"
    return f"{words}."


def _batches(rows: Mapping[str, Row], base: Settings) -> str:
    """Which batch sizes ours have in the published tables, and why not the published one."""
    sizes, reasons = batch_sizes(rows, base)
    if not sizes:
        return "none of our rows was run."
    words = [
        f"{size} of {', '.join(f'`{name}`' for name in sorted(loaders))}"
        for size, loaders in sorted(sizes.items(), reverse=True)
    ]
    why = f" Where {BATCH_SIZE} did not run: {'; '.join(sorted(reasons))}." if reasons else ""
    return f"{'; '.join(words)}.{why}"


def _workload(name: str, results: Mapping[str, Any]) -> str:
    rows = sorted(results["rows"], key=lambda row: -row.get("clips_per_second", 0))
    frames = f"{sum(results['episodes']):,} frames, {_counted(len(results['episodes']), 'episode')}"
    parts = [f"### {name}", f"{frames}.", limits_table(results["limits"]), table(rows)]
    return "\n\n".join([*parts, *filter(None, [reasons_table(rows), wrong_table(rows)])])


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


if __name__ == "__main__":
    main()
