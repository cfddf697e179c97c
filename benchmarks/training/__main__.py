"""Trainings with each loader: all rows, each in a process of its own, in turns.

    python -m benchmarks.training FOLDER [--rows 'odometry/8 ms/*/warm' …] [--to FOLDER]

A row's name is TRAINING/STEP/LOADER/PLACE. A step is one of the training's small network, on one
thread, or small calls of torch that take 8 or 25 ms alone, as of a training whose large work is
on a device. Files are in the page cache (`warm`), or were dropped from it (`cold`, one epoch at
most); `s3` is moto behind a line of 1 Gbit/s. Those two have steps of 8 ms alone, which need data
the soonest. What rows need is made in FOLDER, unless it is there.

Results are FOLDER/results.json and, in the folder of `--to`, results.json and RESULTS.md.
`--resume` goes on with the last run, `--keep FILE` keeps the rows of an older results.json that
`--rows` leave out, and `--report` runs nothing and only writes. `--lerobot` is
a Python that has lerobot, which `make lerobot-env` makes; ACT needs it for its dataset, unless
`--root` is one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lerobot.__main__ import LEROBOT, python_environment
from benchmarks.tartanair.cloud_line import Line
from benchmarks.tartanair.cloud_services import NARROW, serve
from benchmarks.tartanair.compare.children import run_job
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.timing import Results, machine
from benchmarks.training.loaders import LOADERS
from benchmarks.training.page import page
from benchmarks.training.row import FASTEST, PLACES, STEPS, Job, calls_of
from benchmarks.training.trainings import TRAININGS, cut, pack_for_s3, prepare

__all__ = ["main", "names"]

_SAID = ("steps_per_second", "waiting", "slower", "skipped", "error")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    folder = options.folder.resolve()
    if options.report:
        document = json.loads((folder / "results.json").read_text())
    else:
        document = _run(options, folder)
    text = page(document)
    if options.to:
        _save(options.to, document)
        (options.to / "RESULTS.md").write_text(text)
    print(text)


def names() -> Iterator[tuple[str, str, str, str]]:
    """Training, step, loader and place of all rows, those that are compared next to each other."""
    for training, place, step, loader in product(TRAININGS, PLACES, STEPS, LOADERS):
        data, is_later = LOADERS[loader].data, LOADERS[loader].epochs_before > 0
        is_of_it = not data or TRAININGS[training].data in data
        is_of_place = place == "warm" or (step == FASTEST and LOADERS[loader].open and not is_later)
        if is_of_it and is_of_place and not (is_later and step == "network"):
            yield training, step, loader, place


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=640, help="of 480x640 in four episodes")
    parser.add_argument("--root", type=Path, help="a LeRobot dataset (v3.0) for ACT")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python that has lerobot")
    parser.add_argument("--seconds", type=float, default=20, help="of a row's measurement")
    parser.add_argument("--repeats", type=int, default=3)
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, help="of loaders that are not ours")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of their names")
    parser.add_argument("--niceness", nargs="*", type=int, default=[0], help="of our threads")
    parser.add_argument("--together", nargs="*", type=int, default=[1], help="trainings at a time")
    parser.add_argument("--resume", action="store_true", help="keep what the last run measured")
    parser.add_argument("--keep", type=Path, help="results.json with the rows not in --rows")
    parser.add_argument("--report", action="store_true", help="of the last run; run nothing")
    parser.add_argument("--to", type=Path, help="where results.json and RESULTS.md are written")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of a run, which is also saved after each row."""
    folder.mkdir(parents=True, exist_ok=True)
    every = ["/".join(row) for row in names()]
    chosen = [row for row in every if any(fnmatch(row, each) for each in options.rows)]
    settings = {
        name: getattr(options, name) for name in ("frames", "seconds", "repeats", "workers")
    }
    document: dict[str, Any] = {"machine": machine(), "commit": commit(), "settings": settings}
    if options.resume:
        document = json.loads((folder / "results.json").read_text()) | {"settings": settings}
    elif options.keep:
        kept = json.loads(options.keep.read_text())
        if kept["settings"] != settings:
            raise SystemExit(f"--keep: settings were {kept['settings']} and are {settings} now")
        document["commit"] += f"; of all rows but {', '.join(options.rows)}: {kept['commit']}"
        document |= {
            "calls": kept["calls"],
            "rows": {name: runs for name, runs in kept["rows"].items() if name not in chosen},
        }
    calls = document.get("calls") or {step: calls_of(step) for step in STEPS}
    results: Results = document.get("rows", {})
    document |= {"calls": calls, "rows": results}
    with ExitStack() as stack:
        jobs: dict[str, tuple[Path, Job]] = {}
        far: Callable[[Path], dict[str, Any]] | None = None
        for row in chosen:
            training, step, name, place = row.split("/")
            loader = LOADERS[name]
            python = options.lerobot if loader.package == "lerobot" else Path(sys.executable)
            if reason := _reason(training, name, place, options):
                results[row] = [{"skipped": reason}]
                continue
            found = prepare(training, folder, options)
            form = loader.form
            if form == "cut":
                cut(training, found)
            elif place == "s3":
                form = "s3"
                pack_for_s3(training, found)
            job = Job(
                training=training,
                loader=name,
                place=place,
                example=str(found["example"]),
                originals=str(found["originals"]),
                folder=str(found[form]),
                seconds=options.seconds,
                calls=calls[step],
                workers=options.workers if loader.workers is None else loader.workers,
            )
            if place == "s3":
                far = far or _s3(stack)
                job = replace(job, **far(found[form]))
            for niceness, together in product(options.niceness, options.together):
                changed = replace(job, niceness=niceness, together=together)
                more = f" +{niceness}" * bool(niceness), f" x{together}" * (together > 1)
                jobs[f"{training}/{step}/{name}{more[0]}/{place}{more[1]}"] = python, changed
        for turn in range(options.repeats):
            for row_name, (python, job) in jobs.items():
                if len(results.get(row_name, ())) > turn:
                    continue
                result = run_job(
                    [str(python), "-m", Job.__module__],
                    job.dumps(),
                    120 + 8 * options.seconds,
                    environment=python_environment(folder),
                )
                results.setdefault(row_name, []).append(result)
                said = {what: value for what, value in result.items() if what in _SAID}
                print(f"{row_name}: {said}", file=sys.stderr, flush=True)
                _save(folder, document)
    order = [*every, *(name for name in results if name not in every)]
    document["rows"] = {name: results[name] for name in order if name in results}
    _save(folder, document)
    return document


