"""Decoded frames and CPU seconds by epoch: LeRobot's class, WebDataset and ours on the same video.

    python -m benchmarks.training.decoded_once FOLDER [--to benchmarks/training --readme README.md]

LeRobot writes a dataset of each size into FOLDER, unless it is there; each loader then runs all
epochs in a process of its own. Results are FOLDER/decoded_once.json and, in the folder of `--to`,
decoded_once.json and DECODED_ONCE.md; `--readme` replaces the table of the first figure.
`--report` runs nothing and only writes. `make install-bench lerobot-env` makes the Python that
runs this and, as `--lerobot`, one that has lerobot.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.lerobot.__main__ import LEROBOT, python_environment
from benchmarks.lerobot.conversion import convert
from benchmarks.tartanair.compare.children import run_job
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.timing import Result, Results, machine, markdown
from benchmarks.training.epochs import FORMS, MEMORY, EpochsJob
from benchmarks.training.trainings import ACTIONS, TRAININGS, cut, once

__all__ = ["CASES", "headline", "main", "page"]

CASES: dict[str, tuple[int, int, tuple[int, int] | None]] = {
    "96x128": (96, 128, None),
    "480x640 at 224": (480, 640, (224, 224)),
}
"""Height and width of the video, and of images in batches where they are scaled."""

HEADLINE = "480x640 at 224"
LOADERS = {"lerobot": "LeRobot's class", "webdataset": "WebDataset", "seqrecord": "seqrecord"}
_MARKS = "<!-- decoded once -->\n", "<!-- end of decoded once -->\n"
_NEAR = {"samples": 0.0, "actions": 1e-6, "pixels": 0.03}  # pixels of JPEG and other filters


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    folder = options.folder.resolve()
    if options.report:
        document = json.loads((folder / "decoded_once.json").read_text())
    else:
        document = _run(options, folder)
    if options.to:
        _save(options.to, document)
        (options.to / "DECODED_ONCE.md").write_text(page(document))
    if options.readme:
        before, _, rest = options.readme.read_text().partition(_MARKS[0])
        after = rest.partition(_MARKS[1])[2]
        text = "".join((before, _MARKS[0], headline(document), _MARKS[1], after))
        options.readme.write_text(text)
    print(page(document))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--frames", type=int, default=100, help="of an episode")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="of loaders that are not ours")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python that has lerobot")
    parser.add_argument("--report", action="store_true", help="of the last run; run nothing")
    parser.add_argument("--to", type=Path, help="folder of decoded_once.json and DECODED_ONCE.md")
    parser.add_argument("--readme", type=Path, help="file with the table of the first figure")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    settings = {
        name: getattr(options, name) for name in ("episodes", "frames", "epochs", "workers")
    }
    document = {"machine": machine(), "commit": commit(), "settings": settings, "rows": results}
    for case, (*_, size) in CASES.items():
        found = _prepare(case, folder, options)
        for loader, form in FORMS.items():
            name = f"{case}/{loader}"
            python = options.lerobot if loader == "lerobot" else Path(sys.executable)
            if not (python.exists() and (loader == "lerobot" or find_spec(loader))):
                results[name] = [{"skipped": f"no package {loader}"}]
                continue
            if form == "cut":
                cut("act", found)
            job = EpochsJob(
                loader,
                str(found["originals"]),
                str(found[form]),
                options.epochs,
                options.workers,
                size,
            )
            command = [str(python), "-m", EpochsJob.__module__]
            environment = python_environment(folder)
            results[name] = [run_job(command, job.dumps(), 1200, environment=environment)]
            print(f"{name}: {_first(results[name])}", file=sys.stderr, flush=True)
            _save(folder, document)
        _check_samples(case, results)
    return document


def _prepare(case: str, folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """The forms of a case's data below the folder; that of WebDataset is not made yet."""
    names = {"originals": "lerobot", "records": "records", "cut": "tars"}
    found = {form: folder / f"{name}-{case.split()[0]}" for form, name in names.items()}

    def generate(root: Path) -> None:
        if not options.lerobot.exists():
            raise SystemExit(f"no {options.lerobot}, which writes the dataset: make lerobot-env")
        sizes = map(str, (options.episodes, options.frames, *CASES[case][:2]))
        command = [str(options.lerobot), "-m", "benchmarks.lerobot.generate", str(root), *sizes]
        subprocess.run(command, check=True, env=python_environment(folder))

    once(found["originals"], generate)
    once(found["records"], partial(convert, found["originals"]))
    return found


