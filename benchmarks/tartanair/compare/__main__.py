"""Loaders side by side: the same data, the same clips, one timing loop.

    python -m benchmarks.tartanair.compare FOLDER [--workload tartanair|audio|rgbd] [--rows …]

Renders recordings into FOLDER where it has none, converts them into each loader's format, and
measures every row in a process of its own. Results are FOLDER/results.json and .md; those of other
workloads than TartanAir are in a folder of their own, such as FOLDER/audio. `make bench-results`
writes the published page of all.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil

from benchmarks.suite import Run, Suite, make_parser
from benchmarks.tartanair.compare.grid import Cell, grid, refuses
from benchmarks.tartanair.compare.limits import copy_rate, disk_rate
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.results import table_page
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import prepared_at
from benchmarks.timing import Result, commit, once, run_job

_ROW = "benchmarks.tartanair.compare.row"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    workload = WORKLOADS[options.workload]
    if workload is not TARTANAIR:
        options.folder /= workload.name
    if options.report:
        Suite(options, {}).publish(table_page)
        return
    frames = options.frames or fitting_frames(options.folder, workload)
    root = options.folder.resolve() / "tree"
    once(root, lambda making: workload.generate(making, workload.episodes(frames)))
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
    jobs: dict[str, Run] = {}
    for cell in grid(workload):
        refused = refuses(cell.settings, workload.loaders[cell.loader], recordings)
        jobs[cell.title(workload.base)] = refused or partial(measure_one, cell, recordings, options)
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
    parser.add_argument("--workload", choices=list(WORKLOADS), default=TARTANAIR.name)
    parser.add_argument("--frames", type=int, help="in all, if they are made; else as many as fit")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=10, help="after the first batch")
    parser.add_argument("--prepare-limit", type=float, default=1800, help="of a format, in seconds")
    parser.add_argument("--list", action="store_true", help="show the rows and run nothing")
    return parser.parse_args(arguments)


def fitting_frames(folder: Path, workload: Workload) -> int:
    """So many that a format fits the page cache well, and all formats half of the free disk."""
    folder.mkdir(parents=True, exist_ok=True)
    formats = len(workload.loaders)
    memory, disk = psutil.virtual_memory().total / 8, shutil.disk_usage(folder).free / 2 / formats
    fewest, most = workload.num_frames
    return max(fewest, min(most, int(min(memory, disk) / workload.frame_nbytes)))


def measure_one(cell: Cell, recordings: Recordings, options: argparse.Namespace) -> Result:
    """The row's figures, or its error."""
    work, loader = options.folder.resolve(), WORKLOADS[options.workload].loaders[cell.loader]
    job = {
        "workload": options.workload,
        "loader": cell.loader,
        "settings": asdict(cell.settings),
        "root": str(recordings.root),
        "work": str(work),
        "epochs": options.epochs,
        "max_seconds": options.max_seconds,
    }
    if not prepared_at(loader, recordings, work, cell.settings).exists():
        made = run_job(_ROW, {**job, "do": "prepare"}, options.prepare_limit)
        if "error" in made:
            return {"error": f"preparing: {made['error']}"}
    result = run_job(_ROW, {**job, "do": "measure"}, 60 + 3 * options.epochs * options.max_seconds)
    return {**result, "loader": cell.loader, "commit": commit()}


if __name__ == "__main__":
    main()
