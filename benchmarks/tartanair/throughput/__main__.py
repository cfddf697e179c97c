"""Measure, and write the page: see the package."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.throughput import data
from benchmarks.tartanair.throughput.measure import measure
from benchmarks.tartanair.throughput.page import page, table
from benchmarks.tartanair.throughput.rows import ROWS
from benchmarks.tartanair.timing import machine, run_rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tartanair.throughput")
    parser.add_argument("folder", type=Path, help="data and results.json")
    parser.add_argument("--frames", type=int, default=640, help="in four episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--to", type=Path, help="where RESULTS.md and results.json are written too")
    parser.add_argument("--one", choices=list(ROWS), help="run this row here and print its JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(ROWS[arguments.one], arguments.folder)))
        return
    data.prepare(arguments.folder, arguments.frames)
    data.make_small(arguments.folder)
    results = run_rows(
        "benchmarks.tartanair.throughput",
        [str(arguments.folder)],
        arguments.rows,
        arguments.repeats,
        shown="clips_per_second",
    )
    document = {
        "machine": machine(),
        "commit": commit(),
        "frames": arguments.frames,
        "repeats": arguments.repeats,
        "rows": results,
    }
    for folder in filter(None, (arguments.folder, arguments.to)):
        (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        (folder / "RESULTS.md").write_text(page(document))
    print(table(results))


if __name__ == "__main__":
    main()
