"""A row of the comparison as a run of a cell gives it, for tests of what is made of rows."""

from __future__ import annotations

from typing import Any

from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.compare.report import describe

__all__ = ["row"]


def row(cell: Cell, rate: float, **more: Any) -> dict[str, Any]:
    """Of `rate` clips a second, with `more` figures in place of the usual ones or beside them."""
    return {
        **describe(cell),
        "clips_per_second": rate,
        "bytes_per_second": rate * 1e6,
        "epoch_seconds": 10 / rate,
        "complete": 1.0,
        "first_batch_seconds": 0.1,
        "peak_memory_bytes": 1e8,
        "cpu_seconds": 1.0,
        "wait_seconds": 9 / rate,
        "copy_seconds": 1 / rate,
        "busy": 0.1,
        "steps": [1.0, 2.0],
        "problems": [],
        **more,
    }
