"""The timing loop, the same for all rows."""

from __future__ import annotations

import importlib
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.tartanair.throughput.rows import Row, Streaming
from benchmarks.tartanair.throughput.scaling import Scaling
from benchmarks.tartanair.timing import drop_page_cache, touch

__all__ = ["measure"]

EPOCHS = 5  # the first of them warms up and is not counted


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """Clips a second of each epoch after the first, and their median.

    The consumer reads one byte of every page. `epochs` are rates, each with what `Scaling` said
    before and after.
    """
    importlib.import_module("seqrecord.pipes.loaders")  # torch takes seconds, whoever loads
    with Scaling.start() as scaling:
        scaling.now()
        begin = time.perf_counter()
        epoch = row.make(folder)
        first, read = 0.0, 0
        epochs: list[tuple[float, float, float]] = []
        for number in range(EPOCHS):
            if row.is_cold:
                drop_page_cache(folder.rglob("*.seqrec"))
            before = scaling.now()
            clips, read = 0, _bytes_by_system_calls()
            start = time.perf_counter()
            for batch in epoch():
                if not first:
                    first = time.perf_counter() - begin
                arrays = [v for v in batch.values() if hasattr(v, "reshape") and v.ndim > 1]
                for array in arrays:
                    touch(array)
                clips += len(arrays[0])
                del batch, arrays
            rate = clips / (time.perf_counter() - start)
            read = _bytes_by_system_calls() - read
            if number:
                epochs.append((rate, before, scaling.now()))
    stats = epoch.stats() if isinstance(epoch, Streaming) else {}
    if stats.get("bytes_read"):  # nothing where frames stay in memory
        stats["system_ratio"] = read / stats["bytes_read"]
    return {
        "clips_per_second": statistics.median(rate for rate, _, _ in epochs),
        "epochs": epochs,
        "first_batch_seconds": first,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **stats,
    }


def _bytes_by_system_calls() -> int:
    """What this process has read from files so far, as the kernel counts it."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