def _reason(training: str, name: str, place: str, options: argparse.Namespace) -> str:
    """Why a row cannot be measured here, if so."""
    loader, has_lerobot = LOADERS[name], options.lerobot.exists()
    if place == "s3" and not loader.reads_s3:
        return "reads local files only"
    if TRAININGS[training].data == "lerobot" and not (options.root or has_lerobot):
        return "no LeRobot dataset: make lerobot-env, or --root"
    has = has_lerobot if loader.package == "lerobot" else find_spec(loader.package or "torch")
    return "" if has else f"no package {loader.package}: {loader.install}"


def _s3(stack: ExitStack) -> Callable[[Path], dict[str, Any]]:
    """Start S3 and the line to it; what it gives uploads a folder, once, and says where it is."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    cloud = stack.enter_context(serve(home, ("moto",)))["moto"].cloud
    counter = np.memmap(home / "sent", np.int64, "w+", shape=1)
    line = stack.enter_context(Line(cloud.host, **NARROW, counter=counter))
    uploaded: set[str] = set()

    def place(folder: Path) -> dict[str, Any]:
        if folder.name not in uploaded:
            cloud.upload(folder, folder.name)
            uploaded.add(folder.name)
        location = cloud.location(folder.name)
        return {
            "location": location,
            "options": cloud.options(line.host),
            "url": f"http://{line.host}/{location.removeprefix('s3://')}",
            "line": str(home / "sent"),
            "line_rate": NARROW["bytes_per_second"],
        }

    return place


def _save(folder: Path, document: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
