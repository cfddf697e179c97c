"""Decoded frames and CPU seconds by epoch: other loaders, hand-made ones and ours on one video.

    python -m benchmarks.training.decoded_once FOLDER [--to benchmarks/training]

LeRobot writes a dataset of each size into FOLDER unless it exists; each loader then runs all epochs
in its own process. Results are decoded_once.json and DECODED_ONCE.md. `make lerobot-env` creates
the Python for this command and the default of `--lerobot`.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import seqrecord
from benchmarks.checks import minutes_of
from benchmarks.lerobot.data import LEROBOT, convert, describe, generate, python_environment
from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.timing import Results, markdown, median, number, once, ranged, run_job
from benchmarks.timing import reason as reason_of
from benchmarks.training.epochs import MEMORY, ROWS, EpochsJob, Row
from benchmarks.training.trainings import ACTIONS, TRAININGS, cut, write_arrays

__all__ = ["CASES", "HEADLINE", "epochs_of", "main", "page", "shown_epochs"]

CASES: dict[str, tuple[int, int, tuple[int, int] | None]] = {
    "96x128": (96, 128, None),
    "480x640 at 224": (480, 640, (224, 224)),
}
"""Height and width of the video, and of images in batches if they are scaled."""

HEADLINE = "480x640 at 224"
FOLDERS = {
    "originals": "lerobot",
    "records": "records",
    "cut": "tars",
    "cut_small": "small-tars",
    "arrays": "arrays",
    "packed": "packed",
    "cache": "cache",
    "new_cache": "new-cache",
}
"""Folders of the forms of the data; `ROWS` has the form that each loader reads."""

_LEAST_MEMORY = 64 << 20
_NEAR = {"samples": 0.0, "actions": 1e-6, "pixels": 0.03}  # pixels of JPEG and other filters


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--frames", type=int, default=100, help="per episode")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of loaders except seqrecord")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python with lerobot")
    options = parser.parse_args(arguments)
    shared = ("episodes", "frames", "epochs", "workers")
    settings = {name: getattr(options, name) for name in shared}
    code = code_of("training/DECODED_ONCE.md")
    suite = Suite(options, settings, "decoded_once", code=code)
    if not options.report:
        suite.take_turns(suite.wanted(dict(_jobs(suite))))
        for case in CASES:
            _check_samples(case, suite.rows)
    suite.publish(page, "DECODED_ONCE")


def _jobs(suite: Suite) -> Iterator[tuple[str, Run]]:
    """All rows; creates their data."""
    options, folder = suite.options, suite.folder
    for case, (*video, size) in CASES.items():
        found = {form: folder / f"{name}-{case.split()[0]}" for form, name in FOLDERS.items()}
        sizes = options.episodes, options.frames, *video
        once(found["originals"], partial(generate, options=options, sizes=sizes))
        once(found["records"], partial(convert, found["originals"]))
        for name, row in ROWS.items():
            if row.is_scaled and size is None:
                continue
            python, is_theirs = Path(sys.executable), row.loader in ("lerobot", "webdataset")
            python = options.lerobot if row.loader == "lerobot" else python
            is_there = row.loader == "lerobot" or not is_theirs or find_spec(row.loader)
            if not (python.exists() and is_there):
                yield f"{case}/{name}", f"no package {row.loader}"
                continue
            job = EpochsJob(
                row.loader,
                str(found["originals"]),
                str(found[row.form]),
                options.epochs,
                options.workers,
                size,
            )
            run = partial(_run, row=row, found=found, python=python, folder=folder)
            yield f"{case}/{name}", partial(run, job)


def _run(
    job: EpochsJob, *, row: Row, found: Mapping[str, Path], python: Path, folder: Path
) -> dict[str, Any]:
    """Create the row's data unless it exists, then run its job."""
    measured = partial(
        run_job,
        "benchmarks.training.epochs",
        time_limit=1200,
        python=python,
        environment=python_environment(folder),
    )
    if row.form == "cut":
        cut("act", found)
    elif row.form == "cut_small":
        cut("act", found, row.form, job.size)
        job = replace(job, size=None)  # so that nothing is scaled again
    elif row.form == "arrays" and job.size is not None:
        write_arrays("act", found, job.size)
    elif row.form == "packed" and job.size is not None:
        once(found["packed"], partial(_pack, found, job.size))
        job = replace(job, size=None)
    if row.cache == "empty":
        shutil.rmtree(found["new_cache"], ignore_errors=True)
        job = replace(job, cache=str(found["new_cache"]))
    elif row.cache:
        filling = replace(job, cache=str(found["cache"]), epochs=1)
        once(found["cache"], lambda to: measured(asdict(replace(filling, cache=str(to)))))
        job = replace(filling, epochs=job.epochs, is_cold=row.cache == "cold")
    if row.share is not None and job.size is not None:
        about = describe(found["originals"])
        frames = about["frames"] * about["cameras"] * math.prod(job.size) * 3
        job = replace(job, memory=str(max(_LEAST_MEMORY, int(frames * row.share))))
    return measured(asdict(job))


