"""seqrecord's rows, each in its own process: clips of a dataset, conversion and indexing.

One pipe warms up for `seconds` and touches memory for the first time. The first epoch of a second
pipe is timed from its start, window fill included, for up to three times as long; later epochs of a
pipe would not decode frames that stay in memory. A cold epoch starts after the files were dropped
from the page cache. `opening_seconds` is the time from opening the dataset, possibly without an
index, to the first batch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from benchmarks.lerobot.cell import Cell, measure
from benchmarks.timing import Result, answer, drop_page_cache, size_of, usage

_KEPT = ("bottleneck", "frames_decoded", "video_frames_decoded", "bytes_read", "peak_buffer_bytes")


def run(do: str, **job: Any) -> Result:
    actions: dict[str, Callable[..., Result]] = {
        "clips": clips,
        "by hand": by_hand,
        "convert": converting,
        "index": indexing,
    }
    return actions[do](**job)


def clips(
    location: str,
    options: dict[str, Any] | None,
    cell: Mapping[str, Any],
    cameras: Sequence[str],
    batch: int,
    threads: int,
    memory: str,
    seconds: float,
    cold: bool,
) -> Result:
    import torch  # here: indexing alone must not import it, as memory is measured

    from seqrecord import EngineOptions

    torch.set_num_threads(threads)
    windows = Cell(**cell)

    def make_pipe() -> seqrecord.SeqRecordPipe:
        return seqrecord.SeqRecordPipe(
            dataset,
            features=[*cameras, "observation.state", "action"],
            windows={
                **dict.fromkeys(cameras, range(1 - windows.images, 1)),
                "action": range(windows.actions),
            },
            pad="edge",
            batch_size=batch,
            last_batch="drop",
            engine=EngineOptions(num_threads=threads),
            memory_limit=memory,
        )

    begin = time.perf_counter()
    dataset = seqrecord.open(location, storage_options=options)
    warming = _consumed(make_pipe(), windows, cameras)
    opened = time.perf_counter() - begin
    opened += measure(warming, seconds, warm_batches=0)["first_batch_seconds"]
    del warming
    pipe = make_pipe()
    if cold:
        drop_page_cache(Path(location))
    made = measure(_consumed(pipe, windows, cameras), 3 * seconds, warm_batches=0)
    stats = {name: value for name, value in pipe.stats().items() if name in _KEPT}
    return {**made, **stats, "opening_seconds": opened}


def by_hand(
    folder: str,
    cell: Mapping[str, Any],
    cameras: Sequence[str],
    batch: int,
    threads: int,
    seconds: float,
    cold: bool,
) -> Result:
    """Memory maps of frames decoded beforehand, copied into reused batches without a package."""
    import torch

    from benchmarks.reused import ByHand

    torch.set_num_threads(threads)
    windows = Cell(**cell)
    begin = time.perf_counter()
    ends = np.load(Path(folder) / "ends.npy")
    frames = np.arange(len(ends))
    starts = np.maximum.accumulate(np.where(np.r_[True, ends[1:] != ends[:-1]], frames, 0))
    images = np.maximum(frames[:, None] + np.arange(1 - windows.images, 1), starts[:, None])
    actions = np.minimum(frames[:, None] + np.arange(windows.actions), ends[:, None])
    rows = {**dict.fromkeys(cameras, images), "observation.state": frames[:, None]}
    rows["action"] = actions
    maps = {name: np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in rows}
    loader = ByHand(maps, rows, batch, threads=threads, drop_last=True)
    opened = time.perf_counter() - begin
    measure(_consumed(loader, windows, cameras), seconds, warm_batches=0)
    if cold:
        drop_page_cache(Path(folder))
    made = measure(_consumed(loader, windows, cameras), 3 * seconds, warm_batches=0)
    return {**made, "opening_seconds": opened}


def _consumed(
    batches: Iterable[Mapping[str, Any]], windows: Cell, cameras: Sequence[str]
) -> Iterator[tuple[int, Any]]:
    """Number of clips and one value of each batch of an epoch."""
    import torch

    floats: dict[str, torch.Tensor] = {}  # reused targets of the conversion
    for batch in batches:
        images = [batch[name] for name in cameras]
        if windows.numbers == "float":
            for name in cameras:
                channels_first = batch[name].permute(0, 1, 4, 2, 3)
                if name not in floats:
                    floats[name] = torch.empty(channels_first.shape)
                floats[name].copy_(channels_first).div_(255)
            images = [floats[name] for name in cameras]
            assert images[0].shape[1:3] == (windows.images, 3), images[0].shape
        assert images[0].shape[1] == windows.images
        yield len(images[0]), images[0][0, -1].reshape(-1)[0]


def converting(root: str, to: str) -> Result:
    """Seconds to copy the files and to convert them, including the flush to disk."""
    from benchmarks.lerobot.data import convert

    made: Result = {}
    for name, do in (("copy_seconds", shutil.copytree), ("convert_seconds", convert)):
        shutil.rmtree(to, ignore_errors=True)
        os.sync()
        begin = time.perf_counter()
        do(Path(root), Path(to))
        os.sync()
        made[name] = time.perf_counter() - begin
    made["bytes"], made["source_bytes"] = size_of(Path(to)), size_of(Path(root))
    shutil.rmtree(to)
    made["rate_to_copying"] = made["copy_seconds"] / made["convert_seconds"]
    return made


def indexing(root: str, tiny: str) -> Result:
    """Seconds of the first `open`, with files outside the page cache, and of the second.

    A tiny dataset is opened first, so that imports are not counted.
    """
    seqrecord.open(tiny).close()
    drop_page_cache(Path(root))
    read = usage(os.getpid())
    begin = time.perf_counter()
    with seqrecord.open(root) as dataset:
        made: Result = {"seconds": time.perf_counter() - begin}
        made |= usage(os.getpid()).since(read)
        made["episodes"] = len(dataset.episodes)
    begin = time.perf_counter()
    seqrecord.open(root).close()
    made["again_seconds"] = time.perf_counter() - begin
    return made


if __name__ == "__main__":
    answer(run)
