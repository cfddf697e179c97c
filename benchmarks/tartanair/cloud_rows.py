"""One row of the object store benchmark, in its own process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.tartanair.backends import storage_options
from benchmarks.timing import Result, answer, drop_page_cache, source_of, touch

WRITE_BYTES = 16 << 20
REQUEST_BYTES = 12 << 20  # of the client alone; the loader's are 8 to 16 MiB
FEATURES = ("image_left", "depth_left", "flow", "mask", "seg_left")
EPISODE_FRAMES = 80  # of written episodes


def run(action: str, cores: Sequence[int] = (), **job: Any) -> Result:
    """Run an action of `ACTIONS` on these cores."""
    if cores:
        os.sched_setaffinity(0, cores)  # before any library counts them or starts threads
    return ACTIONS[action](**job)


def epoch(
    location: str,
    options: dict[str, Any] | None,
    *,
    clip_len: int,
    batch_size: int,
    memory_limit: str,
    consumer: float = 0.0,
    epochs: int = 2,
    is_mount: bool = False,
) -> Result:
    """Measure the last epoch of clips, and the first batch of the first epoch.

    Each epoch is the first one of a loader, which reads all frames: later epochs of a loader read
    only the rest that memory does not keep. `consumer` is the consumer's time per batch, in
    seconds. Before each epoch from a mount its files leave the page cache.
    """
    import seqrecord

    make_pipe = seqrecord.SeqRecordPipe  # imports torch, which takes seconds
    if is_mount:
        drop_page_cache(Path(location))
    begin = time.perf_counter()
    dataset = seqrecord.open(location, storage_options=storage_options(options))
    opened = time.perf_counter() - begin
    settings: Any = {"clip_len": clip_len, "batch_size": batch_size, "memory_limit": memory_limit}
    first: Result = {}
    result: Result = {}
    for number in range(epochs):
        if number and is_mount:
            drop_page_cache(Path(location))
        pipe = make_pipe(dataset, **settings)
        clips, start, cpu = 0, time.perf_counter(), time.process_time()
        for batch in pipe:
            first = first or {
                "first_batch_seconds": time.perf_counter() - begin,
                "opening_seconds": opened,
                "first_batch_bytes": pipe.stats()["bytes_read"],
            }
            arrays = [v for v in batch.values() if hasattr(v, "reshape") and v.ndim > 1]
            for array in arrays:
                touch(array)
            clips += len(arrays[0])
            del batch, arrays
            if consumer:
                time.sleep(consumer)
        seconds = time.perf_counter() - start
        stats = pipe.stats()
        result = {
            "seconds": seconds,
            "clips_per_second": clips / seconds,
            "cpu_seconds": time.process_time() - cpu,
            "num_cores": len(os.sched_getaffinity(0)),
            "frames": source_of(stats, is_raw=False),
            "bytes": stats["bytes_read"],
            "bytes_per_second": stats["bytes_read"] / seconds,
            "retries": stats.get("retries", 0),
            "bottleneck": stats["bottleneck"],
        }
    return {**result, **first, "peak_memory_bytes": _peak_memory()}


def client(store: dict[str, Any], objects: list[tuple[str, int]], threads: list[int]) -> Result:
    """Fetch `objects`, names and sizes, with obstore; the best number of threads counts."""
    import obstore

    opened = _store(**store)
    ranges = [
        (name, start, min(size, start + REQUEST_BYTES))
        for name, size in objects
        for start in range(0, size, REQUEST_BYTES)
    ]
    nbytes = sum(size for _, size in objects)

    def fetch(item: tuple[str, int, int]) -> None:
        name, start, stop = item
        if len(obstore.get_range(opened, name, start=start, end=stop)) != stop - start:
            raise RuntimeError(f"{name} is shorter than {stop}")

    runs: list[Result] = []
    fetch(ranges[0])  # connects
    for count in threads:
        start, before = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(fetch, ranges))
        seconds, cpu = time.perf_counter() - start, time.process_time() - before
        runs.append({"seconds": seconds, "cpu_seconds": cpu, "threads": count, "bytes": nbytes})
    best = min(runs, key=lambda run: float(run["seconds"]))
    return {**best, "bytes_per_second": nbytes / best["seconds"]}


def client_write(store: dict[str, Any], name: str, nbytes: int) -> Result:
    """Store one object from memory with obstore, in parts of 16 MiB.

    Four parts are in flight at once.
    """
    import numpy as np
    import obstore

    opened = _store(**store)
    piece = np.random.default_rng(0).bytes(WRITE_BYTES)
    start, cpu = time.perf_counter(), time.process_time()
    pieces = (piece[: nbytes - at] for at in range(0, nbytes, WRITE_BYTES))
    obstore.put(opened, name, pieces, chunk_size=WRITE_BYTES, max_concurrency=4)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes_per_second": nbytes / seconds,
        "cpu_seconds": time.process_time() - cpu,
    }


def _store(kind: str, bucket: str, **settings: Any) -> Any:
    from obstore.store import AzureStore, S3Store

    client_options: Any = {"allow_http": True}
    if kind == "azure":
        return AzureStore(container_name=bucket, client_options=client_options, **settings)
    return S3Store(bucket, client_options=client_options, **settings)


def opening(location: str, options: dict[str, Any] | None) -> Result:
    """Open a dataset in a process that has imported the package only."""
    import seqrecord

    before, start = _peak_memory(), time.perf_counter()
    frames = seqrecord.open(location, storage_options=storage_options(options)).num_frames
    return {
        "seconds": time.perf_counter() - start,
        "frames": frames,
        "peak_memory_bytes": _peak_memory(),
        "memory_before_bytes": before,
    }


def writing(
    location: str, options: dict[str, Any] | None, *, records: str, frames: int, codecs: str
) -> Result:
    """Write frames from memory, in episodes of `EPISODE_FRAMES`."""
    import seqrecord

    dataset = seqrecord.open(records, features=FEATURES)
    episode = next(iter(dataset.episodes.values()))
    sample = [episode[i] for i in range(min(EPISODE_FRAMES, len(episode) - 1))]
    nbytes = sum(array.nbytes for array in sample[0].values()) * frames
    start, cpu = time.perf_counter(), time.process_time()
    with seqrecord.SeqRecordWriter(location, codecs=codecs, storage_options=options) as writer:
        for first in range(0, frames, EPISODE_FRAMES):
            with writer.episode(f"episode {first:06d}") as made:
                for i in range(min(EPISODE_FRAMES, frames - first)):
                    made.append(sample[i % len(sample)])
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes_per_second": nbytes / seconds,
        "frame_bytes": nbytes,
        "cpu_seconds": time.process_time() - cpu,
        "peak_memory_bytes": _peak_memory(),
    }


def packing(tree: str, to: str, max_file_size: int | None) -> Result:
    """Pack a tree for the other rows."""
    import seqrecord
    from seqrecord import open_source

    source = open_source(tree, features=FEATURES, cameras=["left"])
    settings: dict[str, Any] = {"max_file_size": max_file_size} if max_file_size else {}
    seqrecord.convert(source, to, codecs="balanced", workers=1, **settings)
    return {}


def _peak_memory() -> int:
    """Peak memory of this process; `getrusage` may report its parent's."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) << 10 for x in status.splitlines() if x.startswith("VmHWM"))


ACTIONS: dict[str, Callable[..., Result]] = {
    "epoch": epoch,
    "client": client,
    "client-write": client_write,
    "open": opening,
    "write": writing,
    "pack": packing,
}

if __name__ == "__main__":
    answer(run)
