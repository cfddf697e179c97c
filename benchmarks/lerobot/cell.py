"""What is measured: windows, numbers, and how long. Needs neither lerobot nor seqrecord."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.meters import usage
from benchmarks.tartanair.compare.prepared import files_of
from benchmarks.tartanair.timing import drop_page_cache

__all__ = ["CELLS", "Cell", "drop", "measure"]


@dataclass(frozen=True)
class Cell:
    """Windows of `images` frames up to now of each camera, and of `actions` from now on."""

    images: int
    actions: int
    numbers: str  # uint8 or float: 0 to 1, channels first, as lerobot gives them

    def __str__(self) -> str:
        return f"{self.images}+{self.actions} {self.numbers}"


CELLS = tuple(Cell(images, 16, numbers) for images in (16, 2) for numbers in ("uint8", "float"))


def drop(folder: str) -> None:
    """Drop a folder's files from the page cache."""
    drop_page_cache(files_of(Path(folder)))


def measure(
    batches: Callable[[], Iterator[tuple[int, Any]]],
    seconds: float,
    *,
    warm_batches: int = 2,
    before: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Clips a second of an endless iterator of (clips, a number of them).

    The first `warm_batches` are not counted; `before` is called after them. `first_batch_seconds`
    is from the call to the first batch; `bytes_requested` is what was asked of files after those.
    """
    begin = time.perf_counter()
    iterator = batches()
    next(iterator)
    first = time.perf_counter() - begin
    for _ in range(warm_batches - 1):
        next(iterator)
    before()
    read = usage(os.getpid())
    begin = time.perf_counter()
    clips, check = 0, 0.0
    while (took := time.perf_counter() - begin) < seconds:
        count, number = next(iterator)
        clips, check = clips + count, check + float(number)
    return {
        "clips_per_second": clips / took,
        "clips": clips,
        "seconds": took,
        "first_batch_seconds": first,
        "bytes_requested": usage(os.getpid()).since(read)["bytes_requested"],
        "check": check,
    }
