"""What `bench` has measured, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqrecord.text import counted
from seqrecord.units import format_size

__all__ = ["BenchReport", "StepTimes"]


@dataclass(frozen=True)
class StepTimes:
    """Seconds that one part of a training step takes."""

    mean: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> StepTimes:
        """Of at least one step."""
        p50, p95 = np.percentile(seconds, [50, 95])
        return cls(float(np.mean(seconds)), float(p50), float(p95), float(np.max(seconds)))


@dataclass(frozen=True)
class BenchReport:
    """What `bench` has measured.

    The first batch fills the memory that the others are taken from: unless it is the only one,
    step times and rates are those of the batches after it.
    """

    url: str
    settings: Mapping[str, Any]
    num_batches: int
    num_clips: int
    num_frames: int  # of the clips: each counted in every clip that it is in
    clip_bytes: int  # delivered
    seconds: float  # from asking for the first batch to the end of the last step
    open_seconds: float
    first_batch_seconds: float
    steady_seconds: float  # those of the steps below
    steady_clips: int
    waiting: StepTimes
    copying: StepTimes  # to the device, as far as the consumer has to wait for it
    consuming: StepTimes
    peak_memory: int  # bytes; the most that the process has had at a time, before `bench` too
    stats: Mapping[str, Any]  # see `SeqRecordPipe.stats`
    advice: tuple[str, ...]

    @property
    def clips_per_second(self) -> float:
        return self.steady_clips / self.steady_seconds

    @property
    def frames_per_second(self) -> float:
        return self.clips_per_second * self.num_frames / self.num_clips

    @property
    def bytes_per_second(self) -> float:
        """Of clips delivered."""
        return self.clips_per_second * self.clip_bytes / self.num_clips

    def to_json(self) -> dict[str, Any]:
        """Everything, with the rates; times are in seconds and sizes in bytes."""
        rates = ("clips_per_second", "frames_per_second", "bytes_per_second")
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
        reading = f"{format_size(read)}, {read / self.seconds / 1e6:,.0f} MB/s"
        first, opened = f"{self.first_batch_seconds:.2f} s", f"{self.open_seconds:.2f} s"
        lines = [
            f"{self.url}: {batches}, {clips} in {self.seconds:.1f} s",
            "",
            *self._steps(),
            "",
            f"  clips         {', '.join(rates)}",
            f"  read          {reading}; {counted(frames, 'frame')} decoded",
            f"  mixed from    {counted(self.stats['mixed_from'], 'place')} at a time",
            f"  first batch   after {first}, and {opened} before it to open the dataset",
            f"  peak memory   {format_size(self.peak_memory)}",
            "",
            *self.advice,
        ]
        return "\n".join(lines)

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
