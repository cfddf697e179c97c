"""The timing loop, the same for all rows: runs one cell of the grid and returns its figures."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.tartanair.compare.check import clips_of, wrong_clips
from benchmarks.tartanair.compare.meters import usage
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders.base import Batch, Batches
from benchmarks.tartanair.timing import touch

__all__ = ["Times", "figures", "measure", "to_device"]


@dataclass
class Times:
    """One epoch, or its beginning: seconds of each step, and the clips that came."""

    wait: list[float]
    copy: list[float]
    clips: list[int]
    places: list[tuple[str, int]]
    complete: bool
    nbytes: int

    @property
    def steps(self) -> list[float]:
        """Seconds of each batch: until it came, and until it was copied and noted."""
        return [sum(step) for step in zip(self.wait, self.copy, strict=True)]

    @property
    def seconds(self) -> float:
        return sum(self.steps)


def measure(
    batches: Batches,
    clips: Sequence[Clip],
    *,
    epochs: int,
    max_seconds: float,
    began: float,
) -> dict[str, Any]:
    """Medians over `epochs` epochs, each cut short `max_seconds` after its first batch.

    `began` is when opening began, on `perf_counter`. Epochs follow one another in one process; the
    first, which also starts workers, warms up and is not counted if there are others. Times of an
    epoch that was cut short are scaled, see `_whole_epoch`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs: list[dict[str, float]] = []
    problems: list[str] = []
    first_batch: float | None = None
    curve: list[float] = []
    for _ in range(epochs):
        before, begin = usage(os.getpid()), time.perf_counter()
        times = _timed_epoch(batches, device, max_seconds)
        if not times.clips:
            return {"problems": ["no batch at all"]}
        taken = usage(os.getpid()).since(before)
        if first_batch is None:
            first_batch = begin - began + times.wait[0]
        if times.complete:
            problems += wrong_clips(times.places, clips)
        runs.append(figures(times, taken, len(clips)))
        curve = [count / seconds for count, seconds in zip(times.clips, times.steps, strict=True)]
    counted = runs[1:] or runs
    result: dict[str, Any] = {
        name: statistics.median(run[name] for run in counted) for name in runs[0]
    }
    stats: dict[str, Any] = getattr(batches, "stats", dict)()
    return {
        **result,
        "first_batch_seconds": first_batch,
        "epochs": runs,
        "steps": curve,
        "problems": problems,
        "stats": {k: v for k, v in stats.items() if isinstance(v, (int, float, str))},
    }


def _timed_epoch(batches: Batches, device: torch.device, max_seconds: float) -> Times:
    """Take batches until the epoch or the time is over."""
    times = Times([], [], [], [], complete=False, nbytes=0)
    clock = time.perf_counter
    begin = clock()
    deadline = math.inf  # counted from the first batch: what follows is to be scaled, not its wait
    iterator = iter(batches)
    while begin < deadline:
        try:
            batch = next(iterator)
        except StopIteration:
            times.complete = True
            break
        came = clock()
        deadline = min(deadline, came + max_seconds)
        on_device = to_device(batch, device)
        places = clips_of(batch)
        times.places += places
        times.clips.append(len(places))
        times.nbytes += sum(t.nbytes for name, t in on_device.items() if name != "start")
        del batch  # before the next one: loaders reuse what is given back
        times.wait.append(came - begin)
        begin = clock()
        times.copy.append(begin - came)
        del on_device  # what its memory takes to be given back is the loader's
    return times


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Every tensor on the device, after waiting for it; on a CPU one byte of every page is read."""
    tensors = {name: torch.as_tensor(v) for name, v in batch.items() if name != "episode"}
    if device.type == "cpu":
        for tensor in tensors.values():
            touch(tensor)
        return tensors
    tensors = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    torch.cuda.synchronize(device)
    return tensors


def _whole_epoch(clips: Sequence[int], seconds: Sequence[float], num_clips: int) -> float:
    """Seconds of an epoch of `num_clips`, from its first steps' clips and seconds.

    What came after the first batch is scaled to what comes after it in the epoch; of a single
    batch, all.
    """
    after = sum(clips[1:])
    if not after:
        return seconds[0] * num_clips / clips[0]
    return seconds[0] + sum(seconds[1:]) * (num_clips - clips[0]) / after


def figures(times: Times, taken: dict[str, float], num_clips: int) -> dict[str, float]:
    """One epoch's figures."""
    clips = sum(times.clips)
    seconds = times.seconds
    scale = num_clips / clips
    epoch = seconds if times.complete else _whole_epoch(times.clips, times.steps, num_clips)
    return {
        "clips_per_second": num_clips / epoch,
        "bytes_per_second": times.nbytes * scale / epoch,
        "epoch_seconds": epoch,
        "complete": float(times.complete),
        "clips": clips,
        "wait_seconds": sum(times.wait),
        "copy_seconds": sum(times.copy),
        "busy": sum(times.copy) / seconds,
        **{name: value * (1 if times.complete else scale) for name, value in taken.items()},
    }
