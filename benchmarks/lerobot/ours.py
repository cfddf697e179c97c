"""seqrecord's side: `python -m benchmarks.lerobot.ours RECORDS IMAGES ACTIONS NUMBERS THREADS BATCH
MEMORY`; prints a line of JSON. Times a whole epoch, with the filling of its window.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

import seqrecord
from benchmarks.lerobot.cell import Cell
from benchmarks.lerobot.generate import CAMERAS


def epoch(pipe: seqrecord.SeqRecordPipe, cell: Cell, batch: int) -> Iterator[tuple[int, Any]]:
    """The clips of each batch, and a number of it."""
    for found in pipe:
        images = [found[name] for name in CAMERAS]
        if cell.numbers == "float":
            images = [each.permute(0, 1, 4, 2, 3) / 255.0 for each in images]
            assert images[0].shape[:3] == (batch, cell.images, 3), images[0].shape
            assert images[0].dtype == torch.float32
        yield batch, images[0][0, -1].reshape(-1)[0]


def main() -> None:
    records, images, actions, numbers, threads, batch, memory = sys.argv[1:]
    cell = Cell(int(images), int(actions), numbers)
    torch.set_num_threads(2)
    pipe = seqrecord.SeqRecordPipe(
        records,
        features=[*CAMERAS, "observation.state", "action"],
        windows={
            **dict.fromkeys(CAMERAS, range(1 - cell.images, 1)),
            "action": range(cell.actions),
        },
        pad="edge",
        batch_size=int(batch),
        drop_last=True,
        num_threads=int(threads),
        memory_limit=memory,
    )
    begin = time.perf_counter()
    clips, check = 0, 0.0
    for count, number in epoch(pipe, cell, int(batch)):
        clips, check = clips + count, check + float(number)
    took = time.perf_counter() - begin
    stats = pipe.stats()
    kept = ("bottleneck", "frames_decoded", "bytes_read", "resident_bytes")
    made = {"clips_per_s": clips / took, "clips": clips, "seconds": took, "check": check}
    print(json.dumps(made | {name: stats[name] for name in kept}), flush=True)


if __name__ == "__main__":
    main()
