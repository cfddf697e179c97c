"""One row in a process of its own: the timing loop, the same for all rows.

Two virtual CPUs may be two physical cores, or share one, and that may change while a benchmark
runs. It decides how fast memory is copied. So another process measures before and after every epoch
how much more two threads copy than one, and epochs are compared only at the same level.
"""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import statistics
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.throughput.rows import ROWS, Streaming
from benchmarks.timing import answer, drop_page_cache, touch

__all__ = ["level", "measure", "scaling"]

EPOCHS = 5  # the first of them warms up and is not counted
_NBYTES = 48 << 20  # of a buffer: more than caches hold
_SECONDS = 0.1
_FAST = 1.4  # times as much as one thread


def measure(row: str, folder: str) -> dict[str, Any]:
    """Clips a second of each epoch after the first, and their median.

    The consumer reads one byte of every page. `epochs` are rates, each with the machine's scaling
    before and after.
    """
    importlib.import_module("seqrecord.pipes.loaders")  # torch takes seconds, whoever loads
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    spawn.Process(target=scaling, args=(theirs,), daemon=True).start()

    def now() -> float:
        ours.send(None)
        return float(ours.recv())

    now()
    begin = time.perf_counter()
    epoch = ROWS[row].make(Path(folder))
    first, read = 0.0, 0
    epochs: list[tuple[float, float, float]] = []
    for turn in range(EPOCHS):
        if ROWS[row].is_cold:
            for records in Path(folder).rglob("records"):
                drop_page_cache(records)
        before = now()
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
        if turn:
            epochs.append((rate, before, now()))
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
    """Bytes that this process has read from files so far, as the kernel counts them."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def level(before: float, after: float) -> str | None:
    """`fast` or `slow`; `None` if it changed in between."""
    if (before > _FAST) != (after > _FAST):
        return None
    return "fast" if before > _FAST else "slow"


def scaling(asked: Connection) -> None:
    """Answer each message with the rate of two threads by that of one."""
    buffers = [(np.ones(_NBYTES, np.uint8), np.ones(_NBYTES, np.uint8)) for _ in range(2)]
    while True:
        try:
            asked.recv()
        except EOFError:
            return
        one = _copied(buffers[:1])
        asked.send(_copied(buffers) / one)


def _copied(buffers: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Copies a second, a thread for each pair of buffers."""
    counts = [0] * len(buffers)
    stop = time.perf_counter() + _SECONDS

    def work(number: int) -> None:
        source, target = buffers[number]
        while time.perf_counter() < stop:
            np.copyto(target, source)
            counts[number] += 1

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(buffers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


if __name__ == "__main__":
    answer(measure)
