"""Compare loaders on the same data and clips, with one timing loop.

    python -m benchmarks.tartanair.compare FOLDER [--workload tartanair|audio|rgbd …] [--rows …]

Writes recordings into FOLDER unless it has any, converts them into each loader's format, and
measures every row in its own process. Each line of a table is tried with a small grid of settings,
once; the best ones of all lines are measured in turn. Results are
FOLDER/results.json and .md, of audio and rgbd in FOLDER/audio and FOLDER/rgbd.
`make bench-results` writes the published page from them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import psutil

from benchmarks.checks import TRIAL
from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.tartanair.compare.grid import Cell, Choice, others, refuses, sections
from benchmarks.tartanair.compare.limits import bound, probe_file
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.results import table_page
from benchmarks.tartanair.compare.stores import STORES, Stores
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import prepared_at
from benchmarks.timing import Result, Results, median, once, run_job

__all__ = ["best_cells", "main"]

_ROW = "benchmarks.tartanair.compare.row"
_LIMITS = "benchmarks.tartanair.compare.limits"
_CEILING_SECONDS = 0.5
_OTHER = "other"
# A trial's epoch of this length is not repeated: the start of threads, the same for all cells of a
# loader, is a small part of it.
_TRIAL_SECONDS = 6.0


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    folder = options.folder.resolve()
    for name in options.workload:
        options.folder = folder if name == TARTANAIR.name else folder / name
        compare(WORKLOADS[name], options)


def compare(workload: Workload, options: argparse.Namespace) -> None:
    """Measure a workload's rows, or write its page only."""
    if options.report:
        Suite(options, {}).publish(table_page)
        return
    root = options.folder / "tree"
    episodes = [options.frames // 4] * 4 if options.frames else workload.episodes
    once(root, lambda making: workload.generate(making, episodes))
    recordings = workload.open(root, workload.base.features)
    settings = {
        "workload": workload.name,
        "epochs": options.epochs,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "features": list(recordings.features),
        "frame_bytes": recordings.frame_nbytes(),
        "episodes": [episode.num_frames for episode in recordings.episodes],
    }
    suite = Suite(options, settings, code=code_of("tartanair/RESULTS.md"))
    with Stores(options.folder / "stores") as stores:
        comparison = Comparison(workload, recordings, suite, stores)
        if options.list:
            comparison.show()
        else:
            comparison.measure()
            suite.publish(table_page)


class Comparison:
    """The rows of a workload: trials of settings, then the best ones in turn."""

    def __init__(
        self, workload: Workload, recordings: Recordings, suite: Suite, stores: Stores
    ) -> None:
        self._workload, self._recordings = workload, recordings
        self._suite, self._stores = suite, stores

    def show(self) -> None:
        for section, choices in sections(self._workload).items():
            for choice, cell in ((c, cell) for c in choices for cell in c.cells):
                reason = self._reason(cell)
                print(f"{section}: {choice.label}: {cell.title(self._workload.base)} - {reason}")

    def measure(self) -> None:
        for section, choices in sections(self._workload).items():
            if section in (self._suite.options.section or [section]):
                self._measure_section(section, choices)
        if _OTHER in (self._suite.options.section or [_OTHER]) and self._workload is TARTANAIR:
            best = best_cells(sections(TARTANAIR)["loaders"], self._suite.rows, TARTANAIR)
            by_loader = {cell.loader: cell for cell in best.values()}
            self._measure_section(_OTHER, others(TARTANAIR, by_loader))

    def _measure_section(self, section: str, choices: Sequence[Choice]) -> None:
        suite, base = self._suite, self._workload.base
        wanted = [
            choice
            for choice in choices
            if suite.is_wanted(choice.label, *(cell.title(base) for cell in choice.cells))
        ]
        cells = dict.fromkeys(chain.from_iterable(c.cells for c in wanted if len(c.cells) > 1))
        trials = {
            f"{TRIAL}{cell.title(base)}": self._job(cell, enough=_TRIAL_SECONDS) for cell in cells
        }
        suite.take_turns(trials, 1, part=f"{section}, trials")
        best = best_cells(wanted, suite.rows, self._workload)
        for cold in (False, True):
            jobs = {
                cell.title(base): self._job(cell)
                for cell in dict.fromkeys(best.values())
                if (cell.settings.storage == "cold") == cold
            }
            suite.take_turns(jobs, ceiling=partial(self._ceiling, cold=cold), part=section)
        for runs in suite.rows.values():
            for run in runs:
                if "ceiling" in run and "seconds" in run:
                    run["bound"], run["share"] = bound(run)

    def _ceiling(self, *, cold: bool) -> Mapping[str, float]:
        job = {
            "clip_nbytes": self._workload.base.clip_len * self._recordings.frame_nbytes(),
            "source_nbytes": self._recordings.num_frames * self._recordings.frame_nbytes(),
            "threads": len(os.sched_getaffinity(0)),
            "seconds": _CEILING_SECONDS,
            "probe": str(probe_file(self._suite.folder / "probe")) if cold else "",
        }
        limits = run_job(_LIMITS, job, 60)
        if "error" in limits:
            raise SystemExit(f"no ceiling: {limits['error']}")
        return {name: limits[name] for name in ("copy", "disk") if name in limits}

    def _reason(self, cell: Cell) -> str:
        return refuses(cell.settings, self._workload.loaders[cell.loader], self._recordings)

    def _job(self, cell: Cell, **changes: Any) -> Run:
        settings = self._workload, self._recordings, self._suite.options, self._stores
        return self._reason(cell) or partial(measure_one, cell, *settings, **changes)


def best_cells(choices: Sequence[Choice], rows: Results, workload: Workload) -> dict[str, Cell]:
    """The fastest cell of each choice by its trials; the first one where none ran."""

    def rate(cell: Cell) -> float:
        return (
            median(rows.get(f"{TRIAL}{cell.title(workload.base)}", ()), "clips_per_second") or 0.0
        )

    return {choice.label: max(choice.cells, key=rate) for choice in choices}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workload", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--frames", type=int, help="in total, of four recordings")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--section", nargs="*", help="of the page: loaders, other, published, systems"
    )
    parser.add_argument("--time-limit", type=float, default=600, help="of a row, in seconds")
    parser.add_argument("--prepare-limit", type=float, default=1800, help="per format, in seconds")
    parser.add_argument("--prepare", action="store_true", help="write the formats only")
    parser.add_argument("--list", action="store_true", help="show the rows and run nothing")
    return parser.parse_args(arguments)