def _check_samples(case: str, results: Results) -> None:
    """Raise `ValueError` unless all loaders gave the same samples in each epoch."""
    wanted = _epochs(results, case, "seqrecord")
    for loader in FORMS:
        for one, ours in zip(_epochs(results, case, loader), wanted, strict=False):
            for name, near in _NEAR.items():
                if not math.isclose(one[name], ours[name], rel_tol=near, abs_tol=1e-3):
                    raise ValueError(f"{case}/{loader}: {name} {one[name]}, not {ours[name]}")


def _epochs(results: Results, case: str, loader: str) -> list[dict[str, float]]:
    [run] = results.get(f"{case}/{loader}", [{}])
    found: list[dict[str, float]] = run.get("epochs", [])
    return found


def _first(runs: Sequence[Result]) -> Any:
    """What is said of a row while the command runs."""
    return runs[0].get("epochs", [runs[0]])[:2]


def _save(folder: Path, document: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "decoded_once.json").write_text(json.dumps(document, indent=1) + "\n")


# ---- the page


def headline(document: Mapping[str, Any]) -> str:
    """The table of README.md."""
    shown = _shown(document)
    lines = [
        [LOADERS[loader], *(f"{_seconds(epochs[i])} ({_count(epochs[i])})" for i in shown)]
        for loader in FORMS
        if (epochs := _epochs(document["rows"], HEADLINE, loader))
    ]
    columns = ["CPU seconds (frames decoded)", *(f"epoch {i + 1}" for i in shown)]
    return markdown(columns, lines) + "\n"


def page(document: Mapping[str, Any]) -> str:
    settings, results = document["settings"], document["rows"]
    shown = _shown(document)
    lines = []
    for case in CASES:
        for loader in FORMS:
            if epochs := _epochs(results, case, loader):
                [run] = results[f"{case}/{loader}"]
                figures = [of(epochs[i]) for of in (_count, _seconds) for i in shown]
                peak = f"{run['peak_memory_bytes'] / 1e6:.0f}"
                lines.append([case, LOADERS[loader], *figures, peak])
    columns = [f"{what}, epoch {i + 1}" for what in ("decoded", "CPU s") for i in shown]
    table = markdown(["video", "loader", *columns, "peak MB"], lines)
    reasons = [
        f"\n- `{name}`: {reason}"
        for name, [run] in results.items()
        if (reason := run.get("skipped") or run.get("error"))
    ]
    template = Path(__file__).with_name("decoded_once_template.md").read_text()
    return template.format(
        machine=document["machine"],
        commit=document["commit"],
        samples=f"{settings['episodes'] * settings['frames']:,}",
        table=table + ("\n\nNot measured:\n" + "".join(reasons) if reasons else ""),
        actions=ACTIONS,
        batch=TRAININGS["act"].batch,
        memory=MEMORY,
        **settings,
    )


def _shown(document: Mapping[str, Any]) -> list[int]:
    """The epochs of the table: the first, the second and the last, counted from 0."""
    return sorted({0, min(1, (last := document["settings"]["epochs"] - 1)), last})


def _count(epoch: Mapping[str, float]) -> str:
    return f"{epoch['decoded']:,}"


def _seconds(epoch: Mapping[str, float]) -> str:
    return f"{epoch['cpu_seconds']:.2f}"


if __name__ == "__main__":
    main()
