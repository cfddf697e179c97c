"""Measure trainings with each loader. Each row runs in its own process; rows alternate.

    python -m benchmarks.training FOLDER [--rows 'odometry/8 ms/*/warm' …] [--to FOLDER]

A row's name is TRAINING/STEP/LOADER/PLACE. A step trains the small network on one thread, or makes
small torch calls that take 8 or 25 ms alone, like a training that computes on a device. Files are
in the page cache (`warm`) or were dropped from it (`cold`, at most one epoch); `s3` is moto behind
a line of 1 Gbit/s. `cold` and `s3` have steps of 8 ms only, which need data the fastest. Missing
data is created in FOLDER.

`--lerobot` is a Python with lerobot, created by `make lerobot-env`; ACT needs it to write a
dataset, unless `--root` is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np

from benchmarks.checks import header
from benchmarks.lerobot.data import add_arguments, python_environment
from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.tartanair.cloud_line import Line
from benchmarks.tartanair.cloud_services import NARROW, serve
from benchmarks.timing import Results, markdown, median, number, quotient, run_job
from benchmarks.training.loaders import LOADERS
from benchmarks.training.row import (
    ALONE,
    FASTEST,
    LITTLE,
    MOST,
    PLACES,
    SKIPPED,
    STEPS,
    Job,
    calls_of,
)
from benchmarks.training.trainings import TRAININGS, cut, pack_for_s3, prepare

__all__ = ["main", "names", "page"]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    shared = ("frames", "seconds", "repeats", "workers")
    settings = {name: getattr(options, name) for name in shared}
    suite = Suite(options, settings, code=code_of("training/RESULTS.md"))
    if not options.report:
        calls = suite.document.setdefault("calls", {step: calls_of(step) for step in STEPS})
        with ExitStack() as stack:
            suite.take_turns(dict(_jobs(suite, calls, stack)))
        every = ["/".join(row) for row in names()]
        order = [*every, *(name for name in suite.rows if name not in every)]
        rows = {name: suite.rows[name] for name in order if name in suite.rows}
        suite.document["rows"] = rows
    suite.publish(page)


def names() -> Iterator[tuple[str, str, str, str]]:
    """Training, step, loader and place of all rows, compared rows adjacent."""
    for training, place, step, loader in product(TRAININGS, PLACES, STEPS, LOADERS):
        data, is_later = LOADERS[loader].data, LOADERS[loader].epochs_before > 0
        is_of_it = not data or TRAININGS[training].data in data
        is_of_place = place == "warm" or (step == FASTEST and LOADERS[loader].open and not is_later)
        if is_of_it and is_of_place and not (is_later and step == "network"):
            yield training, step, loader, place


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_arguments(parser)
    parser.add_argument("--frames", type=int, default=640, help="of 480x640, in four episodes")
    parser.add_argument("--seconds", type=float, default=20, help="measured time per row")
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, help="of loaders except seqrecord")
    parser.add_argument("--together", nargs="*", type=int, default=[1], help="trainings at a time")
    return parser.parse_args(arguments)


def _jobs(suite: Suite, calls: Mapping[str, int], stack: ExitStack) -> Iterator[tuple[str, Run]]:
    """All wanted rows; creates their data. `x3` in a name means three trainings."""
    options, folder = suite.options, suite.folder
    far: Callable[[Path], dict[str, Any]] | None = None
    for training, step, name, place in names():
        row = f"{training}/{step}/{name}/{place}"
        if not suite.is_wanted(row):
            continue
        if why := _reason(training, name, place, options):
            yield row, why
            continue
        loader, found = LOADERS[name], prepare(training, folder, options)
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
        for together in options.together:
            more = f" x{together}" * (together > 1)
            yield (
                f"{training}/{step}/{name}/{place}{more}",
                partial(
                    run_job,
                    "benchmarks.training.row",
                    asdict(replace(job, together=together)),
                    120 + 8 * options.seconds,
                    python=options.lerobot if loader.package == "lerobot" else sys.executable,
                    environment=python_environment(folder),
                ),
            )


def _reason(training: str, name: str, place: str, options: argparse.Namespace) -> str:
    """Reason that a row cannot be measured here; empty if it can."""
    loader, has_lerobot = LOADERS[name], options.lerobot.exists()
    if place == "s3" and not loader.reads_s3:
        return "reads local files only"
    if TRAININGS[training].data == "lerobot" and not (options.root or has_lerobot):
        return "no LeRobot dataset: make lerobot-env, or --root"
    has = has_lerobot if loader.package == "lerobot" else find_spec(loader.package or "torch")
    return "" if has else f"no package {loader.package}: {loader.install}"


def _s3(stack: ExitStack) -> Callable[[Path], dict[str, Any]]:
    """Start S3 and its line; returns a function from folder to location, uploading it once."""
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


# ---- the page

_COLUMNS = (  # heading, figure, unit, format
    ("steps/s", "steps_per_second", 1.0, ".2f"),
    ("waiting, %", "waiting", 0.01, ".0f"),
    ("own work / alone", "slower", 1.0, ".2f"),
    ("alone, ms", "alone", 1e-3, ".1f"),
    ("95th percentile, ms", "p95", 1e-3, ".1f"),
    ("without a core, %", "queued", 0.01, ".0f"),
    ("first batch, s", "first_batch_seconds", 1.0, ".2f"),
    ("peak MB", "peak_memory_bytes", 1e6, ".0f"),
    ("CPU ms a sample", "cpu_seconds_per_sample", 1e-3, ".2f"),
    ("kB read a sample", "bytes_per_sample", 1e3, ".1f"),
    ("cores busy", "cores", 1.0, ".2f"),
)


def page(document: Mapping[str, Any]) -> str:
    """A table for each training, and explanations of the columns."""
    results: Results = document["rows"]
    settings = document["settings"]
    tables: list[str] = []
    shown: set[str] = set()
    columns = ["step", "place", "loader", "of the most", *(c[0] for c in _COLUMNS), "limited by"]
    for name, training in TRAININGS.items():
        rows = {row: runs for row, runs in results.items() if row.startswith(f"{name}/")}
        if not rows:
            continue
        shown |= {row.split("/")[2].partition(" +")[0] for row in rows}
        note = f"{training.note[0].upper()}{training.note[1:]}; {training.batch} samples a step."
        reasons = [
            f"\n- `{row}`: {why}"
            for row, runs in rows.items()
            for run in runs
            if (why := run.get("skipped") or run.get("error"))
        ]
        missing = "\n\nNot measured:\n" + "".join(reasons) if reasons else ""
        tables.append(f"## {name}\n\n{note}\n\n{markdown(columns, _lines(rows))}{missing}")
    return (
        Path(__file__)
        .with_name("template.md")
        .read_text()
        .format(
            **document | settings,
            header=header(document),
            tables="\n\n".join(tables),
            loaders="\n".join(f"- `{n}`: {LOADERS[n].note}." for n in LOADERS if n in shown),
            skipped=SKIPPED,
            little=f"{100 * LITTLE:.0f} %",
            most=f"{100 * MOST:.0f} %",
            alone=f"{ALONE * settings['seconds']:.1f}",
        )
    )


def _lines(rows: Results) -> Iterator[list[str]]:
    """Lines of the measured rows, grouped by step and place."""
    figures = {row: [run for run in runs if "steps" in run] for row, runs in rows.items()}
    for row, runs in figures.items():
        if not runs:
            continue
        training, step, loader, place = row.split("/")
        most = median(figures.get(f"{training}/{step}/no loader/warm", []), "steps_per_second")
        reached = number(quotient(median(runs, "steps_per_second"), most), ".2f")
        values = [number(median(runs, key), form, unit) for _, key, unit, form in _COLUMNS]
        limits = [run["limit"] for run in runs if "limit" in run]
        yield [step, place, loader, reached, *values, mode(limits) if limits else ""]


if __name__ == "__main__":
    main()
