"""Upper limits of this machine: rates of copying clips and reading a disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import touch

__all__ = ["bound", "copy_rate", "disk_rate"]

_BLOCK = 8 << 20
_BATCH_BYTES = 256 << 20
_PROBE_BYTES = 1 << 30


def copy_rate(
    clip_nbytes: int, *, threads: int, seconds: float = 2.0, source_nbytes: int = 1 << 30
) -> float:
    """Bytes per second of copying shuffled clips from memory into reused, touched batches."""
    source = np.ones(max(source_nbytes, 2 * clip_nbytes), np.uint8)
    clips = max(1, _BATCH_BYTES // clip_nbytes)
    batches = [np.ones((clips, clip_nbytes), np.uint8) for _ in range(threads)]
    rngs = [np.random.default_rng(number) for number in range(threads)]
    deadline = time.perf_counter() + seconds

    def work(number: int) -> int:
        batch, copied = batches[number], 0
        while time.perf_counter() < deadline:
            for row in batch:
                start = rngs[number].integers(len(source) - clip_nbytes + 1)
                np.copyto(row, source[start : start + clip_nbytes])
            touch(batch)
            copied += batch.nbytes
        return copied

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(work, range(threads)))
    return total / (time.perf_counter() - begin)


def disk_rate(folder: Path) -> float | None:
    """Bytes per second of reading a large new file front to back with O_DIRECT.

    `None` if the folder's file system does not support O_DIRECT.
    """
    buffer = mmap.mmap(-1, _BLOCK)  # page-aligned, as O_DIRECT requires
    buffer.write(np.random.default_rng(0).bytes(_BLOCK))
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_PROBE_BYTES // _BLOCK):
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return None
        try:
            begin = time.perf_counter()
            for offset in range(0, _PROBE_BYTES, _BLOCK):
                os.preadv(fd, [buffer], offset)
            return _PROBE_BYTES / (time.perf_counter() - begin)
        except OSError:
            return None
        finally:
            os.close(fd)


def bound(
    result: Mapping[str, Any], limits: Mapping[str, float | None], storage: str
) -> tuple[str, float]:
    """The limit that binds a row, and the part of its epoch that the limit alone would take."""
    epoch = result["epoch_seconds"]
    least = {"copy": result["bytes_per_second"] * epoch / (limits.get("copy") or float("inf"))}
    if storage == "cold" and (rate := limits.get("disk")):
        least["disk"] = result["needed_bytes"] / rate
    name = max(least, key=lambda n: least[n])
    return name, least[name] / epoch
