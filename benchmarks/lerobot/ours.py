"""seqrecord's side: `python -m benchmarks.lerobot.ours`, a job on stdin; prints a line of JSON.

An epoch of one pipe, which touches memory for the first time, warms up for `seconds`. The first
epoch of a second pipe is timed from its beginning, with the filling of its window, for up to three
times as long: a pipe's own later epochs would decode nothing that fits its memory. A cold epoch is
one before which the files were dropped from the page cache. `opening_seconds` are those
from opening the dataset, which may have no index, to the first batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

import seqrecord
from benchmarks.lerobot.cell import Cell, drop
from benchmarks.tartanair.compare.meters import usage
from seqrecord import EngineOptions

_KEPT = ("bottleneck", "frames_decoded", "video_frames_decoded", "bytes_read", "peak_buffer_bytes")


def epoch(
    pipe: seqrecord.SeqRecordPipe, cell: Cell, cameras: list[str], floats: dict[str, torch.Tensor]
) -> Iterator[tuple[int, Any]]:
    """The clips of each batch, and a number of it. `floats` are the tensors that it converts to."""
    for found in pipe:
        images = [found[name] for name in cameras]
        if cell.numbers == "float":
            for name in cameras:
                channels_first = found[name].permute(0, 1, 4, 2, 3)
                if name not in floats:
                    floats[name] = torch.empty(channels_first.shape)
                floats[name].copy_(channels_first).div_(255)
            images = [floats[name] for name in cameras]
            assert images[0].shape[1:3] == (cell.images, 3), images[0].shape
        assert images[0].shape[1] == cell.images
        yield len(images[0]), images[0][0, -1].reshape(-1)[0]


def run(batches: Iterator[tuple[int, Any]], seconds: float) -> dict[str, Any]:
    """Clips a second of an epoch, from its very beginning; it is cut short if it takes longer."""
    begin = time.perf_counter()
    clips, check, first, took = 0, 0.0, 0.0, 0.0
    for count, number in batches:
        clips, check = clips + count, check + float(number)
        took = time.perf_counter() - begin
        first = first or took
        if took > seconds:
            break
    return {
        "clips_per_second": clips / took,
        "clips": clips,
        "seconds": took,
        "first_batch_seconds": first,
        "check": check,
    }


def loader(dataset: seqrecord.Dataset, job: dict[str, Any], cell: Cell) -> seqrecord.SeqRecordPipe:
    return seqrecord.SeqRecordPipe(
        dataset,
        features=[*job["cameras"], "observation.state", "action"],
        windows={
            **dict.fromkeys(job["cameras"], range(1 - cell.images, 1)),
            "action": range(cell.actions),
        },
        pad="edge",
        batch_size=job["batch"],
        drop_last=True,
        engine=EngineOptions(num_threads=job["threads"]),
        memory_limit=job["memory"],
    )


def main() -> None:
    job = json.load(sys.stdin)
    cell = Cell(job["images"], job["actions"], job["numbers"])
    torch.set_num_threads(job["threads"])
    begin = time.perf_counter()
    dataset = seqrecord.open(job["location"], storage_options=job["options"])
    floats: dict[str, torch.Tensor] = {}
    warming = epoch(loader(dataset, job, cell), cell, job["cameras"], floats)
    opened = time.perf_counter() - begin
    first = run(warming, job["seconds"])
    opened += first["first_batch_seconds"]
    del warming
    pipe = loader(dataset, job, cell)
    if job["cold"]:
        drop(job["location"])
    read = usage(os.getpid())
    made = run(epoch(pipe, cell, job["cameras"], floats), 3 * job["seconds"])
    made |= {name: value for name, value in pipe.stats().items() if name in _KEPT}
    made |= usage(os.getpid()).since(read)
    print(json.dumps({**made, "opening_seconds": opened}), flush=True)


if __name__ == "__main__":
    main()
