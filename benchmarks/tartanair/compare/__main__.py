"""Compare loaders on the same data and clips, with one timing loop.

    python -m benchmarks.tartanair.compare FOLDER [--rows …]

Renders recordings into FOLDER unless it has any, converts them into each loader's format, and
measures every row in its own process. Results are FOLDER/results.json and .md.
`make bench-results` writes the published page from them.
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
from benchmarks.tartanair.compare.grid import LOADERS, Cell, grid, refuses
from benchmarks.tartanair.compare.limits import copy_rate, disk_rate
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.results import table_page
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL, prepared_at
from benchmarks.timing import Result, commit, once, run_job

_ROW = "benchmarks.tartanair.compare.row"
_FRAME_BYTES = 4_700_000  # about, of five features


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.report:
        Suite(options, {}).publish(table_page)
        return
    frames = options.frames or fitting_frames(options.folder)
    root = options.folder.resolve() / "tree"
    once(root, lambda making: generate(making, episodes=[frames // 4] * 4))
    recordings = Recordings.open(root, USUAL.features)
    settings = {
        "max_seconds": options.max_seconds,
        "epochs": options.epochs,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "features": list(recordings.features),
        "frame_bytes": recordings.frame_nbytes(),
        "episodes": [episode.num_frames for episode in recordings.episodes],
    }
    jobs: dict[str, Run] = {}
    for cell in grid():
        refused = refuses(cell.settings, LOADERS[cell.loader], recordings)
        jobs[cell.title] = refused or partial(measure_one, cell, recordings, options)
    if options.list:
        for title, job in jobs.items():
            print(title, "-", job if isinstance(job, str) else "")
        return
    suite = Suite(options, settings)
    limits = suite.document.setdefault("limits", {})
    # Two virtual cores may share a real one, for minutes: the best of all measurements.
    clip_nbytes = USUAL.clip_len * recordings.frame_nbytes()
    copied = copy_rate(clip_nbytes, threads=len(os.sched_getaffinity(0)))
    limits["copy"] = max(limits.get("copy", 0.0), copied)
    limits.setdefault("disk", disk_rate(options.folder))
    suite.take_turns(suite.wanted(jobs))
    suite.publish(table_page)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, repeats=1)
    parser.add_argument("--frames", type=int, help="in total, to render; default: as many as fit")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=10, help="after the first batch")
    parser.add_argument("--prepare-limit", type=float, default=1800, help="per format, in seconds")
    parser.add_argument("--list", action="store_true", help="show the rows and run nothing")
    return parser.parse_args(arguments)


def fitting_frames(folder: Path) -> int:
    """Number of frames so that a format fits the page cache, and all fit half of the free disk."""
    folder.mkdir(parents=True, exist_ok=True)
    formats = len(LOADERS)
    memory, disk = psutil.virtual_memory().total / 8, shutil.disk_usage(folder).free / 2 / formats
    return max(160, min(2_000, int(min(memory, disk) / _FRAME_BYTES)))


def measure_one(cell: Cell, recordings: Recordings, options: argparse.Namespace) -> Result:
    """The row's figures, or its error."""
    work, loader = options.folder.resolve(), LOADERS[cell.loader]
    job = {
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
