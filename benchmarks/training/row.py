"""One row in its own process: a training with a loader."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import LEAST, SKIPPED, answer, source_of, usage, warm
from benchmarks.training.loaders import LOADERS, Batches, Loader, Source
from benchmarks.training.networks import floats
from benchmarks.training.trainings import TRAININGS

__all__ = ["FASTEST", "LITTLE", "MOST", "PLACES", "STEPS", "Job", "calls_of", "limit", "measure"]

STEPS = ("network", "8 ms")
FASTEST = "8 ms"
PLACES = ("warm", "s3")
ALONE = 0.25  # of the seconds
LITTLE = 0.1  # lost rate as a share of the rate alone; below it, the training is the limit
MOST = 0.85  # share of the cores or of the line; above it, they are the limit

Batch = Mapping[str, Any]
Step = Callable[[Batch], object]


@dataclass(frozen=True)
class Job:
    """A row, and the location of its data.

    `calls` are the small calls of a step, equal in all rows; 0: a step of the network. `line` is a
    file with the number of bytes sent by S3 so far, `line_rate` its limit per second.
    """

    training: str
    loader: str
    place: str
    example: str
    originals: str
    folder: str
    seconds: float
    workers: int
    calls: int = 0
    location: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    line: str = ""
    line_rate: float = 0.0


def calls_of(step: str) -> int:
    """Number of small torch calls, on one thread, that take the time in a step's name; 0 for
    `network`."""
    if step == "network":
        return 0
    torch.set_num_threads(1)
    count = 1000
    each = statistics.median(_timed_calls(count) for _ in range(100)) / count
    return max(1, round(float(step.split()[0]) / 1e3 / each))


def measure(job: Job) -> dict[str, Any]:
    """Figures of the steps of later epochs and, as `first_epoch`, of the first one.

    The first epoch counts after `SKIPPED` steps. Later epochs are whole, with their starts: they
    repeat until the time is over and `LEAST` steps are done. A step is timed alone before the
    loader opens and after it has gone: the faster one is the ceiling. Raises `ValueError` if there
    is no step to count.
    """
    torch.set_num_threads(1)
    training, loader = TRAININGS[job.training], LOADERS[job.loader]
    example: Batch = torch.load(job.example, weights_only=True)
    if job.loader == "lerobot":
        example = {n: floats(v) if v.dtype == torch.uint8 else v for n, v in example.items()}
    step = _step(job, example)
    alone = _alone(step, example, ALONE * job.seconds)
    folder = Path(job.folder)
    if job.place == "warm":
        warm(folder)
    began = time.perf_counter()
    opened: Any = [example] * (LEAST + SKIPPED)
    if loader.open is not None:
        where = job.location, job.options or None, job.url
        source = Source(Path(job.originals), folder, *where)
        opened = loader.open(training, source, job.workers)
        for _ in range(loader.epochs_before):
            began = _whole_epoch(opened)
    batches = iter(opened)
    batch = next(batches)
    first_batch = time.perf_counter() - began
    step(batch)
    del batch
    for batch in islice(batches, SKIPPED - 1):
        step(batch)
        del batch
    first = _steps([batches], step, job) | _source(opened, loader)
    figures = _steps(repeat(opened), step, job, job.seconds) | _source(opened, loader)
    if not figures["steps"]:
        raise ValueError(f"an epoch has no more than the {SKIPPED} steps that are not counted")
    stage = opened.stats()["bottleneck"] if hasattr(opened, "stats") else ""
    del batches, opened
    gc.collect()
    alone_after = _alone(step, example, ALONE * job.seconds)
    fastest = min(alone, alone_after)
    figures |= {
        "alone": fastest,
        "ceiling": {"alone": 1 / fastest},
        "share": figures["steps_per_second"] * fastest,
        "slower": figures["beside"] / fastest,
        "first_batch_seconds": first_batch,
        "first_steps": first["steps"],
        "first_frames": first["frames"],
    }
    if first["steps"]:
        figures["first_steps_per_second"] = first["steps_per_second"]
    return {**figures, "limit": limit(figures, stage)}


def _source(opened: Any, loader: Loader) -> dict[str, Any]:
    """Where the frames of the last epoch came from."""
    if not hasattr(opened, "stats"):
        return {"frames": loader.frames}
    return {"frames": source_of(opened.stats(), is_raw=False)}


def _whole_epoch(batches: Batches) -> float:
    """Run an epoch; returns its end time."""
    for batch in batches:
        del batch  # before the next one: loaders reuse freed buffers
    return time.perf_counter()


def _steps(epochs: Iterable[Batches], step: Step, job: Job, seconds: float = 0.0) -> dict[str, Any]:
    """Figures of the steps of whole epochs: of all, or until the seconds are over and `LEAST` steps
    done. Time outside steps is waiting: for the next batch, or for freeing the last one."""
    clock = time.perf_counter
    line = np.memmap(job.line, np.int64, "r") if job.line else np.zeros(1, np.int64)
    own, samples, queued = 0.0, 0, _queued()
    steps: list[float] = []
    before, sent, begin = usage(os.getpid()), int(line[0]), clock()
    deadline = begin + seconds
    for batches in epochs:
        for batch in batches:
            came, cpu = clock(), time.thread_time()
            step(batch)
            own += time.thread_time() - cpu
            steps.append(clock() - came)
            samples += len(next(v for v in batch.values() if torch.is_tensor(v)))
            del batch  # before the next one: loaders reuse freed buffers
        if clock() >= deadline and len(steps) >= LEAST:
            break
    seconds = clock() - begin
    if not steps:
        return {"steps": 0}
    taken = usage(os.getpid()).since(before)
    read = int(line[0]) - sent if job.line else taken["bytes_requested"]
    return {
        "steps": len(steps),
        "batches": len(steps),
        "cpu_seconds": taken["cpu_seconds"],
        "num_cores": len(os.sched_getaffinity(0)),
        "samples": samples,
        "seconds": seconds,
        "steps_per_second": len(steps) / seconds,
        "waiting": 1 - sum(steps) / seconds,
        "beside": statistics.fmean(steps),
        "p95": statistics.quantiles([*steps, steps[-1]], n=20)[-1],
        "step_cpu": own / len(steps),
        "queued": (_queued() - queued) / seconds,
        "cores": taken["cpu_seconds"] / seconds,
        "line": read / seconds / job.line_rate if job.line else 0.0,
        "cpu_seconds_per_sample": (taken["cpu_seconds"] - own) / samples,
        "bytes_per_sample": read / samples,
    }


def _queued() -> float:
    """Seconds that this thread was ready without a core; 0 if the kernel does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def limit(figures: Mapping[str, float], bottleneck: str = "") -> str:
    """The limit of the rate: the training, if it loses little of its rate; else the `bottleneck` of
    a loader in this process; else the line, the cores or the loader."""
    if (1 - figures["waiting"]) / figures["slower"] > 1 - LITTLE:
        return "the training"
    stage = bottleneck.partition(":")[0]
    if stage not in ("", "the consumer"):
        return stage
    if figures["line"] > MOST:
        return "the line"
    if figures["cores"] > MOST * (os.cpu_count() or 1):
        return "cores"
    return "the training, slowed" if stage else "the loader"


def _step(job: Job, example: Batch) -> Step:
    if job.calls:
        return lambda _batch: _timed_calls(job.calls)
    torch.manual_seed(0)
    network = TRAININGS[job.training].network(example)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def train(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = network(batch)
        loss.backward()
        optimizer.step()
        loss.item()

    return train


def _timed_calls(calls: int) -> float:
    """CPU seconds of `calls` calls; equal to wall-clock seconds on a quiet machine."""
    values = torch.ones(32, 32)
    begin = time.thread_time()
    for _ in range(calls):
        values = torch.tanh(values)
    return time.thread_time() - begin


def _alone(step: Step, example: Batch, seconds: float) -> float:
    """Mean seconds of a step without a loader; the first step is not counted."""
    step(example)
    times: list[float] = []
    while not times or sum(times) < seconds:
        begin = time.perf_counter()
        step(example)
        times.append(time.perf_counter() - begin)
    return statistics.fmean(times)


if __name__ == "__main__":
    answer(lambda **job: measure(Job(**job)))
