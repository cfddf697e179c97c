"""Predicted and measured memory while frames are resident.

`python -m tests.loader.resident_memory PATH '{"clip_len": 8, …}'` opens a dataset in one
process, in two workers of a DataLoader and in four ranks, and prints a line for each: bytes
predicted for all processes together, and bytes measured in the middle of the third epoch, in
which nothing is decoded. Measured are proportional set sizes (PSS) of memory without files, minus
the same processes' memory with a small selection.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import seqrecord
from seqrecord.loader.pipes.job_memory import predict_memory
from seqrecord.loader.pipes.options import LoaderOptions

WAYS: dict[str, dict[str, Any]] = {
    "one process": {},
    "2 workers": {"workers": 2},
    "4 ranks": {"ranks": 4},
}


def tree(pid: int | str) -> Iterator[int]:
    """A process and all its descendants."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = chain.from_iterable((task / "children").read_text().split() for task in tasks)
    yield from (int(pid), *chain.from_iterable(map(tree, children)))


def measured() -> int:
    """Bytes of memory without files, of this process and its descendants."""
    total = 0
    for pid in tree(multiprocessing.current_process().pid or 0):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon", "Pss_Shmem")):
                total += int(line.split()[1]) << 10
    return total


def begun(loader: Any) -> Iterator[Any]:
    """An iterator of a loader in the middle of its third epoch."""
    count = 0
    for _ in range(2):
        count = sum(1 for _ in loader)
    batches: Iterator[Any] = iter(loader)
    for batch in islice(batches, count // 2):
        del batch
    return batches


def wait_as_rank(pipe: seqrecord.SeqRecordPipe, barrier: Any) -> None:
    """Run one rank and wait while it is measured."""
    batches = begun(pipe)
    assert pipe.stats()["features_redecoded"] == []
    barrier.wait()
    barrier.wait()
    del batches


def memory_of(path: str, *, ranks: int = 1, workers: int = 0, **clips: Any) -> int:
    """Bytes of all processes together."""
    pipes = [seqrecord.SeqRecordPipe(path, **clips, rank=(rank, ranks)) for rank in range(ranks)]
    if ranks > 1:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(ranks + 1)
        processes = [context.Process(target=wait_as_rank, args=(pipe, barrier)) for pipe in pipes]
        for process in processes:
            process.start()
        barrier.wait()
        found = measured()
        barrier.wait()
        for process in processes:
            process.join()
        return found
    loader: Any = pipes[0]
    if workers:
        loader = DataLoader(loader, batch_size=None, num_workers=workers, persistent_workers=True)
    batches = begun(loader)
    found = measured()
    del batches, loader
    return found


def main() -> None:
    path, clips = sys.argv[1], json.loads(sys.argv[2])
    small = {**clips, "episodes": list(seqrecord.open(path).episodes)[:4]}
    for way, processes in WAYS.items():
        predicted, memory = list[int](), list[int]()
        for options in (small, clips):
            ranks, workers = processes.get("ranks", 1), processes.get("workers", 0)
            given = LoaderOptions(**options, rank=(0, ranks))
            with seqrecord.open(path) as dataset:
                predicted.append(ranks * predict_memory(dataset, given, workers=workers))
            memory.append(memory_of(path, **processes, **options))
        taken = predicted[0] + memory[1] - memory[0]
        row = {"way": way, "predicted": predicted[1], "measured": taken}
        sys.stdout.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    main()
