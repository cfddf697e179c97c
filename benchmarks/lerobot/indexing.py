"""Indexing of an original: `python -m benchmarks.lerobot.indexing`, a job on stdin; prints JSON.

A tiny dataset is opened first, so that what is imported for that is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import seqrecord
from benchmarks.lerobot.cell import drop
from benchmarks.tartanair.compare.meters import usage


def main() -> None:
    """Seconds of the first opening, and the bytes that were asked of files meanwhile."""
    job: dict[str, Any] = json.load(sys.stdin)
    seqrecord.open(job["tiny"]).close()
    if job["cold"]:
        drop(job["root"])
    read = usage(os.getpid())
    begin = time.perf_counter()
    with seqrecord.open(job["root"]) as dataset:
        made: dict[str, Any] = {"seconds": time.perf_counter() - begin}
        made |= usage(os.getpid()).since(read)
        made["episodes"] = len(dataset.episodes)
    begin = time.perf_counter()
    seqrecord.open(job["root"]).close()
    made["again_seconds"] = time.perf_counter() - begin
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
