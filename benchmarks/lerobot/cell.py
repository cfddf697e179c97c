"""Windows to measure, and the timing loop. Imports no LeRobot and no seqrecord."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import LEAST, SKIPPED, usage

__all__ = ["CELLS", "Cell", "measure"]


@dataclass(frozen=True)
class Cell:
    """Windows of `images` frames per camera up to the current one, and `actions` from it on."""

    images: int
    actions: int = 16
    numbers: str = "uint8"  # or float: 0 to 1, channels first, like lerobot's

    def __str__(self) -> str:
        return f"{self.images}+{self.actions} {self.numbers}"


CELLS = tuple(Cell(images, 16, numbers) for images in (16, 2) for numbers in ("uint8", "float"))


def measure(
    batches: Iterator[tuple[int, Any]],
    seconds: float,
    *,
    warm_batches: int = SKIPPED,
    before: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Clips per second of an iterator of (number of clips, any value), until it ends, or the time
    is over and `LEAST` batches came.

    The first `warm_batches` are not counted; `before` is called after them. `first_batch_seconds`
    starts at the call; resource usage is counted after the warm-up.
    """
    begin, first = time.perf_counter(), 0.0
    for _ in range(warm_batches):
        next(batches)
        first = first or time.perf_counter() - begin
    before()
    used, begin = usage(os.getpid()), time.perf_counter()
    clips, num_batches, check, took = 0, 0, 0.0, 0.0
    is_whole = True
    for count, number in batches:
        clips, num_batches, check = clips + count, num_batches + 1, check + float(number)
        took = time.perf_counter() - begin
        first = first or took
        if took > seconds and num_batches >= LEAST:
            is_whole = False
            break
    return {
        "clips_per_second": clips / took,
        "clips": clips,
        "batches": num_batches,
        "whole": is_whole,
        "num_cores": len(os.sched_getaffinity(0)),
        "seconds": took,
        "first_batch_seconds": first,
        "check": check,
        **usage(os.getpid()).since(used),
    }
