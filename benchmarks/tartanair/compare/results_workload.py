"""The part of RESULTS.md of another workload than TartanAir: a sentence, a plot and the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.picking import Row, best_by_workers, is_plain, ran, rate
from benchmarks.tartanair.compare.plot_style import number
from benchmarks.tartanair.compare.plots import draw_bars
from benchmarks.tartanair.compare.report import limits_table
from benchmarks.tartanair.compare.results_parts import (
    best_other,
    counted,
    facts,
    grouped,
    picture,
    reasons_text,
    shown_table,
)
from benchmarks.tartanair.compare.workloads import Workload

__all__ = ["workload_part"]


def workload_part(workload: Workload, file: Path, plots: Path) -> str:
    """The part of another workload, of the results in `file` if it has been run; draws its plot."""
    heading = f"### {workload.heading}"
    if not file.exists():
        return f"{heading}\n\n{workload.what}: not run."
    results: dict[str, Any] = json.loads(file.read_text())
    best = best_by_workers(results["rows"], workload.base)
    kinds = _by_kind(best, workload)
    panels = {
        f"{workload.heading}, shuffled{kind and ': '}{kind}": own for kind, own in kinds.items()
    }
    drawn = draw_bars(plots, workload.name, panels)
    caption = f"{workload.heading}: clips a second by loader, shuffled"
    return "\n\n".join(
        [
            heading,
            f"{workload.what}: {_leaders(best, kinds)}.",
            *[picture(path.stem, caption) for path in drawn],
            *_figures(workload, results),
        ]
    )


def _by_kind(best: Mapping[str, Row], workload: Workload) -> dict[str, dict[str, Row]]:
    """The same rows by the kind of their loaders, the kind of the fastest first."""
    kinds: dict[str, dict[str, Row]] = {}
    for name, row in best.items():
        kinds.setdefault(workload.loaders()[name].kind, {})[name] = row
    return kinds


def _leaders(best: Mapping[str, Row], kinds: Mapping[str, Mapping[str, Row]]) -> str:
    """The two best of each kind, ours, the best of the others and the baseline."""
    if not best:
        return "no row ran shuffled and from a warm disk"
    said = {"seqrecord", best_other(best), "original"}
    said |= {name for own in kinds.values() for name in list(own)[:2]}
    words = {name: f"`{name}` {number(rate(row))}" for name, row in best.items() if name in said}
    first, row = next(iter(best.items()))
    words[first] = f"`{first}` gives {number(rate(row))} clips a second"
    parts = [
        _listed([words[name] for name in own if name in said]) + (kind and f" ({kind})")
        for kind, own in kinds.items()
    ]
    return f"shuffled, from a warm disk, each with its best number of workers, {', '.join(parts)}"


def _figures(workload: Workload, results: Mapping[str, Any]) -> list[str]:
    """Facts, limits and tables of another workload."""
    base = workload.base
    groups = grouped(results["rows"], {"main": lambda row: is_plain(row, "workers", base=base)})
    said = facts(results)
    about = (
        f"Machine: {said['machine']}. Commit: {said['commits']}. Data: {said['frames']} frames in "
        f"{said['episodes']} of {said['lengths']}, {said['size']}. Batches of {base.batch_size} "
        f"clips of {base.clip_len} frames that begin at every frame, unless a row says otherwise."
    )
    about = " ".join(filter(None, [about, _epochs_counted(results["rows"]), workload.note]))
    parts = [about, limits_table(results["limits"]), shown_table(groups["main"], base)]
    if ran(groups["rest"]):
        rest = shown_table(groups["rest"], base)
        parts += ["<details>\n<summary>Other settings</summary>", rest, "</details>"]
    return [*parts, *filter(None, [reasons_text(results["rows"])])]


def _epochs_counted(rows: Sequence[Row]) -> str:
    """Of how many epochs figures are medians, where rows say so: all but the first, if it is not
    alone."""
    counts = {max(1, len(row["epochs"]) - 1) for row in rows if "epochs" in row}
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    number = counted(most, "epoch") if least == most else f"{least} to {counted(most, 'epoch')}"
    return f"A row's figures are medians of {number}; one before these is not counted."


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
