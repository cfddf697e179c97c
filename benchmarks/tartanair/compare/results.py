"""Writes RESULTS.md and its plots from a run of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER]

FOLDER is one of `python -m benchmarks.tartanair.compare`; every figure comes from its results.json,
and from those of the other workloads, such as FOLDER/audio/results.json. What is always the same is
in results_template.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.tartanair.compare.picking import Row, best_by_workers, is_plain, rate
from benchmarks.tartanair.compare.plot_style import number
from benchmarks.tartanair.compare.plots import CAPTIONS, draw_all
from benchmarks.tartanair.compare.published import (
    BATCH_SIZE,
    LARGE_MEMORY,
    TABLES,
    batch_sizes,
    published_grid,
    table_text,
)
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
from benchmarks.tartanair.compare.results_workload import workload_part
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS
from benchmarks.tartanair.loaders.base import USUAL
from benchmarks.tartanair.loaders.registry import all_loaders
from seqrecord.writing.stored_schema import DEFAULT_CODEC

__all__ = ["write"]

TO = Path(__file__).parents[1]
_TEMPLATE = Path(__file__).with_name("results_template.md")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="of RESULTS.md and plots/")
    options = parser.parse_args(arguments)
    print(write(options.folder, options.to))


def write(folder: Path, to: Path) -> Path:
    """RESULTS.md of the run in `folder`, written into `to` with `plots` beside it."""
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    plots = to / "plots"
    drawn = {path.stem for path in draw_all(plots, results["rows"])}
    shown = {name: words for name, words in CAPTIONS.items() if name in drawn}
    others = [
        workload_part(workload, folder / name / "results.json", plots)
        for name, workload in WORKLOADS.items()
        if workload is not TARTANAIR
    ]
    path = to / "RESULTS.md"
    path.write_text(_document(results, shown, "\n\n".join(others)))
    return path


def _document(results: Mapping[str, Any], plots: Mapping[str, str], others: str) -> str:
    """The text: `results` of TartanAir, captions by plots' names, and other workloads' parts."""
    rows: list[Row] = results["rows"]
    by_key = {row["key"]: row for row in rows}
    loaders = all_loaders()
    beside = {cell.key for cell in published_grid(loaders, USUAL)}
    groups = grouped(
        rows,
        {
            "main": lambda row: is_plain(row, "workers"),
            "rgb": _is_rgb,
            "published": lambda row: row["key"] in beside,
        },
    )
    return Template(_TEMPLATE.read_text()).substitute(
        **facts(results),
        features=", ".join(results["features"]),
        summary=_summary(rows),
        published="\n\n".join(
            f"### {part.title}\n\nPublished: {part.where}.\n\n{table_text(part, by_key, USUAL)}"
            for part in TABLES
        ),
        cores=counted(results["cores"], "core"),
        cut=f"{results['max_seconds']:g}",
        codec=DEFAULT_CODEC,
        memory=LARGE_MEMORY,
        batches=_batches(by_key),
        lossy=", ".join(f"`{name}`" for name, loader in loaders.items() if not loader.lossless),
        limits=limits_table(results["limits"]),
        main=shown_table(groups["main"]),
        rgb=shown_table(groups["rgb"]),
        rest=shown_table(groups["rest"]),
        reasons=reasons_text(rows) or "All rows ran.",
        plots="\n\n".join(picture(name, words) for name, words in plots.items()),
        others=others,
    )


def _is_rgb(row: Row) -> bool:
    """All settings as usual, with RGB alone."""
    return is_plain(row, base=replace(USUAL, features=USUAL.features[:1]))


def _summary(rows: Sequence[Row]) -> str:
    """Ours, the best of the others and the baseline, shuffled and from a warm disk."""
    best = best_by_workers(rows)
    other = best_other(best)
    if "seqrecord" not in best or other is None:
        return "Too few loaders ran to compare them."
    words = (
        f"Shuffled, from a warm disk, each with its best number of workers: `seqrecord` gives "
        f"{number(rate(best['seqrecord']))} clips a second of "
        f"{best['seqrecord']['settings']['codec']} records, {best['seqrecord']['share']:.0%} of "
        f"what the machine can copy. The best of other loaders is `{other}` with "
        f"{number(rate(best[other]))}"
    )
    if "original" in best:
        words += f", the dataset's own loader gives {number(rate(best['original']))}"
    return f"{words}."


def _batches(rows: Mapping[str, Row]) -> str:
    """Which batch sizes ours have in the published tables, and why not the published one."""
    sizes, reasons = batch_sizes(rows, USUAL)
    if not sizes:
        return "none of our rows was run."
    words = [
        f"{size} of {', '.join(f'`{name}`' for name in sorted(loaders))}"
        for size, loaders in sorted(sizes.items(), reverse=True)
    ]
    why = f" Where {BATCH_SIZE} did not run: {'; '.join(sorted(reasons))}." if reasons else ""
    return f"{'; '.join(words)}.{why}"


if __name__ == "__main__":
    main()
