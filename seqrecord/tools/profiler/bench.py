"""`bench`: measures the throughput of a loader on this machine, and finds its bottleneck.

Runs an epoch like a training, and times each part of each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.engine.stats import STAGES, bottleneck
from seqrecord.loader.pipes.arguments import takes_arguments
from seqrecord.loader.pipes.option_values import Budget
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.store.processes.machine import peak_memory, usable_cores
from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.text import counted, percent, repr_of, shown_place
from seqrecord.store.units import Progress, check_amount, check_integer, format_size
from seqrecord.tools.profiler.advice import Sizes, advise

if TYPE_CHECKING:
    from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset

_ALONE = 20  # steps with one batch
_CLIP_LEN, _BATCH_SIZE = 16, 4
_LEAST_SECONDS = 1e-9  # that rates divide by; steps may be shorter than the clock's tick
_REPORTED = (
    *("clip_len", "dilation", "features", "order", "shuffle", "seed", "batch_size"),
    *("split", "pad", "last_batch", "memory_limit"),
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(LoaderOptions):
    """Arguments of `bench` in addition to the loader's.

    `clip_len` defaults to 16 without `windows` and frame lists, and `batch_size` to 4.

    Args:
        consumer_seconds: duration of a simulated training step (sleep), in seconds.
        step: training step, called with each batch, instead of the sleep.
        max_batches: stop after this many batches. Default: the whole epoch.
        progress: called after each batch, in batches.
    """

    usual_clip_len: ClassVar[int | None] = _CLIP_LEN
    batch_size: int | Budget | None = _BATCH_SIZE
    consumer_seconds: float = 0.0
    step: Callable[[Any], object] | None = None
    max_batches: int | None = None
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batches is not None:
            check_integer("max_batches", self.max_batches, least=1)
        check_amount("consumer_seconds", self.consumer_seconds)

    def settings(self) -> dict[str, Any]:
        """The arguments shown in a report: common ones, and others as text if given."""
        keys, common = self.episodes, (*_REPORTED, "stride", "episodes")
        others = [item for item in fields(LoaderOptions) if item.name not in common]
        given = {item.name: (getattr(self, item.name), item.default) for item in others}
        return {
            **{
                name: repr_of(value) for name, (value, usual) in given.items() if value is not usual
            },
            **{name: getattr(self, name) for name in (*_REPORTED, "consumer_seconds")},
            "stride": self.spec.stride,
            "episode_filter": keys if isinstance(keys, str | None) else repr_of(keys),
        }


@takes_arguments(BenchOptions)
def bench(dataset: DatasetLike, options: BenchOptions) -> BenchReport:
    """Time an epoch of a loader and find its bottleneck.

    Defaults: 4 clips per batch; 16 frames per clip unless `windows` or frame lists define them.

    Raises `ClipError` for an unavailable device and a rank without a batch, and the loader's
    errors.

    Example:
        report = seqrecord.bench("records/", clip_len=8, max_batches=4)
        print(report.clips_per_second, report.advice)

    Args:
        dataset: path or URL, or an open dataset, which is used as it was opened.
    """
    import torch  # takes seconds

    from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset

    begin = perf_counter()
    stream = SeqRecordIterableDataset.from_options(dataset, options)
    open_seconds = perf_counter() - begin
    synchronize = None
    if options.device is not None and torch.device(options.device).type == "cuda":
        synchronize = torch.cuda.current_stream(options.device).synchronize
    return measure(stream, options, synchronize=synchronize, open_seconds=open_seconds)


def measure(
    stream: SeqRecordIterableDataset,
    options: BenchOptions,
    *,
    synchronize: Callable[[], None] | None = None,
    open_seconds: float = 0.0,
) -> BenchReport:
    """Time an epoch of a stream; `synchronize` waits for the device."""
    steps = _Steps(synchronize, options)
    num_batches = min(len(stream), options.max_batches or len(stream))
    if not num_batches:
        raise ClipError(
            "no batch to time on this rank",
            file=stream.dataset.url,
            expected='at least one; last_batch="repeat" or fewer ranks',
        )
    steps.run(stream, num_batches, options.progress)
    settings = options.settings()
    settings["device"] = options.device and str(options.device)
    settings["num_threads"] = options.tuning.num_threads
    return _report(stream, steps, settings, open_seconds)


class _Steps:
    """Runs training steps and records the duration of their parts, one item per step."""

    def __init__(self, synchronize: Callable[[], None] | None, options: BenchOptions) -> None:
        self._synchronize = synchronize
        self._options = options
        self._step = options.step
        if self._step is None and options.consumer_seconds:
            self._step = lambda _: time.sleep(options.consumer_seconds)
        self.alone: list[float] = []  # seconds of steps with one batch, without the loader
        self.alone_clips = 0  # clips of that batch, the last one of the largest size
        self.waiting: list[float] = []
        self.copying: list[float] = []
        self.consuming: list[float] = []
        self.clips: list[int] = []
        self.num_frames = 0
        self.clip_bytes = 0
        self.seconds = 0.0

    def run(
        self,
        stream: SeqRecordIterableDataset,
        num_batches: int,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        batches, full = iter(stream), None
        asked = first = perf_counter()
        for batch in islice(batches, num_batches):
            there = perf_counter()
            if self._synchronize is not None:
                self._synchronize()
            moved = perf_counter()
            done = self._consume(batch)
            self.waiting.append(there - asked)
            self.copying.append(moved - there)
            self.consuming.append(done - moved)
            self.seconds = done - first
            clips = 1 if isinstance(batch["start"], int) else len(batch["start"])
            self.clips.append(clips)
            self.num_frames += _frames(batch, clips, self._options)
            if clips >= self.alone_clips:
                self.alone_clips, full = clips, batch
            self.clip_bytes += _nbytes(list(batch.values()))
            if progress is not None:
                progress(Progress(len(self.clips), num_batches))
            asked = perf_counter()
        if isinstance(batches, Generator):
            batches.close()  # ends its threads
        if self._step is not None:
            for _ in range(min(num_batches, _ALONE)):
                begin = perf_counter()
                self.alone.append(self._consume(full) - begin)

    def _consume(self, batch: Any) -> float:
        """Run a step and return its end time."""
        if self._step is not None:
            self._step(batch)
            if self._synchronize is not None:
                self._synchronize()
        return perf_counter()


def _report(
    stream: SeqRecordIterableDataset,
    steps: _Steps,
    settings: Mapping[str, Any],
    open_seconds: float,
) -> BenchReport:
    cores = usable_cores()
    steady = slice(1 if len(steps.clips) > 1 else 0, None)
    parts = (steps.waiting[steady], steps.copying[steady], steps.consuming[steady])
    waiting, copying, consuming = map(StepTimes.of, parts)
    stats = stream.stats()
    stage = bottleneck(stats, waiting=waiting.mean, copying=copying.mean, consuming=consuming.mean)
    stats["bottleneck"] = STAGES[stage]  # with measurements of the consumer
    advice = advise(
        stats,
        waiting=waiting.mean,
        median_wait=waiting.p50,
        copying=copying.mean,
        consuming=consuming.mean,
        seconds=steps.seconds,
        threads=settings["num_threads"] or cores,
        cores=cores,
        is_local=stream.dataset.contents.chunks.is_local,
        sizes=Sizes.of(stream),
    )
    return BenchReport(
        url=stream.dataset.url,
        settings=settings,
        num_batches=len(steps.clips),
        num_clips=sum(steps.clips),
        num_frames=steps.num_frames,
        clip_bytes=steps.clip_bytes,
        seconds=steps.seconds,
        open_seconds=open_seconds,
        first_batch_seconds=steps.waiting[0],
        steady_seconds=sum(map(sum, parts)),
        steady_clips=sum(steps.clips[steady]),
        waiting=waiting,
        copying=copying,
        consuming=consuming,
        alone=StepTimes.of(steps.alone) if steps.alone else None,
        alone_clips=steps.alone_clips,
        peak_memory=peak_memory(),
        stats=stats,
        advice=advice,
    )


def _frames(batch: Mapping[str, Any], clips: int, options: BenchOptions) -> int:
    """Frames of a batch's clips, by the longest window or by the frame lists."""
    if options.lists_frames:
        return int(batch["frames"].shape[-1]) * clips
    if options.clip_lens is not None:
        return len(next(iter(batch.values()))[0]) * clips
    lengths = [options.most_frames or 1]
    for name in options.own_windows.keys() & batch.keys():
        value = batch[name]
        if getattr(value, "is_nested", False):  # [clips * frames, …]
            lengths.append(len(value) // clips)
        else:
            lengths.append(len(value if isinstance(batch["start"], int) else value[0]))
    return max(lengths) * clips


def _nbytes(values: Sequence[Any]) -> int:
    """Bytes of tensors, also in lists; episode keys do not count."""
    return sum(
        _nbytes(value) if isinstance(value, list) else getattr(value, "nbytes", 0)
        for value in values
    )


@dataclass(frozen=True)
class StepTimes:
    """Duration of one part in training steps, in seconds."""

    mean: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> StepTimes:
        """Summarize one or more durations."""
        p50, p95 = np.percentile(seconds, [50, 95])
        return cls(float(np.mean(seconds)), float(p50), float(p95), float(np.max(seconds)))


@dataclass(frozen=True)
class BenchReport:
    """Result of `bench`.

    The first batch also allocates memory. Step times and rates exclude it, unless it is the only
    batch.
    """

    url: str
    settings: Mapping[str, Any]
    num_batches: int
    num_clips: int
    num_frames: int  # of the feature with the longest window
    clip_bytes: int  # delivered
    seconds: float  # from the request for the first batch to the end of the last step
    open_seconds: float
    first_batch_seconds: float
    steady_seconds: float  # of the steps in the following fields
    steady_clips: int
    waiting: StepTimes
    copying: StepTimes  # to the device; waiting time of the consumer
    consuming: StepTimes
    alone: StepTimes | None  # repeated steps with a full batch, without the loader
    alone_clips: int  # clips of that batch
    peak_memory: int  # bytes; of the process, including the time before `bench`
    stats: Mapping[str, Any]  # see `SeqRecordPipe.stats`
    advice: tuple[str, ...]

    @property
    def clips_per_second(self) -> float:
        return self.steady_clips / max(self.steady_seconds, _LEAST_SECONDS)

    @property
    def frames_per_second(self) -> float:
        return self.clips_per_second * self.num_frames / self.num_clips

    @property
    def bytes_per_second(self) -> float:
        """Bytes of delivered clips per second."""
        return self.clips_per_second * self.clip_bytes / self.num_clips

    @property
    def most_clips_per_second(self) -> float | None:
        """Clips per second of steps with one batch in memory, without a loader.

        `None` without a step.
        """
        if self.alone is None or not self.alone.mean:
            return None
        return self.alone_clips / self.alone.mean

    def to_json(self) -> dict[str, Any]:
        """All fields and rates; times in seconds, sizes in bytes."""
        rates = (
            *("clips_per_second", "frames_per_second", "bytes_per_second"),
            "most_clips_per_second",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in rates}}

    def __str__(self) -> str:
        batches = f"{self.num_batches:,} batch{'' if self.num_batches == 1 else 'es'}"
        clips = counted(self.num_clips, "clip")
        read, frames = self.stats["bytes_read"], self.stats["frames_decoded"]
        rates = (
            f"{self.clips_per_second:,.1f}/s",
            f"{self.frames_per_second:,.0f} frames/s",
            f"{self.bytes_per_second / 1e9:.2f} GB/s",
        )
        reading = f"{format_size(read)}, {read / max(self.seconds, _LEAST_SECONDS) / 1e6:,.0f} MB/s"
        first, opened = f"{self.first_batch_seconds:.2f} s", f"{self.open_seconds:.2f} s"
        lines = [
            f"{shown_place(self.url)}: {batches}, {clips} in {self.seconds:.1f} s",
            "",
            *self._steps(),
            "",
            f"  clips         {', '.join(rates)}",
            *self._headspace(),
            f"  read          {reading}; {counted(frames, 'frame')} decoded",
            f"  mixed from    {counted(self.stats['num_interleaved'], 'cursor')}",
            f"  first batch   after {first}, plus {opened} to open the dataset",
            f"  peak memory   {format_size(self.peak_memory)}",
            "",
            *self.advice,
        ]
        return "\n".join(lines)

    def _headspace(self) -> list[str]:
        if (most := self.most_clips_per_second) is None or self.alone is None:
            return []
        line = f"  at most       {most:,.1f}/s with one batch in memory: "
        line += f"{percent(self.clips_per_second / most)} reached; steps take "
        slower = self.consuming.mean / self.alone.mean
        return [f"{line}{slower:.2f} times as long with the loader"]

    def _steps(self) -> list[str]:
        parts = [("waiting for data", self.waiting), ("consumer", self.consuming)]
        if self.settings.get("device") is not None:
            parts.insert(1, ("copy to device", self.copying))
        whole = sum(times.mean for _, times in parts) or 1.0
        lines = [f"  {'ms a step':<18}{'mean':>9}{'p50':>9}{'p95':>9}{'max':>9}"]
        for name, times in parts:
            cells = "".join(
                f"{1e3 * value:9.2f}" for value in (times.mean, times.p50, times.p95, times.max)
            )
            lines.append(f"  {name:<18}{cells}{100 * times.mean / whole:7.0f} %")
        return lines
