"""bench: how fast a dataset streams on this machine, and what limits it."""

from seqrecord.tools.bench.bench import BenchOptions, bench
from seqrecord.tools.bench.measured import BenchReport, StepTimes

__all__ = ["BenchOptions", "BenchReport", "StepTimes", "bench"]
