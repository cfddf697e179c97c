"""A training's own Python beside a loader: `python -m benchmarks.tartanair.throughput.training`.

A step is some hundred small calls of torch, which take so many milliseconds while nothing else
runs. The same calls are then timed after every batch, with the loader's threads in the process, or
with a DataLoader's worker in another one: what they take longer is what the loader costs the
training's own thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import seqrecord
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.throughput import data
from benchmarks.tartanair.timing import Results, machine, markdown, run_rows

__all__ = ["ROWS", "calls_of", "measure", "page", "timed_calls"]

STEPS = 200  # that are counted, after as many as a loader has in flight
SKIPPED = 10
DATA: Mapping[str, dict[str, Any]] = {
    "balanced": {"clip_len": 16, "batch_size": 4},  # five features of 480x640
    "policy": {"clip_len": 16, "batch_size": 64},  # images of 84x84, and actions
}
ROWS = {
    f"{name}, {milliseconds} ms, {where}": (name, milliseconds, where == "one worker")
    for name in DATA
    for milliseconds in (8, 25)
    for where in ("in the process", "one worker")
}


def measure(folder: Path, row: str, steps: int = STEPS) -> dict[str, Any]:
    """Seconds of a step alone, and beside the loader; and the share of the time that was waited."""
    name, milliseconds, in_worker = ROWS[row]
    torch.set_num_threads(1)
    calls = calls_of(milliseconds / 1e3)
    alone = statistics.median(timed_calls(calls) for _ in range(steps))
    pipe = seqrecord.SeqRecordPipe(folder / name, **DATA[name])
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=1) if in_worker else pipe
    batches: Iterator[Any] = chain.from_iterable(map(iter, repeat(loader)))
    for _ in islice(batches, SKIPPED):
        timed_calls(calls)
    found, waited = [], 0.0
    for _ in range(steps):
        begin = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - begin
        found.append(timed_calls(calls))
        del batch
    return {
        "alone": alone,
        "beside": statistics.median(found),
        "waiting": waited / (waited + sum(found)),
    }


def page(results: Results) -> str:
    """A line for each row: medians of its runs."""
    lines = []
    for name, runs in results.items():
        alone, beside, waiting = (
            statistics.median(run[key] for run in runs) for key in ("alone", "beside", "waiting")
        )
        ratio = statistics.median(run["beside"] / run["alone"] for run in runs)
        whole = statistics.median(run["beside"] / (1 - run["waiting"]) for run in runs)
        times = (f"{1e3 * seconds:.1f}" for seconds in (alone, beside, whole))
        lines.append([name, *times, f"{ratio:.2f}", f"{waiting:.0%}"])
    columns = ("alone, ms", "beside, ms", "with waiting, ms", "beside / alone", "waiting")
    return markdown(("data, step, loader", *columns), lines)


def calls_of(seconds: float) -> int:
    """How many small calls take so long here."""
    count = 1000
    each = statistics.median(timed_calls(count) for _ in range(20)) / count
    return max(1, round(seconds / each))


def timed_calls(calls: int) -> float:
    """Seconds that so many small calls of torch take."""
    values = torch.ones(32, 32)
    begin = time.perf_counter()
    for _ in range(calls):
        values = torch.tanh(values)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tartanair.throughput.training")
    parser.add_argument("folder", type=Path, help="data, as of benchmarks.tartanair.throughput")
    parser.add_argument("--frames", type=int, default=640, help="in four episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--to", type=Path, help="where training.json and TRAINING.md are written")
    parser.add_argument("--one", choices=list(ROWS), help="run this row here and print its JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.folder, arguments.one)))
        return
    data.prepare(arguments.folder, arguments.frames, ["balanced"])
    data.make_small(arguments.folder)
    module = "benchmarks.tartanair.throughput.training"
    folder, rows = [str(arguments.folder)], arguments.rows
    results = run_rows(module, folder, rows, arguments.repeats, shown="beside")
    if arguments.to is not None:
        document = {"machine": machine(), "commit": commit(), "rows": results}
        (arguments.to / "training.json").write_text(json.dumps(document, indent=1) + "\n")
        template = Path(__file__).with_name("training_template.md").read_text()
        text = template.format(**{**document, "table": page(results)})
        (arguments.to / "TRAINING.md").write_text(text)
    print(page(results))


if __name__ == "__main__":
    main()