def _pack(found: Mapping[str, Path], size: tuple[int, int], to: Path) -> None:
    """Pack the dataset at the size of the batches."""
    cameras = dict.fromkeys(describe(found["originals"])["names"], size)
    source = seqrecord.open_source(found["originals"])
    seqrecord.convert(source, to, codecs="raw", resize=cameras, statistics=False)


def _check_samples(case: str, results: Results) -> None:
    """Raise `ValueError` unless all loaders gave the same samples in each epoch."""
    wanted = epochs_of(results, case, "seqrecord")
    for loader in ROWS:
        for one, ours in zip(epochs_of(results, case, loader), wanted, strict=False):
            for name, near in _NEAR.items():
                if not math.isclose(one[name], ours[name], rel_tol=near, abs_tol=1e-3):
                    raise ValueError(f"{case}/{loader}: {name} {one[name]}, not {ours[name]}")


def epochs_of(results: Results, case: str, loader: str) -> list[dict[str, float]]:
    """Figures of each epoch, medians over the repeats."""
    return [
        {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for runs in repeats_of(results, case, loader)
    ]


def repeats_of(results: Results, case: str, loader: str) -> list[list[dict[str, float]]]:
    """Figures of each epoch in all repeats."""
    runs = [run["epochs"] for run in results.get(f"{case}/{loader}", []) if "epochs" in run]
    return [list(repeats) for repeats in zip(*runs, strict=True)]


# ---- the page


def page(document: Mapping[str, Any]) -> str:
    settings, results = document["settings"], document["rows"]
    shown = shown_epochs(document)
    lines = []
    for case in CASES:
        for loader, row in ROWS.items():
            if epochs := epochs_of(results, case, loader):
                repeats = repeats_of(results, case, loader)
                figures = [_count(epochs[i]) for i in shown]
                figures += [ranged(repeats[i], "cpu_seconds", ".2f") for i in shown]
                runs = results[f"{case}/{loader}"]
                peak = number(median(runs, "peak_memory_bytes"), ".0f", 1e6)
                lines.append([case, row.name, *figures, peak])
    columns = [f"{name}, epoch {i + 1}" for name in ("decoded", "CPU s") for i in shown]
    table = markdown(["video", "loader", *columns, "peak MB"], lines)
    reasons = [
        f"\n- `{name}`: {reason}" for name, runs in results.items() if (reason := reason_of(runs))
    ]
    template = Path(__file__).with_name("decoded_once_template.md").read_text()
    return template.format(
        **{"repeats": 1, **document, **settings},
        duration=minutes_of(document),
        samples=f"{settings['episodes'] * settings['frames']:,}",
        table=table + ("\n\nNot measured:\n" + "".join(reasons) if reasons else ""),
        actions=ACTIONS,
        batch=TRAININGS["act"].batch,
        memory=MEMORY,
    )


def shown_epochs(document: Mapping[str, Any]) -> list[int]:
    """The epochs of the table: the first, the second and the last, counted from 0."""
    return sorted({0, min(1, (last := document["settings"]["epochs"] - 1)), last})


def _count(epoch: Mapping[str, float]) -> str:
    return f"{epoch['decoded']:,.0f}"


if __name__ == "__main__":
    main()
