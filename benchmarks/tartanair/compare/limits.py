"""Upper limits of this machine, measured in alternation with each row: rates of copying clips and
reading a disk.

`python -m benchmarks.tartanair.compare.limits` measures both in a process of its own.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import answer, touch

__all__ = ["bound", "copy_rate", "disk_rate", "measure", "probe_file"]

_BLOCK = 8 << 20
_BATCH_BYTES = 256 << 20
_SOURCE_BYTES = 1 << 30
_PROBE_BYTES = 1 << 30


def measure(
    clip_nbytes: int, source_nbytes: int, threads: int, seconds: float, probe: str = ""
) -> dict[str, Any]:
    """The limits by name, the disk's only with a `probe` file."""
    source = min(_SOURCE_BYTES, source_nbytes)
    copied = copy_rate(clip_nbytes, threads=threads, seconds=seconds, source_nbytes=source)
    limits = {"copy": copied}
    if probe and (rate := disk_rate(Path(probe))):
        limits["disk"] = rate
    return limits


def copy_rate(
    clip_nbytes: int, *, threads: int, seconds: float = 2.0, source_nbytes: int = _SOURCE_BYTES
) -> float:
    """Bytes per second of copying shuffled clips from memory into reused, touched batches."""
    source = np.ones(max(source_nbytes, 2 * clip_nbytes), np.uint8)
    clips = max(1, min(_BATCH_BYTES, source_nbytes) // clip_nbytes)
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


def probe_file(path: Path) -> Path:
    """A large file for `disk_rate`, written unless it exists."""
    if not path.exists():
        block = np.random.default_rng(0).bytes(_BLOCK)
        with path.open("wb") as file:
            for _ in range(_PROBE_BYTES // _BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return path


def disk_rate(path: Path) -> float | None:
    """Bytes per second of reading a large file front to back with O_DIRECT.

    `None` if its file system does not support O_DIRECT.
    """
    buffer = mmap.mmap(-1, _BLOCK)  # page-aligned, as O_DIRECT requires
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    try:
        begin, done = time.perf_counter(), 0
        while count := os.preadv(fd, [buffer], done):
            done += count
        return done / (time.perf_counter() - begin)
    except OSError:
        return None
    finally:
        os.close(fd)


def bound(result: Mapping[str, Any]) -> tuple[str, float]:
    """The limit that binds a row, and the part of its epoch that the limit alone would take."""
    ceiling, seconds = result["ceiling"], result["seconds"]
    least = {"copy": result["bytes_per_second"] / ceiling["copy"]}
    if rate := ceiling.get("disk"):
        least["disk"] = result["needed_bytes"] / rate / seconds
    name = max(least, key=lambda n: least[n])
    return name, least[name]


if __name__ == "__main__":
    answer(measure)
