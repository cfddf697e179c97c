"""bench: runs an epoch as a training would, and times each part of each step."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from seqrecord.benching.advice import advise
from seqrecord.benching.report import BenchReport, StepTimes
from seqrecord.bottleneck import STAGES, bottleneck_of_steps
from seqrecord.cores import usable_cores
from seqrecord.errors import ClipError
from seqrecord.reader import EpisodeFilter

if TYPE_CHECKING:
    from seqrecord.pipes import SeqRecordStream

__all__ = ["bench"]


def bench(
    location: str | PathLike[str],
    *,
    clip_len: int = 16,
    stride: int = 1,
    dilation: int = 1,
    features: Sequence[str] | None = None,
    episodes: EpisodeFilter = None,
    shuffle: bool = True,
    seed: int = 0,
    batch_size: int = 4,
    memory_limit: int | str = "2GiB",
    device: str | None = None,
    num_threads: int | None = None,
    consumer_seconds: float = 0.0,
    max_batches: int | None = None,
    trace: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> BenchReport:
    """Stream an epoch of a dataset, and say how fast that was and what to change first.

    Arguments that are not listed here are those of `SeqRecordPipe`.

    Args:
        location: local path or URL.
        consumer_seconds: how long the consumer takes for a batch; it sleeps, as a process does
            that waits for its GPU.
        max_batches: end after so many; by default with the epoch.
        trace: where to write a timeline, see `SeqRecordPipe`; `draw_timeline` draws it.
        progress: called after each batch with the number done and the number there are.

    Raises `ClipError` for a device that is not there, and whatever the pipe raises.
    """
    import torch  # takes seconds, and most commands do without

    from seqrecord.pipes import SeqRecordStream

    if max_batches is not None and max_batches < 1:
        raise ClipError("max_batches is too small", expected="at least 1", got=max_batches)
    if not 0 <= consumer_seconds < float("inf"):
        raise ClipError("consumer_seconds is no time", expected=">= 0", got=consumer_seconds)
    on_gpu = device is not None and torch.device(device).type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise ClipError("torch finds no such device here", expected="cpu", got=device)
    settings: dict[str, Any] = {
        "clip_len": clip_len,
        "stride": stride,
        "dilation": dilation,
        "features": features,
        "shuffle": shuffle,
        "seed": seed,
        "batch_size": batch_size,
        "memory_limit": memory_limit,
        "device": device,
        "num_threads": num_threads,
    }
    more: dict[str, Any] = {} if trace is None else {"trace": trace}
    begin = perf_counter()
    stream = SeqRecordStream(
        location,
        episodes=episodes,
        storage_options=storage_options,
        cache_dir=cache_dir,
        cache_limit=cache_limit,
        **settings,
        **more,
    )
    open_seconds = perf_counter() - begin
    synchronize = torch.cuda.current_stream(device).synchronize if on_gpu else None
    steps = _Steps(synchronize, consumer_seconds)
    num_batches = min(len(stream), max_batches or len(stream))
    steps.run(stream, num_batches, progress)
    return _report(stream, steps, {**settings, "consumer_seconds": consumer_seconds}, open_seconds)


class _Steps:
    """Training steps, and how long their parts take: one item of each list for each step."""

    def __init__(self, synchronize: Callable[[], None] | None, consumer_seconds: float) -> None:
        self._synchronize = synchronize
        self._consumer_seconds = consumer_seconds
        self.waiting: list[float] = []
        self.copying: list[float] = []
        self.consuming: list[float] = []
        self.clips: list[int] = []
        self.clip_bytes = 0
        self.seconds = 0.0

    def run(
        self, stream: SeqRecordStream, num_batches: int, progress: Callable[[int, int], None] | None
    ) -> None:
        batches = iter(stream)
        asked = first = perf_counter()
        for batch in islice(batches, num_batches):
            there = perf_counter()
            if self._synchronize is not None:
                self._synchronize()
            moved = perf_counter()
            if self._consumer_seconds:
                time.sleep(self._consumer_seconds)
            done = perf_counter()
            self.waiting.append(there - asked)
            self.copying.append(moved - there)
            self.consuming.append(done - moved)
            self.seconds = done - first
            self.clips.append(len(batch["episode"]))
            self.clip_bytes += _nbytes(list(batch.values()))
            if progress is not None:
                progress(len(self.clips), num_batches)
            asked = perf_counter()


def _report(
    stream: SeqRecordStream, steps: _Steps, settings: Mapping[str, Any], open_seconds: float
) -> BenchReport:
    cores = usable_cores()
    steady = slice(1 if len(steps.clips) > 1 else 0, None)
    parts = (steps.waiting[steady], steps.copying[steady], steps.consuming[steady])
    waiting, copying, consuming = map(StepTimes.of, parts)
    stats = stream.stats()
    stage = bottleneck_of_steps(
        stats, waiting=waiting.mean, copying=copying.mean, consuming=consuming.mean
    )
    stats["bottleneck"] = STAGES[stage]  # of who has watched the consumer, too
    advice = advise(
        stats,
        waiting=waiting.mean,
        median_wait=waiting.p50,
        copying=copying.mean,
        consuming=consuming.mean,
        seconds=steps.seconds,
        threads=settings["num_threads"] or cores,
        cores=cores,
    )
    return BenchReport(
        url=stream.dataset.url,
        settings=settings,
        num_batches=len(steps.clips),
        num_clips=sum(steps.clips),
        num_frames=sum(steps.clips) * settings["clip_len"],
        clip_bytes=steps.clip_bytes,
        seconds=steps.seconds,
        open_seconds=open_seconds,
        first_batch_seconds=steps.waiting[0],
        steady_seconds=sum(map(sum, parts)),
        steady_clips=sum(steps.clips[steady]),
        waiting=waiting,
        copying=copying,
        consuming=consuming,
        peak_memory=_peak_memory(),
        stats=stats,
        advice=advice,
    )


def _nbytes(values: Sequence[Any]) -> int:
    """Bytes of tensors, and of those in lists; keys of episodes don't count."""
    return sum(
        _nbytes(value) if isinstance(value, list) else getattr(value, "nbytes", 0)
        for value in values
    )


def _peak_memory() -> int:
    """Bytes. Linux gives a process the `ru_maxrss` of the one that started it, so that is last."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
