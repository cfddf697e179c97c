"""What this machine can do at best: copy clips, read a disk, read ranges of a storage."""

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

from benchmarks.tartanair.timing import touch

__all__ = ["bound", "copy_rate", "disk_rate", "range_rate"]

BLOCK = 8 << 20
_BATCH_BYTES = 256 << 20
_PROBE_BYTES = 1 << 30
_READERS = 4


def copy_rate(
    clip_nbytes: int, *, threads: int, seconds: float = 2.0, source_nbytes: int = 1 << 30
) -> float:
    """Bytes a second of shuffled clips copied from memory into reused batches, pages touched."""
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
    """Bytes a second of a large file, written for this, read front to back past the page cache.

    `None` where the folder's file system cannot do without the page cache.
    """
    buffer = mmap.mmap(-1, BLOCK)  # aligned to a page, as O_DIRECT wants
    buffer.write(np.random.default_rng(0).bytes(BLOCK))
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_PROBE_BYTES // BLOCK):
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return None
        try:
            begin = time.perf_counter()
            for offset in range(0, _PROBE_BYTES, BLOCK):
                os.preadv(fd, [buffer], offset)
            return _PROBE_BYTES / (time.perf_counter() - begin)
        except OSError:
            return None
        finally:
            os.close(fd)


def range_rate(location: str, options: Mapping[str, Any], *, seconds: float = 3.0) -> float:
    """Bytes a second of a storage's largest file, in ranges of 8 MiB that threads ask for."""
    from seqrecord.storage import open_storage
    from seqrecord.storage.ranges import ByteRange

    storage = open_storage(location, options)
    try:
        sizes = {file.path: file.size for file in storage.files("records")}
        path = max(sizes, key=lambda name: sizes[name])
        starts = iter(range(0, sizes[path], BLOCK))  # taken by all threads, under the GIL
        deadline = time.perf_counter() + seconds

        def read(buffer: memoryview) -> int:
            total = 0
            for start in starts:
                item = ByteRange(start, min(start + BLOCK, sizes[path]))
                storage.read_ranges(path, [item], [buffer[: item.length]])
                total += item.length
                if time.perf_counter() > deadline:
                    break
            return total

        begin = time.perf_counter()
        with ThreadPoolExecutor(_READERS) as pool:
            total = sum(pool.map(read, [memoryview(bytearray(BLOCK)) for _ in range(_READERS)]))
        return total / (time.perf_counter() - begin)
    finally:
        storage.close()


def bound(
    result: Mapping[str, Any], limits: Mapping[str, float | None], storage: str, stored: float
) -> tuple[str, float]:
    """The limit that binds a row, and its share: the least seconds an epoch could take of its own.

    `stored` is how many bytes of the loader's format an epoch needs at least.
    """
    epoch = result["epoch_seconds"]
    least = {"copy": result["bytes_per_second"] * epoch / (limits.get("copy") or float("inf"))}
    read = {"local": None, "cold": "disk"}.get(storage, f"range-{storage}")
    if read is not None and (rate := limits.get(read)):
        least[read] = stored / rate
    name = max(least, key=lambda n: least[n])
    return name, least[name] / epoch
