"""One row in its own process, with the timing loop shared by all rows."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.tartanair.compare.check import check, clips_of, wrong_clips
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.training import train
from benchmarks.tartanair.compare.workloads import WORKLOADS
from benchmarks.tartanair.loaders.base import Batch, Batches, Settings, prepared
from benchmarks.timing import answer, drop_page_cache, size_of, touch, usage, warm

__all__ = ["measure", "run"]


def run(
    do: str,
    workload: str,
    loader: str,
    settings: Mapping[str, Any],
    root: str,
    work: str,
    place: str = "",
    epochs: int = 2,
    max_seconds: float = 60.0,
) -> dict[str, Any]:
    """Prepare a loader's data, measure it, or check that it yields the baseline's clips.

    `place` is the folder for reading the prepared data, if it is another.
    """
    chosen, made = WORKLOADS[workload], Settings.of(settings)
    row = chosen.loaders[loader]
    recordings = chosen.open(Path(root), chosen.base.features)
    folder = prepared(row, recordings, Path(work), made)
    if do == "prepare":
        return {}
    if do == "check":
        return {"problems": check(row, recordings, folder, made, epochs=epochs)}
    cold = made.storage == "cold"
    if cold:
        drop_page_cache(folder)
    elif not place:
        warm(folder)
    clips = recordings.clips(made.clip_len, made.stride)
    consume = train(made.training) if made.training else _drop
    began = time.perf_counter()
    batches = row.open(Path(place or folder), clips, made)
    epochs = 1 if cold else epochs
    result = measure(
        batches, clips, epochs=epochs, max_seconds=max_seconds, began=began, consume=consume
    )
    needed = recordings.frame_nbytes(made.features) / recordings.frame_nbytes()
    return {**result, "settings": settings, "needed_bytes": size_of(folder) * needed}


@dataclass
class Times:
    """One epoch, or its beginning: seconds of each step, and the clips of its batches."""

    wait: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    clips: list[int] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    complete: bool = False
    nbytes: int = 0

    @property
    def steps(self) -> list[float]:
        """Seconds of each batch: waiting for it, and copying, recording and consuming it."""
        return [sum(step) for step in zip(self.wait, self.copy, strict=True)]


def _drop(batches: Iterator[Batch]) -> None:
    """A consumer that keeps no batch."""
    deque(batches, maxlen=0)


def measure(
    batches: Batches,
    clips: Sequence[Clip],
    *,
    epochs: int,
    max_seconds: float,
    began: float,
    consume: Callable[[Iterator[Batch]], object] = _drop,
) -> dict[str, Any]:
    """Medians over `epochs` epochs, each cut short `max_seconds` after its first batch.

    `began` is when opening began, on `perf_counter`. Epochs follow one another in one process; the
    first, which also starts workers, warms up for half of that time and is not counted if there are
    others. Times of an epoch that was cut short are scaled, see `_whole_epoch`. `consume` takes an
    epoch's batches; its time between them belongs to the steps, not to waiting.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs: list[dict[str, float]] = []
    problems: list[str] = []
    first_batch: float | None = None
    for _ in range(epochs):
        before, begin = usage(os.getpid()), time.perf_counter()
        times = Times()
        is_warm_up = epochs > 1 and not runs
        consume(_timed_epoch(batches, device, max_seconds / (1 + is_warm_up), times))
        if not times.clips:
            return {"problems": ["no batch at all"]}
        taken = usage(os.getpid()).since(before)
        if first_batch is None:
            first_batch = begin - began + times.wait[0]
        if times.complete:
            problems += wrong_clips(times.places, clips)
        runs.append(_figures(times, taken, len(clips)))
    counted = runs[1:] or runs
    stats: dict[str, Any] = getattr(batches, "stats", dict)()
    return {
        **{name: statistics.median(run[name] for run in counted) for name in runs[0]},
        "first_batch_seconds": first_batch,
        "epochs": runs,
        "problems": problems,
        "stats": {k: v for k, v in stats.items() if isinstance(v, (int, float, str))},
    }


def _timed_epoch(
    batches: Batches, device: torch.device, max_seconds: float, times: Times
) -> Iterator[Batch]:
    """Yield batches on the device until the epoch or the time is over, and record their times."""
    clock = time.perf_counter
    begin = clock()
    deadline = math.inf  # from the first batch on: its own wait is not scaled
    iterator = iter(batches)
    while begin < deadline:
        try:
            batch = next(iterator)
        except StopIteration:
            times.complete = True
            break
        came = clock()
        deadline = min(deadline, came + max_seconds)
        on_device = _to_device(batch, device)
        found = clips_of(batch)
        times.places += found
        times.clips.append(len(found))
        times.nbytes += sum(t.nbytes for name, t in on_device.items() if name != "start")
        del batch  # before the next one: loaders reuse freed buffers
        yield on_device
        times.wait.append(came - begin)
        begin = clock()
        times.copy.append(begin - came)
        del on_device  # the loader's time includes freeing its memory


def _to_device(batch: Batch, device: torch.device) -> Batch:
    """Every tensor on the device, after waiting for it; on a CPU one byte of every page is read."""
    tensors = {name: torch.as_tensor(v) for name, v in batch.items() if name != "episode"}
    if device.type == "cpu":
        for tensor in tensors.values():
            touch(tensor)
        return tensors
    tensors = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    torch.cuda.synchronize(device)
    return tensors


def _whole_epoch(times: Times, num_clips: int) -> float:
    """Seconds of an epoch of `num_clips`.

    If it was cut short, the time after the first batch is scaled to the rest of the epoch; with
    a single batch, the whole time.
    """
    clips, seconds = times.clips, times.steps
    if times.complete:
        return sum(seconds)
    if len(clips) == 1:
        return seconds[0] * num_clips / clips[0]
    return seconds[0] + sum(seconds[1:]) * (num_clips - clips[0]) / sum(clips[1:])


def _figures(times: Times, taken: dict[str, float], num_clips: int) -> dict[str, float]:
    clips = sum(times.clips)
    scale = 1 if times.complete else num_clips / clips
    epoch = _whole_epoch(times, num_clips)
    return {
        "clips_per_second": num_clips / epoch,
        "bytes_per_second": times.nbytes * num_clips / clips / epoch,
        "epoch_seconds": epoch,
        "complete": float(times.complete),
        "clips": clips,
        "wait_seconds": sum(times.wait),
        "copy_seconds": sum(times.copy),
        "busy": sum(times.copy) / sum(times.steps),
        **{name: value * scale for name, value in taken.items()},
    }


if __name__ == "__main__":
    answer(run)
