"""bench: runs an epoch as a training would, and times each part of each step."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from seqrecord.engine.stats import STAGES, bottleneck
from seqrecord.errors import ClipError
from seqrecord.pipes.arguments import takes_arguments
from seqrecord.pipes.options import LoaderOptions
from seqrecord.reading.reader import DatasetLike
from seqrecord.text import repr_of
from seqrecord.threads import usable_cores
from seqrecord.tools.bench.advice import advise
from seqrecord.tools.bench.measured import BenchReport, StepTimes
from seqrecord.units import check_integer

if TYPE_CHECKING:
    from seqrecord.pipes.loaders import SeqRecordStream

__all__ = ["BenchOptions", "bench", "measure"]

_SETTINGS = (  # that a report names
    *("clip_len", "stride", "dilation", "features", "order", "shuffle", "seed", "batch_size"),
    *("memory_limit", "device", "num_threads", "consumer_seconds"),
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(LoaderOptions):
    """What `bench` is told beside the dataset: how to stream it, and how long.

    Args:
        consumer_seconds: how long the consumer takes for a batch; it sleeps, as a process does
            that waits for its GPU.
        max_batches: end after so many; by default with the epoch.
        progress: called after each batch with the number done and the number there are.
    """

    clip_len: int = 16
    batch_size: int | None = 4
    consumer_seconds: float = 0.0
    max_batches: int | None = None
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batches is not None:
            check_integer("max_batches", self.max_batches, least=1)
        seconds: object = self.consumer_seconds  # whatever the annotation says
        if not (isinstance(seconds, (int, float)) and 0 <= seconds < float("inf")):
            raise ClipError(
                "consumer_seconds is no time", expected=">= 0", got=repr_of(seconds, 100)
            )


@takes_arguments(BenchOptions)
def bench(dataset: DatasetLike, options: BenchOptions) -> BenchReport:
    """Stream an epoch of a dataset, and say how fast that was and what to change first.

    Raises `ClipError` for a device that is not there, and whatever the loader raises.

    Args:
        dataset: local path or URL, or an open dataset, which is used as it was opened.
    """
    import torch  # takes seconds, and most commands do without

    from seqrecord.pipes.loaders import SeqRecordStream

    begin = perf_counter()
    stream = SeqRecordStream.from_options(dataset, options)
    open_seconds = perf_counter() - begin
    synchronize = None
    if options.device is not None and torch.device(options.device).type == "cuda":
        synchronize = torch.cuda.current_stream(options.device).synchronize
    return measure(stream, options, synchronize=synchronize, open_seconds=open_seconds)


def measure(
    stream: SeqRecordStream,
    options: BenchOptions,
    *,
    synchronize: Callable[[], None] | None = None,
    open_seconds: float = 0.0,
) -> BenchReport:
    """Time an epoch of a stream; `synchronize` waits until a batch is on its device."""
    steps = _Steps(synchronize, options.consumer_seconds)
    num_batches = min(len(stream), options.max_batches or len(stream))
    steps.run(stream, num_batches, options.progress)
    settings = {name: getattr(options, name) for name in _SETTINGS}
    settings["stride"] = options.spec.stride
    settings["device"] = options.device and str(options.device)
    return _report(stream, steps, settings, open_seconds)


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
            self.clips.append(1 if isinstance(batch["start"], int) else len(batch["start"]))
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
    stage = bottleneck(stats, waiting=waiting.mean, copying=copying.mean, consuming=consuming.mean)
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
