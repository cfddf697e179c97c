"""Loaders side by side: the same data, the same clips, one timing loop.

    python -m benchmarks.tartanair.compare FOLDER [--workload tartanair|audio|rgbd] [--loaders …]
        [--workers …]

Renders a tree into FOLDER where it has none, converts it into each loader's format, and measures
every cell of the grid in a process of its own. Giving values of an axis replaces the grid by all
combinations of what is given. Rows are kept in FOLDER/rows.jsonl as they come; `--resume` goes on
after the last, and `--report` only writes. Results are FOLDER/results.json, .csv, .md and
FOLDER/tensorboard.

Other workloads have loaders and a folder of their own, such as FOLDER/audio:

- `audio`: recordings of 10 s at 16 kHz; clips of 1 s, ten frames of 100 ms.
- `rgbd`: recordings of 240 frames of 480x640, JPEG and 16-bit PNG; clips of 16 frames, resized to
  192x256 once for each frame, or once for each clip that it is in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.compare.children import run_task
from benchmarks.tartanair.compare.grid import AXES, grid, product_grid, refuses
from benchmarks.tartanair.compare.limits import copy_rate, disk_rate, range_rate
from benchmarks.tartanair.compare.prepared import files_of, folder_of
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.report import Row, about, describe, write_all
from benchmarks.tartanair.compare.row import Task
from benchmarks.tartanair.compare.services import AZURE, Services
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import USUAL, Loader


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    workload = WORKLOADS[options.workload]
    loaders = {name: workload.loaders()[name] for name in options.loaders}
    root = options.folder / "tree"
    if not root.exists():
        frames = options.frames or fitting_frames(options.folder, workload)
        make_whole(root, workload, workload.episodes(frames, options.episodes))
    recordings = workload.open(root, workload.base.features, options.folder)
    axes = {axis: values for axis in AXES if (values := getattr(options, axis)) is not None}
    base = workload.base
    cells = product_grid(loaders, base, axes) if axes else grid(loaders, base)
    if options.list:
        for cell in cells:
            print(cell.title, "-", refuses(cell, loaders[cell.loader], recordings) or "")
        return
    file = options.folder / "rows.jsonl"
    known = options.folder / "limits.json"
    goes_on = options.resume or options.report
    if file.exists() and not goes_on:
        file.rename(file.with_suffix(".jsonl.old"))
    kept = rows_of(file) if file.exists() else []
    if not options.report:  # those without figures get another chance
        kept = [row for row in kept if "clips_per_second" in row]
        file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    limits: dict[str, float | None] = {}
    if goes_on and known.exists():
        limits = json.loads(known.read_text())
    todo = [] if options.report else cells
    with file.open("a") as out:
        for row in measure_all(todo, loaders, recordings, kept, limits, options):
            out.write(json.dumps(row) + "\n")
            out.flush()
            kept.append(row)
            known.write_text(json.dumps(limits))
    known.write_text(json.dumps(limits))
    ran = {row["key"] for row in kept}
    for cell in cells:
        if cell.key not in ran:
            reason = refuses(cell, loaders[cell.loader], recordings) or "not run yet"
            kept.append({**describe(cell), "skipped": reason})
    keys = {cell.key for cell in cells}
    rows = [row for row in kept if row["key"] in keys]
    print(write_all(options.folder, rows, limits, about(recordings, options.max_seconds)))


def rows_of(file: Path) -> list[Row]:
    """The rows that are kept in a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", choices=list(WORKLOADS), default=TARTANAIR.name)
    parser.add_argument("--frames", type=int, help="in all, if they are made; else what fits")
    parser.add_argument("--episodes", type=int, help="recordings, if they are made; 4 of a tree")
    parser.add_argument("--loaders", nargs="+", help="by default all of the workload")
    for axis in AXES:
        kind = type(getattr(USUAL, axis))
        parser.add_argument(f"--{axis.replace('_', '-')}", nargs="+", type=kind)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--max-seconds", type=float, default=10, help="after the first batch")
    parser.add_argument("--time-limit", type=float, default=0, help="of a row, in seconds")
    parser.add_argument("--prepare-limit", type=float, default=1800, help="of a format, in seconds")
    parser.add_argument("--resume", action="store_true", help="keep the rows that have figures")
    parser.add_argument("--report", action="store_true", help="of the rows so far; run nothing")
    parser.add_argument("--list", action="store_true", help="show the cells and run nothing")
    options = parser.parse_args(arguments)
    names = list(WORKLOADS[options.workload].loaders())
    options.loaders = options.loaders or names
    if unknown := [name for name in options.loaders if name not in names]:
        parser.error(f"no loader {', '.join(unknown)} of {options.workload}: {', '.join(names)}")
    if options.workload != TARTANAIR.name:
        options.folder /= options.workload
    return options


