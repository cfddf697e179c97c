"""One row in its own process, with the timing loop shared by all rows.

Every epoch is whole, from asking for its first batch to its end, so nothing is scaled: its CPU
seconds are those of its own batches.
"""

from __future__ import annotations

import os
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
from benchmarks.timing import answer, drop_page_cache, size_of, source_of, touch, usage, warm

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
    enough: float = float("inf"),
) -> dict[str, Any]:
    """Prepare a loader's data, measure it, or check that it yields the baseline's clips.

    `place` is the folder for reading the prepared data, if it is another; `enough` see `measure`.
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
    result = measure(batches, clips, epochs=epochs, began=began, consume=consume, enough=enough)
    needed = recordings.frame_nbytes(made.features) / recordings.frame_nbytes()
    frames = row.frames
    if hasattr(batches, "stats"):
        frames = source_of(batches.stats(), is_raw=made.codec == "raw")
    result |= {"settings": settings, "frames": frames}
    return {**result, "needed_bytes": size_of(folder) * needed}


@dataclass
class Times:
    """One epoch: seconds of each step, and the clips of its batches."""

    wait: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    nbytes: int = 0


def _drop(batches: Iterator[Batch]) -> None:
    """A consumer that keeps no batch."""
    deque(batches, maxlen=0)


def measure(
    batches: Batches,
    clips: Sequence[Clip],
    *,
    epochs: int,
    began: float,
    consume: Callable[[Iterator[Batch]], object] = _drop,
    enough: float = float("inf"),
) -> dict[str, Any]:
    """Figures of the last of `epochs` whole epochs in one process, and of the first one.

    An epoch that took at least `enough` seconds is the last one.

    `began` is when opening began, on `perf_counter`: the first batch counts from there. `consume`
    takes an epoch's batches; its time between them belongs to the steps, not to waiting.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    opened = time.perf_counter()
    runs: list[dict[str, float]] = []
    problems: list[str] = []
    first_batch = 0.0
    for _ in range(epochs):
        before, begin = usage(os.getpid()), time.perf_counter()
        times = Times()
        consume(_timed_epoch(batches, device, times))
        seconds = time.perf_counter() - begin
        if not times.places:
            return {"problems": ["no batch at all"]}
        if not runs:
            first_batch = begin - began + times.wait[0]
        runs.append(_figures(times, usage(os.getpid()).since(before), seconds))
        wrong = wrong_clips(times.places, clips)
        problems += [problem for problem in wrong if problem not in problems]
        if seconds >= enough:
            break
    return {
        **runs[-1],
        "first_epoch": runs[0],
        "first_clips_per_second": runs[0]["clips_per_second"],
        "opening_seconds": opened - began,
        "first_batch_seconds": first_batch,
        "num_cores": len(os.sched_getaffinity(0)),
        "epochs": len(runs),
        "problems": problems,
    }


def _timed_epoch(batches: Batches, device: torch.device, times: Times) -> Iterator[Batch]:
    """Yield an epoch's batches on the device, and record their times."""
    clock = time.perf_counter
    begin = clock()
    for batch in batches:
        came = clock()
        on_device = _to_device(batch, device)
        times.places += clips_of(batch)
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


def _figures(times: Times, taken: dict[str, float], seconds: float) -> dict[str, float]:
    clips, batches = len(times.places), len(times.wait)
    return {
        "clips_per_second": clips / seconds,
        "bytes_per_second": times.nbytes / seconds,
        "seconds": seconds,
        "clips": clips,
        "batches": batches,
        "waiting": 1 - sum(times.copy) / seconds,
        **taken,
        "cpu_seconds_per_batch": taken["cpu_seconds"] / batches,
        "first_wait_seconds": times.wait[0],
    }


if __name__ == "__main__":
    answer(run)
