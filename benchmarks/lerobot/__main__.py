"""`python -m benchmarks.lerobot ROOT RECORDS --lerobot PYTHON`: both sides, in turns."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lerobot.cell import CELLS, Cell

DECODERS = ("torchcodec", "pyav")
WORKERS = (0, 1, 2, 4)
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="a LeRobot data set of benchmarks.lerobot.generate")
    parser.add_argument("records", type=Path, help="where it is, or will be, packed")
    parser.add_argument("--lerobot", default=sys.executable, help="a Python that has lerobot")
    parser.add_argument("--seconds", type=float, default=20, help="of each of LeRobot's settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2GiB", help="memory_limit of seqrecord")
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    made: dict[str, Any] = {"cores": os.cpu_count(), "batch": options.batch, "cells": {}}
    if options.records.exists():
        parser.error(f"there is something already, which would be replaced: {options.records}")
    made["conversion"] = convert(options.root, options.records)
    print(f"conversion and size: {made['conversion']}", flush=True)
    for cell in CELLS:
        made["cells"][str(cell)] = row = compare(cell, options)
        print(
            f"{cell}: lerobot {row['lerobot']:.2f} clips/s ({row['settings']}), seqrecord "
            f"{row['seqrecord']:.1f}: {row['ratio']:.1f} times",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(made, indent=1) + "\n")


def convert(root: Path, records: Path) -> dict[str, float]:
    """Seconds to copy the files and to convert them, both to disk; and the size of both."""
    copy = records.with_name(records.name + "-copy")
    found: dict[str, list[float]] = {"copy_s": [], "convert_s": []}
    for _ in range(3):
        for name in found:
            for folder in (copy, records):
                if folder == copy or name == "convert_s":
                    shutil.rmtree(folder, ignore_errors=True)
            begin = time.perf_counter()
            if name == "copy_s":
                shutil.copytree(root, copy)
            else:
                command = [sys.executable, "-m", "seqrecord", "write", "--src", str(root)]
                command += ["--dst", str(records), "--no-statistics", "--quiet"]
                subprocess.run(command, check=True)
            os.sync()
            found[name].append(time.perf_counter() - begin)
    shutil.rmtree(copy, ignore_errors=True)
    sizes = [sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in (root, records)]
    seconds = {name: statistics.median(values) for name, values in found.items()}
    return seconds | {
        "rate_to_copying": seconds["copy_s"] / seconds["convert_s"],
        "bytes": sizes[1],
        "bytes_to_source": sizes[1] / sizes[0],
    }


def compare(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """The medians of both sides, over rounds in which they take turns."""
    shape = [str(cell.images), str(cell.actions), cell.numbers]
    tried = {}
    for decoder in DECODERS:
        for workers in WORKERS:
            tried[decoder, workers] = _theirs(shape, decoder, workers, options)["clips_per_s"]
    decoder, workers = max(tried, key=lambda setting: tried[setting])
    theirs, ours = [], []
    for _ in range(options.rounds):
        theirs.append(_theirs(shape, decoder, workers, options))
        ours.append(_ours(shape, options))
    rates = [statistics.median(each["clips_per_s"] for each in side) for side in (theirs, ours)]
    return {
        "lerobot": rates[0],
        "seqrecord": rates[1],
        "ratio": rates[1] / rates[0],
        "settings": f"{decoder}, {workers} workers",
        "tried": {f"{name}, {n} workers": rate for (name, n), rate in tried.items()},
        "runs": {"lerobot": theirs, "seqrecord": ours},
    }


def _theirs(
    shape: list[str], decoder: str, workers: int, options: argparse.Namespace
) -> dict[str, Any]:
    settings = [decoder, str(workers), str(options.batch), str(options.seconds)]
    return _run(
        [options.lerobot, "-m", "benchmarks.lerobot.theirs", str(options.root)], shape, settings
    )


def _ours(shape: list[str], options: argparse.Namespace) -> dict[str, Any]:
    settings = [str(options.threads), str(options.batch), options.memory]
    command = [sys.executable, "-m", "benchmarks.lerobot.ours", str(options.records)]
    return _run(command, shape, settings)


def _run(command: list[str], shape: list[str], settings: list[str]) -> dict[str, Any]:
    done = subprocess.run([*command, *shape, *settings], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
