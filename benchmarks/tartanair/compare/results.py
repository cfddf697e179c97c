"""Writes RESULTS.md and its plots from a run of the comparison.

    python -m benchmarks.tartanair.compare.results FOLDER [--to FOLDER] [--only PART]

FOLDER is one of `python -m benchmarks.tartanair.compare`; every figure comes from its results.json,
and from those of the other workloads, such as FOLDER/audio/results.json. What is always the same is
in results_template.md and published_template.md. `--only` leaves the rest of RESULTS.md as it is:
after a run of `--grid published` alone, `published` writes these tables anew, and their rows that
did not run stay as they were, and are marked; `others` writes the workloads beside TartanAir, and
`loaders` TartanAir's rows.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.tartanair.compare.kept_rows import keep_rows
from benchmarks.tartanair.compare.picking import Row, is_plain, rate
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
    best_shuffled,
    counted,
    facts,
    grouped,
    is_main,
    picture,
    reasons_text,
    shown_table,
)
from benchmarks.tartanair.compare.results_workload import workload_part
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS
from benchmarks.tartanair.loaders.base import USUAL, Settings
from benchmarks.tartanair.loaders.registry import all_loaders
from seqrecord.writing.stored_schema import DEFAULT_CODEC

__all__ = [
    "document",
    "published_part",
    "write",
    "write_loaders",
    "write_others",
    "write_published",
]

TO = Path(__file__).parents[1]
_TEMPLATE = Path(__file__).with_name("results_template.md")
_PUBLISHED = "## The published tables, and ours beside them"
_ALL_LOADERS = "## All loaders"
_COMMITS = re.compile(r"Commit: (`[^.]*`)\.")
_TIMELINE = "What each thread does: the baseline with two workers, and ours"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=TO, help="of RESULTS.md and plots/")
    parser.add_argument("--only", choices=list(_PARTS), help="leave the rest as it is")
    options = parser.parse_args(arguments)
    writer = _PARTS[options.only] if options.only else write
    print(writer(options.folder, options.to))


def write(folder: Path, to: Path) -> Path:
    """RESULTS.md of the run in `folder`, written into `to` with `plots` beside it."""
    results = _load(folder / "results.json")
    shown = _draw(results["rows"], to / "plots")
    others = "\n\n".join(_others(folder, to / "plots"))
    path = to / "RESULTS.md"
    path.write_text(document(results, shown, published_part(results), others))
    return path


def write_loaders(folder: Path, to: Path) -> Path:
    """RESULTS.md in `to` with TartanAir's rows from the run in `folder`; its published tables and
    the other workloads stay."""
    path = to / "RESULTS.md"
    before, others = path.read_text().split(_others_heading())
    published = before[before.index(_PUBLISHED) : before.index(_ALL_LOADERS)]
    results = _load(folder / "results.json")
    elsewhere = {cell.key for cell in published_grid(all_loaders(), Settings())}
    rows = [r for r in results["rows"] if r["key"] not in elsewhere or "clips_per_second" in r]
    shown = _draw(rows, to / "plots")
    path.write_text(document({**results, "rows": rows}, shown, published, others.strip()))
    return path


def _draw(rows: Sequence[Row], plots: Path) -> dict[str, str]:
    """Draw the plots of TartanAir's rows; captions by the names of all that are there."""
    drawn = {path.stem for path in draw_all(plots, rows)}
    shown = {name: words for name, words in CAPTIONS.items() if name in drawn}
    if (plots / "timeline.png").exists():  # of `compare.timeline`
        shown["timeline"] = _TIMELINE
    return shown


def write_others(folder: Path, to: Path) -> Path:
    """RESULTS.md in `to` with the other workloads that the run in `folder` has; all else stays."""
    path = to / "RESULTS.md"
    heading = _others_heading()
    before, old = path.read_text().split(heading)
    parts = {part.split("\n")[0]: part.strip() for part in re.split(r"(?m)^(?=### )", old) if part}
    for new in _others(folder, to / "plots", only_run=True):
        parts[new.split("\n")[0]] = new.strip()
    others = "\n\n".join(parts.values())
    path.write_text(f"{before}{heading}{others}\n")
    return path


