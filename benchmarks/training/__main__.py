"""Measure trainings with each loader. Each row runs in its own process; rows alternate.

    python -m benchmarks.training FOLDER [--rows 'odometry/8 ms/*/warm' …] [--to FOLDER]

A row's name is TRAINING/STEP/LOADER/PLACE. A step trains the small network on one thread, or makes
small torch calls that take 8 ms alone, like a training that computes on a device. Files are in the
page cache (`warm`); `s3` is moto behind a line of 1 Gbit/s, with steps of 8 ms only, which need
data the fastest. Missing data is created in FOLDER.

`--lerobot` is a Python with lerobot, created by `make lerobot-env`; ACT needs it to write a
dataset, unless `--root` is one.
"""

from __future__ import annotations

import argparse
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

from benchmarks.checks import TRIAL, minutes_of
from benchmarks.lerobot.data import add_arguments, python_environment
from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.tartanair.cloud_line import Line
from benchmarks.tartanair.cloud_services import NARROW, serve
from benchmarks.timing import (
    SKIPPED,
    Results,
    markdown,
    median,
    number,
    ranged,
    run_job,
)
from benchmarks.training.loaders import LOADERS
from benchmarks.training.row import (
    ALONE,
    FASTEST,
    LITTLE,
    MOST,
    PLACES,
    STEPS,
    Job,
    calls_of,
)
from benchmarks.training.trainings import TRAININGS, cut, pack_for_s3, prepare, write_arrays

__all__ = ["Runner", "main", "names", "page", "parse"]

_TIME_LIMIT = 400  # seconds, of a row

Names = tuple[str, str, str, str]
"""Training, step, loader and place."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    shared = ("frames", "seconds", "repeats", "workers")
    settings = {name: getattr(options, name) for name in shared}
    suite = Suite(options, settings, code=code_of("training/RESULTS.md"))
    if not options.report:
        calls = suite.document.setdefault("calls", {step: calls_of(step) for step in STEPS})
        with ExitStack() as stack:
            runner = Runner(suite, calls, stack)
            for training in TRAININGS:
                of_it = [row for row in names() if row[0] == training]
                trials = dict(runner.trials(of_it))
                suite.take_turns(trials, 1, part=f"{training}, trials")
                suite.take_turns(dict(runner.jobs(of_it)), part=training)
        every = ["/".join(row) for row in names()]
        order = [*every, *(name for name in suite.rows if name not in every)]
        rows = {name: suite.rows[name] for name in order if name in suite.rows}
        suite.document["rows"] = rows
    suite.publish(page)


def names() -> Iterator[Names]:
    """Training, step, loader and place of all rows, compared rows adjacent."""
    for training, place, step, loader in product(TRAININGS, PLACES, STEPS, LOADERS):
        data, is_variant = LOADERS[loader].data, loader.startswith("seqrecord, ")
        is_of_it = not data or TRAININGS[training].data in data
        is_of_step = step == FASTEST or not is_variant
        is_of_place = place == "warm" or (step == FASTEST and LOADERS[loader].open)
        if is_of_it and is_of_step and is_of_place and not (is_variant and place != "warm"):
            yield training, step, loader, place


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_arguments(parser)
    parser.add_argument("--frames", type=int, default=640, help="of 480x640, in four episodes")
    parser.add_argument("--seconds", type=float, default=4, help="measured time per row, at least")
    text = "of loaders except seqrecord: the fastest of these numbers, tried first"
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help=text)
    return parser.parse_args(arguments)


class Runner:
    """Jobs of rows; creates their data. Numbers of workers are tried at the fastest step."""

    def __init__(self, suite: Suite, calls: Mapping[str, int], stack: ExitStack) -> None:
        self._suite, self._calls, self._stack = suite, calls, stack
        self._far: Callable[[Path], dict[str, Any]] | None = None

    def trials(self, rows: Sequence[Names]) -> Iterator[tuple[str, Run]]:
        """A row for each number of workers of loaders that have several."""
        for row in rows:
            training, _, name, _ = row
            counts = self._workers(name)
            if self._is_tried(row) and len(counts) > 1:
                made = {count: self._job(row, count) for count in counts}
                yield from ((f"{TRIAL}{training}/{name}/{n}", job) for n, job in made.items())

    def jobs(self, rows: Sequence[Names]) -> Iterator[tuple[str, Run]]:
        """Rows with the best number of workers."""
        for row in rows:
            if self._suite.is_wanted("/".join(row)):
                yield "/".join(row), self._job(row, self._best(row))

    def _is_tried(self, row: Names) -> bool:
        training, step, name, place = row
        is_wanted = self._suite.is_wanted(
            *("/".join(other) for other in names() if (other[0], other[2]) == (training, name))
        )
        return (step, place) == (FASTEST, "warm") and is_wanted

    def _workers(self, name: str) -> Sequence[int]:
        return LOADERS[name].workers or self._suite.options.workers

    def _best(self, row: Names) -> int:
        training, _, name, _ = row

        def rate(count: int) -> float:
            runs = self._suite.rows.get(f"{TRIAL}{training}/{name}/{count}", ())
            return median(runs, "steps_per_second") or 0.0

        return max(self._workers(name), key=rate)

    def _job(self, row: Names, workers: int) -> Run:
        (training, step, name, place), options = row, self._suite.options
        if why := _reason(training, name, place, options):
            return why
        loader, found = LOADERS[name], prepare(training, self._suite.folder, options)
        form = loader.form
        if form == "cut":
            cut(training, found)
        elif form == "arrays":
            write_arrays(training, found)
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
            calls=self._calls[step],
            workers=workers,
        )
        if place == "s3":
            self._far = self._far or _s3(self._stack)
            job = replace(job, **self._far(found[form]))
        return partial(
            run_job,
            "benchmarks.training.row",
            asdict(job),
            _TIME_LIMIT,
            python=options.lerobot if loader.package == "lerobot" else sys.executable,
            environment=python_environment(self._suite.folder),
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
    ("waiting, %", "waiting", 0.01, ".0f"),
    ("slowdown", "slower", 1.0, ".2f"),
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
    columns = ["step", "place", "loader", "frames", "of the most", "steps/s", "epoch 1: steps/s"]
    columns += [*(c[0] for c in _COLUMNS), "limited by"]
    for name, training in TRAININGS.items():
        rows = {row: runs for row, runs in results.items() if row.startswith(f"{name}/")}
        if not rows:
            continue
        shown |= {row.split("/")[2] for row in rows}
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
            duration=minutes_of(document),
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
    for row, tried in rows.items():
        if not (runs := [run for run in tried if "steps" in run]):
            continue
        _, step, loader, place = row.split("/")
        reached = number(median(runs, "share"), ".2f")
        frames = next((run["frames"] for run in runs if "frames" in run), "")
        values = [frames, reached, ranged(runs, "steps_per_second", ".2f")]
        values += [ranged(runs, "first_steps_per_second", ".2f")]
        values += [number(median(runs, key), form, unit) for _, key, unit, form in _COLUMNS]
        limits = [run["limit"] for run in runs if "limit" in run]
        yield [step, place, loader, *values, mode(limits) if limits else ""]


if __name__ == "__main__":
    main()
