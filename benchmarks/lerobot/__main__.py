"""LeRobot and seqrecord on one dataset: all rows, each in a process of its own, in turns.

    python -m benchmarks.lerobot FOLDER [--lerobot PYTHON] [--rows …] [--to FOLDER]

Writes a LeRobot dataset into FOLDER where it has none (or reads that of `--root`), packs it, and
runs all rows once before any of them twice. First LeRobot is tried with each of its decoders and
numbers of workers; the best for a cell counts. Results are FOLDER/results.json and, in the folder
of `--to`, results.json and RESULTS.md. `--report` runs nothing and writes these of the last run;
`--keep` runs the rows of `--rows` again and keeps the last run's others.

`make lerobot-env` makes the Python that `--lerobot` is by default. Without one, its rows say so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.lerobot.cell import CELLS
from benchmarks.lerobot.conversion import convert, size
from benchmarks.lerobot.rows import Job, Setup, rows, trials
from benchmarks.lerobot.table import best_settings, page
from benchmarks.tartanair.compare.children import run_job
from benchmarks.tartanair.compare.limits import copy_rate
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.compare.row import warm
from benchmarks.tartanair.timing import Results, machine

__all__ = ["LEROBOT", "dataset_at", "main", "python_environment"]

LEROBOT = Path(sys.prefix) / "lerobot" / "bin" / "python"
TO = Path(__file__).parent
_PACKAGES = ("lerobot", "torch", "torchcodec", "av")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    folder = options.folder.resolve()
    if options.report:
        document = json.loads((folder / "results.json").read_text())
    else:
        document = run(options, folder)
    text = page(document)
    if options.to:
        _save(options.to, document)
        (options.to / "RESULTS.md").write_text(text)
    print(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, help="a LeRobot dataset (v3.0) with two cameras")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python that has lerobot")
    parser.add_argument("--seconds", type=float, default=20, help="of a row's measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="clips")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2GiB", help="memory_limit of seqrecord")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of their names")
    parser.add_argument("--report", action="store_true", help="of the last run; run nothing")
    parser.add_argument("--keep", action="store_true", help="the last run's rows not in --rows")
    parser.add_argument("--to", type=Path, help=f"of the page; {TO.name} has the published one")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of a run, which is also saved after each row."""
    folder.mkdir(parents=True, exist_ok=True)
    python = options.lerobot if options.lerobot.exists() else None
    environment = python_environment(folder)
    root, records = dataset_at(options, folder)
    info = json.loads((root / "meta" / "info.json").read_text())
    cameras = [name for name, what in info["features"].items() if what["dtype"] == "video"]
    shape = info["features"][cameras[0]]["shape"]
    frame_bytes = shape[0] * shape[1] * shape[2] * len(cameras)
    document: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "versions": _versions(python),
        "dataset": {
            "frames": info["total_frames"],
            "episodes": info["total_episodes"],
            "cameras": len(cameras),
            "shape": shape,
            "codec": info["features"][cameras[0]].get("info", {}).get("video.codec", "?"),
            "bytes": size(root),
            "frame_bytes": frame_bytes,
        },
        "settings": {
            name: getattr(options, name)
            for name in ("batch", "seconds", "threads", "memory", "repeats")
        },
        "copy_rate": copy_rate(16 * frame_bytes, threads=options.threads),
    }

    def is_wanted(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in options.rows)

    results = {} if not options.keep else _kept(folder, document, is_wanted)
    document["rows"] = results

    def take(jobs: Mapping[str, Job], repeats: int) -> None:
        chosen = {name: job for name, job in jobs.items() if is_wanted(name)}
        results.update({n: [{"skipped": job.skipped}] for n, job in chosen.items() if job.skipped})
        for _ in range(repeats):
            for name, job in chosen.items():
                if "skipped" in results.get(name, [{}])[-1]:
                    continue
                its = str(python) if job.python == "lerobot" else sys.executable
                command = [its, "-m", job.module]
                for place in (root, records):
                    warm(place)
                limit = 120 + 8 * options.seconds
                result = run_job(command, job.text, limit, environment=environment)
                results.setdefault(name, []).append(result)
                said = {what: value for what, value in result.items() if what in _SAID}
                print(f"{name}: {said}", file=sys.stderr, flush=True)
                _save(folder, document)

    far = any(is_wanted(f"seqrecord/{cell}/azurite") for cell in CELLS)
    with _azurite(folder, records, wanted=far) as azurite:
        setup = Setup(
            root=root,
            records=records,
            scratch=folder / "scratch",
            cameras=cameras,
            threads=options.threads,
            batch=options.batch,
            seconds=options.seconds,
            memory=options.memory,
            has_lerobot=python is not None,
            azurite=azurite,
        )
        take(trials(setup), 1)
        take(rows(setup, best_settings(results)), options.repeats)
    return document