def _others_heading() -> str:
    """What stands above the parts of the other workloads."""
    return _TEMPLATE.read_text().split("$plots")[1].removesuffix("$others\n")


def _others(folder: Path, plots: Path, *, only_run: bool = False) -> list[str]:
    """The part of each workload beside TartanAir, or of those alone that were run."""
    files = {name: folder / name / "results.json" for name in WORKLOADS}
    return [
        workload_part(workload, files[name], plots)
        for name, workload in WORKLOADS.items()
        if workload is not TARTANAIR and (files[name].exists() or not only_run)
    ]


def write_published(folder: Path, to: Path) -> Path:
    """RESULTS.md in `to` with its published tables from the run in `folder`; all else stays."""
    path = to / "RESULTS.md"
    before, rest = path.read_text().split(f"{_PUBLISHED}\n", 1)
    old, after = rest[: (at := rest.index(_ALL_LOADERS))], rest[at:]
    said = _COMMITS.search(old) or _COMMITS.search(before)
    commits = said[1].split(", ") if said else []
    part = keep_rows(published_part(_load(folder / "results.json")), old, commits)
    path.write_text(f"{before}{part}\n{after}")
    return path


def published_part(results: Mapping[str, Any]) -> str:
    """The published tables with ours beside them, and what can be compared."""
    base, by_key = Settings(), {row["key"]: row for row in results["rows"]}
    keys = {cell.key for cell in published_grid(all_loaders(), base)}
    rows = [row for row in results["rows"] if row["key"] in keys]
    text = Template(_TEMPLATE.with_name("published_template.md").read_text()).substitute(
        **facts({**results, "rows": rows}),
        cores=counted(results["cores"], "core"),
        cut=f"{results['max_seconds']:g}",
        codec=DEFAULT_CODEC,
        memory=LARGE_MEMORY,
        tables="\n\n".join(
            f"### {part.title}\n\nPublished: {part.where}.\n\n{table_text(part, by_key, base)}"
            for part in TABLES
        ),
        batches=_batches(by_key, base),
        lossy=", ".join(f"`{n}`" for n, loader in all_loaders().items() if not loader.lossless),
    )
    assert text.startswith(f"{_PUBLISHED}\n")
    return text


def document(
    results: Mapping[str, Any], plots: Mapping[str, str], published: str, others: str
) -> str:
    """The text: `results` of TartanAir, captions by plots' names, published tables with ours beside
    them, and other workloads' parts."""
    rows: list[Row] = results["rows"]
    groups = grouped(rows, {"main": is_main, "rgb": _is_rgb})
    return Template(_TEMPLATE.read_text()).substitute(
        **facts(results),
        features=", ".join(results["features"]),
        summary=_summary(rows),
        published=published.rstrip(),
        limits=limits_table(results["limits"]),
        main=shown_table(groups["main"]),
        rgb=shown_table(groups["rgb"]),
        rest=shown_table(groups["rest"]),
        reasons=reasons_text(rows) or "All rows ran.",
        plots="\n\n".join(picture(name, words) for name, words in plots.items()),
        others=others,
    )


def _load(file: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(file.read_text())
    return results


def _is_rgb(row: Row) -> bool:
    """All settings as usual, with RGB alone."""
    return is_plain(row, base=replace(USUAL, features=USUAL.features[:1]))


def _summary(rows: Sequence[Row]) -> str:
    """Ours, the best of the others and the baseline, shuffled and from a warm disk."""
    best = best_shuffled(rows)
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


_PARTS = {"published": write_published, "others": write_others, "loaders": write_loaders}

if __name__ == "__main__":
    main()
