"""Compare loaders on the same data and clips, with one timing loop.

    python -m benchmarks.tartanair.compare FOLDER [--workload tartanair|audio|rgbd …] [--rows …]

Writes recordings into FOLDER unless it has any, converts them into each loader's format, and
measures every row in its own process. Results are FOLDER/results.json and .md; those of audio and
rgbd are in a folder of that name below it. `make bench-results` writes the published page from
them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import psutil

from benchmarks.suite import Run, Suite, make_parser
from benchmarks.tartanair.compare.grid import Cell, grid, refuses
from benchmarks.tartanair.compare.limits import copy_rate, disk_rate
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.results import table_page
from benchmarks.tartanair.compare.stores import STORES, Stores
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import prepared_at
from benchmarks.timing import Result, commit, once, run_job

_ROW = "benchmarks.tartanair.compare.row"
_START = 120  # seconds until a row's first batch


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
        "max_seconds": options.max_seconds,
        "epochs": options.epochs,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "features": list(recordings.features),
        "frame_bytes": recordings.frame_nbytes(),
        "episodes": [episode.num_frames for episode in recordings.episodes],
    }
    with Stores(options.folder / "stores") as stores:
        jobs: dict[str, Run] = {}
        for cell in grid(workload):
            loader = workload.loaders[cell.loader]
            jobs[cell.title(workload.base)] = refuses(cell.settings, loader, recordings) or partial(
                measure_one, cell, workload, recordings, options, stores
            )
        if options.list:
            for title, job in jobs.items():
                print(title, "-", job if isinstance(job, str) else "")
            return
        suite = Suite(options, settings)
        limits = suite.document.setdefault("limits", {})
        # Two virtual cores may share a real one, for minutes: the best of all measurements.
        clip_nbytes = workload.base.clip_len * recordings.frame_nbytes()
        copied = copy_rate(clip_nbytes, threads=len(os.sched_getaffinity(0)))
        limits["copy"] = max(limits.get("copy", 0.0), copied)
        limits.setdefault("disk", disk_rate(options.folder))
        suite.take_turns(suite.wanted(jobs))
    suite.publish(table_page)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, repeats=1)
    parser.add_argument("--workload", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--frames", type=int, help="in total, of four recordings")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=1.5, help="after the first batch")
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
) -> Result:
    """The row's figures, or its error."""
    loader, settings = workload.loaders[cell.loader], cell.settings
    job = {
        "workload": workload.name,
        "loader": cell.loader,
        "settings": asdict(settings),
        "root": str(recordings.root),
        "work": str(options.folder),
        "epochs": options.epochs,
        "max_seconds": options.max_seconds,
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
    result = run_job(_ROW, {**job, "do": "measure"}, _START + 10 * options.max_seconds)
    if "error" in result and settings.storage in STORES:
        stores.stop()  # the service is still busy with the requests of the killed process
    return {**result, "loader": cell.loader, "commit": commit()}


if __name__ == "__main__":
    main()