def _kept(folder: Path, document: dict[str, Any], is_wanted: Callable[[str], bool]) -> Results:
    """The last run's rows that are not wanted again; its settings must be those of this run."""
    last = json.loads((folder / "results.json").read_text())
    for name in ("machine", "versions", "dataset", "settings"):
        if last[name] != document[name]:
            raise SystemExit(f"--keep: {name} was {last[name]} and is {document[name]} now")
    document["copy_rate"] = last["copy_rate"]
    if document["commit"] not in last["commit"]:
        document["commit"] = f"{last['commit']}, {document['commit']} "
    return {name: runs for name, runs in last["rows"].items() if not is_wanted(name)}


_SAID = ("clips_per_second", "frames_per_second", "rate_to_copying", "skipped", "error")


def python_environment(folder: Path) -> dict[str, str]:
    """Of processes that read: lerobot asks nobody on the network."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    return environment | {"SVT_LOG": "0", "TOKENIZERS_PARALLELISM": "false"}


def dataset_at(options: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The dataset that `options` mean, and that packed; each is made if it is not there."""
    python = options.lerobot if options.lerobot.exists() else None
    root = (options.root or _generated(folder, python, python_environment(folder))).resolve()
    records = folder / "records"
    if not (records / "manifest.json").exists():
        convert(root, records)
    return root, records


def _generated(folder: Path, python: Path | None, environment: Mapping[str, str]) -> Path:
    """The dataset in the folder; lerobot writes it if it is not there, and whole or not at all."""
    root = folder / "dataset"
    if not root.exists():
        if python is None:
            raise SystemExit("no lerobot, which writes the dataset: make lerobot-env, or --root")
        making = folder / "dataset.making"
        shutil.rmtree(making, ignore_errors=True)
        command = [str(python), "-m", "benchmarks.lerobot.generate", str(making)]
        subprocess.run(command, check=True, env=environment)
        making.rename(root)
    return root


@contextmanager
def _azurite(folder: Path, records: Path, *, wanted: bool) -> Iterator[Mapping[str, Any] | str]:
    """Where Azurite has the records, or why it has not."""
    if not wanted:
        yield "not asked for"
        return
    from benchmarks.tartanair.cloud_services import serve
    from tests.services import need_azurite

    try:
        need_azurite()
    except BaseException as error:  # pytest's own, made to skip a test
        yield str(error)
        return
    home = folder / "azurite"
    shutil.rmtree(home, ignore_errors=True)
    try:
        with serve(home, ("azurite",)) as services:
            services["azurite"].cloud.upload(records, "records")
            yield services["azurite"].place("records")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _versions(python: Path | None) -> dict[str, str]:
    """Of lerobot and what it decodes with, in its environment."""
    if python is None:
        return {}
    code = "import sys, json; from importlib.metadata import version; "
    code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    output = subprocess.check_output([str(python), "-c", code, *_PACKAGES], text=True)
    found: dict[str, str] = json.loads(output)
    return found


def _save(folder: Path, document: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