def fitting_frames(folder: Path, workload: Workload) -> int:
    """So many that a format fits the page cache well, and all formats half of what is free."""
    folder.mkdir(parents=True, exist_ok=True)
    formats = len(workload.loaders())
    memory, disk = psutil.virtual_memory().total / 8, shutil.disk_usage(folder).free / 2 / formats
    fewest, most = workload.num_frames
    return max(fewest, min(most, int(min(memory, disk) / workload.frame_nbytes)))


def make_whole(root: Path, workload: Workload, episodes: Sequence[int]) -> None:
    """Make the recordings; they appear under their name only when they are whole."""
    making = root.with_name(f"{root.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    workload.generate(making, episodes)
    making.rename(root)


def measure_all(
    cells: Sequence[Cell],
    loaders: Mapping[str, Loader],
    recordings: Recordings,
    kept: Sequence[Row],
    limits: dict[str, float | None],
    options: argparse.Namespace,
) -> Iterator[Row]:
    """Rows as they come, all cells once before any of them twice; fills `limits`."""
    if cells or "copy" not in limits:
        # Two virtual cores may share a real one, for minutes: the best of all measurements.
        clip_nbytes = WORKLOADS[options.workload].base.clip_len * recordings.frame_nbytes()
        copied = copy_rate(clip_nbytes, threads=len(os.sched_getaffinity(0)))
        limits["copy"] = max(limits.get("copy") or 0.0, copied)
    done = [row["key"] for row in kept]
    with (
        Services() as services,
        tqdm(total=len(cells) * options.repeats, unit="row", dynamic_ncols=True) as bar,
    ):
        for repeat in range(options.repeats):
            for cell in cells:
                bar.set_description(cell.title[:60])
                loader = loaders[cell.loader]
                if done.count(cell.key) <= repeat:
                    if reason := refuses(cell, loader, recordings):
                        yield {**describe(cell), "skipped": reason}
                    else:
                        result = measure_one(cell, loader, recordings, services, limits, options)
                        yield {**describe(cell), **result}
                bar.update()


def measure_one(
    cell: Cell,
    loader: Loader,
    recordings: Recordings,
    services: Services,
    limits: dict[str, float | None],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The row's figures, or its error."""
    settings = cell.settings
    task = Task(
        do="measure",
        loader=cell.loader,
        settings=settings,
        root=str(recordings.root.resolve()),
        features=tuple(recordings.features),
        work=str(options.folder.resolve()),
        epochs=options.epochs,
        max_seconds=options.max_seconds,
        workload=options.workload,
    )
    folder = folder_of(loader, recordings, options.folder.resolve(), settings)
    if not folder.exists():
        made = run_task(Task(**{**vars(task), "do": "prepare"}), options.prepare_limit)
        if "error" in made:
            return {"error": f"preparing: {made['error']}"}
    try:
        task = services.place(task, folder)
        _look_at_limit(limits, task)
    except Exception as error:  # of a service that is not there, or of a storage
        return {"error": f"{settings.storage}: {type(error).__name__}: {error}"[:300]}
    time_limit = options.time_limit or 60 + 3 * options.epochs * options.max_seconds
    result = run_task(task, time_limit)
    # Requests of a row that was stopped may go on for a minute; and Azurite keeps a file open for
    # every read that a mount abandons, until it has no more and does not answer.
    if "error" in result or settings.storage == "mount":
        services.stop()
    stored = sum(path.stat().st_size for path in files_of(folder))
    part = recordings.frame_nbytes(settings.features) / recordings.frame_nbytes()
    return {**result, "stored_bytes": stored, "needed_bytes": stored * part}


def _look_at_limit(limits: dict[str, float | None], task: Task) -> None:
    storage = task.settings.storage
    if storage == "cold" and "disk" not in limits:
        limits["disk"] = disk_rate(Path(task.work))
    name = f"range-{storage}"
    # blobfile lists nothing here: what sends its requests to this machine is for reading.
    remote = storage in {*AZURE, "mount"} - {"blobfile"}
    if remote and name not in limits and task.loader.startswith("seqrecord"):
        limits[name] = range_rate(f"{task.location or task.mount}/records", task.options)


if __name__ == "__main__":
    main()
