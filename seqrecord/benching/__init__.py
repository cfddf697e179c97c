"""bench: how fast a dataset streams on this machine, and what holds it up."""

from seqrecord.benching.bench import (
    bench,
)
from seqrecord.benching.report import (
    BenchReport,
    StepTimes,
)

__all__ = [
    "BenchReport",
    "StepTimes",
    "bench",
]