def measure_one(
    cell: Cell,
    workload: Workload,
    recordings: Recordings,
    options: argparse.Namespace,
    stores: Stores,
    **changes: Any,
) -> Result:
    """The row's figures, or its error; with `changes` of its job."""
    loader, settings = workload.loaders[cell.loader], cell.settings
    job = {
        "workload": workload.name,
        "loader": cell.loader,
        "settings": asdict(settings),
        "root": str(recordings.root),
        "work": str(options.folder),
        "epochs": options.epochs,
        **changes,
    }
    folder = prepared_at(loader, recordings, options.folder, settings)
    if not folder.exists():
        made = run_job(_ROW, {**job, "do": "prepare"}, options.prepare_limit)
        if "error" in made:
            return {"error": f"preparing: {made['error']}"}
    if options.prepare:
        return {"skipped": "only prepared"}
    if settings.storage in STORES:
        try:
            job["place"] = str(stores.place(settings.storage, folder))
        except RuntimeError as error:  # of a service that cannot run here
            return {"error": str(error)}
    result = run_job(_ROW, {**job, "do": "measure"}, options.time_limit)
    if "error" in result and settings.storage in STORES:
        stores.stop()  # the service is still busy with the requests of the killed process
    return {**result, "loader": cell.loader}


if __name__ == "__main__":
    main()
